package rescale

import (
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/keygroups"
	"keyframe/snapshot"
)

func TestSplitEach(t *testing.T) {
	requireSplit(t, SplitEach, []string{"abc", "def"}, []string{"ad", "be", "cf"}) // the document's picture
	// The remainders go round one ring: the first list gives subtasks 0 and 1 one
	// more, the next list begins at subtask 2.
	requireSplit(t, SplitEach, []string{"abcde", "fgh", "ij", ""}, []string{"abfi", "cdg", "ehj"})
	requireSplit(t, SplitEach, []string{"a", "b", "c", "d"}, []string{"a", "b", "c", "d"}) // unchanged
	requireSplit(t, SplitEach, []string{"ab", "", "cdef"}, []string{"abcdef"})
	requireSplit(t, SplitEach, []string{"ab", "cd", "ef"}, []string{"ace", "bdf"}) // scale-in, pieces of all
	requireSplit(t, SplitEach, []string{"a", "b"}, []string{"a", "b", "", ""})     // more subtasks than items
	requireSplit(t, SplitEach, []string{"abcd", ""}, []string{"abcd", ""})         // unchanged is not rebalanced
	requireSplit(t, SplitEach, []string{"", ""}, []string{"", "", ""})
}

func TestSplitEven(t *testing.T) {
	requireSplit(t, SplitEven, []string{"abc", "def"}, []string{"ab", "cd", "ef"})
	requireSplit(t, SplitEven, []string{"", "abcde", "", "fg"}, []string{"abc", "de", "fg"})
	requireSplit(t, SplitEven, []string{"a", "bcdef"}, []string{"abcdef"})
	requireSplit(t, SplitEven, []string{"", "ab"}, []string{"a", "b", "", "", ""})
	requireSplit(t, SplitEven, []string{"", "abcd"}, []string{"", "abcd"})
}

// TestThePointerRunsOverTheStatesOfAnOperator: one item each doesn't pile up
// on subtask 0, and another operator begins anew.
func TestThePointerRunsOverTheStatesOfAnOperator(t *testing.T) {
	for _, split := range []Split{SplitEach, SplitEven} {
		j := &fakeJob{}
		for _, name := range []string{"s4", "s1", "s3", "s2"} { // the order of names counts
			j.add(j.register("map", name, snapshot.ModeList), 1, items(name+"-item")...)
		}
		j.add(j.register("sink", "s1", snapshot.ModeList), 0, items("sunk")...)
		out := j.rescaled(t, 2, 3, split, 0)
		for i, name := range []string{"s1", "s2", "s3", "s4"} {
			require.Equal(t, []string{name + "-item"}, out.part("map", name, i%3), "%s", split)
		}
		require.Equal(t, []string{"sunk"}, out.part("sink", "s1", 0))
	}
}

func TestComputeGivesRangesAndMoves(t *testing.T) {
	r := keygroups.Rule{MaxParallelism: 10}.WithDefaults()
	plan, err := Compute(Request{Rule: r, From: 2, To: 3})
	require.NoError(t, err)
	require.Equal(t, Plan{
		From: 2, To: 3,
		Ranges: []keygroups.Range{{Subtask: 0, Start: 0, End: 3}, {Subtask: 1, Start: 4, End: 6}, {Subtask: 2, Start: 7, End: 9}},
		Moved:  []keygroups.Move{{Start: 4, End: 4, From: 0, To: 1}, {Start: 7, End: 9, From: 1, To: 2}},
		States: []NewState{},
	}, plan)
}

func TestComputeKeepsStatesWithoutParts(t *testing.T) {
	s := snapshot.OperatorState{Operator: "src", Name: "offsets", Mode: snapshot.ModeUnion, Handed: &snapshot.Handed{Epoch: 3, Length: 2, Digest: "d"}}
	plan, err := Compute(Request{Rule: rule(), From: 2, To: 3, States: []State{{OperatorState: s}}})
	require.NoError(t, err)
	s.Handed = nil
	require.Equal(t, []NewState{{OperatorState: s, New: make([][]Slice, 3)}}, plan.States)
	require.Equal(t, []int{0, 0, 0}, plan.States[0].Lengths())
}

func TestLengths(t *testing.T) {
	st := State{Parts: []Part{{Subtask: 1, Length: 7}, {Subtask: 3, Length: 2}}}
	require.Equal(t, []int{0, 7, 0, 2}, st.Lengths(4))
	out := NewState{New: [][]Slice{{{Subtask: 1, From: 2, To: 7}, {Subtask: 3, From: 0, To: 2}}, nil}}
	require.Equal(t, []int{7, 0}, out.Lengths())
}

func TestComputeRefusesWhatContradicts(t *testing.T) {
	list := func(parts ...Part) State {
		return State{OperatorState: snapshot.OperatorState{Operator: "op", Name: "st", Mode: snapshot.ModeList}, Parts: parts}
	}
	ok := list(Part{Subtask: 0, Length: 4}, Part{Subtask: 1, Length: 5})
	base := Request{Rule: rule(), From: 2, To: 3, States: []State{ok}}
	_, err := Compute(base)
	require.NoError(t, err)

	for name, c := range map[string]struct {
		edit func(*Request)
		is   error
		says []string
	}{
		"above max":     {func(r *Request) { r.To = 129 }, keygroups.ErrRule, []string{"129", "128"}},
		"zero":          {func(r *Request) { r.To = 0 }, keygroups.ErrRule, []string{"parallelism 0"}},
		"old zero":      {func(r *Request) { r.From = 0 }, keygroups.ErrRule, []string{"old parallelism"}},
		"split":         {func(r *Request) { r.Split = "odd" }, ErrInput, []string{`split "odd"`, "each, even"}},
		"twice":         {func(r *Request) { r.States = append(r.States, ok) }, ErrInput, []string{"op/st", "twice"}},
		"mode":          {func(r *Request) { r.States[0].Mode = "ring" }, ErrInput, []string{"op/st", `mode "ring"`}},
		"left over":     {func(r *Request) { r.From = 1 }, ErrInput, []string{"op/st", "part of subtask 1", "parallelism is 1"}},
		"negative":      {func(r *Request) { r.States[0] = list(Part{Subtask: -1}) }, ErrInput, []string{"part of subtask -1"}},
		"order":         {func(r *Request) { r.States[0] = list(Part{Subtask: 1}, Part{Subtask: 0}) }, ErrInput, []string{"part of subtask 0 follows that of 1"}},
		"part twice":    {func(r *Request) { r.States[0] = list(Part{Subtask: 1}, Part{Subtask: 1}) }, ErrInput, []string{"part of subtask 1 follows that of 1"}},
		"length":        {func(r *Request) { r.States[0] = list(Part{Length: -6}) }, ErrInput, []string{"length -6"}},
		"expiry":        {func(r *Request) { r.States[0] = list(Part{ExpireAt: 5}, Part{Subtask: 1, ExpireAt: 8}) }, ErrInput, []string{"subtask 1 expires at 8", "at 5"}},
		"choice":        {func(r *Request) { r.Broadcast = map[string]int{"op\x01other": 0} }, ErrInput, []string{`"op\x01other"`, "no state"}},
		"choice's mode": {func(r *Request) { r.Broadcast = map[string]int{"op\x01st": 0} }, ErrInput, []string{"op/st", "mode is list"}},
		"no such copy": {func(r *Request) {
			r.States[0].Mode = snapshot.ModeBroadcast
			r.Broadcast = map[string]int{"op\x01st": 7}
		}, ErrInput, []string{"subtask 7", "choose one of 0, 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			req := base
			req.States = []State{ok}
			c.edit(&req)
			_, err := Compute(req)
			require.ErrorIs(t, err, c.is)
			for _, s := range c.says {
				require.ErrorContains(t, err, s)
			}
		})
	}
}

func TestComputeGivesAllProblemsAtOnce(t *testing.T) {
	_, err := Compute(Request{Rule: rule(), From: 2, To: 3, States: []State{
		{OperatorState: snapshot.OperatorState{Operator: "a", Name: "x", Mode: "ring"}},
		{OperatorState: snapshot.OperatorState{Operator: "b", Name: "y", Mode: snapshot.ModeList}, Parts: []Part{{Subtask: 4}}},
	}})
	require.ErrorContains(t, err, "a/x")
	require.ErrorContains(t, err, "b/y")
}

func TestParseSplit(t *testing.T) {
	for in, want := range map[string]Split{"": SplitEach, "each": SplitEach, "even": SplitEven} {
		got, err := ParseSplit(in)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := ParseSplit("Even")
	require.ErrorContains(t, err, `split "Even": want one of each, even`)
}

// TestOperatorAndNameStayApart: operator "x:y" with state "z" is not operator
// "x" with state "y:z" (nor in any other cut of the same letters).
func TestOperatorAndNameStayApart(t *testing.T) {
	j := &fakeJob{}
	j.add(j.register("x:y", "z", snapshot.ModeList), 0, items("one", "two")...)
	j.add(j.register("x", "y:z", snapshot.ModeList), 0, items("three")...)
	out := j.rescaled(t, 1, 2, SplitEach, 0)
	require.Equal(t, [][]string{{"one"}, {"two"}}, out.parts("x:y", "z", 2))
	require.Equal(t, [][]string{{"three"}, {}}, out.parts("x", "y:z", 2))
}
