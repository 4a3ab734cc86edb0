package coordinator

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

// asks are all that changes a job, or needs one of its checkpoints.
func (w *world) asks(ctx context.Context, job string) map[string]func() error {
	c := w.c
	op := func(_ *Operation, err error) error { return err }
	return map[string]func() error{
		"checkpoint":   func() error { return op(c.Checkpoint(ctx, job, CheckpointRequest{})) },
		"plan restore": func() error { _, err := c.PlanRestore(ctx, job, RestoreRequest{}); return err },
		"restore":      func() error { return op(c.Restore(ctx, job, RestoreRequest{Checkpoint: "1"})) },
		"plan rescale": func() error { _, err := c.PlanRescale(ctx, job, RescaleRequest{Parallelism: 3}); return err },
		"rescale":      func() error { return op(c.Rescale(ctx, job, RescaleRequest{Parallelism: 3})) },
		"undo":         func() error { return op(c.Undo(ctx, job)) },
		"unmark":       func() error { return op(c.Unmark(ctx, job)) },
		"adopt":        func() error { return op(c.Adopt(ctx, job)) },
		"drill":        func() error { return op(c.Drill(ctx, job, "")) },
		"verify":       func() error { return op(c.Verify(ctx, job, "latest-one")) },
		"show":         func() error { _, err := c.Resolve(ctx, job, ""); return err },
		"pin":          func() error { _, err := c.Pin(ctx, job, 1, true); return err },
		"accept":       func() error { _, err := c.Accept(ctx, job, 1, ""); return err },
		"delete":       func() error { return c.DeleteCheckpoint(ctx, job, 1, true) },
	}
}

// TestAStandbyNamesTheLeaderInAllThatItRefuses: before it says what its own
// store lacks, which says nothing of the job.
func TestAStandbyNamesTheLeaderInAllThatItRefuses(t *testing.T) {
	inBubble(t, func(t *testing.T, a *world) {
		job := testJob("flights")
		a.write(job, 130, "v")
		a.apply(job)
		a.checkpoint("flights")
		b := a.another(owned("b", "/b", nil))
		defer b.close()
		b.apply(job)
		for what, ask := range b.asks(t.Context(), "flights") {
			err := ask()
			require.Equal(t, fault.Refused, fault.CodeOf(err), "%s: %v", what, err)
			require.ErrorIs(t, err, statebackend.ErrNotLeader, what)
			for _, part := range []string{"stands by", `job "flights"`, a.job("flights").Leader.ID, "host-a", "127.0.0.1:a", "token 1", "no token"} {
				require.ErrorContains(t, err, part, what)
			}
			require.Contains(t, fault.As(err).Hint, "--addr 127.0.0.1:a", what)
		}
		require.Empty(t, b.c.Operations(""), "nothing was begun")
		// What is its own it may change: its schedule, its definitions.
		s, err := b.c.SetPaused(t.Context(), "flights", true)
		require.NoError(t, err)
		require.True(t, s.Paused)
		require.False(t, a.job("flights").Paused)
		require.NoError(t, b.c.DeleteJob(t.Context(), "flights", true))
		require.Equal(t, HealthOK, a.job("flights").Health.State)
		require.Len(t, a.history("flights"), 1)
	}, owned("a", "/a", nil))
}

// TestAStandbyKeepsItsOwnHistory: who led before may pin, verify and delete what
// is in its store, and bring more in.
func TestAStandbyKeepsItsOwnHistory(t *testing.T) {
	inBubble(t, func(t *testing.T, a *world) {
		job := testJob("flights")
		a.write(job, 130, "v")
		a.apply(job)
		a.checkpoint("flights")
		a.checkpoint("flights")
		archive := a.export("flights", "2")
		b := a.another(owned("b", "/b", nil))
		defer b.close()
		b.apply(job)
		a.close()
		b.pass(2 * DefaultPoll)
		a.open()
		a.pass(2 * DefaultPoll)
		require.Equal(t, HealthStandby, a.job("flights").Health.State)
		_, err := a.c.Pin(t.Context(), "flights", 1, true)
		require.NoError(t, err)
		require.True(t, a.done(a.c.Verify(t.Context(), "flights", "2")).Verify.OK)
		require.NoError(t, a.c.DeleteCheckpoint(t.Context(), "flights", 2, true))
		require.Equal(t, Origin{Job: "flights", ID: 2, Server: a.store.Server()}, a.bringIn(archive, ImportRequest{}).From)
		_, err = a.c.Drill(t.Context(), "flights", "1")
		require.ErrorIs(t, err, statebackend.ErrNotLeader, "a drill writes beside the job")
	}, owned("a", "/a", nil))
}

// TestADrillThatIsDueOnAStandbyIsNoAlarm: the leader makes it.
func TestADrillThatIsDueOnAStandbyIsNoAlarm(t *testing.T) {
	inBubble(t, func(t *testing.T, a *world) {
		job := testJob("flights")
		job.Drill.Schedule = "@every 10s"
		a.write(job, 130, "v")
		a.apply(job)
		a.checkpoint("flights")
		b := a.another()
		defer b.close()
		b.apply(job)
		b.pass(time.Minute)
		require.Empty(t, b.seen(EventDrillFailed))
		require.NotEmpty(t, a.seen(EventDrillFailed), "it was due: this state store has no room for a drill")
	})
}

// standstill is a process that stands still after a cut without knowing it, as
// one whose machine is suspended: its renewals are taken for granted.
type standstill struct {
	statebackend.Backend
	on     atomic.Bool
	inside chan struct{}
	goOn   chan struct{}
}

func (s *standstill) Renew(ctx context.Context, l statebackend.Lease, ttl time.Duration) error {
	if s.on.Load() {
		return nil
	}
	return s.Backend.Renew(ctx, l, ttl)
}

func (s *standstill) Cut(ctx context.Context, r statebackend.CutRequest, sink snapshot.Sink) (statebackend.Cut, error) {
	cut, err := s.Backend.Cut(ctx, r, sink)
	if s.on.Load() {
		close(s.inside)
		<-s.goOn
	}
	return cut, err
}

// TestACheckpointOfADeposedCoordinatorIsNotCommitted: it has cut, stands still
// until another one leads, and finds out before it commits.
func TestACheckpointOfADeposedCoordinatorIsNotCommitted(t *testing.T) {
	s := &standstill{}
	inBubble(t, func(t *testing.T, a *world) {
		s.inside, s.goOn = make(chan struct{}), make(chan struct{})
		job := testJob("flights")
		a.write(job, 130, "v")
		a.apply(job)
		a.checkpoint("flights")
		b := a.another(owned("b", "/b", nil))
		defer b.close()
		b.apply(job)
		s.on.Store(true)
		op, err := a.c.Checkpoint(t.Context(), "flights", CheckpointRequest{})
		require.NoError(t, err)
		<-s.inside
		a.pass(DefaultLeaseTTL + 2*DefaultPoll)
		require.Equal(t, uint64(2), b.job("flights").Leader.Token)
		require.True(t, a.job("flights").Leader.Me, "it knows of nothing")
		close(s.goOn)
		got := a.failed(op, nil)
		require.Equal(t, fault.Refused, got.Error.Code)
		for _, part := range []string{"not committed", "taken over", `job "flights"`, "token 2", "token is 1", "127.0.0.1:b"} {
			require.Contains(t, got.Error.Message, part)
		}
		require.Equal(t, snapshot.FailLease, got.Checkpoint.Failure.Reason)
		require.Equal(t, snapshot.StateFailed, a.history("flights")[1].State)
		s.on.Store(false)
		a.pass(DefaultLeaseTTL)
		require.Equal(t, HealthStandby, a.job("flights").Health.State)
	}, owned("a", "/a", nil), func(o *Options) {
		s.Backend = o.Backend
		o.Backend = s
	})
}

// takenOver is where drills are made, until somebody else takes the job over in
// the middle of one.
type takenOver struct {
	*redis.Backend
	take func()
}

func (d *takenOver) ReadAll(ctx context.Context, _ statebackend.Job, _ snapshot.Sink) (string, error) {
	d.take()
	<-ctx.Done()
	return "", context.Cause(ctx)
}

// TestADrillEndsWithTheTermThatItBeganIn: who no longer leads writes no scratch
// keys either, and removes those that are there.
func TestADrillEndsWithTheTermThatItBeganIn(t *testing.T) {
	w := drillWorld(t, func(w *redisWorld, o *Options) {
		o.DrillTarget = &takenOver{w.backend, func() {
			key := testJob("flights").Key()
			w.srv.Do("HSET", key.Lease(), "until", "1")
			_, err := w.backend.Acquire(context.Background(), key, statebackend.Claim{Owner: statebackend.Owner{ID: "other", Host: "elsewhere"}, TTL: time.Hour})
			require.NoError(t, err)
		}}
	})
	s := w.failed(w.c.Drill(t.Context(), "flights", ""))
	require.Equal(t, fault.Refused, s.Error.Code, s.Error.Message)
	require.Contains(t, s.Error.Message, "elsewhere")
	require.Empty(t, w.srv.Do("KEYS", "*keyframe-drill*"))
	require.Nil(t, w.find(2).Drill, "that says nothing of the checkpoint")
}
