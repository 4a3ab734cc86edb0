package restore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
	"keyframe/statebackend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small writes a state of a few keys, so that failing each call is quick, and
// gives the checkpoint of it. Afterwards the live state differs.
func small(t *testing.T, w *world) (m *snapshot.Manifest, older, newer state) {
	t.Helper()
	j := w.job.Key()
	w.put(t, j.StateKey(w.scope(7), "count"), "java.lang.Integer|1", cmd(statebackend.OpHSet, "s:a", "1"))
	w.put(t, j.KeyedKey(w.scope(3), "last", "s:b"), "", cmd(statebackend.OpRPush, "2.0", "3.0"))
	w.put(t, j.OperatorKey("stats", "flights", 0, "delays", "positions"), "", cmd(statebackend.OpRPush, "4"))
	w.adopt(t)
	m = w.take(t)
	newer = w.live(t) // what the restore leads to
	w.put(t, j.StateKey(w.scope(7), "count"), "", cmd(statebackend.OpHSet, "s:a", "100"))
	w.put(t, j.StateKey(w.scope(8), "count"), "java.lang.Integer|1", cmd(statebackend.OpHSet, "s:z", "9"))
	w.do(t, statebackend.Command(statebackend.OpDel, j.KeyedKey(w.scope(3), "last", "s:b")))
	return m, w.live(t), newer
}

// TestI3FailAnyCall fails call k of the state store, the checkpoint store and
// the journal, for k = 1, 2, … through a whole restore: once, and from k on as
// a crash does; before the call is made, and with only its answer lost. After
// each, Resume leaves the old state or the new one, and no trace.
func TestI3FailAnyCall(t *testing.T) {
	for _, mode := range []struct{ dead, lost bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		t.Run(fmt.Sprintf("dead=%t lost=%t", mode.dead, mode.lost), func(t *testing.T) {
			outcomes := map[string]int{}
			for k := 1; ; k++ {
				in := &injector{k: k, dead: mode.dead, lost: mode.lost}
				outcome := failOnce(t, in)
				outcomes[outcome]++
				if len(in.failed) == 0 {
					break
				}
				require.Less(t, k, 1000, "the restore never succeeds")
			}
			require.NotZero(t, outcomes["done"])
			require.NotZero(t, outcomes["unchanged"])
			if mode.dead && mode.lost {
				require.NotZero(t, outcomes["unresolved, then done"])
			}
			if mode.dead {
				require.NotZero(t, outcomes["unresolved, then unchanged"])
			}
		})
	}
}

func failOnce(t *testing.T, in *injector) string {
	t.Helper()
	ctx := context.Background()
	w := newWorld(t)
	m, older, newer := small(t, w)
	exec := w.executor(&badStore{w.store, in}, &badJournal{w.store.Journal(), in}, &badBackend{w.backend, in})
	res, err := exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID, Undo: 5}, nil)
	where := fmt.Sprintf("call %d, failed %v, error %v", in.k, in.failed, err)

	// What comes next is the next start: nothing fails any more.
	resumed, rerr := w.exec.Resume(ctx, w.job)
	require.NoError(t, rerr, where)
	w.noTraces(t)
	storetest.MustBeClean(t, w.store)
	got := w.live(t)
	again, rerr := w.exec.Resume(ctx, w.job)
	require.NoError(t, rerr)
	require.Empty(t, again, "nothing is left to resume: %s", where)
	switch {
	case err == nil:
		requireState(t, newer, got)
		require.Equal(t, m.Checkpoint.ID, res.Checkpoint)
		require.Equal(t, m.Checkpoint.Keys, res.Keys, where)
		require.Equal(t, uint64(1), res.Removed, where)
		return "done"
	case errors.Is(err, ErrUnresolved):
		require.Equal(t, fault.Unreachable, fault.CodeOf(err), where)
		require.Len(t, resumed, 1, where)
		if resumed[0].Flipped {
			requireState(t, newer, got)
			require.Equal(t, m.Checkpoint.Keys, resumed[0].Result.Keys)
			require.Equal(t, snapshot.ID(5), resumed[0].Result.Undo)
			return "unresolved, then done"
		}
		requireState(t, older, got)
		require.Contains(t, resumed[0].Message, "nothing was changed")
		return "unresolved, then unchanged"
	default:
		require.ErrorIs(t, err, errInjected, where)
		require.NotEqual(t, fault.Internal, fault.CodeOf(err), where)
		requireState(t, older, got)
		for _, r := range resumed {
			require.False(t, r.Flipped, "the error said that nothing was changed: %s", where)
		}
		return "unchanged"
	}
}

func TestRunSettlesWhatACrashLeft(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	m, _, newer := small(t, w)
	left := stageAndCrash(t, w, m)
	_, err := w.exec.Plan(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, nil)
	require.ErrorIs(t, err, statebackend.ErrMarked)
	require.Equal(t, fault.Refused, fault.CodeOf(err))
	require.ErrorContains(t, err, left)
	_, err = w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, nil)
	require.NoError(t, err, "the entry is this coordinator's own: it is resolved first")
	requireState(t, newer, w.live(t))
	w.noTraces(t)
}

// stageAndCrash leaves a journal entry, a mark and staged keys.
func stageAndCrash(t *testing.T, w *world, m *snapshot.Manifest) (id string) {
	t.Helper()
	in := &injector{dead: true}
	exec := w.executor(w.store, w.store.Journal(), &badBackend{w.backend, in})
	_, err := exec.Run(context.Background(), Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, func(phase string, _, _, _ uint64) {
		if phase == PhaseProve {
			in.mu.Lock()
			in.k = in.calls + 1
			in.mu.Unlock()
		}
	})
	require.ErrorIs(t, err, ErrUnresolved)
	entry, err := GetEntry(context.Background(), w.store.Journal(), w.job.Name)
	require.NoError(t, err)
	require.Equal(t, KindRestore, entry.Kind)
	require.Equal(t, m.Checkpoint.ID, entry.Checkpoint)
	return entry.ID
}

func TestResumeWaitsForAnUnreachableStore(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	m, older, _ := small(t, w)
	stageAndCrash(t, w, m)
	dead := w.executor(w.store, w.store.Journal(), &badBackend{w.backend, &injector{k: 1, dead: true}})
	_, err := dead.Resume(ctx, w.job)
	require.ErrorIs(t, err, ErrUnresolved)
	require.Equal(t, fault.Unreachable, fault.CodeOf(err))
	entry, err := GetEntry(ctx, w.store.Journal(), w.job.Name)
	require.NoError(t, err)
	require.NotNil(t, entry, "the entry stays")
	resumed, err := w.exec.Resume(ctx, w.job)
	require.NoError(t, err)
	require.Len(t, resumed, 1)
	require.False(t, resumed[0].Flipped)
	requireState(t, older, w.live(t))
	w.noTraces(t)
}

func TestForeignMarkIsReportedAndForced(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	m, older, _ := small(t, w)
	id := stageAndCrash(t, w, m)
	_, err := w.exec.Force(ctx, w.job)
	require.ErrorContains(t, err, "coordinator's own")
	require.NoError(t, DropEntry(ctx, w.store.Journal(), w.job.Name)) // the store file is lost

	resumed, err := w.exec.Resume(ctx, w.job)
	require.NoError(t, err)
	require.Len(t, resumed, 1)
	require.True(t, resumed[0].Foreign)
	require.Equal(t, id, resumed[0].ID)
	require.Equal(t, m.Checkpoint.ID, resumed[0].Checkpoint)
	require.NotEmpty(t, resumed[0].Hint)
	g, err := w.backend.Look(ctx, w.job.Key())
	require.NoError(t, err)
	require.NotNil(t, g.Record.Restore, "a report changes nothing")

	done, err := w.exec.Force(ctx, w.job)
	require.NoError(t, err)
	require.False(t, done.Flipped)
	requireState(t, older, w.live(t))
	w.noTraces(t)
	_, err = w.exec.Force(ctx, w.job)
	require.Equal(t, fault.NoOperation, fault.CodeOf(err))
}

// TestI7AStalledCoordinatorCannotFlip lets another one force the end of a
// restore that is still under way.
func TestI7AStalledCoordinatorCannotFlip(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	m, older, _ := small(t, w)
	other := w.executor(openStore(t), openStore(t).Journal(), w.backend)
	_, err := w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, func(phase string, _, _, _ uint64) {
		if phase == PhaseFlip {
			_, err := other.Force(ctx, w.job)
			require.NoError(t, err)
		}
	})
	require.Error(t, err)
	require.Contains(t, []fault.Code{fault.Refused, fault.Failed}, fault.CodeOf(err))
	require.ErrorContains(t, err, "nothing was changed")
	requireState(t, older, w.live(t))
	w.noTraces(t)
}

func TestDamagedJournalEntryIsAnError(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	for name, text := range map[string]string{
		"not JSON":      `{"id":`,
		"no id":         `{"job":"flights","prefix":"p","kind":"restore","checkpoint":3}`,
		"no kind":       `{"id":"r9","job":"flights","prefix":"p","kind":"undo","checkpoint":3}`,
		"no checkpoint": `{"id":"r9","job":"flights","prefix":"p","kind":"restore"}`,
		"another job":   `{"id":"r9","job":"trains","prefix":"p","kind":"restore","checkpoint":3}`,
	} {
		require.NoError(t, w.store.Journal().Put(ctx, Bucket, w.job.Name, []byte(text)))
		_, err := w.exec.Resume(ctx, w.job)
		require.Equal(t, fault.Corrupt, fault.CodeOf(err), name)
		_, err = w.exec.Run(ctx, Request{Job: w.job, Checkpoint: 1}, nil)
		require.Equal(t, fault.Corrupt, fault.CodeOf(err), name)
	}
}

func TestFlipThatHappenedWithoutAnAnswerIsDone(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	m, _, newer := small(t, w)
	in := &injector{lost: true}
	exec := w.executor(w.store, w.store.Journal(), &badBackend{w.backend, in})
	w.now.advance(time.Second)
	res, err := exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID, Undo: 2}, func(phase string, _, _, _ uint64) {
		if phase == PhaseFlip {
			in.k = in.calls + 1
		}
	})
	require.NoError(t, err)
	require.Equal(t, []string{"Flip"}, in.failed)
	require.Equal(t, m.Checkpoint.Keys, res.Keys)
	require.Equal(t, uint64(1), res.Removed)
	require.Equal(t, m.Checkpoint.Epoch+1, res.Epoch)
	requireState(t, newer, w.live(t))
	w.noTraces(t)
}
