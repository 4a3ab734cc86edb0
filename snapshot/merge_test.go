package snapshot

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// merged merges and checks that only what should differ does.
func merged(t tb, s *saved, from, target int) *saved {
	t.Helper()
	before, err := EncodeManifest(s.m)
	require.NoError(t, err)
	out := &saved{keys: s.keys}
	for _, id := range s.IDs() { // merging needs no chunk of its own
		data, err := s.Chunk(ctx, id)
		require.NoError(t, err)
		out.Put(id, data)
	}
	out.m, err = Merge(ctx, s, s.m, from, &out.MemChunks, EncoderOptions{ChunkTarget: target})
	require.NoError(t, err)
	after, err := EncodeManifest(s.m)
	require.NoError(t, err)
	require.Equal(t, before, after, "the old manifest stays")
	require.NoError(t, out.m.Validate())

	want := mapStrings(*s.m, func(s string) string { return s })
	want.Chunks, want.Layers, want.Sorted = out.m.Chunks, out.m.Layers, out.m.Sorted
	c := &want.Checkpoint
	c.FullBytes, c.StoredBytes, c.Layers = out.m.Checkpoint.FullBytes, out.m.Checkpoint.StoredBytes, out.m.Checkpoint.Layers
	if from == 0 && len(s.m.Layers) > 0 {
		c.Bytes, c.BytesEstimated = out.m.Checkpoint.Bytes, false
		want.States, want.Groups = out.m.States, out.m.Groups
	}
	require.Equal(t, want, *out.m)
	return out
}

func TestMergedLayersHoldTheSame(t *testing.T) {
	a, b, c := threeWorlds()
	s := layeredOf(t, EncoderOptions{ChunkTarget: 3000}, a, b, c)
	for from := range 3 {
		out := merged(t, s, from, 2000)
		require.Len(t, out.m.Layers, from)
		require.Equal(t, 1+from, out.m.Checkpoint.Layers)
		require.True(t, out.m.Sorted)
		holds(t, out, c)
		if from > 0 {
			require.Equal(t, s.m.Chunks, out.m.Chunks, "the base stays")
			continue
		}
		// What is needed no more can go.
		needed := slices.Collect(out.m.AllChunks())
		for _, id := range out.IDs() {
			if !slices.ContainsFunc(needed, func(r ChunkRef) bool { return r.ID == id }) {
				out.Remove(id)
			}
		}
		holds(t, out, c)
	}
	_, err := Merge(ctx, s, s.m, 3, &s.MemChunks, EncoderOptions{})
	require.ErrorContains(t, err, "it has layers 0 to 2")
	_, err = Merge(ctx, s, s.m, -1, &s.MemChunks, EncoderOptions{})
	require.ErrorContains(t, err, "from layer -1")
}

// What a merge that doesn't reach the base keeps: removals, keys that are gone,
// and patches over patches.
func TestAMergeAboveTheBaseKeepsWhatTheBaseNeeds(t *testing.T) {
	base := worldOf(hashKey(SectionKeyed, "h", 5), key(SectionKeyed, TypeString, "s", element("", "v", 0)),
		key(SectionKeyed, TypeSet, "set", element("", "a", 0), element("", "b", 0)))
	s := &saved{}
	sum := encodeLayers(t, &s.MemChunks, EncoderOptions{},
		inOrder(base.keys(t)),
		inOrder([]RecordedKey{gone(SectionKeyed, "s"),
			patch(SectionKeyed, TypeHash, "h", 5, element("field-1", "one", 0), removal(TypeHash, "field-2"), element("x", "1", 0)),
			patch(SectionKeyed, TypeSet, "set", 1, removal(TypeSet, "a"))}),
		inOrder([]RecordedKey{gone(SectionKeyed, "never there"),
			patch(SectionKeyed, TypeHash, "h", 5, element("field-2", "again", 0), removal(TypeHash, "x")),
			key(SectionKeyed, TypeSet, "set", element("", "c", 0))}),
		inOrder([]RecordedKey{patch(SectionKeyed, TypeSet, "set", 2, element("", "d", 0))}))
	want := worldOf(with(hashKey(SectionKeyed, "h", 5), element("field-0", `{"v":0}`, 0), element("field-1", "one", 0),
		element("field-2", "again", 0), element("field-3", `{"v":21}`, 0), element("field-4", `{"v":28}`, 0)),
		key(SectionKeyed, TypeSet, "set", element("", "c", 0), element("", "d", 0)))
	s.m = stacked(t, nil, sum, want)
	holds(t, s, want)

	out := merged(t, s, 1, 0)
	holds(t, out, want)
	require.Len(t, out.m.Layers, 1)
	var records []RecordedKey
	for _, ref := range out.m.Layers[0].Chunks {
		records = append(records, rawKeys(t, out, ref)...)
	}
	require.Equal(t, inOrder([]RecordedKey{
		gone(SectionKeyed, "s"), gone(SectionKeyed, "never there"),
		patch(SectionKeyed, TypeHash, "h", 5, element("field-2", "again", 0), removal(TypeHash, "x"), element("field-1", "one", 0)),
		key(SectionKeyed, TypeSet, "set", element("", "d", 0), element("", "c", 0)),
	}), clearEnd(records))
	require.EqualValues(t, len("field-2xfield-1"), out.m.Layers[0].Names)
}

// rawKeys are the records of one chunk of a layer as they stand there.
func rawKeys(t tb, s *saved, ref ChunkRef) []RecordedKey {
	t.Helper()
	var rec Recorder
	r := newReader(&Manifest{Layers: []Layer{{Names: MaxChunk}}}, 1, &rec)
	o, err := openRef(ctx, s, ref, nil)
	require.NoError(t, err)
	require.NoError(t, r.chunk(ref.Section, o))
	return rec.Keys
}

// Estimated bytes become exact, and the statistics stay below them.
func TestAMergeMakesEstimatedBytesExact(t *testing.T) {
	a, b, c := threeWorlds()
	s := layeredOf(t, EncoderOptions{}, a, b, c)
	exact := s.m.Checkpoint.Bytes
	s.m.Checkpoint.Bytes, s.m.Checkpoint.BytesEstimated = 3*exact, true
	s.m.States = []StateStats{{Operator: "a", Bytes: 2 * exact}, {Operator: "b", Bytes: exact}}
	s.m.Groups = []GroupStats{{Group: 3, Bytes: exact / 2}, {Group: 9, Bytes: 7}}
	holds(t, s, c)

	out := merged(t, s, 1, 0)
	require.Equal(t, 3*exact, out.m.Checkpoint.Bytes)
	require.True(t, out.m.Checkpoint.BytesEstimated)
	out = merged(t, s, 0, 0)
	require.Equal(t, exact, out.m.Checkpoint.Bytes)
	require.False(t, out.m.Checkpoint.BytesEstimated)
	require.InDelta(t, 2*exact/3, out.m.States[0].Bytes, 1)
	require.InDelta(t, exact/3, out.m.States[1].Bytes, 1)
	require.Equal(t, s.m.Groups, out.m.Groups, "these fit")
	holds(t, out, c)

	s.m.Checkpoint.BytesEstimated = false
	_, err := Merge(ctx, s, s.m, 0, &MemChunks{}, EncoderOptions{})
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "bytes is")
}

// Whatever layer a merge begins with, damage in what it reads is noticed, and
// so is a store that refuses.
func TestAMergeOfDamagedLayersFails(t *testing.T) {
	a, b, c := threeWorlds()
	s := layeredOf(t, EncoderOptions{ChunkTarget: 9000}, a, b, c)
	for from := range 2 {
		for ref := range s.m.AllChunks() {
			data, err := s.Chunk(ctx, ref.ID)
			require.NoError(t, err)
			s.Remove(ref.ID)
			_, err = Merge(ctx, s, s.m, from, &MemChunks{}, EncoderOptions{})
			if from == 0 || !slices.Contains(s.m.Chunks, ref) {
				require.ErrorIs(t, err, ErrNoChunk)
				require.ErrorContains(t, err, ref.ID.String())
			} else {
				require.NoError(t, err, "the base isn't read")
			}
			s.Put(ref.ID, data)
		}
		for k := 0; ; k++ {
			_, err := Merge(ctx, s, s.m, from, &failingWriter{left: k}, EncoderOptions{ChunkTarget: 9000})
			if err == nil {
				require.GreaterOrEqual(t, k, 3)
				break
			}
			require.ErrorIs(t, err, errFull)
		}
	}
	holds(t, s, c)
}
