package rescaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/coordinator/restore"
	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
	"keyframe/statebackend"
)

// TestI4FailAnyCall fails call k of the state store, the checkpoint store and
// the journal, for k = 1, 2, … through a whole rescale: once, and from k on as
// a crash does; before the call is made, and with only its answer lost. After
// each, Resume leaves the old state or the new one, no trace, and a checkpoint
// of the rescale exactly when it has happened.
func TestI4FailAnyCall(t *testing.T) {
	for _, mode := range []struct{ dead, lost bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		t.Run(fmt.Sprintf("dead=%t lost=%t", mode.dead, mode.lost), func(t *testing.T) {
			outcomes := map[string]int{}
			for k := 1; ; k++ {
				in := &injector{k: k, dead: mode.dead, lost: mode.lost}
				outcomes[failOnce(t, in)]++
				if len(in.failed) == 0 {
					break
				}
				require.Less(t, k, 1000, "the rescale never succeeds")
			}
			require.NotZero(t, outcomes["done"])
			require.NotZero(t, outcomes["unchanged"])
			if mode.dead {
				require.NotZero(t, outcomes["unresolved, then unchanged"])
			}
			if mode.dead && mode.lost {
				require.NotZero(t, outcomes["unresolved, then done"])
			}
		})
	}
}

func failOnce(t *testing.T, in *injector) string {
	t.Helper()
	ctx := context.Background()
	w := newWorld(t, 2)
	w.seed(t)
	base := w.take(t)
	before, _ := w.live(t)
	exec := w.executor(&badStore{w.store, in}, &badJournal{w.store.Journal(), in}, &badBackend{w.backend, in})
	_, err := exec.Run(ctx, Request{Job: w.job, To: 3, Base: base.Checkpoint.ID}, nil)
	where := fmt.Sprintf("call %d, failed %v, error %v", in.k, in.failed, err)

	// What comes next is the next start: nothing fails any more.
	resumed, rerr := w.exec.Resume(ctx, w.job)
	require.NoError(t, rerr, where)
	w.noTraces(t)
	storetest.MustBeClean(t, w.store)
	after, c := w.live(t)
	again, rerr := w.exec.Resume(ctx, w.job)
	require.NoError(t, rerr)
	require.Empty(t, again, where)
	done := c.Assigned.Parallelism == 3
	if done {
		require.Len(t, w.completed(t), 2, where)
		got, m := w.content(t, w.completed(t)[1])
		require.Equal(t, after.all, got.all, where)
		require.Equal(t, snapshot.TriggerRescale, m.Checkpoint.Trigger)
	} else {
		require.Equal(t, before.all, after.all, where)
		require.Equal(t, []snapshot.ID{base.Checkpoint.ID}, w.completed(t), "no checkpoint of a rescale that didn't happen: %s", where)
	}
	return outcomeOf(t, err, resumed, done, where)
}

// outcomeOf holds what was told to what has happened.
func outcomeOf(t *testing.T, err error, resumed []Resumed, done bool, where string) string {
	t.Helper()
	switch {
	case err == nil:
		require.True(t, done, where)
		return "done"
	case errors.Is(err, restore.ErrUnresolved):
		require.Len(t, resumed, 1, where)
		require.Equal(t, done, resumed[0].Flipped, where)
		require.Equal(t, restore.KindRescale, resumed[0].Kind)
		if !done {
			return "unresolved, then unchanged"
		}
		var plan Plan
		require.NoError(t, json.Unmarshal(resumed[0].Detail, &plan))
		require.Equal(t, []int{2, 3}, []int{plan.From, plan.To})
		require.Equal(t, resumed[0].Checkpoint, plan.Checkpoint)
		return "unresolved, then done"
	default:
		require.ErrorIs(t, err, errInjected, where)
		require.NotEqual(t, fault.Internal, fault.CodeOf(err), where)
		require.False(t, done, "the error said that nothing was changed: %s", where)
		return "unchanged"
	}
}

var meanwhileWrites = map[string]func(t *testing.T, w *world){
	"an item": func(t *testing.T, w *world) {
		w.put(t, w.opKey(0, "positions"), "", statebackend.OpRPush, "4711")
	},
	"the first item of an empty part": func(t *testing.T, w *world) {
		w.put(t, w.opKey(1, "positions"), "", statebackend.OpRPush, "4712")
	},
	"a broadcast field": func(t *testing.T, w *world) {
		w.put(t, w.opKey(1, "threshold"), "", statebackend.OpHSet, `"f3"`, "0.25")
	},
	"a part removed": func(t *testing.T, w *world) {
		w.do(t, statebackend.Command(statebackend.OpDel, w.opKey(0, "told")))
	},
}

// TestI4AWriteMeanwhileIsNotLost writes operator state after the base was
// taken: at any later point the rescale gives up, and the write stays.
func TestI4AWriteMeanwhileIsNotLost(t *testing.T) {
	for _, phase := range []string{PhaseCollect, PhaseWrite, PhaseStage, PhaseProve, PhaseFlip} {
		for what, write := range meanwhileWrites {
			t.Run(phase+"/"+what, func(t *testing.T) {
				w := newWorld(t, 2)
				w.seed(t)
				base := w.take(t)
				var before view
				wrote := false
				_, err := w.exec.Run(context.Background(), Request{Job: w.job, To: 3, Base: base.Checkpoint.ID},
					func(p string, _, _, _ uint64) {
						if p == phase && !wrote {
							wrote = true
							write(t, w)
						}
					})
				require.ErrorIs(t, err, statebackend.ErrChanged)
				require.Equal(t, fault.Busy, fault.CodeOf(err))
				require.Contains(t, fault.As(err).Hint, "stop the job's workers")
				require.ErrorContains(t, err, "nothing was changed")
				after, c := w.live(t)
				before, _ = w.content(t, base.Checkpoint.ID)
				require.NotEqual(t, before.all, after.all, "the write is there")
				require.Equal(t, before.keyed(), after.keyed())
				require.Equal(t, 2, c.Assigned.Parallelism)
				require.Equal(t, []snapshot.ID{base.Checkpoint.ID}, w.completed(t))
				w.noTraces(t)
			})
		}
	}
}

func TestKeyedWritesMeanwhileStay(t *testing.T) {
	w := newWorld(t, 2)
	w.seed(t)
	base := w.take(t)
	s := statebackend.Scope{Group: "stats", Topic: "in", Partition: 4, Operator: "delays"}
	key := w.job.Key().StateKey(s, "count")
	_, err := w.exec.Run(context.Background(), Request{Job: w.job, To: 3, Base: base.Checkpoint.ID},
		func(p string, _, _, _ uint64) { w.put(t, key, "", statebackend.OpHSet, "s:at "+p, "1") })
	require.NoError(t, err)
	after, _ := w.live(t)
	require.Contains(t, after.items[key], "s:at flip=1")
	require.Contains(t, after.items[key], "s:at clean=1")
}

func TestCancelBeforeTheFlipChangesNothing(t *testing.T) {
	for _, phase := range []string{PhaseCollect, PhaseWrite, PhaseStage, PhaseProve, PhaseFlip} {
		w := newWorld(t, 2)
		w.seed(t)
		base := w.take(t)
		before, _ := w.live(t)
		ctx, cancel := context.WithCancel(context.Background())
		_, err := w.exec.Run(ctx, Request{Job: w.job, To: 3, Base: base.Checkpoint.ID}, func(p string, _, _, _ uint64) {
			if p == phase {
				cancel()
			}
		})
		cancel()
		after, _ := w.live(t)
		w.noTraces(t)
		if phase == PhaseFlip {
			require.NoError(t, err, "too late to stop it")
			require.NotEqual(t, before.all, after.all)
			continue
		}
		require.ErrorIs(t, err, context.Canceled, phase)
		require.Equal(t, fault.Failed, fault.CodeOf(err))
		require.Equal(t, before.all, after.all)
		require.Equal(t, []snapshot.ID{base.Checkpoint.ID}, w.completed(t))
	}
}

// TestRunSettlesWhatACrashLeft runs again after a crash between the commit of
// the new checkpoint and the flip.
func TestRunSettlesWhatACrashLeft(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, 2)
	w.seed(t)
	base := w.take(t)
	in := &injector{dead: true}
	exec := w.executor(&badStore{w.store, in}, &badJournal{w.store.Journal(), in}, &badBackend{w.backend, in})
	_, err := exec.Run(ctx, Request{Job: w.job, To: 3, Base: base.Checkpoint.ID}, func(p string, _, _, _ uint64) {
		if p == PhaseProve {
			in.mu.Lock()
			in.k = in.calls + 1
			in.mu.Unlock()
		}
	})
	require.ErrorIs(t, err, restore.ErrUnresolved)
	require.Len(t, w.completed(t), 2, "the new checkpoint was committed")

	r := &restore.Executor{Store: w.store, Journal: w.store.Journal(), Backend: w.backend, Now: w.now, NewID: w.exec.NewID}
	_, err = r.Run(ctx, restore.Request{Job: w.job, Checkpoint: base.Checkpoint.ID}, nil)
	require.Equal(t, fault.Busy, fault.CodeOf(err), "a restore leaves the rescale's entry alone")
	resumed, err := r.Resume(ctx, w.job)
	require.NoError(t, err)
	require.Empty(t, resumed, "and does not call the mark foreign")

	res, err := w.exec.Run(ctx, Request{Job: w.job, To: 5, Base: base.Checkpoint.ID}, nil)
	require.NoError(t, err)
	require.Equal(t, []snapshot.ID{base.Checkpoint.ID, res.Checkpoint}, w.completed(t), "the first one's checkpoint is gone")
	_, c := w.live(t)
	require.Equal(t, 5, c.Assigned.Parallelism)
	w.noTraces(t)
}
