package coordinator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

func ids(list []snapshot.Checkpoint) []snapshot.ID {
	out := []snapshot.ID{}
	for _, cp := range list {
		out = append(out, cp.ID)
	}
	return out
}

func withParent(id, parent snapshot.ID) snapshot.Checkpoint {
	cp := completed(id, snapshot.KindCheckpoint)
	cp.Parent = parent
	return cp
}

func TestCandidatesFollowTheLiveBranch(t *testing.T) {
	bad := withParent(2, 1)
	bad.Bad = "chunk gone"
	for _, c := range []struct {
		name    string
		history []snapshot.Checkpoint
		flip    lineageRecord
		want    []snapshot.ID
	}{
		{"never flipped: newest first", []snapshot.Checkpoint{withParent(1, 0), withParent(2, 1), withParent(3, 2)}, lineageRecord{}, []snapshot.ID{3, 2, 1}},
		{"restored 1 when 3 was the newest: 2 and 3 were given up", []snapshot.Checkpoint{withParent(1, 0), withParent(2, 1), withParent(3, 2)},
			lineageRecord{Newest: 3, Base: 1}, []snapshot.ID{1}},
		{"and 4 was taken since", []snapshot.Checkpoint{withParent(1, 0), withParent(2, 1), withParent(3, 2), withParent(4, 1)},
			lineageRecord{Newest: 3, Base: 1}, []snapshot.ID{4, 1}},
		{"an undo goes back to the other branch", []snapshot.Checkpoint{withParent(1, 0), withParent(2, 1), withParent(3, 2), withParent(4, 1)},
			lineageRecord{Newest: 4, Base: 3}, []snapshot.ID{3, 2, 1}},
		{"a bad one is passed over", []snapshot.Checkpoint{withParent(1, 0), bad, withParent(3, 2)}, lineageRecord{Newest: 3, Base: 3}, []snapshot.ID{3, 1}},
		{"where retention made a hole, what is older follows", []snapshot.Checkpoint{withParent(2, 0), withParent(3, 2), withParent(6, 5), withParent(7, 6)},
			lineageRecord{Newest: 7, Base: 6}, []snapshot.ID{6, 3, 2}},
		{"another job's checkpoint is live: nothing of this history", []snapshot.Checkpoint{withParent(1, 0)}, lineageRecord{Newest: 1}, []snapshot.ID{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, ids(candidates(c.history, c.flip)))
		})
	}
}

// The undo checkpoint is newer than what was restored, but it holds the state
// that somebody wanted to be rid of: a loss right after the restore must not
// bring it back.
func TestRecoveryAfterARestoreBringsBackWhatWasRestored(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 150, "wanted")
		w.apply(job)
		w.checkpoint("flights")
		w.write(job, 150, "broken")
		w.checkpoint("flights")
		res := w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{Checkpoint: "1"})).Restore
		require.Equal(t, snapshot.ID(3), res.Undo)
		require.Equal(t, snapshot.ID(1), w.c.Jobs()[0].Head)

		w.store.Lose()
		w.pass(3 * time.Second)
		require.Equal(t, `"wanted-7"`, w.read(job, 3, 7))
		require.Equal(t, snapshot.ID(1), w.seen(EventRecovered)[0].ID)

		w.close() // and the same after a restart
		w.open(job)
		w.pass(time.Second)
		w.store.Lose()
		w.pass(3 * time.Second)
		require.Equal(t, `"wanted-9"`, w.read(job, 3, 9))
		plan, err := w.c.PlanRestore(t.Context(), "flights", RestoreRequest{})
		require.NoError(t, err)
		require.Equal(t, snapshot.ID(1), plan.Checkpoint, "the default of a restore is the same")
		cp := w.checkpoint("flights")
		require.Equal(t, snapshot.ID(1), cp.Parent)
		require.Equal(t, cp.ID, w.c.Jobs()[0].Head)
	})
}

func TestI6RetentionKeepsWhatWasRestored(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		job.Retention.Keep = 1
		w.write(job, 150, "wanted")
		w.apply(job)
		_, err := w.c.Pin(t.Context(), "flights", w.checkpoint("flights").ID, true)
		require.NoError(t, err)
		w.write(job, 150, "broken")
		w.checkpoint("flights")
		w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{Checkpoint: "1"}))
		_, err = w.c.Pin(t.Context(), "flights", 1, false)
		require.NoError(t, err)
		j, err := w.c.find("flights")
		require.NoError(t, err)
		j.retain(t.Context())
		w.store.Lose()
		w.pass(3 * time.Second)
		require.Equal(t, `"wanted-7"`, w.read(job, 3, 7))
	})
}
