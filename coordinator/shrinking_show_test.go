package coordinator

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// TestAShrinkShowsAtOnce: what a job says of itself right after such a
// checkpoint, and right after it is accepted, needs no other look at the state.
func TestAShrinkShowsAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 150, "full")
		w.apply(job)
		w.checkpoint("flights")
		w.evict(job, 20, "left")
		w.checkpoint("flights")
		shows := func(id snapshot.ID, warned string) {
			t.Helper()
			s := w.c.Jobs()[0]
			require.Equal(t, id, s.Recovers)
			require.Equal(t, snapshot.ID(2), s.Head, "the live state descends from it all the same")
			require.Contains(t, strings.Join(s.Health.Warnings, "\n"), warned)
			plan, err := w.c.PlanRestore(t.Context(), "flights", RestoreRequest{})
			require.NoError(t, err)
			require.Equal(t, id, plan.Checkpoint, "the default of a restore")
		}
		shows(1, "checkpoint 2 is far smaller than the one before")
		err := w.c.DeleteCheckpoint(t.Context(), "flights", 1, false)
		require.Equal(t, fault.Refused, fault.CodeOf(err))
		require.ErrorContains(t, err, "it is what a recovery would restore")
		w.close()
		w.open(job)
		w.pass(2 * time.Second)
		shows(1, "checkpoint 2 is far smaller than the one before")
		w.accept("flights", 2, "")
		shows(2, "")
		require.Empty(t, w.c.Jobs()[0].Health.Warnings)
	})
}

// TestWhatIsInDoubtIsRecoveredFromWhenNothingElseIsLeft, and that is told.
func TestWhatIsInDoubtIsRecoveredFromWhenNothingElseIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 150, "full")
		w.apply(job)
		w.checkpoint("flights")
		w.evict(job, 20, "left")
		w.checkpoint("flights")
		require.NoError(t, w.c.DeleteCheckpoint(t.Context(), "flights", 1, true))
		require.Equal(t, snapshot.ID(2), w.c.Jobs()[0].Recovers)
		w.store.Lose()
		w.pass(3 * time.Second)
		require.Equal(t, `"left-19"`, w.read(job, 3, 19))
		require.Contains(t, w.seen(EventRecoveryFellBack)[0].Message, "there is no other one to recover from")
	})
}

// TestWhoRestoresWhatIsInDoubtHasDecided: until the next checkpoint a recovery
// goes back to that, and not to what was given up for it.
func TestWhoRestoresWhatIsInDoubtHasDecided(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 150, "full")
		w.apply(job)
		w.checkpoint("flights")
		w.evict(job, 20, "left")
		w.checkpoint("flights")
		w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{Checkpoint: "2", NoUndo: true}))
		require.Equal(t, snapshot.ID(2), w.c.Jobs()[0].Recovers)
		w.store.Lose()
		w.pass(3 * time.Second)
		require.Equal(t, `"left-19"`, w.read(job, 3, 19))
		require.Equal(t, snapshot.ID(2), w.seen(EventRecovered)[0].ID)
	})
}

// TestBookkeepingOfAWrongTypeIsNoDeniedRight: the health says what it is.
func TestBookkeepingOfAWrongTypeIsNoDeniedRight(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 140, "v")
		w.apply(job)
		w.checkpoint("flights")
		for _, cmd := range []statebackend.Cmd{
			statebackend.Command(statebackend.OpDel, job.Key().Index()), statebackend.Command(statebackend.OpSet, job.Key().Index(), "no set"),
		} {
			_, err := w.store.Do(t.Context(), cmd)
			require.NoError(t, err)
		}
		w.pass(3 * time.Second)
		h := w.c.Jobs()[0].Health
		require.Equal(t, HealthDamaged, h.State)
		require.Contains(t, h.Message, "key holds another type")
		require.Contains(t, h.Message, job.Key().Index())
	})
}
