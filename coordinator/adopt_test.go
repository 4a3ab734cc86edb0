package coordinator

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

func TestI5AnIndexThatIsGoneIsLoss(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		job.Recovery.OnStateLoss = config.LossHold
		w.write(job, 150, "good")
		w.apply(job)
		w.checkpoint("flights")
		_, err := w.store.Do(t.Context(), statebackend.Command(statebackend.OpDel, job.Key().Index()))
		require.NoError(t, err)
		s := w.failed(w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{}))
		require.Equal(t, fault.StateLost, s.Error.Code)
		require.Contains(t, s.Error.Message, "10 names were in it")
		require.Equal(t, HealthLost, w.c.Jobs()[0].Health.State)
		w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{}))
		require.EqualValues(t, 10, w.checkpoint("flights").Keys)
	})
}

func TestFreshStateIsAdoptedOnRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		job.Recovery.OnStateLoss = config.LossHold
		w.write(job, 150, "old")
		w.apply(job)
		w.checkpoint("flights")
		w.failed(w.c.Adopt(t.Context(), "flights"))
		w.store.Lose()
		w.pass(3 * time.Second)
		s := w.failed(w.c.Adopt(t.Context(), "flights"))
		require.Equal(t, fault.NoState, s.Error.Code, "nothing is there yet")
		w.write(job, 130, "fresh")
		w.done(w.c.Adopt(t.Context(), "flights"))
		require.Equal(t, HealthOK, w.c.Jobs()[0].Health.State)
		require.Zero(t, w.c.Jobs()[0].Head, "what is older is not what this state descends from")
		cp := w.checkpoint("flights")
		require.Equal(t, snapshot.ID(2), cp.ID, "the history goes on")
		w.close()
		w.open(job)
		w.pass(2 * time.Second)
		require.Equal(t, HealthOK, w.c.Jobs()[0].Health.State)
		require.Equal(t, `"fresh-7"`, w.read(job, 3, 7))
	})
}

// renamed is a state store under another address.
type renamed struct {
	*memory.Store
	name string
}

func (r *renamed) Server() string { return r.name }

func TestAnotherSpellingOfTheAddressIsTheSameServer(t *testing.T) {
	r := &renamed{name: "redis://127.0.0.1:6379/0"}
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 150, "good")
		w.apply(job)
		w.checkpoint("flights")
		w.close()
		r.name = "redis://localhost:6379/0"
		w.open(job)
		w.pass(2 * time.Second)
		w.store.Lose()
		w.pass(3 * time.Second)
		require.Len(t, w.seen(EventRecovered), 1)
		require.Equal(t, `"good-7"`, w.read(job, 3, 7))

		w.close() // but where the state was never seen, nothing is restored by itself
		r.name = "redis://elsewhere:6379/0"
		w.store.Lose()
		w.open(job)
		w.pass(5 * time.Second)
		require.Len(t, w.seen(EventRecovered), 1)
		require.Equal(t, HealthLost, w.c.Jobs()[0].Health.State)
	}, func(o *Options) { r.Store = o.Backend.(*memory.Store); o.Backend = r })
}

func TestTwoJobsNeverShareARoot(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("j")
		w.write(job, 130, "v")
		w.apply(job)
		w.checkpoint("j")
		moved := job
		moved.Prefix = "other"
		_, err := w.c.Apply(t.Context(), moved)
		require.Equal(t, fault.Refused, fault.CodeOf(err))
		twin := testJob("runtime:j")
		twin.Prefix = "streaming"
		_, err = w.c.Apply(t.Context(), twin)
		require.Equal(t, fault.Config, fault.CodeOf(err))
		require.NoError(t, w.c.DeleteJob(t.Context(), "j", false))
		w.apply(twin)
		w.close()
		w.open(job) // the configuration has the other one now
		w.pass(time.Second)
		require.Len(t, w.c.Jobs(), 1)
		require.Len(t, w.seen(EventJobRefused), 1)
	})
}

// never is a state store whose proofs of one checkpoint always fail.
type never struct {
	statebackend.Backend
	id snapshot.ID
}

func (n *never) Stage(ctx context.Context, r statebackend.RestoreRequest) (statebackend.Staging, error) {
	s, err := n.Backend.Stage(ctx, r)
	if r.Checkpoint == n.id {
		return unproved{s}, err
	}
	return s, err
}

type unproved struct{ statebackend.Staging }

func (unproved) Prove(context.Context) error { return statebackend.ErrMismatch }

func TestRecoveryFallsBackWhenTheNewestCanNotBePutInPlace(t *testing.T) {
	n := &never{id: 2}
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 140, "first")
		w.apply(job)
		w.checkpoint("flights")
		w.write(job, 140, "second")
		w.checkpoint("flights")
		w.store.Lose()
		w.pass(time.Minute)
		require.Equal(t, `"first-9"`, w.read(job, 4, 9))
		require.Len(t, w.seen(EventRecoveryFellBack), 1)
		require.NotEmpty(t, w.history("flights")[1].Bad)
	}, func(o *Options) { n.Backend = o.Backend; o.Backend = n })
}

func TestTheEpochGrowsThoughItsRecordIsLost(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 150, "good")
		w.apply(job)
		w.checkpoint("flights")
		seen := uint64(0)
		for range 3 {
			w.store.Lose()
			w.pass(3 * time.Second)
			epoch := w.c.Jobs()[0].Epoch
			require.Greater(t, epoch, seen)
			seen = epoch
		}
		w.close()
		w.open(job)
		w.store.Lose()
		w.pass(3 * time.Second)
		require.Greater(t, w.c.Jobs()[0].Epoch, seen)
	})
}

func TestUndoNeverGoesFurtherBackThanTheLastChange(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		job.Recovery.OnStateLoss = config.LossHold
		w.write(job, 150, "first")
		w.apply(job)
		w.checkpoint("flights")
		undo := func() snapshot.ID { return w.c.Jobs()[0].Undo }
		w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{}))
		require.NotZero(t, undo())
		w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{NoUndo: true}))
		require.Zero(t, undo(), "nothing was kept of what was there")
		w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{}))
		kept := undo()
		require.NoError(t, w.c.DeleteCheckpoint(t.Context(), "flights", kept, true))
		require.Zero(t, undo(), "it was deleted")
		w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{}))
		w.store.Lose()
		w.write(job, 130, "fresh")
		w.pass(2 * time.Second)
		plan, err := w.c.PlanRestore(t.Context(), "flights", RestoreRequest{})
		require.NoError(t, err)
		require.Contains(t, plan.Warnings[len(plan.Warnings)-1], "no undo checkpoint is taken of the 10 keys")
		res := w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{})).Restore
		require.Zero(t, res.Undo)
		require.Zero(t, undo(), "lost state can't be put back")
		_, err = w.c.Undo(t.Context(), "flights")
		require.Equal(t, fault.NoCheckpoint, fault.CodeOf(err))
	})
}

func TestAStoreThatLacksWhatTheStateRemembersIsTold(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 150, "good")
		w.apply(job)
		w.checkpoint("flights")
		w.close()
		require.NoError(t, os.Remove(w.path))
		w.open(job)
		w.pass(2 * time.Second)
		require.Contains(t, w.c.Jobs()[0].Health.Warnings[0], "names checkpoint 1")
	})
}

func TestAPurgedJobLeavesNothingThatSpeaksOfALaterOne(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 150, "first")
		w.apply(job)
		w.checkpoint("flights")
		w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{}))
		require.NotZero(t, w.c.Jobs()[0].Undo)
		require.NoError(t, w.c.DeleteJob(t.Context(), "flights", true))
		w.apply(job)
		w.pass(2 * time.Second)
		require.Zero(t, w.c.Jobs()[0].Undo, "its checkpoint was purged")
		require.Greater(t, w.checkpoint("flights").ID, snapshot.ID(2), "ids only grow")
	})
}
