package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/internal/redistest"
)

// beside runs a coordinator on a server, with a store file and a lease.
func beside(t *testing.T, r *redistest.Server, store, ttl string) *process {
	t.Helper()
	return launch(t, besideConfig(t, r, store, ttl))
}

// besideConfig is the configuration of such a coordinator.
func besideConfig(t *testing.T, r *redistest.Server, store, ttl string) string {
	t.Helper()
	password := write(t, "password", testPassword+"\n")
	return fmt.Sprintf("redis: {url: 'redis://%s/0', passwordFile: %q}\nstore: {path: %q}\napi: {listen: %q}\nlease: {ttl: %s}\nlog: {json: true}\n%s\n",
		r.Addr, password, store, freeAddr(t), ttl, flightsJob)
}

// health waits until the job is in that state.
func (p *process) health(job, want string) {
	p.t.Helper()
	(&service{shell: p.shell}).health(job, want)
}

// leader asks a coordinator who leads.
func (p *process) leader() map[string]any {
	p.t.Helper()
	l, _ := p.object("job", "show", "flights")["leader"].(map[string]any) // nil while nobody does
	return l
}

// kept is everything in the server but the lease, as text.
func kept(t *testing.T, r *redistest.Server) map[string]string {
	t.Helper()
	all := map[string]string{}
	c, ctx := r.Client(), t.Context()
	iter := c.Scan(ctx, 0, "", 1000).Iterator()
	for iter.Next(ctx) {
		if name := iter.Val(); !strings.HasSuffix(name, ":coordinator:lease") {
			all[name] = fmt.Sprintf("%x", c.Dump(ctx, name).Val())
		}
	}
	require.NoError(t, iter.Err())
	return all
}

// TestAStoppedLeaderStepsDown: SIGSTOP for longer than the lease, another one
// restores, SIGCONT: the first writes nothing more.
func TestAStoppedLeaderStepsDown(t *testing.T) {
	r := startRedis(t)
	put(t, r.URL(), "flights", 130, "v")
	a := beside(t, r, filepath.Join(t.TempDir(), "a.db"), "2s")
	a.health("flights", "ok")
	a.ok("checkpoint", "create", "flights")
	require.Contains(t, a.ok("job", "show", "flights"), "this coordinator")
	require.Contains(t, a.ok("job", "list"), "me")
	b := beside(t, r, filepath.Join(t.TempDir(), "b.db"), "2s")
	b.health("flights", "standby")
	require.Equal(t, a.leader()["id"], b.leader()["id"])
	require.Equal(t, a.addr, b.leader()["address"])
	require.Contains(t, b.ok("job", "show", "flights"), "another coordinator")
	require.Contains(t, b.ok("job", "list"), a.addr)
	for _, line := range []string{"checkpoint create flights", "job adopt flights --yes", "job unmark flights --yes"} {
		f := b.refused(exitRefused, strings.Fields(line)...)
		require.Equal(t, fault.Refused, f.Code, line)
		require.Contains(t, f.Message, a.addr, line)
	}

	a.signal(syscall.SIGSTOP)
	b.health("flights", "ok")
	require.InDelta(t, 2, b.leader()["token"], 0)
	b.ok("checkpoint", "create", "flights")
	put(t, r.URL(), "flights", 130, "later")
	b.ok("restore", "flights", "--yes")
	before := kept(t, r)
	a.signal(syscall.SIGCONT)
	a.line(`"event":"deposed"`)
	a.health("flights", "standby")
	require.Eventually(t, func() bool {
		id := b.leader()["id"]
		return id != nil && id == a.leader()["id"]
	}, 20*time.Second, 20*time.Millisecond)
	require.Equal(t, fault.Refused, a.refused(exitRefused, "checkpoint", "create", "flights").Code)
	require.Equal(t, exitRefused, a.run("restore", "flights", "--yes").code)
	require.True(t, maps.Equal(before, kept(t, r)), "it has written nothing")
	b.health("flights", "ok")

	// Who stops gives its lease back: the other one need not wait for its end.
	b.signal(syscall.SIGTERM)
	require.Equal(t, 0, b.exit())
	require.Empty(t, r.Client().HGet(t.Context(), "streaming:runtime:flights:coordinator:lease", "holder").Val())
	a.health("flights", "ok")
	require.InDelta(t, 3, a.leader()["token"], 0)
	a.ok("checkpoint", "create", "flights")
}

// TestAKilledCoordinatorComesBackAtOnce: its lease would last ten minutes.
func TestAKilledCoordinatorComesBackAtOnce(t *testing.T) {
	r := startRedis(t)
	put(t, r.URL(), "flights", 130, "v")
	store := filepath.Join(t.TempDir(), "a.db")
	a := beside(t, r, store, "10m")
	a.health("flights", "ok")
	a.signal(syscall.SIGKILL)
	<-a.done
	other := beside(t, r, filepath.Join(t.TempDir(), "b.db"), "10m")
	other.health("flights", "standby")
	began := time.Now()
	again := beside(t, r, store, "10m")
	again.health("flights", "ok")
	require.Less(t, time.Since(began), time.Minute)
	require.InDelta(t, 2, again.leader()["token"], 0)
	again.ok("checkpoint", "create", "flights")
	other.health("flights", "standby")
}
