package coordinator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/coordinator/cut"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// withFollowing runs f with a state store that tracks writes.
func withFollowing(t *testing.T, test func(t *testing.T, w *world, f *following)) {
	f := &following{}
	inBubble(t, func(t *testing.T, w *world) { test(t, w, f) }, f.install)
}

// stir changes a job's state at random: fields, sets, lists, whole keys, expiry
// times, names in the index.
func (w *world) stir(job config.Job, rng *rand.Rand, n int) {
	key := job.Key()
	var cmds []statebackend.Cmd
	add := func(op statebackend.Op, name string, args ...string) {
		cmds = append(cmds, statebackend.Command(op, name, args...))
	}
	for range n {
		g := rng.IntN(job.MaxParallelism)
		name := func(kind string) string {
			return key.StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: g, Operator: kind}, fmt.Sprintf("s%d", rng.IntN(4)))
		}
		hash, set, list := name("hash"), name("set"), name("list")
		value := fmt.Sprintf("value %d of some length", rng.IntN(1e6))
		switch rng.IntN(8) {
		case 0, 1, 2:
			add(statebackend.OpSAdd, key.Index(), hash)
			add(statebackend.OpHSet, hash, fmt.Sprintf("s:%d", rng.IntN(140)), value)
		case 3:
			add(statebackend.OpHDel, hash, fmt.Sprintf("s:%d", rng.IntN(140)))
		case 4:
			add(statebackend.OpSAdd, key.Index(), set)
			add(statebackend.OpSAdd, set, value, fmt.Sprintf("member %d", rng.IntN(30)))
		case 5:
			add(statebackend.OpSAdd, key.Index(), list)
			add(statebackend.OpRPush, list, value)
		case 6:
			add(statebackend.OpDel, []string{hash, set, list}[rng.IntN(3)])
		default:
			add(statebackend.OpSRem, key.Index(), []string{hash, set, list}[rng.IntN(3)])
		}
	}
	_, err := w.store.Do(w.t.Context(), cmds...)
	require.NoError(w.t, err)
}

// live is the state as it is now.
func (w *world) live(job config.Job) []snapshot.RecordedKey {
	var r snapshot.Recorder
	_, err := w.store.Cut(w.t.Context(), statebackend.CutRequest{Job: job.Key(), Grade: snapshot.GradeAuto}, &r)
	require.NoError(w.t, err)
	return r.Keys
}

// content is what a checkpoint holds; its manifest must be right about it.
func (w *world) content(job string, id snapshot.ID) []snapshot.RecordedKey {
	w.t.Helper()
	release, err := w.db.Hold(w.t.Context(), job, id) // a merge may be under way
	require.NoError(w.t, err)
	defer release()
	m, err := w.db.Manifest(w.t.Context(), job, id)
	require.NoError(w.t, err)
	var r snapshot.Recorder
	require.NoError(w.t, snapshot.Walk(w.t.Context(), w.db, m, &r))
	problems, err := snapshot.Verify(w.t.Context(), w.db, m)
	require.NoError(w.t, err)
	require.Empty(w.t, problems)
	w.counted(m, r.Keys)
	return r.Keys
}

// counted holds a manifest's statistics to its content.
func (w *world) counted(m *snapshot.Manifest, keys []snapshot.RecordedKey) {
	w.t.Helper()
	var sum, states, groups [3]uint64
	for _, k := range keys {
		if k.Key.Section > snapshot.SectionOperator || k.Key.Type == snapshot.TypeMissing {
			continue
		}
		sum[0]++
		sum[1] += uint64(len(k.Elements))
		sum[2] += uint64(len(k.Key.Name))
		for _, e := range k.Elements {
			sum[2] += uint64(len(e.Field) + len(e.Value))
		}
	}
	for _, s := range m.States {
		states[0], states[1], states[2] = states[0]+s.Keys, states[1]+s.Elements, states[2]+s.Bytes
	}
	for _, s := range m.Groups {
		groups[0], groups[1], groups[2] = groups[0]+s.Keys, groups[1]+s.Elements, groups[2]+s.Bytes
	}
	c := m.Checkpoint
	require.Equal(w.t, [3]uint64{c.Keys, c.Elements, c.Bytes}, states, "states, all of which are known")
	require.Equal(w.t, states, groups, "groups, since all state is keyed")
	require.Equal(w.t, sum[:2], states[:2])
	if c.BytesEstimated {
		require.InEpsilon(w.t, sum[2], c.Bytes, 0.2)
	} else {
		require.Equal(w.t, sum[2], c.Bytes)
	}
}

// same compares content but for the record, which checkpoints themselves write.
func same(t *testing.T, want, got []snapshot.RecordedKey) {
	t.Helper()
	require.Empty(t, snapshot.DiffKeys(want, got))
}

func TestAChainOfIncrementalsUnderRetention(t *testing.T) {
	for _, rough := range []bool{false, true} {
		t.Run(fmt.Sprintf("rough=%t", rough), func(t *testing.T) {
			withFollowing(t, func(t *testing.T, w *world, f *following) { chain(t, w, f, rough) })
		})
	}
}

func chain(t *testing.T, w *world, f *following, rough bool) {
	f.rough = rough
	job := testJob("flights")
	job.Retention.Keep = 4
	rng := rand.New(rand.NewPCG(7, 8))
	w.write(job, 140, "v") // much that stays
	w.stir(job, rng, 400)
	w.apply(job)
	first := w.checkpoint("flights")
	require.False(t, first.Incremental)
	require.Equal(t, cut.Restarted.Text, first.FullReason)
	require.Equal(t, rough, first.Layers > 1)
	want := map[snapshot.ID][]snapshot.RecordedKey{first.ID: w.live(job)}
	incremental := 0
	for i := range 30 {
		w.stir(job, rng, 25)
		cp := w.checkpoint("flights")
		want[cp.ID] = w.live(job)
		if cp.Incremental {
			incremental++
			require.Equal(t, cp.ID-1, cp.Parent)
			require.Empty(t, cp.FullReason)
			require.Equal(t, "fields", cp.Tracking)
			require.Less(t, cp.StoredBytes, cp.FullBytes/2)
		}
		if i%7 == 3 { // in the middle of the chain
			require.NoError(t, w.c.DeleteCheckpoint(t.Context(), "flights", cp.ID-1, true))
		}
		w.pass(time.Millisecond) // the merging
		for _, kept := range w.history("flights") {
			same(t, want[kept.ID], w.content("flights", kept.ID))
			require.LessOrEqual(t, kept.Layers, cut.SoftLayers+1)
		}
	}
	require.Equal(t, 30, incremental)
	require.NotEmpty(t, w.seen(EventCheckpointMerged))
	require.Empty(t, w.seen(EventMergeFailed))
	for _, kept := range w.history("flights") {
		w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{Checkpoint: kept.ID.String(), NoUndo: true}))
		same(t, restorable(want[kept.ID]), restorable(w.live(job)))
	}
}

// restorable is the keyed and operator state: what a restore puts back as it
// was.
func restorable(keys []snapshot.RecordedKey) []snapshot.RecordedKey {
	return slices.DeleteFunc(slices.Clone(keys), func(k snapshot.RecordedKey) bool { return k.Key.Section > snapshot.SectionOperator })
}

func TestWhatMakesTheNextCheckpointAFullOne(t *testing.T) {
	other := testJob("flights")
	other.KeyGroups.Ranges = "flink"
	off := testJob("flights")
	off.Checkpoint.Incremental = new(false)
	for name, c := range map[string]struct {
		code cut.FullCode
		text string
		do   func(t *testing.T, w *world, f *following)
		req  CheckpointRequest
	}{
		"a restore": {code: cut.FullState, text: "live state was replaced (restore)", do: func(t *testing.T, w *world, f *following) {
			w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{NoUndo: true}))
			require.Equal(t, []string{"forget flights"}, f.calls)
		}},
		"a rescale": {code: cut.FullState, text: "(rescale)", do: func(t *testing.T, w *world, f *following) {
			w.done(w.c.Rescale(t.Context(), "flights", RescaleRequest{Parallelism: 3}))
		}},
		"an undo": {code: cut.FullState, text: "(undo)", do: func(t *testing.T, w *world, f *following) {
			w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{}))
			w.done(w.c.Undo(t.Context(), "flights"))
		}},
		"a recovery": {code: cut.FullState, text: "(recovery)", do: func(t *testing.T, w *world, f *following) {
			w.store.Lose()
			w.pass(3 * time.Second)
			require.Len(t, w.seen(EventRecovered), 1)
		}},
		"an adoption": {code: cut.FullState, text: "(adopt)", do: func(t *testing.T, w *world, f *following) {
			hold := testJob("flights")
			hold.Recovery.OnStateLoss = config.LossHold
			w.apply(hold)
			w.store.Lose()
			w.write(hold, 3, "fresh")
			w.pass(3 * time.Second)
			w.done(w.c.Adopt(t.Context(), "flights"))
		}},
		"a restart": {code: cut.FullFirst, text: "since the coordinator began", do: func(t *testing.T, w *world, f *following) {
			w.close()
			w.open()
			w.pass(time.Second)
		}},
		"another layout": {code: cut.FullState, text: "applied with another layout", do: func(t *testing.T, w *world, f *following) { w.apply(other) }},
		"switched off":   {code: cut.FullOff, text: "checkpoint.incremental is false", do: func(t *testing.T, w *world, f *following) { w.apply(off) }},
		"tracking lost": {code: cut.FullTracking, text: "tracking was lost: the link broke", do: func(t *testing.T, w *world, f *following) {
			f.set(func() { f.lost = "the link broke" })
		}},
		"another grade": {code: cut.FullGrade, text: "grade paused reads everything", req: CheckpointRequest{Grade: snapshot.GradePaused}},
		"a deletion": {code: cut.FullBase, text: "checkpoint 2, which it would have stood on, was deleted", do: func(t *testing.T, w *world, f *following) {
			require.NoError(t, w.db.Delete(t.Context(), "flights", 2)) // beside the coordinator
		}},
		"a bad one": {code: cut.FullBase, text: "checkpoint 2, which it would have stood on, is bad: seen to be", do: func(t *testing.T, w *world, f *following) {
			why := "seen to be"
			_, err := w.db.Edit(t.Context(), "flights", 2, snapshot.Change{Bad: &why})
			require.NoError(t, err)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			withFollowing(t, func(t *testing.T, w *world, f *following) {
				job := testJob("flights")
				w.write(job, 130, "v")
				w.apply(job)
				w.checkpoint("flights")
				require.True(t, w.checkpoint("flights").Incremental)
				if c.do != nil {
					c.do(t, w, f)
				}
				op := w.done(w.c.Checkpoint(t.Context(), "flights", c.req))
				cp := op.Checkpoint
				require.False(t, cp.Incremental)
				require.Contains(t, cp.FullReason, c.text)
				done := w.seen(EventCheckpointCompleted)
				require.Equal(t, string(c.code), done[len(done)-1].Reason)
				same(t, w.live(job), w.content("flights", cp.ID))
				if c.code == cut.FullOff {
					require.Contains(t, f.calls, "forget flights", "nobody will ask what was written since")
				}
				if c.code == cut.FullOff || c.code == cut.FullTracking {
					return
				}
				w.stir(job, rand.New(rand.NewPCG(1, 2)), 20)
				again := w.checkpoint("flights")
				require.Equal(t, c.code != cut.FullGrade, again.Incremental, again.FullReason)
				same(t, w.live(job), w.content("flights", again.ID))
			})
		})
	}
}

func TestAFailedAttemptLeavesTheBaseUsable(t *testing.T) {
	withFollowing(t, func(t *testing.T, w *world, f *following) {
		job := testJob("flights")
		w.write(job, 130, "v")
		w.apply(job)
		w.checkpoint("flights")
		token := f.last().Since
		require.Empty(t, token)
		w.stir(job, rand.New(rand.NewPCG(3, 4)), 30)
		f.set(func() { f.err = fmt.Errorf("%w: key k has 900 elements that are written", statebackend.ErrStall) })
		s := w.failed(w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{}))
		require.Equal(t, fault.Failed, s.Error.Code)
		require.Contains(t, s.Error.Hint, "checkpoint.maxStall")
		require.Equal(t, snapshot.FailStall, s.Checkpoint.Failure.Reason)
		require.Equal(t, "cut-1", f.last().Since)
		f.set(func() { f.err = nil })
		cp := w.checkpoint("flights")
		require.Equal(t, "cut-1", f.last().Since, "the earlier one's again")
		require.True(t, cp.Incremental)
		require.Equal(t, snapshot.ID(1), cp.Parent)
		same(t, w.live(job), w.content("flights", cp.ID))
	})
}

func TestWhatTheStoreIsAskedFor(t *testing.T) {
	withFollowing(t, func(t *testing.T, w *world, f *following) {
		job := testJob("flights")
		job.Checkpoint.MaxStall, job.Checkpoint.OnStall = config.Duration(7*time.Millisecond), statebackend.StallFail
		job.Checkpoint.MaxReadRate, job.Checkpoint.MaxPause = 50e6, config.Duration(300*time.Millisecond)
		w.write(job, 130, "v")
		w.apply(job)
		w.checkpoint("flights")
		r := f.last()
		require.Equal(t, 7*time.Millisecond, r.MaxStall)
		require.Equal(t, statebackend.StallFail, r.OnStall)
		require.EqualValues(t, 50_000_000, r.MaxReadRate)
		job.Checkpoint.MaxPause = config.Duration(3 * time.Millisecond)
		w.apply(job)
		w.checkpoint("flights")
		require.Equal(t, 3*time.Millisecond, f.last().MaxStall, "no longer than the pause itself")
		require.NoError(t, w.c.DeleteJob(t.Context(), "flights", true))
		require.Equal(t, []string{"forget flights"}, f.calls)
	})
}

// stuck is a checkpoint store whose rewrites wait, or fail.
type stuck struct {
	snapshot.Store
	entered chan struct{}
	err     error
}

func (s *stuck) Rewrite(ctx context.Context, job string, id snapshot.ID) (snapshot.Rewriter, error) {
	if s.err != nil {
		return nil, s.err
	}
	s.entered <- struct{}{}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func TestAMergeEndsWhenSomebodyWaits(t *testing.T) {
	f, s := &following{}, &stuck{}
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 130, "v")
		w.apply(job)
		rng := rand.New(rand.NewPCG(5, 6))
		w.checkpoint("flights")
		for range 4 {
			w.stir(job, rng, 9)
			require.True(t, w.checkpoint("flights").Incremental)
		}
		<-s.entered // merging: the next caller is served all the same
		cp := w.checkpoint("flights")
		require.True(t, cp.Incremental)
		require.Greater(t, cp.Layers, cut.SoftLayers)
		<-s.entered
		require.Empty(t, w.seen(EventMergeFailed))
		// A stop doesn't wait for it either: close has a minute.
	}, f.install, func(o *Options) { s.Store, s.entered, o.Store = o.Store, make(chan struct{}, 9), s })
}

func TestWithoutMergingTheLayersAreBounded(t *testing.T) {
	f, s := &following{}, &stuck{err: errors.New("the disk is full")}
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 130, "v")
		w.apply(job)
		rng, full := rand.New(rand.NewPCG(5, 6)), 0
		w.checkpoint("flights")
		for range 20 {
			w.stir(job, rng, 9)
			cp := w.checkpoint("flights")
			require.LessOrEqual(t, cp.Layers, cut.MaxLayers)
			if !cp.Incremental {
				full++
				require.Contains(t, cp.FullReason, "has 16 layers already")
			}
			same(t, w.live(job), w.content("flights", cp.ID))
		}
		require.Equal(t, 1, full)
		failed := w.seen(EventMergeFailed)
		require.NotEmpty(t, failed)
		require.Contains(t, failed[0].Message, "the disk is full")
		require.Empty(t, w.seen(EventCheckpointFailed), "no failure of the checkpoints")
	}, f.install, func(o *Options) { s.Store, o.Store = o.Store, s })
}

func TestARescaleOverLayers(t *testing.T) {
	withFollowing(t, func(t *testing.T, w *world, f *following) {
		f.rough = true
		job := testJob("flights")
		w.write(job, 130, "v")
		w.apply(job)
		w.checkpoint("flights")
		w.stir(job, rand.New(rand.NewPCG(5, 6)), 50)
		before := restorable(w.live(job))
		res := w.done(w.c.Rescale(t.Context(), "flights", RescaleRequest{Parallelism: 4})).Rescale
		same(t, before, restorable(w.live(job)))
		same(t, before, restorable(w.content("flights", res.Checkpoint)))
		w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{Checkpoint: res.Checkpoint.String(), NoUndo: true}))
		same(t, before, restorable(w.live(job)))
	})
}
