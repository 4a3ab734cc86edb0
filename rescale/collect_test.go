package rescale

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

func TestCollect(t *testing.T) {
	j := &fakeJob{piece: 3}
	list := j.register("src", "offsets", snapshot.ModeList)
	u := j.register("src", "told", snapshot.ModeUnion)
	j.registered[1].Handed = handedOut(t, "told-by-0", "x")
	b := j.register("limit", "rules", snapshot.ModeBroadcast)
	j.register("src", "unused", snapshot.ModeUnion)
	j.add(list, 10, items("ten")...) // subtasks in the order of numbers, not of text
	j.add(list, 2, items("two-a", "two-b")...).key.ExpireAt = 1700000000123
	j.add(u, 1, items("told-by-0", "x", "told-by-1")...)
	j.add(u, 0, items("told-by-0")...)
	j.add(b, 3, field("threshold", "15"))
	// What is no part of an operator state is passed over.
	j.keys = append(j.keys,
		fakeKey{key: snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte("nobody|knows"), Type: snapshot.TypeSet, Count: 1}, elems: items("m")},
		fakeKey{key: snapshot.Key{Section: snapshot.SectionMeta, Name: []byte("src|offsets|4"), Type: snapshot.TypeList, Count: 1}, elems: items("m")})
	j.add(list, 6).key.Type = snapshot.TypeMissing
	j.add(list, 7, items("half")...).end.Expired = true
	j.keys[len(j.keys)-1].key.Count = 40 // what it had before it expired

	states := j.collect(t)
	digest := func(values ...string) string { return handedOut(t, values...).Digest }
	require.Equal(t, []State{
		{OperatorState: b, Parts: []Part{{Subtask: 3, Length: 1, Digest: fieldsDigest(t, field("threshold", "15"))}}},
		{OperatorState: list, Parts: []Part{
			{Subtask: 2, Length: 2, Digest: digest("two-a", "two-b"), ExpireAt: 1700000000123},
			{Subtask: 10, Length: 1, Digest: digest("ten")}}},
		{OperatorState: j.registered[1], Parts: []Part{
			{Subtask: 0, Length: 1, Digest: digest("told-by-0")},
			{Subtask: 1, Length: 3, Digest: digest("told-by-0", "x", "told-by-1"), Prefix: digest("told-by-0", "x")}}},
		{OperatorState: j.registered[3]},
	}, states)
}

func TestCollectTakesWhatParseSaysOfAnUnregisteredState(t *testing.T) {
	j := &fakeJob{}
	j.add(snapshot.OperatorState{Operator: "o", Name: "n", Mode: snapshot.ModeList}, 0, items("i")...)
	states := j.collect(t)
	require.Len(t, states, 1)
	require.Equal(t, snapshot.ModeList, states[0].Mode)
}

func TestCollectRefuses(t *testing.T) {
	list := snapshot.OperatorState{Operator: "op", Name: "st", Mode: snapshot.ModeList}
	for name, c := range map[string]struct {
		edit func(*fakeJob)
		says []string
	}{
		"a key that can't be parsed": {func(j *fakeJob) { j.keys[0].key.Name = []byte("what|is-this") }, []string{`"what|is-this"`, "no known state"}},
		"a long one":                 {func(j *fakeJob) { j.keys[0].key.Name = bytes.Repeat([]byte("n"), 9000) }, []string{"(9000 bytes)"}},
		"another type":               {func(j *fakeJob) { j.keys[0].key.Type = snapshot.TypeHash }, []string{"op/st", "is a hash", `mode "list" is a list`}},
		"an opaque key":              {func(j *fakeJob) { j.keys[0].key.Type = snapshot.TypeOpaque }, []string{"is a opaque"}},
		"two keys for a part": {func(j *fakeJob) {
			j.add(list, 0, items("b")...).key.Name = []byte("op|st|00")
		}, []string{`"op|st|0"`, `"op|st|00"`, "subtask 0"}},
		"a wrong count": {func(j *fakeJob) { j.keys[0].key.Count = 3 }, []string{"should have 3 elements and has 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			j := &fakeJob{}
			j.add(list, 0, items("a")...)
			c.edit(j)
			col := NewCollector(nil, j.parse)
			err := j.replay(t.Context(), col)
			require.ErrorIs(t, err, ErrInput)
			for _, s := range c.says {
				require.ErrorContains(t, err, s)
			}
			require.Less(t, len(err.Error()), 600)
			_, again := col.States()
			require.ErrorIs(t, again, ErrInput)
			require.True(t, strings.HasSuffix(err.Error(), again.Error()), "the same error again")
			require.Equal(t, again, col.BeginKey(snapshot.Key{}))
			require.Equal(t, again, col.Element(snapshot.Element{}))
			require.Equal(t, again, col.Part(nil))
			require.Equal(t, again, col.EndKey(snapshot.KeyEnd{}))
		})
	}
}

func TestCollectRefusesCallsOutOfOrder(t *testing.T) {
	key := snapshot.Key{Section: snapshot.SectionOperator, Name: []byte("op|st|0"), Type: snapshot.TypeList, Count: 1}
	begin := func(c *Collector) error { return c.BeginKey(key) }
	element := func(c *Collector) error { return c.Element(snapshot.Element{Size: 3, Value: []byte("a")}) }
	part := func(c *Collector) error { return c.Part([]byte("bc")) }
	end := func(c *Collector) error { return c.EndKey(snapshot.KeyEnd{Count: 1}) }
	states := func(c *Collector) error { _, err := c.States(); return err }
	for name, calls := range map[string][]func(*Collector) error{
		"element without a key":  {element},
		"part without a key":     {part},
		"end without a key":      {end},
		"end twice":              {begin, element, part, end, end},
		"key in a key":           {begin, begin},
		"part without element":   {begin, part},
		"element in an element":  {begin, element, element},
		"end in an element":      {begin, element, end},
		"more than was said":     {begin, element, part, part},
		"states while it's open": {begin, element, part, states},
	} {
		t.Run(name, func(t *testing.T) {
			c := NewCollector(nil, (&fakeJob{}).parse)
			for _, call := range calls[:len(calls)-1] {
				require.NoError(t, call(c))
			}
			require.ErrorIs(t, calls[len(calls)-1](c), ErrInput)
		})
	}
}
