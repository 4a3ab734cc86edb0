package rescaler

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/coordinator/restore"
	"keyframe/keygroups"
	"keyframe/rescale"
	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// TestI4AllPairs rescales between all parallelisms 1 to 8 and holds the
// outcome to the invariant.
func TestI4AllPairs(t *testing.T) {
	for from := 1; from <= 8; from++ {
		for to := 1; to <= 8; to++ {
			if from == to {
				continue
			}
			split := []rescale.Split{rescale.SplitEach, rescale.SplitEven}[(from+to)%2]
			t.Run(fmt.Sprintf("%d to %d %s", from, to, split), func(t *testing.T) {
				w := newWorld(t, from)
				w.seed(t)
				rescaleAndCheck(t, w, to, split)
			})
		}
	}
}

func rescaleAndCheck(t tb, w *world, to int, split rescale.Split) Result {
	t.Helper()
	ctx := context.Background()
	base := w.take(t)
	before, was := w.live(t)
	req := Request{Job: w.job, To: to, Split: split, Base: base.Checkpoint.ID}
	plan, err := w.exec.Plan(ctx, req)
	require.NoError(t, err)
	same, _ := w.live(t)
	require.Equal(t, before.all, same.all, "a plan changes nothing")

	res, err := w.exec.Run(ctx, req, nil)
	require.NoError(t, err)
	plan.Checkpoint, plan.BaseAgeMs = res.Checkpoint, res.BaseAgeMs
	require.Equal(t, plan, res.Plan, "it did what the plan said")
	w.noTraces(t)
	after, is := w.live(t)
	require.Equal(t, before.keyed(), after.keyed(), "keyed state is untouched")
	checkOwnership(t, w, is, to)
	require.Equal(t, was.Record.Epoch+1, is.Record.Epoch)
	require.Equal(t, was.Record.Incarnation, is.Record.Incarnation)
	require.Equal(t, res.Checkpoint, is.Record.Attempt)

	checkOperatorState(t, w, before, after, was, to)
	checkCheckpoint(t, w, base, res, after)
	return res
}

// parts are what the subtasks have of an operator state.
func (w *world) parts(v view, name string, p int) (all [][]string) {
	for i := range p {
		all = append(all, v.items[w.opKey(i, name)])
	}
	return all
}

// checkOperatorState holds each mode to its rule.
func checkOperatorState(t tb, w *world, before, after view, was statebackend.Cut, to int) {
	t.Helper()
	from := w.job.Parallelism
	require.ElementsMatch(t, slices.Concat(w.parts(before, "positions", from)...), slices.Concat(w.parts(after, "positions", to)...),
		"the multiset of list items stays")
	union := joined(w.parts(before, "told", from))
	if handed := was.Operators[2]; handed.Name == "told" && handed.Handed != nil {
		union = joined(w.parts(before, "told", 1)) // nobody has written since: each copy is the whole
	}
	for i := range to {
		require.Equal(t, union, joined([][]string{after.items[w.opKey(i, "told")]}), "the union is whole at subtask %d", i)
		require.Equal(t, before.items[w.opKey(0, "threshold")], after.items[w.opKey(i, "threshold")])
		for _, name := range []string{"positions", "told", "threshold"} {
			require.Contains(t, after.all, w.opKey(i, name), "each new part has its name in the index, empty or not")
			require.Contains(t, after.items[w.job.Key().Registry()], w.opKey(i, name)+"="+schemaOf(name))
		}
	}
	for i := to; i < from; i++ {
		require.NotContains(t, after.all, w.opKey(i, "told"))
		require.NotContains(t, fmt.Sprint(after.items[w.job.Key().Registry()]), w.opKey(i, "told"))
	}
}

func schemaOf(name string) string {
	return map[string]string{"positions": "java.lang.Long|1", "told": "java.lang.String|2", "threshold": "java.lang.Double|1"}[name]
}

func checkOwnership(t tb, w *world, c statebackend.Cut, to int) {
	t.Helper()
	require.Equal(t, to, c.Assigned.Parallelism)
	require.Equal(t, w.job.MaxParallelism, c.Assigned.MaxParallelism)
	require.Equal(t, c.Record.Epoch, c.Assigned.Epoch)
	next := 0
	for i, r := range c.Assigned.Ranges {
		require.Equal(t, keygroups.Range{Subtask: i, Start: next, End: r.End}, r, "each group has one owner")
		next = r.End + 1
	}
	require.Equal(t, w.job.MaxParallelism, next)
	require.Len(t, c.Operators, 4)
	for _, s := range c.Operators {
		require.Equal(t, s.Mode == snapshot.ModeUnion, s.Handed != nil)
		if s.Handed != nil {
			require.Equal(t, c.Record.Epoch, s.Handed.Epoch)
		}
	}
}

// checkCheckpoint holds the new checkpoint to the live state: they are equal,
// and its numbers are what a cut of the state counts.
func checkCheckpoint(t tb, w *world, base *snapshot.Manifest, res Result, live view) {
	t.Helper()
	ctx := context.Background()
	got, m := w.content(t, res.Checkpoint)
	require.Equal(t, live.all, got.all, "the new checkpoint is the live state")
	problems, err := snapshot.Verify(ctx, w.store, m)
	require.NoError(t, err)
	require.Empty(t, problems)
	require.Equal(t, base.Checkpoint.ID, m.Checkpoint.Parent)
	require.Equal(t, snapshot.TriggerRescale, m.Checkpoint.Trigger)
	require.Equal(t, res.To, m.Checkpoint.Parallelism)
	require.Equal(t, res.Epoch, m.Checkpoint.Epoch)
	require.Equal(t, base.Groups, m.Groups, "keyed state is where it was")
	keyed := func(m *snapshot.Manifest) (refs []snapshot.ChunkRef) {
		for _, c := range m.Chunks {
			if c.Section == snapshot.SectionKeyed {
				refs = append(refs, c)
			}
		}
		return refs
	}
	require.Equal(t, keyed(base), keyed(m), "the same chunks")

	w.job.Parallelism = res.To
	again := w.take(t)
	c, d := m.Checkpoint, again.Checkpoint
	require.Equal(t, []uint64{d.Keys, d.Elements, d.Bytes, d.Missing}, []uint64{c.Keys, c.Elements, c.Bytes, c.Missing})
	require.Equal(t, again.States, m.States)
	require.Equal(t, again.Ranges, m.Ranges)
	require.Equal(t, again.OperatorStates, m.OperatorStates)
}

func TestI4AChainOfRescalesComesBack(t *testing.T) {
	w := newWorld(t, 2)
	w.seed(t)
	first, _ := w.live(t)
	var epochs []uint64
	for _, to := range []int{3, 5, 8, 1, 11, 2} {
		res := rescaleAndCheck(t, w, to, "")
		epochs = append(epochs, res.Epoch)
	}
	require.True(t, slices.IsSorted(epochs))
	last, _ := w.live(t)
	require.Equal(t, first.keyed(), last.keyed())
	told := slices.Concat(first.items[w.opKey(0, "told")], first.items[w.opKey(1, "told")])
	require.Equal(t, told, last.items[w.opKey(1, "told")], "a union that nobody writes doesn't grow from cycle to cycle")
	storetest.MustBeClean(t, w.store)
}

// TestI4AnyOperatorState rescales random state twice.
func TestI4AnyOperatorState(t *testing.T) {
	shared := newWorld(t, 1)
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		w := shared.again(fmt.Sprintf("job%d", n), rapid.IntRange(1, 11).Draw(t, "from"))
		for g := range rapid.IntRange(0, 5).Draw(t, "groups") {
			s := statebackend.Scope{Group: "stats", Topic: "in", Partition: 2 * g, Operator: "delays"}
			w.put(t, w.job.Key().KeyedKey(s, "seen", "s:"+fmt.Sprint(g)), "", statebackend.OpSAdd, "m", fmt.Sprint("n", g))
		}
		item := rapid.SampledFrom([]string{"", "1", "1.0", `"x"`, "\x00", `{"a":[]}`})
		fields := rapid.MapOfN(item, item, 1, 4).Draw(t, "fields")
		for i := range w.job.Parallelism {
			w.put(t, w.opKey(i, "positions"), schemaOf("positions"), statebackend.OpRPush, rapid.SliceOfN(item, 0, 9).Draw(t, "list")...)
			w.put(t, w.opKey(i, "told"), schemaOf("told"), statebackend.OpRPush, rapid.SliceOfN(item, 0, 4).Draw(t, "union")...)
			for f, v := range fields {
				w.put(t, w.opKey(i, "threshold"), schemaOf("threshold"), statebackend.OpHSet, f, v)
			}
		}
		w.registerAll(t)
		for range 2 {
			to := rapid.IntRange(1, 11).Filter(func(p int) bool { return p != w.job.Parallelism }).Draw(t, "to")
			rescaleAndCheck(t, w, to, rapid.SampledFrom([]rescale.Split{"", rescale.SplitEach, rescale.SplitEven}).Draw(t, "split"))
		}
	})
	storetest.MustBeClean(t, shared.store)
}

func TestTheRescaledCheckpointRestores(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, 3)
	w.seed(t)
	base := w.take(t)
	old, _ := w.live(t)
	res, err := w.exec.Run(ctx, Request{Job: w.job, To: 5, Base: base.Checkpoint.ID}, nil)
	require.NoError(t, err)
	want, _ := w.live(t)
	require.NoError(t, w.store.Delete(ctx, w.job.Name, base.Checkpoint.ID), "it needs nothing of its base")
	storetest.MustBeClean(t, w.store)
	w.backend.(*memory.Store).Lose()
	r := &restore.Executor{Store: w.store, Journal: w.store.Journal(), Backend: w.backend, Now: w.now, NewID: w.exec.NewID}
	_, err = r.Run(ctx, restore.Request{Job: w.job, Checkpoint: res.Checkpoint, Recovery: true}, nil)
	require.NoError(t, err)
	got, c := w.live(t)
	delete(want.all, w.job.Key().Assignment()) // a new epoch
	delete(got.all, w.job.Key().Assignment())
	require.Equal(t, want.all, got.all)
	require.Equal(t, 5, c.Assigned.Parallelism)
	require.NotEqual(t, old.all, got.all)
}

func TestPlanShowsSkewMovesAndItems(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, 2)
	w.seed(t)
	base := w.take(t)
	w.at.Add(90_000)
	plan, err := w.exec.Plan(ctx, Request{Job: w.job, To: 3})
	require.NoError(t, err)
	require.Equal(t, base.Checkpoint.ID, plan.Base)
	require.Equal(t, base.Checkpoint.ID, plan.Undo)
	require.Zero(t, plan.Checkpoint)
	require.Equal(t, int64(90_000), plan.BaseAgeMs)
	require.Equal(t, 2, plan.From)
	// 11 groups: 6 and 5 before, 4, 4 and 3 after.
	require.Equal(t, []keygroups.Move{{Start: 4, End: 5, From: 0, To: 1}, {Start: 8, End: 10, From: 1, To: 2}}, plan.Moved)
	sum := func(from, to int) (n uint64) {
		for g := from; g <= to; g++ {
			n += uint64(3 + g)
		}
		return n
	}
	require.Equal(t, keygroups.Range{Subtask: 1, Start: 4, End: 7}, plan.Ranges[1].Range)
	require.Equal(t, sum(4, 7), plan.Ranges[1].Elements)
	require.Equal(t, uint64(4), plan.Ranges[1].Keys)
	require.InDelta(t, float64(sum(6, 10))*2/float64(sum(0, 10)), plan.SkewBefore, 1e-9)
	require.InDelta(t, float64(max(sum(4, 7), sum(8, 10)))*3/float64(sum(0, 10)), plan.SkewAfter, 1e-9)
	require.Equal(t, []OperatorPlan{
		{Operator: "delays", Name: "positions", Mode: snapshot.ModeList, Before: []int{5, 0}, After: []int{2, 2, 1}},
		{Operator: "delays", Name: "threshold", Mode: snapshot.ModeBroadcast, Before: []int{150, 150}, After: []int{150, 150, 150}},
		{Operator: "delays", Name: "told", Mode: snapshot.ModeUnion, Before: []int{2, 2}, After: []int{4, 4, 4}},
		{Operator: "delays", Name: "unused", Mode: snapshot.ModeList, Before: []int{0, 0}, After: []int{0, 0, 0}},
	}, plan.OperatorState)
}

func TestLargeOperatorStateIsVerifiedAfterTheCommit(t *testing.T) {
	keepBytes = 0
	t.Cleanup(func() { keepBytes = 32 << 20 })
	w := newWorld(t, 2)
	w.seed(t)
	rescaleAndCheck(t, w, 3, rescale.SplitEven)
}

func TestDurationAndResultAreThoseOfTheRun(t *testing.T) {
	w := newWorld(t, 2)
	w.seed(t)
	base := w.take(t)
	var phases []string
	res, err := w.exec.Run(context.Background(), Request{Job: w.job, To: 4, Base: base.Checkpoint.ID, Undo: 17},
		func(phase string, _, _, _ uint64) {
			if len(phases) == 0 || phases[len(phases)-1] != phase {
				phases = append(phases, phase)
				w.at.Add(time.Second.Milliseconds())
			}
		})
	require.NoError(t, err)
	require.Equal(t, []string{PhaseCollect, PhaseWrite, PhaseStage, PhaseProve, PhaseFlip, PhaseClean}, phases)
	require.Equal(t, int64(6000), res.DurationMs)
	require.Equal(t, snapshot.ID(17), res.Undo)
}
