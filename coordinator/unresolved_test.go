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
)

// mute loses the answer of a flip that happened, and then can't be asked how
// it ended until it is told to.
type mute struct {
	statebackend.Backend
	off atomic.Bool
}

type muteStaging struct {
	statebackend.Staging
	m *mute
}

func (m *mute) Stage(ctx context.Context, r statebackend.RestoreRequest) (statebackend.Staging, error) {
	s, err := m.Backend.Stage(ctx, r)
	return muteStaging{s, m}, err
}

func (s muteStaging) Flip(ctx context.Context) (statebackend.FlipResult, error) {
	if _, err := s.Staging.Flip(ctx); err != nil {
		return statebackend.FlipResult{}, err
	}
	s.m.off.Store(true)
	return statebackend.FlipResult{}, statebackend.ErrUnreachable
}

func (m *mute) Resolve(ctx context.Context, job statebackend.Job, id string) (bool, error) {
	if m.off.Load() {
		return false, statebackend.ErrUnreachable
	}
	return m.Backend.Resolve(ctx, job, id)
}

func TestI3AFlipWhoseAnswerIsLostIsResolvedBeforeAnythingElse(t *testing.T) {
	m := &mute{}
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		job.Checkpoint.Schedule = "@every 10s"
		w.write(job, 150, "old")
		w.apply(job)
		cp := w.checkpoint("flights")
		w.write(job, 150, "new")
		w.failed(w.c.Restore(t.Context(), "flights", RestoreRequest{Checkpoint: cp.ID.String()}))
		before := len(w.history("flights"))
		w.pass(time.Minute)
		require.Equal(t, HealthMarked, w.c.Jobs()[0].Health.State)
		require.Len(t, w.history("flights"), before, "nothing is checkpointed before the end is known")
		m.off.Store(false)
		w.pass(3 * time.Second)
		require.Equal(t, HealthOK, w.c.Jobs()[0].Health.State)
		require.Len(t, w.seen(EventResumed), 1)
		require.Equal(t, `"old-7"`, w.read(job, 3, 7), "it had happened: rolled forward")
		undo := w.c.Jobs()[0].Undo
		require.Equal(t, snapshot.TriggerPreRestore, w.find("flights", undo).Trigger, "and it can be undone")
		w.pass(time.Minute)
		require.Greater(t, len(w.seen(EventCheckpointCompleted)), 3)
	}, func(o *Options) { m.Backend = o.Backend; o.Backend = m })
}

func (w *world) find(job string, id snapshot.ID) snapshot.Checkpoint {
	for _, cp := range w.history(job) {
		if cp.ID == id {
			return cp
		}
	}
	w.t.Fatalf("no checkpoint %d", id)
	return snapshot.Checkpoint{}
}

func TestAMarkThatNobodyKnowsIsEndedByHand(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 150, "v")
		w.apply(job)
		w.checkpoint("flights")
		// Of a version that knew no leases: whether it still runs can't be told.
		mark, err := statebackend.EncodeMark(statebackend.Mark{ID: "r9", Kind: "restore", Checkpoint: 1, StartedAt: time.Now()})
		require.NoError(t, err)
		_, err = w.store.Do(t.Context(), statebackend.Command(statebackend.OpHSet, job.Key().Record(), statebackend.FieldRestore, string(mark)))
		require.NoError(t, err)
		w.pass(2 * time.Second)
		require.Equal(t, HealthMarked, w.c.Jobs()[0].Health.State)
		s := w.failed(w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{}))
		require.Equal(t, fault.Refused, s.Error.Code)
		require.Contains(t, s.Error.Hint, "unmark")
		w.failed(w.c.Restore(t.Context(), "flights", RestoreRequest{}))
		w.done(w.c.Unmark(t.Context(), "flights"))
		require.Equal(t, HealthOK, w.c.Jobs()[0].Health.State)
		w.checkpoint("flights")
		w.failed(w.c.Unmark(t.Context(), "flights"))
	})
}
