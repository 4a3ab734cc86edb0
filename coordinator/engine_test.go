package coordinator

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

func TestCheckpointRestoreUndo(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 150, "old")
		w.apply(job)
		cp := w.checkpoint("flights")
		require.Equal(t, snapshot.ID(1), cp.ID)
		require.EqualValues(t, 10, cp.Keys)
		require.EqualValues(t, 1500, cp.Elements)
		require.Equal(t, snapshot.GradeSnapshot, cp.Grade)
		require.Equal(t, 2, cp.Parallelism)

		w.write(job, 200, "new")
		res := w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{Checkpoint: "1"})).Restore
		require.EqualValues(t, 10, res.Keys)
		require.EqualValues(t, 1500, res.Elements)
		require.Equal(t, snapshot.ID(2), res.Undo)
		require.Equal(t, `"old-7"`, w.read(job, 3, 7))
		require.Empty(t, w.read(job, 3, 180), "fields written later are gone")

		undone := w.done(w.c.Undo(t.Context(), "flights")).Restore
		require.Equal(t, snapshot.ID(2), undone.Checkpoint)
		require.Equal(t, `"new-180"`, w.read(job, 3, 180))
		require.Greater(t, undone.Epoch, res.Epoch)
		require.Equal(t, HealthOK, w.c.Jobs()[0].Health.State)
	})
}

func TestScheduleRunsSkipsAndPauses(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		job.Checkpoint.Schedule = "@every 30s"
		w.write(job, 130, "v")
		w.apply(job)
		w.pass(5 * time.Minute)
		n := len(w.history("flights"))
		require.Equal(t, 5, n, "keep is 5 by default")
		require.GreaterOrEqual(t, len(w.seen(EventCheckpointCompleted)), 9)
		require.Empty(t, w.seen(EventCheckpointFailed))

		_, err := w.c.SetPaused(t.Context(), "flights", true)
		require.NoError(t, err)
		before := len(w.seen(EventCheckpointCompleted))
		w.pass(5 * time.Minute)
		require.Len(t, w.seen(EventCheckpointCompleted), before)
		w.checkpoint("flights") // on demand works all the same

		_, err = w.c.SetPaused(t.Context(), "flights", false)
		require.NoError(t, err)
		w.pass(time.Minute)
		require.Greater(t, len(w.seen(EventCheckpointCompleted)), before+1)
	})
}

func TestMinimumPauseDelaysTheSchedule(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		job.Checkpoint.Schedule = "@every 10s"
		job.Checkpoint.MinPause = config.Duration(25 * time.Second)
		w.write(job, 130, "v")
		w.apply(job)
		w.pass(101 * time.Second)
		require.LessOrEqual(t, len(w.seen(EventCheckpointCompleted)), 5)
		require.GreaterOrEqual(t, len(w.seen(EventCheckpointCompleted)), 3)
	})
}

func TestI5LostStateIsRecoveredAndNeverCheckpointed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		job.Checkpoint.Schedule = "@every 1m"
		w.write(job, 140, "good")
		w.apply(job)
		cp := w.checkpoint("flights")

		w.store.Lose()
		w.write(job, 1, "fresh") // workers go on and write as if nothing had been
		w.pass(3 * time.Second)
		require.Equal(t, `"good-139"`, w.read(job, 4, 139))
		recovered := w.seen(EventRecovered)
		require.Len(t, recovered, 1)
		require.Equal(t, cp.ID, recovered[0].ID)
		require.Len(t, w.seen(EventStateLost), 1)
		require.Equal(t, HealthOK, w.c.Jobs()[0].Health.State)
		require.Len(t, w.history("flights"), 1, "nothing was checkpointed meanwhile")

		w.checkpoint("flights")
		require.EqualValues(t, 1400, w.history("flights")[1].Elements)
	})
}

func TestI5HoldLeavesLostStateToAPerson(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		job.Checkpoint.Schedule = "@every 10s"
		job.Recovery.OnStateLoss = config.LossHold
		w.write(job, 140, "good")
		w.apply(job)
		w.checkpoint("flights")
		w.store.Lose()
		w.write(job, 130, "fresh")
		w.pass(2 * time.Minute)
		require.Equal(t, `"fresh-7"`, w.read(job, 4, 7))
		require.Len(t, w.history("flights"), 1)
		require.NotEmpty(t, w.seen(EventTickSkipped))
		s := w.failed(w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{}))
		require.Equal(t, fault.StateLost, s.Error.Code)

		w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{}))
		require.Equal(t, `"good-7"`, w.read(job, 4, 7))
		w.checkpoint("flights")
	})
}

// deaf is a backend that can be cut off.
type deaf struct {
	statebackend.Backend
	off atomic.Bool
}

func (d *deaf) Look(ctx context.Context, job statebackend.Job) (statebackend.Glimpse, error) {
	if d.off.Load() {
		return statebackend.Glimpse{}, errors.Join(statebackend.ErrUnreachable, os.ErrDeadlineExceeded)
	}
	return d.Backend.Look(ctx, job)
}

func (d *deaf) Note(ctx context.Context, job statebackend.Job, inc string, n statebackend.Notes) error {
	if d.off.Load() {
		return statebackend.ErrUnreachable
	}
	return d.Backend.Note(ctx, job, inc, n)
}

func (d *deaf) Cut(ctx context.Context, r statebackend.CutRequest, s snapshot.Sink) (statebackend.Cut, error) {
	if d.off.Load() {
		return statebackend.Cut{}, statebackend.ErrUnreachable
	}
	return d.Backend.Cut(ctx, r, s)
}

func TestUnreachableStateStoreFailsAttemptsAndComesBack(t *testing.T) {
	d := &deaf{}
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		job.Checkpoint.Schedule = "@every 1m"
		w.write(job, 130, "v")
		w.apply(job)
		w.pass(90 * time.Second)
		d.off.Store(true)
		w.pass(3 * time.Minute)
		require.Equal(t, HealthUnreachable, w.c.Jobs()[0].Health.State)
		failed := w.seen(EventCheckpointFailed)
		require.NotEmpty(t, failed)
		require.Equal(t, string(snapshot.FailConnection), failed[0].Reason)
		d.off.Store(false)
		w.pass(2 * time.Minute)
		require.Equal(t, HealthOK, w.c.Jobs()[0].Health.State)
		require.Empty(t, w.seen(EventStateLost))
	}, func(o *Options) { d.Backend = o.Backend; o.Backend = d })
}

// blink is a backend that can't be looked at for a moment, after which another
// state is there.
type blink struct {
	statebackend.Backend
	meanwhile atomic.Pointer[func()]
	ran       atomic.Pointer[string] // run id of the last cut's request
}

func (b *blink) Look(ctx context.Context, job statebackend.Job) (statebackend.Glimpse, error) {
	if do := b.meanwhile.Swap(nil); do != nil {
		(*do)()
		return statebackend.Glimpse{}, statebackend.ErrUnreachable
	}
	return b.Backend.Look(ctx, job)
}

func (b *blink) Cut(ctx context.Context, r statebackend.CutRequest, s snapshot.Sink) (statebackend.Cut, error) {
	b.ran.Store(&r.RunID)
	return b.Backend.Cut(ctx, r, s)
}

func TestI5WhatWasNotLookedAtIsNotCut(t *testing.T) {
	b := &blink{}
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 150, "kept")
		w.apply(job)
		w.checkpoint("flights")
		look, err := w.store.Look(t.Context(), job.Key())
		require.NoError(t, err)
		require.Equal(t, look.Server.RunID, *b.ran.Load(), "the cut is told which run of the server was looked at")

		b.ran.Store(nil)
		lose := func() {
			w.store.Lose()
			w.write(job, 2, "begun anew")
		}
		b.meanwhile.Store(&lose)
		w.failed(w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{}))
		require.Nil(t, b.ran.Load(), "nothing was cut")
		attempt := w.history("flights")[1]
		require.Equal(t, snapshot.StateFailed, attempt.State)
		require.Equal(t, snapshot.FailConnection, attempt.Failure.Reason)
		w.pass(3 * time.Second)
		require.Equal(t, `"kept-9"`, w.read(job, 3, 9))
	}, func(o *Options) { b.Backend = o.Backend; o.Backend = b })
}

func TestI10IdsGrowOverANewStoreFile(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 130, "v")
		w.apply(job)
		for range 3 {
			w.checkpoint("flights")
		}
		w.close()
		require.NoError(t, os.Remove(w.path))
		w.open(job)
		w.pass(time.Second)
		require.Equal(t, snapshot.ID(4), w.checkpoint("flights").ID)
		require.NoError(t, w.c.DeleteCheckpoint(t.Context(), "flights", 4, true))
		require.Equal(t, snapshot.ID(5), w.checkpoint("flights").ID)
	})
}

func TestJobsAndTheirPauseSurviveARestart(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.write(testJob("flights"), 130, "v")
		w.apply(testJob("flights"))
		w.apply(testJob("other"))
		_, err := w.c.SetPaused(t.Context(), "other", true)
		require.NoError(t, err)
		w.checkpoint("flights")
		w.close()
		w.open()
		w.pass(2 * time.Second)
		jobs := w.c.Jobs()
		require.Len(t, jobs, 2)
		require.Equal(t, snapshot.ID(1), jobs[0].Last.ID)
		require.False(t, jobs[0].Paused)
		require.True(t, jobs[1].Paused)
		require.Equal(t, HealthWaiting, jobs[1].Health.State)
		require.NoError(t, w.c.DeleteJob(t.Context(), "flights", true))
		_, err = w.c.Checkpoints(t.Context(), "flights")
		require.Equal(t, fault.NoJob, fault.CodeOf(err))
	})
}

func TestI7OneOperationAtATime(t *testing.T) {
	gate := &gated{}
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 130, "v")
		w.apply(job)
		gate.leave <- struct{}{}
		w.checkpoint("flights")
		<-gate.entered
		first, err := w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{})
		require.NoError(t, err)
		<-gate.entered // it is in its cut now
		second, err := w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{Name: "sp"})
		require.NoError(t, err, "a checkpoint may wait for a checkpoint")
		_, err = w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{})
		require.Equal(t, fault.Busy, fault.CodeOf(err), "but only one")
		_, err = w.c.Restore(t.Context(), "flights", RestoreRequest{})
		require.Equal(t, fault.Busy, fault.CodeOf(err))
		_, err = w.c.Rescale(t.Context(), "flights", RescaleRequest{Parallelism: 3})
		require.Equal(t, fault.Busy, fault.CodeOf(err))
		require.Equal(t, fault.Busy, fault.CodeOf(w.c.DeleteJob(t.Context(), "flights", false)))
		gate.leave <- struct{}{}
		w.done(first, nil)
		gate.leave <- struct{}{}
		<-gate.entered
		require.Equal(t, "sp", w.done(second, nil).Checkpoint.Name)
		_, err = w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{Name: "sp"})
		require.Equal(t, fault.Refused, fault.CodeOf(err))
	}, gate.install)
}

// gated holds each cut until it may leave.
type gated struct {
	statebackend.Backend
	entered, leave chan struct{}
}

// install runs inside the bubble, where the channels must be made.
func (g *gated) install(o *Options) {
	g.Backend, g.entered, g.leave = o.Backend, make(chan struct{}, 9), make(chan struct{}, 9)
	o.Backend = g
}

func (g *gated) Cut(ctx context.Context, r statebackend.CutRequest, s snapshot.Sink) (statebackend.Cut, error) {
	g.entered <- struct{}{}
	select {
	case <-g.leave:
	case <-ctx.Done():
		return statebackend.Cut{}, context.Cause(ctx)
	}
	return g.Backend.Cut(ctx, r, s)
}

func TestTimeoutAndAbortAreRecorded(t *testing.T) {
	gate := &gated{}
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		job.Checkpoint.Timeout = config.Duration(30 * time.Second)
		w.write(job, 130, "v")
		w.apply(job)
		s := w.failed(w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{}))
		require.Contains(t, s.Error.Message, "timeout of 30s")
		op, err := w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{})
		require.NoError(t, err)
		<-gate.entered
		<-gate.entered
		require.NoError(t, w.c.Abort(op.Status().ID))
		w.failed(op, nil)
		h := w.history("flights")
		require.Equal(t, snapshot.FailTimeout, h[0].Failure.Reason)
		require.Equal(t, snapshot.FailAborted, h[1].Failure.Reason)
	}, gate.install)
}

func TestRescaleChangesTheAssignment(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 130, "v")
		w.apply(job)
		w.checkpoint("flights")
		plan, err := w.c.PlanRescale(t.Context(), "flights", RescaleRequest{Parallelism: 4})
		require.NoError(t, err)
		require.Len(t, plan.Ranges, 4)
		res := w.done(w.c.Rescale(t.Context(), "flights", RescaleRequest{Parallelism: 4})).Rescale
		require.Equal(t, 2, res.From)
		require.Equal(t, 4, res.To)
		s, err := w.c.Job("flights")
		require.NoError(t, err)
		require.Equal(t, 4, s.Parallelism, "status shows the new parallelism")
		require.Len(t, s.Ranges, 4)
		require.Equal(t, res.Undo, s.Undo)
		_, err = w.c.PlanRescale(t.Context(), "flights", RescaleRequest{Parallelism: 11})
		require.Equal(t, fault.Refused, fault.CodeOf(err))
		w.done(w.c.Undo(t.Context(), "flights"))
		s, err = w.c.Job("flights")
		require.NoError(t, err)
		require.Equal(t, 2, s.Parallelism)
		require.Equal(t, `"v-77"`, w.read(job, 9, 77))
	})
}
