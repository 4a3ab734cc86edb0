package redis

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/statebackend"
)

// CheckCut refuses what a cut would refuse, and leaves no trace.
func TestCheckCut(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	req := statebackend.CutRequest{Job: testJob}
	require.ErrorIs(t, b.CheckCut(t.Context(), req), statebackend.ErrNoState)
	fillJob(t, c, testJob, "seed")
	require.NoError(t, c.HSet(t.Context(), testJob.Record(), "attempt", "40").Err())
	before := c.Do(t.Context(), "DEBUG", "DIGEST").Val()
	require.NoError(t, b.CheckCut(t.Context(), req))
	require.Equal(t, before, c.Do(t.Context(), "DEBUG", "DIGEST").Val())
	requireUnpaused(t, c)
	require.Empty(t, b.tracks.started)

	require.ErrorIs(t, b.CheckCut(t.Context(), statebackend.CutRequest{Job: testJob, Grade: "fenced"}), statebackend.ErrGrade)
	require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "reader", "on", ">pw", "allcommands", "-client|pause", "allkeys").Err())
	denied, err := Open(t.Context(), Config{URL: "redis://reader:pw@" + s.Addr})
	require.NoError(t, err)
	defer func() { require.NoError(t, denied.Close()) }()
	err = denied.CheckCut(t.Context(), req)
	require.ErrorIs(t, err, statebackend.ErrPermission)
	require.ErrorContains(t, err, "+client|pause")

	other := redistest.Start(t)
	require.NoError(t, c.Do(t.Context(), "REPLICAOF", "127.0.0.1", other.Addr[len("127.0.0.1:"):]).Err())
	require.ErrorIs(t, b.CheckCut(t.Context(), req), statebackend.ErrReadOnly)
}

// Purge removes all under one root and nothing beside it.
func TestPurge(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	gone := statebackend.Job{Prefix: "a*", Name: "b[x]?"}
	for i := range 2_500 { // more than a walk's step
		require.NoError(t, c.Set(t.Context(), fmt.Sprintf("%s:left over %d", gone.Root(), i), i, 0).Err())
	}
	near := []string{"a*:b[x]?", "a*:b[x]?y:stateKeys", "ab:bx!:stateKeys", "x:a*:b[x]?:stateKeys"}
	for _, name := range near {
		require.NoError(t, c.Set(t.Context(), name, "stays", 0).Err())
	}
	n, err := b.Purge(t.Context(), gone)
	require.NoError(t, err)
	require.EqualValues(t, 2_500, n)
	require.ElementsMatch(t, near, c.Keys(t.Context(), "*").Val())
	n, err = b.Purge(t.Context(), gone)
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = b.Purge(t.Context(), statebackend.Job{Prefix: "a"})
	require.ErrorContains(t, err, "job name is empty")
}

func TestTell(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	require.NoError(t, c.MSet(t.Context(), "a", 1, "b", 2, "c", 3).Err())
	require.NoError(t, c.ConfigSet(t.Context(), "repl-diskless-sync-delay", "7").Err())
	require.NoError(t, c.ConfigSet(t.Context(), "repl-diskless-sync", "yes").Err())
	tells, err := b.Tell(t.Context())
	require.NoError(t, err)
	require.Equal(t, Tells{Keys: 3, SyncDelay: 7 * time.Second, SyncKnown: true}, tells)

	require.NoError(t, c.ConfigSet(t.Context(), "repl-diskless-sync", "no").Err())
	tells, err = b.Tell(t.Context())
	require.NoError(t, err)
	require.Equal(t, Tells{Keys: 3, SyncKnown: true}, tells, "an RDB by way of the disk is begun at once")

	require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "plain", "on", ">pw", "allcommands", "-config", "allkeys").Err())
	denied, err := Open(t.Context(), Config{URL: "redis://plain:pw@" + s.Addr})
	require.NoError(t, err)
	defer func() { require.NoError(t, denied.Close()) }()
	tells, err = denied.Tell(t.Context())
	require.NoError(t, err)
	require.Equal(t, Tells{Keys: 3}, tells)
}
