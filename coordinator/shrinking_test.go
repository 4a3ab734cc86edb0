package coordinator

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// evict leaves of each of a job's keys the first n fields: what an eviction and
// writers that go on leave behind, with index and record as they were.
func (w *world) evict(job config.Job, n int, value string) {
	key := job.Key()
	for g := range job.MaxParallelism {
		name := key.StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: g, Operator: "count"}, "total")
		_, err := w.store.Do(w.t.Context(), statebackend.Command(statebackend.OpDel, name))
		require.NoError(w.t, err)
	}
	w.write(job, n, value)
}

func (w *world) row(job string, id snapshot.ID) snapshot.Checkpoint {
	for _, cp := range w.history(job) {
		if cp.ID == id {
			return cp
		}
	}
	require.Fail(w.t, "no such checkpoint", "%d", id)
	return snapshot.Checkpoint{}
}

func (w *world) accept(job string, id snapshot.ID, note string) snapshot.Checkpoint {
	cp, err := w.c.Accept(w.t.Context(), job, id, note)
	require.NoError(w.t, err)
	return cp
}

func TestASuddenShrinkIsFlaggedAndNothingOlderIsRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		job.Retention.Keep = 2
		w.write(job, 150, "full")
		w.apply(job)
		w.checkpoint("flights")
		require.Nil(t, w.checkpoint("flights").Shrunk)

		w.evict(job, 20, "left")
		cp := w.checkpoint("flights")
		require.Equal(t, &snapshot.Shrunk{Base: 2, KeysBefore: 10, KeysAfter: 10, ElementsBefore: 1500, ElementsAfter: 200}, cp.Shrunk)
		require.Equal(t, cp.Shrunk, w.row("flights", 3).Shrunk, "the history has it")
		m, err := w.c.Manifest(t.Context(), "flights", 3)
		require.NoError(t, err)
		require.Nil(t, m.Checkpoint.Shrunk, "a manifest has what its format says")
		for range 4 {
			w.checkpoint("flights")
		}
		// The two before, the first in doubt, and the two that retention keeps.
		require.Equal(t, []snapshot.ID{1, 2, 3, 6, 7}, ids(w.history("flights")))
		require.Equal(t, []snapshot.ID{3, 6, 7}, w.c.Jobs()[0].InDoubt)
		require.Len(t, w.seen(EventCheckpointShrunk), 5)
		require.Len(t, w.seen(EventRetentionHeld), 1, "told once")
		w.pass(2 * time.Second)
		warnings := strings.Join(w.c.Jobs()[0].Health.Warnings, "\n")
		require.Contains(t, warnings, "checkpoints 3 to 7 (3 of them) are far smaller")
		require.Contains(t, warnings, "`coordinator checkpoint accept flights 7`")
		decisions, err := w.c.Retention(t.Context(), "flights", job.Retention)
		require.NoError(t, err)
		require.Equal(t, Decision{ID: 1, Keep: true, Reason: heldReason(3)}, decisions[0])

		w.close() // and all of it after a restart
		w.open(job)
		w.pass(2 * time.Second)
		require.Equal(t, []snapshot.ID{3, 6, 7}, w.c.Jobs()[0].InDoubt)
		require.NotNil(t, w.checkpoint("flights").Shrunk)

		got := w.accept("flights", 8, "a purge")
		require.True(t, got.Shrunk.Accepted)
		require.Equal(t, "a purge", got.Shrunk.Note)
		require.NotNil(t, got.Shrunk.AcceptedAt)
		require.Equal(t, got, w.accept("flights", 8, "again"), "once is enough")
		require.Empty(t, w.c.Jobs()[0].InDoubt, "it answered for those of the same size")
		require.Nil(t, w.checkpoint("flights").Shrunk, "what was accepted is compared with")
		require.Equal(t, []snapshot.ID{8, 9}, ids(w.history("flights")), "retention goes on")
		w.pass(2 * time.Second)
		require.Empty(t, w.c.Jobs()[0].Health.Warnings)
	})
}

func TestAcceptingAnswersOnlyForWhatIsNoShrinkFromIt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 150, "full")
		w.apply(job)
		w.checkpoint("flights")
		w.evict(job, 60, "some")
		w.checkpoint("flights")
		w.evict(job, 2, "hardly any")
		w.checkpoint("flights")
		w.accept("flights", 2, "")
		require.Equal(t, []snapshot.ID{3}, w.c.Jobs()[0].InDoubt, "20 elements are a shrink from 600 too")
		require.Equal(t, snapshot.ID(2), w.checkpoint("flights").Shrunk.Base, "what was accepted is the base")

		_, err := w.c.Accept(t.Context(), "flights", 1, "")
		require.Equal(t, fault.Refused, fault.CodeOf(err))
		require.ErrorContains(t, err, "checkpoint 1 of job \"flights\" is not flagged")
		_, err = w.c.Accept(t.Context(), "flights", 77, "")
		require.Equal(t, fault.NoCheckpoint, fault.CodeOf(err))
		_, err = w.c.Accept(t.Context(), "nobody", 1, "")
		require.Equal(t, fault.NoJob, fault.CodeOf(err))
	})
}

// To restore a loss would have workers go on from it. What was passed over is
// still there, and a person may choose it.
func TestARecoveryPassesOverWhatIsInDoubt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 150, "full")
		w.apply(job)
		w.checkpoint("flights")
		w.evict(job, 20, "left")
		w.checkpoint("flights")
		plan, err := w.c.PlanRestore(t.Context(), "flights", RestoreRequest{})
		require.NoError(t, err)
		require.Equal(t, snapshot.ID(1), plan.Checkpoint, "the default of a restore is what a recovery takes")
		require.Contains(t, strings.Join(plan.Warnings, "\n"), "checkpoint 2 is newer, but it is far smaller")
		newest, err := w.c.Resolve(t.Context(), "flights", "")
		require.NoError(t, err)
		require.Equal(t, snapshot.ID(2), newest.ID, "what is shown, verified and exported is the newest")

		w.store.Lose()
		w.pass(3 * time.Second)
		require.Equal(t, `"full-149"`, w.read(job, 3, 149))
		require.Equal(t, snapshot.ID(1), w.seen(EventRecovered)[0].ID)
		require.Contains(t, w.seen(EventRecoveryFellBack)[0].Message, "checkpoint 2 (")
		require.Equal(t, []snapshot.ID{2}, w.c.Jobs()[0].InDoubt, "still a question")

		next := w.checkpoint("flights")
		require.Nil(t, next.Shrunk, "compared with what was put in place")
		w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{Checkpoint: "2"}))
		require.Equal(t, `"left-19"`, w.read(job, 3, 19))
		require.Nil(t, w.checkpoint("flights").Shrunk, "who put it in place has decided")
	})
}

func TestARecoveryTakesWhatIsInDoubtBeforeNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 150, "full")
		w.apply(job)
		w.checkpoint("flights")
		w.evict(job, 20, "left")
		w.checkpoint("flights")
		require.NoError(t, w.c.DeleteCheckpoint(t.Context(), "flights", 1, true))
		w.store.Lose()
		w.pass(3 * time.Second)
		require.Equal(t, `"left-19"`, w.read(job, 3, 19))
		require.Equal(t, snapshot.ID(2), w.seen(EventRecovered)[0].ID)
	})
}

// The guard looks once a second: an index that was evicted and written again in
// between is healthy to it.
func TestAnEvictedIndexThatWasPartlyWrittenAgainIsFlagged(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 150, "full")
		w.apply(job)
		w.checkpoint("flights")
		_, err := w.store.Do(t.Context(), statebackend.Command(statebackend.OpDel, job.Key().Index()))
		require.NoError(t, err)
		part := job
		part.MaxParallelism = 3 // the three keys that are written at the moment
		w.write(part, 150, "again")
		w.pass(3 * time.Second)
		require.Equal(t, HealthOK, w.c.Jobs()[0].Health.State)
		cp := w.checkpoint("flights")
		require.EqualValues(t, 3, cp.Keys)
		require.True(t, cp.InDoubt())
	})
}

func TestWhatANewCheckpointIsComparedWith(t *testing.T) {
	plain := func(id snapshot.ID) snapshot.Checkpoint { return completed(id, snapshot.KindCheckpoint) }
	doubt := func(id snapshot.ID, accepted bool) snapshot.Checkpoint {
		cp := plain(id)
		cp.Shrunk = &snapshot.Shrunk{Base: 1, Accepted: accepted}
		return cp
	}
	bad, failed, brought := plain(5), plain(5), plain(5)
	bad.Bad, failed.State, brought.Trigger = "chunk gone", snapshot.StateFailed, snapshot.TriggerImport
	for _, c := range []struct {
		name    string
		history []snapshot.Checkpoint
		flip    lineageRecord
		want    snapshot.ID
	}{
		{"an empty history", nil, lineageRecord{}, 0},
		{"the newest", []snapshot.Checkpoint{plain(1), plain(4)}, lineageRecord{}, 4},
		{"not one in doubt", []snapshot.Checkpoint{plain(1), doubt(4, false)}, lineageRecord{}, 1},
		{"but an accepted one", []snapshot.Checkpoint{plain(1), doubt(4, true)}, lineageRecord{}, 4},
		{"not a bad one", []snapshot.Checkpoint{plain(1), bad}, lineageRecord{}, 1},
		{"not a failed one", []snapshot.Checkpoint{plain(1), failed}, lineageRecord{}, 1},
		{"not an imported one", []snapshot.Checkpoint{plain(1), brought}, lineageRecord{}, 1},
		{"what a flip put in place", []snapshot.Checkpoint{plain(1), plain(2), plain(3)}, lineageRecord{Newest: 3, Base: 2}, 2},
		{"also when that was in doubt", []snapshot.Checkpoint{plain(1), doubt(2, false), plain(3)}, lineageRecord{Newest: 3, Base: 2}, 2},
		{"what was taken since", []snapshot.Checkpoint{plain(1), plain(2), plain(3), plain(4)}, lineageRecord{Newest: 3, Base: 2}, 4},
		{"nothing after another job's checkpoint", []snapshot.Checkpoint{plain(1), plain(2)}, lineageRecord{Newest: 2}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := shrinkBase(c.history, c.flip)
			if c.want == 0 {
				require.Nil(t, got)
				return
			}
			require.Equal(t, c.want, got.ID)
		})
	}
}

func TestI6RetentionRemovesNothingOlderThanWhatIsInDoubt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		history := drawHistory(t)
		first := snapshot.ID(0)
		for i := range history {
			if history[i].State == snapshot.StateCompleted && rapid.IntRange(0, 5).Draw(t, "shrunk") == 0 {
				history[i].Shrunk = &snapshot.Shrunk{Accepted: rapid.Bool().Draw(t, "accepted")}
			}
			if history[i].InDoubt() && first == 0 {
				first = history[i].ID
			}
		}
		policy := config.Retention{Keep: rapid.IntRange(1, 3).Draw(t, "keep"), MaxAge: config.Duration(time.Minute)}
		plain := make([]snapshot.Checkpoint, len(history))
		for i, cp := range history {
			plain[i] = cp
			plain[i].Shrunk = nil
		}
		without := Retain(plain, policy, nil, day)
		for i, d := range Retain(history, policy, nil, day) {
			if d.ID <= first {
				require.True(t, d.Keep, "%d is removed, %d is in doubt: %s", d.ID, first, d.Reason)
			} else {
				require.Equal(t, without[i], d, "newer ones are not concerned")
			}
		}
		sorted := trustedFirst(history, 0)
		require.ElementsMatch(t, ids(history), ids(sorted))
		for i := 1; i < len(sorted); i++ {
			require.False(t, sorted[i-1].InDoubt() && !sorted[i].InDoubt())
			require.True(t, sorted[i-1].InDoubt() != sorted[i].InDoubt() || sorted[i-1].ID < sorted[i].ID, "the order is kept otherwise")
		}
	})
}
