package coordinator

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
)

// TestI5AStandbyDoesNotAdoptWhatIsLeftOfALoss: the lease goes with the state,
// and workers write on. The standby's store knows of no checkpoint; who led
// comes first and recovers.
func TestI5AStandbyDoesNotAdoptWhatIsLeftOfALoss(t *testing.T) {
	inBubble(t, func(t *testing.T, a *world) {
		job := testJob("flights")
		job.Checkpoint.Schedule = "@every 10s"
		a.write(job, 130, "v")
		a.apply(job)
		a.checkpoint("flights")
		b := a.another(owned("b", "/b", nil))
		defer b.close()
		b.apply(job)
		b.pass(3 * DefaultPoll)
		for range 5 {
			a.store.Lose()
			a.write(job, 3, "since the loss")
			b.lookAt(t, "flights")
			a.pass(2 * DefaultPoll)
			require.Equal(t, HealthOK, a.job("flights").Health.State)
			require.Equal(t, `"v-7"`, a.read(job, 3, 7))
			require.Equal(t, HealthStandby, b.job("flights").Health.State)
		}
		require.Empty(t, b.seen(EventAdopted))
		require.Empty(t, b.seen(EventLeading))
		require.Empty(t, b.history("flights"))
	}, owned("a", "/a", nil))
}

// TestI5AStateLostUnderAStoreWithoutCheckpointsIsLeftToAPerson: after a
// takeover, before the new leader has a checkpoint of its own.
func TestI5AStateLostUnderAStoreWithoutCheckpointsIsLeftToAPerson(t *testing.T) {
	inBubble(t, func(t *testing.T, a *world) {
		job := testJob("flights")
		a.write(job, 130, "v")
		a.apply(job)
		a.checkpoint("flights")
		b := a.another(owned("b", "/b", nil))
		b.apply(job)
		a.close()
		b.pass(2 * DefaultPoll)
		require.Equal(t, HealthOK, b.job("flights").Health.State)
		b.store.Lose()
		b.write(job, 3, "since the loss")
		b.pass(DefaultLeaseTTL)
		s := b.job("flights")
		require.Equal(t, HealthLost, s.Health.State)
		require.Contains(t, s.Health.Message, "named checkpoint 1")
		require.Contains(t, s.Health.Message, "job adopt")
		require.Empty(t, b.seen(EventAdopted))
		op, err := b.c.Checkpoint(t.Context(), "flights", CheckpointRequest{})
		if err == nil {
			b.failed(op, nil)
		}
		b.done(b.c.Adopt(t.Context(), "flights"))
		b.pass(2 * DefaultPoll)
		require.Equal(t, HealthOK, b.job("flights").Health.State)
		b.checkpoint("flights")
		b.close()
		a.open()
	}, owned("a", "/a", nil))
}

// lookAt has a job looked at now, ahead of everybody else.
func (w *world) lookAt(t *testing.T, name string) {
	t.Helper()
	j, err := w.c.find(name)
	require.NoError(t, err)
	_, err = j.lookNow(t.Context())
	if err != nil {
		require.ErrorContains(t, err, "led by")
	}
}

// TestI5WhatAnotherCoordinatorTookForANewJobIsForeign: its store was empty, and
// all that workers had written since a loss lay there. That its term and its
// epoch are newer doesn't make it the job's state.
func TestI5WhatAnotherCoordinatorTookForANewJobIsForeign(t *testing.T) {
	srv := redistest.Start(t)
	w := newLeaser(t, srv, srv.URL(), nil)
	w.put("v")
	_, err := w.c.Apply(context.Background(), testJob("flights"))
	require.NoError(t, err)
	w.is(HealthOK)
	w.checkpoint("flights")
	key := testJob("flights").Key()
	srv.Do("EVAL", `redis.call('HSET', KEYS[1], 'incarnation', 'begun anew', 'epoch', '9')
		return redis.call('HSET', KEYS[2], 'token', '7', 'until', '1', 'holder', 'gone', 'host', 'elsewhere')`, 2, key.Record(), key.Lease())
	require.Eventually(t, func() bool {
		j := w.job("flights")
		return j.Leader != nil && j.Leader.Me && j.Leader.Token == 8 && j.Health.State == HealthForeign
	}, 20*time.Second, time.Millisecond)
	require.Len(t, w.history("flights"), 1)
}
