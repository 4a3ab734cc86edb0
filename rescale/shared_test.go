package rescale

import (
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

// unionOf is a job with one union "op"/"u" and these parts.
func unionOf(handed *snapshot.Handed, parts ...[]string) *fakeJob {
	j := &fakeJob{}
	s := j.register("op", "u", snapshot.ModeUnion)
	j.registered[0].Handed = handed
	for i, p := range parts {
		if len(p) > 0 {
			j.add(s, i, items(p...)...)
		}
	}
	return j
}

func handedOut(t *testing.T, values ...string) *snapshot.Handed {
	t.Helper()
	sum, err := digestOf(NoPrefix, values...).Sum()
	require.NoError(t, err)
	return &snapshot.Handed{Epoch: 4, Length: len(values), Digest: sum}
}

func requireUnion(t *testing.T, j *fakeJob, from, to int, want ...string) *fakeJob {
	t.Helper()
	out := j.rescaled(t, from, to, SplitEach, 0)
	for i := range to {
		require.Equal(t, want, out.part("op", "u", i), "subtask %d", i)
	}
	now := handedOut(t, want...)
	now.Epoch = 9
	require.Equal(t, now, out.registered[0].Handed)
	return out
}

func TestI4UnionNeverHandedOutIsPlainlyConcatenated(t *testing.T) {
	requireUnion(t, unionOf(nil, []string{"a", "b"}, nil, []string{"a", "b"}), 3, 2, "a", "b", "a", "b")
}

func TestI4UnionHandedOutCountsOnce(t *testing.T) {
	h := handedOut(t, "a", "b")
	for name, c := range map[string]struct {
		parts [][]string
		want  []string
	}{
		"all keep it":           {[][]string{{"a", "b"}, {"a", "b"}, {"a", "b"}}, []string{"a", "b"}},
		"what follows counts":   {[][]string{{"a", "b", "c"}, {"a", "b"}, {"a", "b", "d", "e"}}, []string{"a", "b", "c", "d", "e"}},
		"equal contributions":   {[][]string{{"a", "b", "x"}, {"a", "b", "x"}, {"x"}}, []string{"a", "b", "x", "x", "x"}},
		"in its place":          {[][]string{{"y"}, {"a", "b", "z"}, {"a", "b"}}, []string{"y", "a", "b", "z"}},
		"twice in one part":     {[][]string{{"a", "b", "a", "b"}, nil, {"a", "b"}}, []string{"a", "b", "a", "b"}},
		"nobody keeps it":       {[][]string{{"p"}, {"q"}, {"p"}}, []string{"p", "q", "p"}},
		"shorter is its own":    {[][]string{{"a"}, {"a", "b"}, {"b"}}, []string{"a", "a", "b", "b"}},
		"another order too":     {[][]string{{"b", "a"}, {"a", "b"}, nil}, []string{"b", "a", "a", "b"}},
		"one of many reports":   {[][]string{nil, nil, {"a", "b", "c"}}, []string{"a", "b", "c"}},
		"same bytes, other cut": {[][]string{{"ab"}, {"a", "b"}, {"ab"}}, []string{"ab", "a", "b", "ab"}},
	} {
		t.Run(name, func(t *testing.T) {
			requireUnion(t, unionOf(h, c.parts...), 3, 5, c.want...)
		})
	}
}

func TestI4UnionHandedOutEmpty(t *testing.T) {
	requireUnion(t, unionOf(handedOut(t), []string{"a"}, []string{"a"}), 2, 3, "a", "a")
	// A length that nobody writes makes nothing of the parts disappear.
	requireUnion(t, unionOf(&snapshot.Handed{Length: -1}, []string{"a"}, []string{"b"}), 2, 3, "a", "b")
}

func TestI4UnionWithoutItemsIsNoKey(t *testing.T) {
	out := unionOf(handedOut(t, "a"), nil, nil).rescaled(t, 2, 4, SplitEach, 0)
	require.Empty(t, out.keys)
	now := handedOut(t)
	now.Epoch = 9
	require.Equal(t, now, out.registered[0].Handed)
}

// TestI4UnionDoesNotGrow: cycle after cycle, through all kinds of parallelism,
// subtasks write back the copy that they were handed, some add one item.
func TestI4UnionDoesNotGrow(t *testing.T) {
	j := unionOf(nil, []string{"a"}, []string{"b", "a"})
	want := []string{"a", "b", "a"}
	from := 2
	for cycle, to := range []int{3, 5, 5, 1, 8, 2, 2, 7, 4} {
		j = requireUnion(t, j, from, to, want...)
		if cycle%3 == 1 { // subtask 0 adds to its copy
			it := items(string(rune('p' + cycle)))
			j.keys[0].elems = append(j.keys[0].elems, it...)
			j.keys[0].key.Count++
			want = append(want, string(it[0].value))
		}
		from = to
	}
	requireUnion(t, j, from, 3, "a", "b", "a", "q", "t", "w")
}

// broadcastOf is a job with one broadcast "op"/"b".
func broadcastOf(parts ...[]item) *fakeJob {
	j := &fakeJob{}
	s := j.register("op", "b", snapshot.ModeBroadcast)
	for i, p := range parts {
		if len(p) > 0 {
			j.add(s, i, p...)
		}
	}
	return j
}

func TestI4BroadcastIsTheSameEverywhere(t *testing.T) {
	one := []item{field("threshold", "15"), field("unit", "min")}
	turned := []item{field("unit", "min"), field("threshold", "15")} // a hash has no order
	for _, j := range []*fakeJob{broadcastOf(one, turned, one), broadcastOf(nil, one, turned), broadcastOf(nil, nil, one)} {
		for _, to := range []int{1, 3, 5} {
			out := j.rescaled(t, 3, to, SplitEach, 0)
			for i := range to {
				require.ElementsMatch(t, []string{"threshold=15", "unit=min"}, out.part("op", "b", i))
			}
			require.Nil(t, out.registered[0].Handed)
			require.Len(t, out.keys, to)
		}
	}
}

func TestI4BroadcastDisagreement(t *testing.T) {
	a, b := []item{field("k", "1")}, []item{field("k", "2"), field("m", "1")}
	j := broadcastOf(a, b, a, nil)
	agrees := j.register("op", "same", snapshot.ModeBroadcast)
	j.add(agrees, 1, field("x", "y"))
	other := j.register("zip", "codes", snapshot.ModeBroadcast)
	j.add(other, 2, field("1", "k"))
	j.add(other, 3, field("k", "1"))
	req := Request{Rule: rule(), From: 4, To: 2, States: j.collect(t)}

	_, err := Compute(req)
	require.ErrorIs(t, err, ErrDisagree)
	var disagree *DisagreeError
	require.ErrorAs(t, err, &disagree)
	require.Len(t, disagree.States, 2)
	got := disagree.States[0]
	require.Equal(t, "op", got.State.Operator)
	require.Equal(t, "b", got.State.Name)
	require.Len(t, got.Copies, 2)
	require.Equal(t, []int{0, 2}, got.Copies[0].Subtasks)
	require.Equal(t, []int{1}, got.Copies[1].Subtasks)
	require.Equal(t, []int{1, 2}, []int{got.Copies[0].Length, got.Copies[1].Length})
	require.NotEqual(t, got.Copies[0].Digest, got.Copies[1].Digest)
	for _, s := range []string{"op/b (subtask 0, 2: 1 fields, digest " + got.Copies[0].Digest[:12], "subtask 1: 2 fields", "; zip/codes (", "choose the subtask"} {
		require.ErrorContains(t, err, s)
	}

	req.Broadcast = map[string]int{"op\x01b": 1}
	_, err = Compute(req)
	require.ErrorAs(t, err, &disagree)
	require.Len(t, disagree.States, 1, "only the one without a choice is left")

	req.Broadcast["zip\x01codes"] = 3
	plan, err := Compute(req)
	require.NoError(t, err)
	require.Equal(t, []Slice{{Subtask: 1, To: 2}}, plan.States[0].New[0])
	require.Equal(t, plan.States[0].New[0], plan.States[0].New[1])
	require.Equal(t, []Slice{{Subtask: 3, To: 1}}, plan.States[2].New[1])
}

func TestDigestsOfEqualLengthTellFieldFromValue(t *testing.T) {
	_, err := Compute(Request{Rule: rule(), From: 2, To: 2, States: broadcastOf([]item{field("k", "v")}, []item{field("v", "k")}).collect(t)})
	require.ErrorIs(t, err, ErrDisagree)
}
