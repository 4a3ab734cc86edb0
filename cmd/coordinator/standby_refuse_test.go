package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
)

// TestAStandbyAnswersByItsLeader: whatever the command needs first, exit code 5
// and the leader's address; and what is the standby's own says that it is.
func TestAStandbyAnswersByItsLeader(t *testing.T) {
	r := startRedis(t)
	put(t, r.URL(), "flights", 130, "v")
	a := beside(t, r, filepath.Join(t.TempDir(), "a.db"), "10s")
	a.health("flights", "ok")
	a.ok("checkpoint", "create", "flights")
	b := beside(t, r, filepath.Join(t.TempDir(), "b.db"), "10s")
	b.health("flights", "standby")
	before := kept(t, r)
	for _, line := range []string{
		"restore flights --dry-run", "restore flights --yes", "rescale flights -p 3 --yes", "undo flights --yes", "checkpoint create flights",
		"checkpoint create flights --name before-x", "job adopt flights --yes", "job unmark flights --yes", "drill flights",
		"checkpoint pin flights 1", "checkpoint accept flights 1", "checkpoint delete flights 1 --yes", "checkpoint verify flights 1", "checkpoint show flights 1",
	} {
		f := b.refused(exitRefused, strings.Fields(line)...)
		require.Equal(t, fault.Refused, f.Code, line)
		for _, part := range []string{"stands by", a.addr, "token 1", `job "flights"`} {
			require.Contains(t, f.Message, part, line)
		}
		require.Contains(t, f.Hint, "--addr "+a.addr, line)
	}
	require.Equal(t, before, kept(t, r))
	for _, line := range []string{"job pause flights", "job resume flights", "job delete flights --yes"} {
		out := b.ok(strings.Fields(line)...)
		require.Contains(t, out, "only stands by", line)
		require.Contains(t, out, "--addr", line)
		require.Contains(t, out, a.addr, line)
		require.NotContains(t, a.ok("job", "show", "flights"), "paused", line)
	}
	require.NotContains(t, a.ok("job", "pause", "flights"), "stands by")
}

// TestABenchBesideACoordinator: a job that is led is measured all the same, and
// a scratch copy beside it is none of the leader's business.
func TestABenchBesideACoordinator(t *testing.T) {
	r := startRedis(t)
	put(t, r.URL(), "flights", 130, "v")
	a := beside(t, r, filepath.Join(t.TempDir(), "a.db"), "2s")
	a.health("flights", "ok")
	a.ok("checkpoint", "create", "flights")
	term, before := a.leader(), kept(t, r)
	a.env["PW"] = testPassword
	for _, more := range []string{"", " --write"} {
		line := "bench --pairs 1 --password-env PW --redis redis://" + r.Addr + "/0 --job flights --prefix streaming:runtime" + more
		require.Contains(t, a.ok(strings.Fields(line)...), "full durable checkpoint", line)
		require.Equal(t, before, kept(t, r), line)
		require.Equal(t, term["token"], a.leader()["token"], line)
	}
	require.NotContains(t, a.log.String(), "deposed")
	shown := a.object("checkpoint", "create", "flights")
	require.Equal(t, true, shown["incremental"], "the leader's tracking went on: %v", shown)
	a.health("flights", "ok")
}
