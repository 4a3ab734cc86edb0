package bolt

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

func reader(b []byte) io.ReaderAt { return bytes.NewReader(b) }

// asProgram has children be a script.
func asProgram(t *testing.T, script string) {
	path := filepath.Join(t.TempDir(), "child.sh")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	old := program
	program = func() (string, error) { return path, nil }
	t.Cleanup(func() { program = old })
}

func TestSalvageRunsInAChild(t *testing.T) {
	p := getPatient(t)
	dir := t.TempDir()
	from, to := filepath.Join(dir, "damaged\xff.db"), filepath.Join(dir, "new.db")
	require.NoError(t, os.WriteFile(from, p.bytes, 0o600))
	told := int64(0)
	report, err := Salvage(context.Background(), from, to, func(done, total int64) {
		require.GreaterOrEqual(t, done, told)
		require.EqualValues(t, len(p.bytes), total)
		told = done
	})
	require.NoError(t, err)
	require.EqualValues(t, len(p.bytes), told)
	require.Equal(t, p.rows, p.holds(t, report, to))
	require.Equal(t, []string{from, to}, []string{report.From, report.To})
	require.NoError(t, os.WriteFile(from, []byte("text"), 0o600))
	_, err = Salvage(context.Background(), from, filepath.Join(dir, "x.db"), nil)
	require.ErrorIs(t, err, ErrNothing)
}

func TestAChildThatFallsIsAnError(t *testing.T) {
	p := getPatient(t)
	for script, says := range map[string]string{
		"kill -SEGV $$":                   " fell (signal: ",
		"echo oops >&2; exit 7":           "oops",
		"cat /proc/self/maps; kill -9 $$": "",
		"exit 0":                          "gave no report",
		"echo garbage; exit 0":            "gave no report",
		"exec head -c 300000 /dev/zero":   "",
	} {
		t.Run(script, func(t *testing.T) {
			asProgram(t, script)
			path := filepath.Join(t.TempDir(), "keyframe.db")
			require.NoError(t, os.WriteFile(path, p.bytes[:len(p.bytes)/2], 0o600))
			_, err := Salvage(context.Background(), path, path+".new", nil)
			require.ErrorContains(t, err, says)
			require.ErrorIs(t, err, snapshot.ErrCorrupt)
			require.ErrorContains(t, err, "the child that reads it")
			_, _, err = Replace(context.Background(), path, time.Now(), nil)
			require.ErrorContains(t, err, says)
			entries, err := os.ReadDir(filepath.Dir(path))
			require.NoError(t, err)
			require.Len(t, entries, 1, "the damaged file is where it was, and nothing else")
		})
	}
}

func TestAProbeThatHangsHasFoundDamage(t *testing.T) {
	old := probeLeast
	probeLeast = 50 * time.Millisecond
	t.Cleanup(func() { probeLeast = old })
	path := filepath.Join(t.TempDir(), "keyframe.db")
	require.NoError(t, os.WriteFile(path, storeFile(t), 0o600))
	asProgram(t, "exec sleep 60")
	_, err := Open(context.Background(), path, Options{})
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
	require.ErrorContains(t, err, "doesn't come to an end")
	asProgram(t, "kill -SEGV $$")
	_, err = Open(context.Background(), path, Options{})
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
	require.ErrorContains(t, err, "bbolt falls over it")
}

func TestReplaceKeepsTheDamagedFileAside(t *testing.T) {
	p := getPatient(t)
	ctx, dir := context.Background(), t.TempDir()
	real, path := filepath.Join(dir, "real.db"), filepath.Join(dir, "keyframe.db")
	b := slices.Clone(p.bytes)
	clear(b[:2*os.Getpagesize()])
	require.NoError(t, os.WriteFile(real, b, 0o640))
	require.NoError(t, os.Symlink("real.db", path))
	now := time.Date(2026, 4, 5, 6, 7, 8, 0, time.FixedZone("x", 3600))
	report, aside, err := Replace(ctx, path, now, nil)
	require.NoError(t, err)
	require.Equal(t, real+".damaged-20260405T050708Z", aside)
	kept, err := os.ReadFile(aside)
	require.NoError(t, err)
	require.Equal(t, b, kept, "byte for byte")
	p.holds(t, report, path)
	to, err := os.Readlink(path)
	require.NoError(t, err)
	require.Equal(t, "real.db", to, "the link still leads to the store")
	all, err := Asides(real)
	require.NoError(t, err)
	require.Equal(t, []string{aside}, all)

	// A second one in the same second gets a name of its own.
	require.NoError(t, os.WriteFile(real, b, 0o600))
	_, second, err := Replace(ctx, real, now, nil)
	require.NoError(t, err)
	require.Equal(t, aside+"-2", second)
	// A file whose second name is there already, from a try that was cut short,
	// gets no third.
	require.NoError(t, os.WriteFile(real, b, 0o600))
	third := real + asideMark + "earlier"
	require.NoError(t, os.Link(real, third))
	_, got, err := Replace(ctx, real, now, nil)
	require.NoError(t, err)
	require.Equal(t, third, got)

	require.NoError(t, os.WriteFile(real, []byte("not ours"), 0o600))
	_, _, err = Replace(ctx, real, now, nil)
	require.ErrorIs(t, err, ErrNothing)
	left, err := os.ReadFile(real)
	require.NoError(t, err)
	require.Equal(t, "not ours", string(left))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		require.False(t, strings.Contains(e.Name(), newSuffix), e.Name())
	}
}
