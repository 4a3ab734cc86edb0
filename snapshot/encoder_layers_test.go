package snapshot

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnEncoderRefusesWhatNoLayerMayHold(t *testing.T) {
	names := []string{"job:a", "job:b"}
	slices.SortFunc(names, func(a, b string) int { return CompareNames([]byte(b), []byte(a)) })
	late, early := hashKey(SectionKeyed, names[0], 2), hashKey(SectionKeyed, names[1], 2)
	h := hashKey(SectionKeyed, "h", 2)
	over := EncoderOptions{Over: true}
	long := element("", text(maxMember+1, "m"), 0)
	removed := removal(TypeSet, "m")
	removed.Size++
	loose := hashKey(SectionKeyed, "h", 2)
	loose.Key.Loose, loose.Key.Count = true, 3
	unfinished := with(hashKey(SectionKeyed, "h", 1))
	unfinished.Elements = []RecordedElement{{Field: []byte("f"), Size: 5, Value: []byte("12")}}
	unfinished.Key.Loose = true
	overstated := patch(SectionKeyed, TypeHash, "h", 1, element("a", "1", 0), element("b", "1", 0))
	overstated.Key.ExpireAt, overstated.End.Expired = 5, true
	for name, c := range map[string]struct {
		opts   EncoderOptions
		layers [][]RecordedKey
		text   string
	}{
		"patch in a base":      {EncoderOptions{}, [][]RecordedKey{{patch(SectionKeyed, TypeHash, "h", 2)}}, `key "h": changes an older layer, but there is none`},
		"gone in a base":       {EncoderOptions{}, [][]RecordedKey{{gone(SectionKeyed, "h")}}, "there is none"},
		"order over a parent":  {over, [][]RecordedKey{{late, early}}, "comes after key"},
		"order in a layer":     {EncoderOptions{}, [][]RecordedKey{{h}, {late, early}}, "comes after key"},
		"twice in a layer":     {over, [][]RecordedKey{{h, h}}, `key "h": comes after key "h"`},
		"layer over disorder":  {EncoderOptions{}, [][]RecordedKey{{late, early}, {h}}, "no layer can stand over this one: key " + quote([]byte(names[1]))},
		"source not last":      {EncoderOptions{}, [][]RecordedKey{{hashKey(SectionSource, "s", 1)}, {h}}, "in a layer above the one that has the source keys"},
		"patch of a source":    {over, [][]RecordedKey{{patch(SectionSource, TypeHash, "h", 1)}}, "these are always whole"},
		"patch of a list":      {over, [][]RecordedKey{{patch(SectionKeyed, TypeList, "h", 1)}}, "is a patch of a list"},
		"gone with a type":     {over, [][]RecordedKey{{{Key: Key{Section: SectionKeyed, Op: OpGone, Type: TypeHash}}}}, "is gone, but a hash"},
		"unknown operation":    {over, [][]RecordedKey{{{Key: Key{Section: SectionKeyed, Op: 3}}}}, "unknown operation 3"},
		"field twice":          {over, [][]RecordedKey{{patch(SectionKeyed, TypeHash, "h", 2, element("a", "1", 0), removal(TypeHash, "a"))}}, `the patch has "a" twice`},
		"member twice":         {over, [][]RecordedKey{{patch(SectionKeyed, TypeSet, "h", 2, element("", "a", 0), element("", "a", 0))}}, `the patch has "a" twice`},
		"long member":          {over, [][]RecordedKey{{patch(SectionKeyed, TypeZSet, "h", 1, long)}}, "a patch has a member of 65537 bytes"},
		"removed in parts":     {over, [][]RecordedKey{{patch(SectionKeyed, TypeSet, "h", 1, removed)}}, "want them whole"},
		"removed with a value": {over, [][]RecordedKey{{patch(SectionKeyed, TypeHash, "h", 1, RecordedElement{Removed: true, Value: []byte("v"), Size: 1})}}, "is removed, but has a value"},
		"removed with a score": {over, [][]RecordedKey{{patch(SectionKeyed, TypeZSet, "h", 1, RecordedElement{Removed: true, Score: -1})}}, "has the score"},
		"removed of a whole":   {over, [][]RecordedKey{{with(h, removal(TypeHash, "f"))}}, "but the key is no patch"},
		"a patch to nothing":   {over, [][]RecordedKey{{patch(SectionKeyed, TypeHash, "h", 0, removal(TypeHash, "f"))}}, "without elements"},
		"more than there are":  {over, [][]RecordedKey{{overstated}}, "2 elements were read, the server said 1"},
		"loose, nothing newer": {EncoderOptions{}, [][]RecordedKey{{loose}, {early}}, `key "h": no later layer brings it: 2 elements were read, the server said 3`},
		"loose, unfinished":    {EncoderOptions{}, [][]RecordedKey{{unfinished}, {h}}, "lacks 3 of 5"},
	} {
		t.Run(name, func(t *testing.T) {
			enc := NewEncoder(ctx, &MemChunks{}, c.opts)
			var err error
			for i, keys := range c.layers {
				if i > 0 && err == nil {
					err = enc.NextLayer()
				}
				if err == nil {
					err = Replay(keys, enc)
				}
			}
			if err == nil {
				_, err = enc.Close()
			}
			require.Error(t, err)
			require.Regexp(t, c.text, err.Error())
			require.Error(t, enc.NextLayer(), "it is dead")
		})
	}
	enc := NewEncoder(ctx, &MemChunks{}, EncoderOptions{})
	require.NoError(t, enc.BeginKey(h.Key))
	require.ErrorContains(t, enc.NextLayer(), `key "h" is still open at the end of its layer`)
}

// A loose key may have any count as long as a newer record follows, whatever
// that is.
func TestALooseKeyIsMendedByALaterLayer(t *testing.T) {
	loose := hashKey(SectionKeyed, "h", 3)
	loose.Key.Loose, loose.Key.Count = true, 50
	empty := with(loose)
	empty.Key.Count = 2
	for _, newer := range []RecordedKey{hashKey(SectionKeyed, "h", 4), key(SectionKeyed, TypeMissing, "h")} {
		s := &saved{}
		sum := encodeLayers(t, &s.MemChunks, EncoderOptions{}, []RecordedKey{loose}, []RecordedKey{newer})
		s.m = stacked(t, nil, sum, worldOf(newer))
		holds(t, s, worldOf(newer))
	}
	s := &saved{}
	sum := encodeLayers(t, &s.MemChunks, EncoderOptions{}, []RecordedKey{empty},
		[]RecordedKey{patch(SectionKeyed, TypeHash, "h", 1, element("a", "1", 0))}, []RecordedKey{patch(SectionKeyed, TypeHash, "h", 2, element("b", "2", 0))})
	want := worldOf(key(SectionKeyed, TypeHash, "h", element("a", "1", 0), element("b", "2", 0)))
	s.m = stacked(t, nil, sum, want)
	holds(t, s, want)
}

// A patch that expired while it was read is all that is left of its key.
func TestAPatchThatExpiredWhileItWasRead(t *testing.T) {
	h := hashKey(SectionKeyed, "h", 3)
	p := patch(SectionKeyed, TypeHash, "h", 3, element("x", "1", 0), removal(TypeHash, "field-1"))
	p.Key.ExpireAt, p.End.Expired = 1700000000001, true
	want := key(SectionKeyed, TypeHash, "h", element("x", "1", 0))
	want.Key.ExpireAt, want.Key.Count, want.End.Expired = p.Key.ExpireAt, 3, true
	s := &saved{}
	sum := encodeLayers(t, &s.MemChunks, EncoderOptions{}, []RecordedKey{h}, []RecordedKey{p})
	s.m = stacked(t, nil, sum, worldOf(want))
	holds(t, s, worldOf(want))
	for from := range 2 {
		holds(t, merged(t, s, from, 0), worldOf(want))
	}
}

// The layers of a summary, and what they count.
func TestASummaryHasItsLayers(t *testing.T) {
	h := hashKey(SectionKeyed, "h", 3)
	p := patch(SectionKeyed, TypeHash, "h", 3, element("field-1", "1", 0))
	var all MemChunks
	opts := EncoderOptions{Salt: 5}
	sum := encodeLayers(t, &all, opts, []RecordedKey{h}, nil, nil, []RecordedKey{p}, nil)
	require.Len(t, sum.Layers, 2, "empty ones are none")
	require.Equal(t, sum.Chunks, sum.Layers[0].Chunks)
	require.Zero(t, sum.Layers[0].Names)
	require.EqualValues(t, len("field-1"), sum.Layers[1].Names)
	require.True(t, sum.Sorted)
	require.EqualValues(t, 4, sum.Elements)
	require.EqualValues(t, 2, sum.Keys)
	require.Equal(t, sum.Layers[0].Chunks[0].Stored+sum.Layers[1].Chunks[0].Stored, sum.Stored)
	require.Equal(t, sum.Stored, sum.Fresh)
	again := encodeLayers(t, &all, opts, []RecordedKey{h}, nil, nil, []RecordedKey{p}, nil)
	require.Equal(t, sum.Layers, again.Layers, "the same salt gives the same chunks")
	require.Zero(t, again.Fresh)
	other := encodeLayers(t, &all, EncoderOptions{}, []RecordedKey{h}, nil, nil, []RecordedKey{p}, nil)
	require.Equal(t, sum.Layers[0], other.Layers[0], "a base has no salt")
	require.NotEqual(t, sum.Layers[1].Chunks[0].ID, other.Layers[1].Chunks[0].ID)

	sum = encodeLayers(t, &all, EncoderOptions{}, nil, []RecordedKey{h})
	require.Len(t, sum.Layers, 2, "the first is there always")
	require.Empty(t, sum.Chunks)
	require.Equal(t, []Layer{{}}, encodeLayers(t, &all, EncoderOptions{Over: true}).Layers)
}

func TestStackRefusesAndTrims(t *testing.T) {
	a, b, c := threeWorlds()
	s := layeredOf(t, EncoderOptions{}, a, b, c)
	base, layers, err := Stack(s.m, []Layer{{}})
	require.NoError(t, err)
	require.Equal(t, s.m.Chunks, base)
	require.Len(t, layers, 2)
	require.Equal(t, s.m.Layers[0], layers[0])
	require.Equal(t, withoutSource(s.m.Layers[1].Chunks), layers[1].Chunks)
	require.Less(t, len(layers[1].Chunks), len(s.m.Layers[1].Chunks), "the source is left out")
	require.Equal(t, SectionSource, s.m.Layers[1].Chunks[len(s.m.Layers[1].Chunks)-1].Section, "and stays where it was")

	only := &Manifest{Sorted: true, Layers: []Layer{{Chunks: s.m.Layers[1].Chunks[len(s.m.Layers[1].Chunks)-1:]}}}
	base, layers, err = Stack(only, nil)
	require.NoError(t, err)
	require.Empty(t, base)
	require.Empty(t, layers, "nothing is left of a layer of sources")

	_, _, err = Stack(s.m, []Layer{{Chunks: s.m.Chunks[:1]}})
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, s.m.Chunks[0].ID.String())
	_, _, err = Stack(&Manifest{}, []Layer{{Chunks: s.m.Chunks}})
	require.ErrorIs(t, err, ErrCorrupt)
	many := &Manifest{Sorted: true}
	for i := range MaxLayers {
		many.Layers = append(many.Layers, Layer{Chunks: []ChunkRef{{ID: ChunkID{byte(i), 1}, Section: SectionKeyed, Raw: 2, Stored: 60}}})
	}
	_, _, err = Stack(many, []Layer{{Chunks: s.m.Chunks}})
	require.ErrorContains(t, err, "layers: 65: at most 64")
	_, _, err = Stack(many, nil)
	require.NoError(t, err)
	base, layers, err = Stack(nil, nil)
	require.NoError(t, err)
	require.Empty(t, base)
	require.Empty(t, layers)
}

// A Recorder takes layers as an Encoder does, and TeeLayers gives them to both.
func TestRecordersTakeLayers(t *testing.T) {
	h := hashKey(SectionKeyed, "h", 3)
	p := patch(SectionKeyed, TypeHash, "h", 2, element("field-1", "1", 0), removal(TypeHash, "field-2"))
	var one, two Recorder
	tee := TeeLayers(&one, &two, NewEncoder(ctx, &MemChunks{}, EncoderOptions{}))
	require.NoError(t, Replay([]RecordedKey{h}, tee))
	require.NoError(t, tee.NextLayer())
	require.NoError(t, Replay([]RecordedKey{p, gone(SectionOperator, "o")}, tee))
	require.Equal(t, one.Keys, two.Keys)
	require.Equal(t, []int{0, 1, 1}, []int{one.Keys[0].Layer, one.Keys[1].Layer, one.Keys[2].Layer})
	require.Equal(t, p.Elements, one.Keys[1].Elements)
	require.NotEmpty(t, DiffKeys(one.Keys[1:2], []RecordedKey{with(p, p.Elements[0], removal(TypeHash, "field-3"))}))
	require.NoError(t, tee.BeginKey(hashKey(SectionMeta, "m", 1).Key))
	require.ErrorContains(t, tee.NextLayer(), "still open")
	require.ErrorContains(t, tee.NextLayer(), "still open")
	require.ErrorContains(t, one.EndKey(KeyEnd{}), "still open")
}
