package coordinator

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

// leaser is a coordinator on a server that others are on too.
type leaser struct {
	*world
	user *redis.Backend
}

func newLeaser(t *testing.T, srv *redistest.Server, url string, l *leases) *leaser {
	t.Helper()
	return newLeaserFor(t, url, l, 600*time.Millisecond)
}

func newLeaserFor(t *testing.T, url string, l *leases, ttl time.Duration) *leaser {
	t.Helper()
	b, err := redis.Open(t.Context(), redis.Config{URL: url, Tracking: redis.TrackOff})
	require.NoError(t, err)
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "keyframe.db"), bolt.Options{})
	require.NoError(t, err)
	w := &leaser{world: &world{t: t, db: db}, user: b}
	o := Options{Store: db, Journal: db.Journal(), Backend: b, Listener: w, Poll: 10 * time.Millisecond, Lease: Lease{TTL: ttl}}
	if l != nil {
		l.Backend, o.Backend = b, l
	}
	w.c = New(o)
	require.NoError(t, w.c.Start(t.Context()))
	t.Cleanup(func() {
		w.close()
		require.NoError(t, b.Close())
	})
	return w
}

func (w *leaser) put(value string) {
	w.t.Helper()
	key := testJob("flights").Key()
	name := key.StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: 3, Operator: "count"}, "total")
	cmds := []statebackend.Cmd{statebackend.Command(statebackend.OpSAdd, key.Index(), name)}
	for i := range 150 {
		cmds = append(cmds, statebackend.Command(statebackend.OpHSet, name, "s:key-"+string(rune('a'+i)), `"`+value+`"`))
	}
	_, err := w.user.Do(w.t.Context(), cmds...)
	require.NoError(w.t, err)
}

func (w *leaser) is(state HealthState) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return w.job("flights").Health.State == state }, 20*time.Second, time.Millisecond,
		"want %s", state)
}

// TestTwoCoordinatorsOnOneRedis: the leader can't reach its lease any more
// while it restores, the other one takes over, and the late flip does nothing.
func TestTwoCoordinatorsOnOneRedis(t *testing.T) {
	srv := redistest.Start(t)
	l, reached, goOn := &leases{}, make(chan struct{}, 1), make(chan struct{})
	l.beforeIt = func() {
		reached <- struct{}{}
		<-goOn
	}
	a, b := newLeaser(t, srv, srv.URL(), l), newLeaser(t, srv, srv.URL(), nil)
	a.put("old")
	ctx := context.Background()
	_, err := a.c.Apply(ctx, testJob("flights"))
	require.NoError(t, err)
	a.is(HealthOK)
	_, err = b.c.Apply(ctx, testJob("flights"))
	require.NoError(t, err)
	b.is(HealthStandby)
	old := a.checkpoint("flights")
	a.put("new")
	op, err := a.c.Restore(ctx, "flights", RestoreRequest{Checkpoint: old.ID.String(), NoUndo: true})
	require.NoError(t, err)
	<-reached
	l.fail(context.DeadlineExceeded)
	b.is(HealthOK) // what was marked by a is ended, and nothing of it is left
	record := srv.Client().HGetAll(ctx, testJob("flights").Key().Record()).Val()
	require.NotContains(t, record, "restore")
	l.fail(nil)
	close(goOn)
	s := a.failed(op, nil)
	require.Contains(t, s.Error.Message, "nothing was changed")
	a.is(HealthStandby)
	require.Equal(t, record, srv.Client().HGetAll(ctx, testJob("flights").Key().Record()).Val())
	staged, err := srv.Client().Keys(ctx, "*:stage:*").Result()
	require.NoError(t, err)
	require.Empty(t, staged)
	b.checkpoint("flights")
	require.Greater(t, b.job("flights").Leader.Token, uint64(1))
}

// TestALeaseThatIsDenied: the right to run scripts is taken away and given back.
func TestALeaseThatIsDenied(t *testing.T) {
	srv := redistest.Start(t)
	c, ctx := srv.Client(), context.Background()
	rights := func(words ...any) {
		require.NoError(t, c.Do(ctx, append([]any{"ACL", "SETUSER", "keyframe"}, words...)...).Err())
	}
	rights("on", ">secret", "~*", "+@all")
	w := newLeaser(t, srv, "redis://keyframe:secret@"+srv.Addr+"/0", nil)
	w.put("v")
	_, err := w.c.Apply(ctx, testJob("flights"))
	require.NoError(t, err)
	w.is(HealthOK)
	rights("-eval")
	w.is(HealthDenied)
	require.Eventually(t, func() bool { return w.job("flights").Leader == nil || !w.job("flights").Leader.Me }, 10*time.Second, time.Millisecond)
	require.Contains(t, w.job("flights").Health.Message, "eval")
	rights("+eval")
	w.is(HealthOK)
	w.checkpoint("flights")
}

// TestALongPauseOfTheServersWriters: nobody can renew a lease then, and nobody
// can take it either.
func TestALongPauseOfTheServersWriters(t *testing.T) {
	srv := redistest.Start(t)
	c, ctx := srv.Client(), context.Background()
	// Long enough that a leader is not overtaken by a busy machine instead.
	const ttl = 2 * time.Second
	a, b := newLeaserFor(t, srv.URL(), nil, ttl), newLeaserFor(t, srv.URL(), nil, ttl)
	a.put("v")
	_, err := a.c.Apply(ctx, testJob("flights"))
	require.NoError(t, err)
	a.is(HealthOK)
	require.NoError(t, c.Do(ctx, "CLIENT", "PAUSE", (2*ttl).Milliseconds(), "WRITE").Err())
	_, err = b.c.Apply(ctx, testJob("flights"))
	require.NoError(t, err)
	require.Never(t, func() bool {
		first, second := a.job("flights").Leader, b.job("flights").Leader
		return first == nil || !first.Me || second != nil && second.Me
	}, 3*ttl/2, 5*time.Millisecond)
	require.Empty(t, a.seen(EventDeposed))
}

// TestALeaseOfAServerThatCameBackEmpty: the token doesn't go back.
func TestALeaseOfAServerThatCameBackEmpty(t *testing.T) {
	srv := redistest.Start(t)
	w := newLeaser(t, srv, srv.URL(), nil)
	w.put("v")
	_, err := w.c.Apply(context.Background(), testJob("flights"))
	require.NoError(t, err)
	w.is(HealthOK)
	w.checkpoint("flights")
	srv.RestartEmpty()
	require.Eventually(t, func() bool { return len(w.seen(EventRecovered)) == 1 }, 20*time.Second, time.Millisecond)
	w.is(HealthOK)
	require.Equal(t, uint64(2), w.job("flights").Leader.Token)
	w.checkpoint("flights")
}
