package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
)

func TestBenchUsage(t *testing.T) {
	s := newShell(t, "http://127.0.0.1:1")
	for line, message := range map[string]string{
		"bench x":                `unexpected argument "x"`,
		"bench --only speed":     `--only "speed": want some of checkpoint`,
		"bench --data D4":        `--data "D4": want some of D1`,
		"bench --pairs 0":        "pairs 0",
		"bench --write":          "--write without --redis",
		"bench --job flights":    "--job without --redis",
		"bench --password-env P": "--password-env without --redis",
		"bench --max-pause 1s":   "--max-pause without --redis",
		"bench --redis redis://127.0.0.1:1 --only memory":              "--only with --redis",
		"bench --redis redis://127.0.0.1:1 --data D1":                  "--data with --redis",
		"bench --redis redis://127.0.0.1:1 --prefix p":                 "--prefix without --job",
		"bench --redis redis://127.0.0.1:1 --max-pause -1s":            "max-pause -1s",
		"bench --redis redis://127.0.0.1:1 --max-pause soon":           "soon",
		"bench --redis redis://127.0.0.1:1 --password-env X":           `"X" is empty`,
		"bench --redis redis://127.0.0.1:1 --password-file /no/file":   `"/no/file"`,
		"bench --redis http://127.0.0.1:1":                             `"http"`,
		"bench --redis rediss://127.0.0.1:1 --ca-file /no/file":        "/no/file",
		"bench --redis r --password-env X --password-file /no/file":    "both --password-env and --password-file",
		"bench --redis redis://127.0.0.1:1 --cert-file a --key-file b": "doesn't use TLS",
	} {
		f := s.refused(exitUsage, strings.Fields(line)...)
		require.Contains(t, []fault.Code{fault.Usage, fault.Config}, f.Code, line)
		require.Contains(t, f.Message, message, line)
	}
	s.env["BENCH"] = "huge"
	require.Contains(t, s.refused(exitUsage, "bench").Message, `BENCH="huge"`)
}

// In-process: chunks need neither a server nor a child.
func TestBenchProfilesAndWritesFiles(t *testing.T) {
	s := newShell(t, "http://127.0.0.1:1")
	s.env["BENCH"] = "quick"
	dir := t.TempDir()
	profile, results := filepath.Join(dir, "cpu.prof"), filepath.Join(dir, "results.md")
	out := s.ok("bench", "--only", "chunks", "--cpuprofile", profile, "--results", results)
	require.Contains(t, out, "chunk encoding")
	table, err := os.ReadFile(results)
	require.NoError(t, err)
	require.Contains(t, string(table), "# Results of `make bench`\n")
	info, err := os.Stat(profile)
	require.NoError(t, err)
	require.Positive(t, info.Size())

	s.terminal = true
	r := s.run("bench", "--only", "chunks", "--json", filepath.Join(dir, "no", "folder.json"))
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.err, "chunks\n", "what is being done is shown on a terminal")
	require.Contains(t, r.err, "write the figures to")
}
