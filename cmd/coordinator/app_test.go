package main

import (
	"bytes"
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/coordinator/fault"
)

func TestEveryCodeHasItsExitCode(t *testing.T) {
	want := map[string]int{
		"usage": 2, "config": 2, "problems": 3,
		"no_job": 4, "no_checkpoint": 4, "no_key": 4, "no_operation": 4,
		"busy": 5, "refused": 5, "no_state": 5, "state_lost": 5, "denied": 5, "no_daemon": 6,
		"permission": 1, "unreachable": 1, "corrupt": 1, "store": 1, "failed": 1, "too_large": 1, "internal": 1,
	}
	file, err := parser.ParseFile(token.NewFileSet(), "../../coordinator/fault/fault.go", nil, 0)
	require.NoError(t, err)
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); !ok || id.Name != "Code" {
			return true
		}
		code, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		require.NoError(t, err)
		exit, known := want[code]
		require.True(t, known, "code %s is not in the table", code)
		require.Equal(t, exit, ExitCode(fault.New(fault.Code(code), "", "m")), code)
		found++
		return true
	})
	require.Equal(t, len(want), found)
	require.Equal(t, 0, ExitCode(nil))
	require.Equal(t, 1, ExitCode(errors.New("plain")))
	require.Equal(t, 3, ExitCode(told(fault.Problems, "said")))
}

func TestArrange(t *testing.T) {
	c := (&shell{t: t}).app(&bytes.Buffer{}, &bytes.Buffer{}).cli()
	for line, want := range map[string]string{
		"coordinator":                                           "coordinator",
		"coordinator job list":                                  "coordinator job list",
		"coordinator -o json job list":                          "coordinator job list -o json",
		"coordinator job -o=json list":                          "coordinator job list -o=json",
		"coordinator job show flights -o json":                  "coordinator job show -o json -- flights",
		"coordinator checkpoint show flights --addr h:1 7":      "coordinator checkpoint show --addr h:1 -- flights 7",
		"coordinator rescale flights --parallelism -3 --yes":    "coordinator rescale --parallelism -3 --yes -- flights",
		"coordinator rescale -p 3 flights --yes --dry-run":      "coordinator rescale -p 3 --yes --dry-run -- flights",
		"coordinator keygroup flights -5 -1.5e3":                "coordinator keygroup -- flights -5 -1.5e3",
		"coordinator keygroup flights -- --key -o json":         "coordinator keygroup -- flights --key -o json",
		"coordinator keygroup -- -- a":                          "coordinator keygroup -- -- a",
		"coordinator job apply -f -":                            "coordinator job apply -f -",
		"coordinator job apply -f":                              "coordinator job apply -f",
		"coordinator checkpoint create flights --wait=false -x": "coordinator checkpoint create --wait=false -x -- flights",
		"coordinator checkpoint list list":                      "coordinator checkpoint list -- list",
		"coordinator nothing job list":                          "coordinator -- nothing job list",
		"coordinator job nothing -o json":                       "coordinator job -o json -- nothing",
	} {
		require.Equal(t, want, strings.Join(arrange(c, strings.Fields(line)), " "), line)
	}
	require.Equal(t, []string{"coordinator"}, arrange(c, nil))
}

// TestArrangeLosesNothing: whatever the order, the same words come out, and
// what follows "--" stays as it is.
func TestArrangeLosesNothing(t *testing.T) {
	c := (&shell{t: t}).app(&bytes.Buffer{}, &bytes.Buffer{}).cli()
	words := rapid.SampledFrom([]string{"job", "show", "restore", "--yes", "--dry-run", "-o", "json", "--output=json", "flights", "-7", "-", "", "--addr", "x"})
	rapid.Check(t, func(t *rapid.T) {
		before := rapid.SliceOf(words).Draw(t, "before")
		after := rapid.SliceOf(words).Draw(t, "after")
		// A flag right before "--" would take it for its value, as in any shell.
		args := append(append([]string{"coordinator"}, before...), "word")
		if rapid.Bool().Draw(t, "dashes") {
			args = append(append(args, "--"), after...)
		} else {
			after = nil
		}
		got := arrange(c, args)
		require.ElementsMatch(t, without(args, "--"), without(got, "--"))
		require.True(t, slices.Equal(after, got[len(got)-len(after):]), "%q", got)
	})
}

func without(words []string, word string) []string {
	var kept []string
	for _, w := range words {
		if w != word {
			kept = append(kept, w)
		}
	}
	return kept
}

func TestWantsJSON(t *testing.T) {
	for line, want := range map[string]bool{
		"c -o json": true, "c -o=json": true, "c --output json": true, "c --output=json": true, "c --bogus -o json": true,
		"c": false, "c -o table": false, "c -o": false, "c -- -o json": false, "c json": false, "c o json": false,
	} {
		require.Equal(t, want, wantsJSON(strings.Fields(line)), line)
	}
}

var wrongUsage = map[string]string{
	"nothing":                        `no command "nothing"`,
	"rekey flights":                  `no command "rekey"`,
	"job nothing":                    "`coordinator job` has no command \"nothing\"",
	"store shrink":                   "`coordinator store` has no command \"shrink\"",
	"job show":                       "missing argument JOB",
	"job show a b":                   `unexpected argument "b"`,
	"job list a":                     `unexpected argument "a"`,
	"job apply":                      "missing flag -f",
	"job apply -f":                   "flag needs an argument",
	"job show a --bogus":             "not defined: -bogus",
	"job show -x a":                  "not defined: -x",
	"checkpoint pin a":               "missing argument ID",
	"rescale a":                      "missing flag --parallelism",
	"rescale a -p three":             "three",
	"rescale a -p 0":                 "parallelism 0",
	"rescale a --parallelism -3":     "parallelism -3",
	"rescale a -p 3 --split half":    `split "half"`,
	"rescale a -p 3 --broadcast x=1": `broadcast choice "x=1"`,
	"rescale a -p 3 --broadcast o/x": `broadcast choice "o/x"`,
	"checkpoint create a --grade x":  `grade "x"`,
	"checkpoint create a --name=":    "name is empty",
	"keygroup":                       "missing argument JOB or KEY",
	"keygroup a":                     "missing argument JOB or KEY",
	"keygroup a b --parallelism 2":   "only one of",
	"keygroup a b --hash flink":      "--hash and --ranges",
	"keygroup --max-parallelism 10 --parallelism 2":              "missing argument KEY",
	"keygroup a --max-parallelism 10 --parallelism 11":           "11",
	"keygroup a --max-parallelism 0 --parallelism 1":             "0",
	"keygroup a --max-parallelism 32769 --parallelism 1":         "32769",
	"keygroup a --max-parallelism 9 --parallelism 1 --hash md5":  "md5",
	"keygroup a --max-parallelism 9 --parallelism 1 --ranges up": "up",
	"config check":              "missing argument FILE",
	"discover x":                `unexpected argument "x"`,
	"version x":                 `unexpected argument "x"`,
	"job list --addr ftp://h":   `"ftp://h"`,
	"job list --addr http://":   `"http://"`,
	"discover --password-env X": `"X" is empty`,
}

func TestUsageErrors(t *testing.T) {
	s := newShell(t, "http://127.0.0.1:1") // nothing may be asked
	for line, message := range wrongUsage {
		f := s.refused(exitUsage, strings.Fields(line)...)
		require.Contains(t, []fault.Code{fault.Usage, fault.Config}, f.Code, line)
		require.Contains(t, f.Message, message, line)
	}
	f := s.refused(exitUsage, "job", "show", "")
	require.Equal(t, "argument JOB is empty", f.Message)
	require.Equal(t, "usage: coordinator job show JOB", f.Hint)
	r := s.run("job", "list", "-o", "yaml")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.err, `output "yaml"`)
}

func TestHelpIsOnStdoutAndNothingFails(t *testing.T) {
	s := newShell(t, "http://127.0.0.1:1")
	for _, line := range []string{"", "help", "--help", "-h", "job", "job --help", "restore --help", "checkpoint create -h", "help restore"} {
		r := s.run(strings.Fields(line)...)
		require.Equal(t, exitDone, r.code, "%s: %s", line, r.err)
		require.Empty(t, r.err, line)
		require.Contains(t, r.out, "coordinator", line)
		require.NotContains(t, r.out, "\x1b[", line)
	}
	all := s.ok("help")
	for _, command := range []string{"run", "demo", "discover", "config", "job", "checkpoint", "restore", "rescale", "undo", "drill", "keygroup", "store", "version"} {
		require.Regexp(t, `(?m)^   `+command+`\b`, all)
	}
	require.Contains(t, s.ok("restore", "--help"), "--dry-run")
	require.Contains(t, s.ok("job", "list", "--help"), "--addr")
}

func TestNoDaemonThere(t *testing.T) {
	addr := "http://" + freeAddr(t)
	s := newShell(t, addr)
	for _, line := range []string{
		"job list", "job show help", "job pause j", "checkpoint list h", "checkpoint show j 7", "checkpoint verify j", "checkpoint create j", "checkpoint delete j 1",
		"restore j", "rescale j -p 3", "undo j", "keygroup j k", "store stats", "store verify", "store compact", "store backup /copy.db", "job delete j",
	} {
		f := s.refused(exitNoDaemon, strings.Fields(line)...)
		require.Equal(t, fault.NoDaemon, f.Code, line)
		require.Contains(t, f.Message, addr, line)
		require.Contains(t, f.Hint, "coordinator run", line)
	}
	// The flag counts before the environment, the environment before the default.
	require.Contains(t, s.refused(exitNoDaemon, "job", "list", "--addr", "127.0.0.1:1").Message, "127.0.0.1:1:")
	s.env = nil
	if r := s.run("job", "list"); r.code != exitDone { // somebody may run one on this machine
		require.Contains(t, r.err, "7070")
	}
}

func TestCommandsThatNeedNoDaemon(t *testing.T) {
	s := newShell(t, "http://127.0.0.1:1")
	require.Contains(t, s.ok("version"), "checkpoint format 2")
	v := s.object("version")
	require.Len(t, v, 3)
	require.InDelta(t, 2, v["format"], 0)
	require.Equal(t, versionText(), v["version"])

	// The documents' example: "a" is 97, key group 7 of 10. Flags stand anywhere.
	for _, line := range []string{
		"keygroup a b --max-parallelism 10 --parallelism 3 -o json", "keygroup --max-parallelism=10 a --parallelism=3 b --output=json",
		"-o json keygroup --parallelism 3 --max-parallelism 10 --hash java -- a b",
	} {
		var places []map[string]any
		one(t, s.ok(strings.Fields(line)...), &places)
		require.Equal(t, []map[string]any{
			{"key": "a", "hash": 97.0, "group": 7.0, "subtask": 2.0}, {"key": "b", "hash": 98.0, "group": 8.0, "subtask": 2.0},
		}, places)
	}
	var places []map[string]any
	one(t, s.ok("keygroup", "-5", "", "--max-parallelism", "10", "--parallelism", "3", "-o=json", "--", "--hash", "-o"), &places)
	require.Equal(t, []any{"-5", "", "--hash", "-o"}, []any{places[0]["key"], places[1]["key"], places[2]["key"], places[3]["key"]})
	one(t, s.ok(strings.Fields("keygroup a --max-parallelism 128 --parallelism 4 --hash flink --ranges flink -o json")...), &places)
	require.NotEqual(t, 97.0, places[0]["group"])
	table := s.ok(strings.Fields("keygroup a --max-parallelism 10 --parallelism 3")...)
	require.Contains(t, table, "SUBTASK")
	require.Regexp(t, `a +97 +7 +2`, table)
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := newShell(t, "http://127.0.0.1:1").runIn(ctx, "job", "list")
	require.Equal(t, exitFailed, r.code)
	require.Equal(t, "error: interrupted\n", r.err)
}
