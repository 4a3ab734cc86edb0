package rescale

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/keygroups"
	"keyframe/snapshot"
)

// randomJob is a job at some parallelism, and what a test must know of it.
type randomJob struct {
	*fakeJob
	from int
}

// anyValue makes equal items likely, and has empty ones, NUL and bytes that
// are no UTF-8.
var anyValue = rapid.OneOf(
	rapid.SampledFrom([]string{"", "a", "b", "\x00", "\xff\xfe", "1.0", "1"}),
	rapid.StringN(0, 20, 60))

func drawJob(t *rapid.T) randomJob {
	j := randomJob{fakeJob: &fakeJob{piece: rapid.IntRange(1, 9).Draw(t, "piece")}, from: rapid.IntRange(1, 8).Draw(t, "from")}
	for i := range rapid.IntRange(0, 5).Draw(t, "states") {
		name := fmt.Sprintf("state-%d", i)
		operator := rapid.SampledFrom([]string{"map", "map:x", "sink"}).Draw(t, "operator")
		mode := rapid.SampledFrom([]snapshot.OperatorMode{snapshot.ModeList, snapshot.ModeUnion, snapshot.ModeBroadcast}).Draw(t, "mode")
		s := j.register(operator, name, mode)
		if mode == snapshot.ModeBroadcast {
			j.drawBroadcast(t, s)
		} else {
			j.drawParts(t, s)
		}
	}
	j.shuffle(rapid.Uint64().Draw(t, "seed"))
	return j
}

func (j randomJob) drawBroadcast(t *rapid.T, s snapshot.OperatorState) {
	m := rapid.MapOfN(anyValue, anyValue, 1, 150).Draw(t, "broadcast")
	for sub := range j.from {
		var all []item
		for _, k := range slices.Sorted(maps.Keys(m)) {
			all = append(all, field(k, m[k]))
		}
		if rapid.IntRange(0, 3).Draw(t, "reports") > 0 {
			j.add(s, sub, rapid.Permutation(all).Draw(t, "order")...)
		}
	}
}

// drawParts draws the parts of a list or union; some parts of a union begin
// with what was handed out, if anything was.
func (j randomJob) drawParts(t *rapid.T, s snapshot.OperatorState) {
	values := rapid.SliceOfN(anyValue, 0, 12)
	var handed []string
	if s.Mode == snapshot.ModeUnion && rapid.Bool().Draw(t, "handed out before") {
		handed = rapid.SliceOfN(anyValue, 0, 4).Draw(t, "handed")
		sum, err := digestOf(NoPrefix, handed...).Sum()
		require.NoError(t, err)
		j.registered[len(j.registered)-1].Handed = &snapshot.Handed{Epoch: 2, Length: len(handed), Digest: sum}
	}
	for sub := range j.from {
		part := values.Draw(t, "part")
		if rapid.Bool().Draw(t, "keeps its copy") {
			part = append(slices.Clone(handed), part...)
		}
		if len(part) > 0 {
			j.add(s, sub, items(part...)...)
		}
	}
}

func count(parts [][]string) map[string]int {
	all := map[string]int{}
	for _, p := range parts {
		for _, v := range p {
			all[v]++
		}
	}
	return all
}

// wantUnion is what a union comes to, by a walk over the values.
func wantUnion(handed []string, known bool, parts [][]string) []string {
	all := []string{}
	seen := false
	for _, p := range parts {
		if known && len(p) >= len(handed) && slices.Equal(p[:len(handed)], handed) {
			if seen {
				p = p[len(handed):]
			}
			seen = true
		}
		all = append(all, p...)
	}
	return all
}

// handedValues finds the items of the last union from its digest.
func handedValues(t require.TestingT, h *snapshot.Handed, parts [][]string) (values []string, known bool) {
	if h == nil {
		return nil, false
	}
	for _, p := range parts {
		if len(p) < h.Length {
			continue
		}
		sum, err := digestOf(NoPrefix, p[:h.Length]...).Sum()
		require.NoError(t, err)
		if sum == h.Digest {
			return p[:h.Length], true
		}
	}
	return nil, false
}

func requireRescaled(t require.TestingT, j randomJob, to int, split Split, out *fakeJob) {
	require.Len(t, out.registered, len(j.registered))
	for i, s := range j.registered {
		before := j.parts(s.Operator, s.Name, j.from)
		after := out.parts(s.Operator, s.Name, to)
		at := slices.IndexFunc(out.registered, func(o snapshot.OperatorState) bool { return Field(o) == Field(s) })
		require.GreaterOrEqual(t, at, 0)
		require.Equal(t, s.Mode, out.registered[at].Mode)
		switch s.Mode {
		case snapshot.ModeList:
			require.Equal(t, count(before), count(after), "nothing lost, added, altered")
			if j.from == to {
				require.Equal(t, before, after, "unchanged parallelism leaves lists where they are")
				continue
			}
			lengths := make([]int, to)
			for k, p := range after {
				lengths[k] = len(p)
			}
			require.LessOrEqual(t, slices.Max(lengths)-slices.Min(lengths), 1, "%s split", split)
		case snapshot.ModeUnion:
			values, known := handedValues(t, j.registered[i].Handed, before)
			want := wantUnion(values, known, before)
			for _, p := range after {
				require.Equal(t, want, p, "each union is whole everywhere")
			}
			sum, err := digestOf(NoPrefix, want...).Sum()
			require.NoError(t, err)
			require.Equal(t, &snapshot.Handed{Epoch: 9, Length: len(want), Digest: sum}, out.registered[at].Handed)
		case snapshot.ModeBroadcast:
			for _, p := range after {
				require.Equal(t, after[0], p, "each broadcast copy is the same")
			}
			for _, p := range before {
				if len(p) > 0 {
					require.Equal(t, count([][]string{p}), count(after[:1]))
				}
			}
		}
	}
}

func TestI4OperatorStateProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJob(t)
		to := rapid.IntRange(1, 8).Draw(t, "to")
		split := rapid.SampledFrom([]Split{SplitEach, SplitEven}).Draw(t, "split")
		out := j.rescaled(t, j.from, to, split, 0)
		requireRescaled(t, j, to, split, out)

		// The outcome depends neither on memory nor on the order in which the
		// checkpoint has its keys.
		j.shuffle(rapid.Uint64().Draw(t, "other order"))
		if !slices.ContainsFunc(j.registered, func(s snapshot.OperatorState) bool { return s.Mode == snapshot.ModeBroadcast }) {
			budget := rapid.SampledFrom([]int{1, 1000, 4000}).Draw(t, "budget")
			again := j.rescaled(t, j.from, to, split, budget)
			require.Equal(t, out.registered, again.registered)
			requireSameKeys(t, out.keys, again.keys)
		}
	})
}

// TestI4CyclesDoNotGrow: jobs are rescaled again and again, and nobody does
// anything but keep what it was handed.
func TestI4CyclesDoNotGrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJob(t)
		cycles := rapid.SliceOfN(rapid.IntRange(1, 8), 1, 5).Draw(t, "cycles")
		var unions map[string][]string
		for i, to := range cycles {
			next := randomJob{fakeJob: j.rescaled(t, j.from, to, SplitEach, 0), from: to}
			requireRescaled(t, j, to, SplitEach, next.fakeJob)
			now := map[string][]string{}
			for _, s := range next.registered {
				if s.Mode == snapshot.ModeUnion {
					now[Field(s)] = next.part(s.Operator, s.Name, 0)
				}
			}
			if i > 0 {
				require.Equal(t, unions, now)
			}
			unions, j = now, next
		}
	})
}

// TestI4AllPairs: for all pairs of parallelism in 1..8 and both splits, each
// item is where it belongs. Items are told apart by name.
func TestI4AllPairs(t *testing.T) {
	for from := 1; from <= 8; from++ {
		for to := 1; to <= 8; to++ {
			for _, split := range []Split{SplitEach, SplitEven} {
				j := randomJob{fakeJob: &fakeJob{}, from: from}
				s := j.register("op", "list", snapshot.ModeList)
				u := j.register("op", "union", snapshot.ModeUnion)
				b := j.register("op", "broad", snapshot.ModeBroadcast)
				for sub := range from {
					var mine []string
					for k := range (sub*7 + 3) % 11 {
						mine = append(mine, fmt.Sprintf("%d.%d", sub, k))
					}
					if len(mine) > 0 {
						j.add(s, sub, items(mine...)...)
						j.add(u, sub, items(mine...)...)
					}
					j.add(b, sub, field("limit", "15"))
				}
				out := j.rescaled(t, from, to, split, 0)
				requireRescaled(t, j, to, split, out)
				if from != to {
					requirePieces(t, split, j.parts("op", "list", from), out.parts("op", "list", to))
				}
			}
		}
	}
}

// requirePieces: the pieces of each old list, taken together in the order of
// new subtasks, are that list again (each), or the new parts are the old lists
// one after the other (even, whose ring begins at subtask 0 here).
func requirePieces(t *testing.T, split Split, before, after [][]string) {
	t.Helper()
	if split == SplitEven {
		require.Equal(t, slices.Concat(before...), slices.Concat(after...))
		return
	}
	for sub, old := range before {
		var again []string
		for _, part := range after {
			var piece []string
			for _, v := range part {
				if v[:2] == fmt.Sprintf("%d.", sub) {
					piece = append(piece, v)
				}
			}
			require.Contains(t, []int{len(old) / len(after), len(old)/len(after) + 1}, len(piece),
				"each new subtask gets a part of each old list")
			again = append(again, piece...)
		}
		require.Equal(t, slices.Concat(old), again)
	}
}

func TestI4PlanProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := keygroups.Rule{
			Ranges:         rapid.SampledFrom([]keygroups.Ranges{keygroups.RangesLeading, keygroups.RangesFlink}).Draw(t, "ranges"),
			MaxParallelism: rapid.IntRange(8, 300).Draw(t, "maxParallelism"),
		}.WithDefaults()
		j := drawJob(t)
		req := Request{Rule: r, From: j.from, To: rapid.IntRange(1, r.MaxParallelism).Draw(t, "to"), States: j.collect(t)}
		plan, err := Compute(req)
		require.NoError(t, err)
		owners := make([]int, r.MaxParallelism)
		for _, x := range plan.Ranges {
			for g := x.Start; g <= x.End; g++ {
				owners[g]++
			}
		}
		require.Equal(t, slices.Repeat([]int{1}, r.MaxParallelism), owners, "each group has one owner")
		require.Len(t, plan.Ranges, req.To)

		// The order in which states are given doesn't matter, and the request
		// stays as it is.
		turned := req
		turned.States = rapid.Permutation(req.States).Draw(t, "order")
		order := slices.Clone(turned.States)
		again, err := Compute(turned)
		require.NoError(t, err)
		require.Equal(t, plan, again)
		require.Equal(t, order, turned.States)
		for _, s := range plan.States {
			require.Len(t, s.New, req.To)
			for _, run := range s.New {
				for _, x := range run {
					require.Less(t, x.From, x.To, "no empty slices")
				}
			}
		}
	})
}

// TestI4MemoryIsBounded: a state far over the budget passes through without
// being kept; what the loader holds is what the budget allows.
func TestI4MemoryIsBounded(t *testing.T) {
	const budget = 10_000
	j := &fakeJob{}
	s := j.register("op", "list", snapshot.ModeList)
	for sub := range 2 {
		var all []item
		for i := range 5000 {
			all = append(all, items(fmt.Sprintf("item-%d-%d", sub, i))...)
		}
		j.add(s, sub, all...)
	}
	p, err := Compute(Request{Rule: rule(), From: 2, To: 3, States: j.collect(t)})
	require.NoError(t, err)
	x := j.execution(budget)
	most := 0
	x.Replay = func(ctx context.Context, sink snapshot.Sink) error {
		err := j.replay(ctx, sink)
		if l, ok := sink.(*loader); ok {
			held := 0
			for _, part := range l.parts {
				for _, it := range part.items {
					held += itemCost + len(it.field) + cap(it.value)
				}
			}
			most = max(most, held)
		}
		return err
	}
	var out recorder
	_, err = x.Write(t.Context(), p, &out)
	require.NoError(t, err)
	require.LessOrEqual(t, most, budget)
	require.Greater(t, most, budget/2)
	require.Equal(t, count(j.parts("op", "list", 2)), count((&fakeJob{keys: out.keys}).parts("op", "list", 3)))
}
