package restore

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// requireState requires that two states are equal.
func requireState(t tb, want, got state) {
	t.Helper()
	for name, w := range want {
		if got[name] != w {
			require.Equal(t, w, got[name], "key %q", name)
		}
	}
	for name := range got {
		require.Contains(t, want, name, "a key that should not be there")
	}
}

func TestI3RestoreMakesTheLiveStateEqual(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	later := start.Add(time.Hour)
	w.expire(t, w.job.Key().StateKey(w.scope(2), "short"), later)
	mem := w.backend.(*memory.Store)
	other := statebackend.Job{Prefix: w.job.Prefix, Name: w.job.Name + ":b"}
	w.do(t, statebackend.Command(statebackend.OpSAdd, other.Index(), other.Root()+":x"),
		statebackend.Command(statebackend.OpSet, other.Root()+":x", "theirs"),
		statebackend.Command(statebackend.OpSet, "unrelated", "kept"))
	m := w.take(t)
	before, was := w.cut(t)
	w.dirty(t)
	theirs := foreign(t, mem, w.job.Key())

	var phases []string
	res, err := w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID, Undo: 41, AcceptSchema: true},
		func(phase string, _, _, _ uint64) { phases = append(phases, phase) })
	require.NoError(t, err)

	after, is := w.cut(t)
	requireState(t, before, after)
	requireState(t, w.content(t, m), after)
	require.Contains(t, after[w.job.Key().StateKey(w.scope(2), "short")], fmt.Sprint("expires ", later.UnixMilli()))
	require.Equal(t, theirs, foreign(t, mem, w.job.Key()), "keys outside the job")
	require.Equal(t, was.Record.Epoch+1, is.Record.Epoch)
	require.Equal(t, is.Record.Epoch, is.Assigned.Epoch)
	require.Equal(t, was.Assigned.Ranges, is.Assigned.Ranges)
	require.Equal(t, was.Record.Incarnation, is.Record.Incarnation)
	require.Equal(t, m.Checkpoint.ID, is.Record.Attempt)
	require.Equal(t, Result{Job: "flights", Checkpoint: m.Checkpoint.ID, Keys: m.Checkpoint.Keys, Elements: m.Checkpoint.Elements,
		Expired: 0, Removed: 1, Epoch: is.Record.Epoch, Undo: 41}, res)
	require.Equal(t, []string{PhaseVerify, PhaseStage, PhaseProve, PhaseFlip, PhaseClean}, slices.Compact(phases))
	w.noTraces(t)
}

func TestI3RestoreIntoLostState(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	m := w.take(t)
	before := w.live(t)
	w.backend.(*memory.Store).Lose()
	g, err := w.backend.Look(ctx, w.job.Key())
	require.NoError(t, err)
	require.Empty(t, g.Record.Incarnation)

	plan, err := w.exec.Plan(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID, Recovery: true}, nil)
	require.NoError(t, err)
	require.Equal(t, uint64(0), plan.EpochFrom)
	require.Equal(t, m.Checkpoint.Epoch+1, plan.Epoch)
	res, err := w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID, Recovery: true}, nil)
	require.NoError(t, err)
	require.Equal(t, uint64(0), res.Removed)
	after, is := w.cut(t)
	requireState(t, before, after)
	require.Equal(t, m.Incarnation, is.Record.Incarnation, "the state is known as this job's again")
	require.Greater(t, is.Record.Epoch, m.Checkpoint.Epoch)
	require.Equal(t, m.Ranges, is.Assigned.Ranges)
	w.noTraces(t)
}

func TestPlanCountsAndChangesNothing(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	short := w.job.Key().StateKey(w.scope(2), "short")
	w.expire(t, short, start.Add(time.Minute))
	m := w.take(t)
	w.dirty(t)
	w.now.advance(2 * time.Hour)
	before := w.live(t)
	keys := w.backend.(*memory.Store).Keys()

	plan, err := w.exec.Plan(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, nil)
	require.NoError(t, err)
	requireState(t, before, w.live(t))
	require.ElementsMatch(t, keys, w.backend.(*memory.Store).Keys())
	w.noTraces(t)

	require.Equal(t, uint64(1), plan.Expired)
	require.Equal(t, m.Checkpoint.Keys-1, plan.Keys)
	require.Equal(t, m.Checkpoint.Elements-1, plan.Elements)
	require.Equal(t, m.Checkpoint.Bytes-uint64(len(short)+len("s:x")+len(`"y"`)), plan.Bytes)
	require.Equal(t, uint64(1), plan.Missing)
	require.Equal(t, uint64(1), plan.Removed)
	require.Equal(t, int64(2*time.Hour/time.Millisecond), plan.AgeMs)
	require.Equal(t, 2, plan.LiveParallelism)
	require.Equal(t, plan.EpochFrom+1, plan.Epoch)
	require.Contains(t, plan.States, StatePlan{Operator: "delays", State: "count", Type: "hash", Keys: 1, Elements: 300,
		Bytes: bytesOf(m, "count"), Remove: 1})
	require.Contains(t, plan.States, StatePlan{Operator: "delays", State: "short", Type: "hash", Expired: 1})
	var rows uint64
	for _, s := range plan.States {
		rows += s.Keys
	}
	require.Equal(t, plan.Keys, rows)
}

// bytesOf is what the statistics of the checkpoint say about a state.
func bytesOf(m *snapshot.Manifest, state string) uint64 {
	for _, s := range m.States {
		if s.State == state {
			return s.Bytes
		}
	}
	return 0
}

func TestExpiredKeysAreDroppedAndCounted(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	j := w.job.Key()
	gone, stays := j.StateKey(w.scope(2), "short"), j.KeyedKey(w.scope(3), "last", "s:JFK")
	w.expire(t, gone, start.Add(time.Minute))
	w.expire(t, stays, start.Add(time.Minute+time.Millisecond))
	m := w.take(t)
	want := w.live(t)
	w.now.advance(time.Minute) // an expiry at this instant has passed
	res, err := w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, nil)
	require.NoError(t, err)
	require.Equal(t, uint64(1), res.Expired)
	require.Equal(t, m.Checkpoint.Keys-1, res.Keys)
	require.Equal(t, m.Checkpoint.Elements-1, res.Elements)
	got := w.live(t)
	require.NotContains(t, got[gone], "hash")
	require.Contains(t, got[stays], "list")
	delete(want, gone)
	delete(got, gone)
	requireState(t, want, got)
}

func TestRestoreOfAnOlderCheckpointMovesTheEpochOn(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	first := w.take(t)
	one := w.live(t)
	w.dirty(t)
	second := w.take(t)
	two := w.live(t)
	for i, step := range []struct {
		id   snapshot.ID
		want state
	}{{first.Checkpoint.ID, one}, {second.Checkpoint.ID, two}, {first.Checkpoint.ID, one}} {
		res, err := w.exec.Run(ctx, Request{Job: w.job, Checkpoint: step.id, AcceptSchema: true}, nil)
		require.NoError(t, err)
		require.Equal(t, first.Checkpoint.Epoch+uint64(i)+1, res.Epoch)
		got, c := w.cut(t)
		requireState(t, step.want, got)
		require.Equal(t, second.Checkpoint.ID, c.Record.Attempt, "the newest attempt, whichever is restored")
	}
}

func TestTheCheckpointIsHeldAndReleased(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	m := w.take(t)
	tried := false
	_, err := w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, func(phase string, _, _, _ uint64) {
		if phase == PhaseStage && !tried {
			tried = true
			require.ErrorIs(t, w.store.Delete(ctx, w.job.Name, m.Checkpoint.ID), snapshot.ErrInUse)
		}
	})
	require.NoError(t, err)
	require.True(t, tried)
	require.NoError(t, w.store.Delete(ctx, w.job.Name, m.Checkpoint.ID))
	storetest.MustBeClean(t, w.store)
}

func TestCancelBeforeTheFlipChangesNothing(t *testing.T) {
	for _, phase := range []string{PhaseVerify, PhaseStage, PhaseProve} {
		t.Run(phase, func(t *testing.T) {
			w := newWorld(t)
			w.seed(t)
			m := w.take(t)
			w.dirty(t)
			before := w.live(t)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			_, err := w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID, AcceptSchema: true},
				func(p string, _, _, _ uint64) {
					if p == phase {
						cancel()
					}
				})
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, fault.Failed, fault.CodeOf(err))
			requireState(t, before, w.live(t))
			w.noTraces(t)
		})
	}
}

func TestCancelAtTheFlipFinishes(t *testing.T) {
	w := newWorld(t)
	w.seed(t)
	m := w.take(t)
	want := w.live(t)
	w.dirty(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, err := w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID, AcceptSchema: true},
		func(p string, _, _, _ uint64) {
			if p == PhaseFlip {
				cancel()
			}
		})
	require.NoError(t, err)
	requireState(t, want, w.live(t))
	w.noTraces(t)
}
