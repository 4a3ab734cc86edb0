package snapshot

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// forgeLayers makes a checkpoint of chunks with these raw contents, each layer
// of one chunk.
func forgeLayers(t tb, raws ...[]byte) *saved {
	t.Helper()
	s := &saved{}
	s.m = manifestOf(Summary{Keys: 1})
	s.m.States, s.m.Groups, s.m.Sorted = nil, nil, true
	for i, raw := range raws {
		ref, data, err := sealChunk(raw, nil)
		require.NoError(t, err)
		s.Put(ref.ID, data)
		s.m.Checkpoint.FullBytes += ref.Stored
		if i == 0 {
			s.m.Chunks = []ChunkRef{ref}
		} else {
			s.m.Layers = append(s.m.Layers, Layer{Chunks: []ChunkRef{ref}, Names: 100})
		}
	}
	return s
}

// rawLayer is the content of a layer's chunk with these records, also illegal
// ones.
func rawLayer(n uint64, records ...[]byte) []byte {
	return append(salt{id: 7, layer: n}.append([]byte{byte(SectionKeyed)}), bytes.Join(records, nil)...)
}

func rawBase(records ...[]byte) []byte {
	return append([]byte{byte(SectionKeyed)}, bytes.Join(records, nil)...)
}

// rawRecord is a key with its elements and the end that they give.
func rawRecord(k Key, elements ...Element) []byte {
	b := appendKey(nil, k)
	var d Digester
	d.Reset(k.Type)
	for _, e := range elements {
		d.Element(e)
		if e.Removed {
			b = appendRemoved(b, k.Type, e)
		} else {
			b = append(appendElement(b, frameElement, k.Type, e), e.Value...)
		}
	}
	return appendEnd(b, KeyEnd{Count: d.Count(), Digest: d.Sum()})
}

func field(name, value string) Element {
	return Element{Field: []byte(name), Value: []byte(value), Size: uint64(len(value))}
}

func unset(name string) Element { return Element{Field: []byte(name), Removed: true} }

func hashRecord(op KeyOp, name string, count int, elements ...Element) []byte {
	return rawRecord(Key{Section: SectionKeyed, Op: op, Type: TypeHash, Name: []byte(name), Count: uint64(count)}, elements...)
}

// Layers whose checksums are right, and that don't fit together or aren't
// layers.
func TestLayersThatLieAreNoticed(t *testing.T) {
	base := rawBase(hashRecord(OpWhole, "h", 2, field("a", "1"), field("b", "2")))
	fine := hashRecord(OpPatch, "h", 2, field("a", "x"))
	goneH := append(appendKey(nil, Key{Op: OpGone, Name: []byte("h")}), appendEnd(nil, KeyEnd{})...)
	missingH := rawRecord(Key{Type: TypeMissing, Name: []byte("h")})
	expired := appendKey(nil, Key{Type: TypeHash, Name: []byte("h"), ExpireAt: 5, Count: 2})
	expired = appendEnd(expired, KeyEnd{Expired: true})
	set := rawRecord(Key{Type: TypeSet, Name: []byte("h"), Count: 1}, Element{Value: []byte("m"), Size: 1})
	loose := rawRecord(Key{Type: TypeHash, Name: []byte("l"), Count: 3, Loose: true}, field("a", "1"))
	a, b := hashRecord(OpWhole, "ordered-1", 1, field("a", "1")), hashRecord(OpWhole, "ordered-2", 1, field("a", "1"))
	if CompareNames([]byte("ordered-1"), []byte("ordered-2")) < 0 {
		a, b = b, a
	}
	var long []byte // a member of a patch in parts
	long = appendKey(long, Key{Op: OpPatch, Type: TypeSet, Name: []byte("h"), Count: 1})
	long = appendElement(long, frameLong, TypeSet, Element{Size: 3})
	for name, c := range map[string]struct {
		raws [][]byte
		text string
	}{
		"over nothing":       {[][]byte{base, rawLayer(1, hashRecord(OpPatch, "other", 1, field("a", "1")))}, `key "other": a patch, but no older layer has the key`},
		"over gone":          {[][]byte{base, rawLayer(1, goneH), rawLayer(2, fine)}, `key "h": a patch over a key that is gone`},
		"over missing":       {[][]byte{base, rawLayer(1, missingH), rawLayer(2, fine)}, "a patch of a hash over a missing"},
		"over another type":  {[][]byte{rawBase(set), rawLayer(1, fine)}, "a patch of a hash over a set"},
		"over an expired":    {[][]byte{rawBase(expired), rawLayer(1, fine)}, "a patch over a key that expired"},
		"patched type":       {[][]byte{base, rawLayer(1, fine), rawLayer(2, rawRecord(Key{Op: OpPatch, Type: TypeZSet, Name: []byte("h"), Count: 1}))}, "a patch of a zset over a hash"},
		"one too many":       {[][]byte{base, rawLayer(1, hashRecord(OpPatch, "h", 2, field("c", "3")))}, `key "h": 3 elements with all layers, the newest says 2`},
		"one too few":        {[][]byte{base, rawLayer(1, hashRecord(OpPatch, "h", 2, unset("b")))}, "1 elements with all layers, the newest says 2"},
		"twice in a patch":   {[][]byte{base, rawLayer(1, hashRecord(OpPatch, "h", 2, field("a", "x"), unset("a")))}, `a patch has "a" twice`},
		"more than names":    {[][]byte{base, rawLayer(1, hashRecord(OpPatch, "h", 3, field(text(101, "f"), "x")))}, "more than the 100 bytes"},
		"no salt":            {[][]byte{base, rawBase(fine)}, "a layer's chunk without a salt frame"},
		"salt in a base":     {[][]byte{rawLayer(0, hashRecord(OpWhole, "h", 1, field("a", "1")))}, "a salt frame in a base"},
		"salt in the middle": {[][]byte{base, rawLayer(1, fine, salt{}.append(nil))}, "a salt frame in the middle"},
		"only salt":          {[][]byte{base, rawLayer(1)}, "no frame"},
		"cut in the salt":    {[][]byte{base, rawLayer(1)[:5]}, "ends inside a frame"},
		"patch in a base":    {[][]byte{rawBase(fine)}, "is in the base"},
		"gone in a base":     {[][]byte{rawBase(goneH)}, "is in the base"},
		"gone and not":       {[][]byte{base, rawLayer(1, appendKey(nil, Key{Op: OpGone, Name: []byte("h")}), []byte{frameElement, 0})}, "is missing, but has an element"},
		"removed, no patch":  {[][]byte{rawBase(hashRecord(OpWhole, "h", 1, unset("a")))}, "removed, but the key is no patch"},
		"removed of a list":  {[][]byte{rawBase(appendKey(nil, Key{Type: TypeList, Name: []byte("h"), Count: 1}), []byte{frameRemoved})}, "removed, but the key is no patch"},
		"removed, no key":    {[][]byte{base, rawLayer(1, []byte{frameRemoved, 0})}, "an element comes before any key"},
		"patch of a list":    {[][]byte{base, rawLayer(1, rawRecord(Key{Op: OpPatch, Type: TypeList, Name: []byte("h"), Count: 1}))}, "is a patch of a list"},
		"patch to nothing":   {[][]byte{base, rawLayer(1, hashRecord(OpPatch, "h", 0, unset("a"), unset("b")))}, "a patch leaves the hash without elements"},
		"member in parts":    {[][]byte{rawBase(set), rawLayer(1, long)}, "in parts"},
		"loose and wrong":    {[][]byte{base, rawLayer(1, loose)}, `key "l": 1 elements were read, the server said 3`},
		"loose in one layer": {[][]byte{rawBase(loose)}, `key "l": 1 elements were read, the server said 3`},
		"out of order":       {[][]byte{rawBase(a, b)}, "comes after key"},
		"order of a layer":   {[][]byte{base, rawLayer(1, a, b)}, "comes after key"},
		"a key twice":        {[][]byte{base, rawLayer(1, fine, fine)}, "comes after key"},
		"unknown frame":      {[][]byte{base, rawLayer(1, []byte{12})}, "unknown frame kind 12"},
		"digest of removed":  {[][]byte{base, rawLayer(1, rawDigest(fine))}, "its end says"},
	} {
		t.Run(name, func(t *testing.T) {
			s := forgeLayers(t, c.raws...)
			require.ErrorContains(t, refused(t, s, name, ErrCorrupt), c.text)
			problems, err := Verify(ctx, s, s.m)
			require.NoError(t, err)
			require.Contains(t, lines(problems), c.text)
		})
	}
}

// rawDigest changes the digest at the end of a record.
func rawDigest(record []byte) []byte {
	b := bytes.Clone(record)
	b[len(b)-1] ^= 1
	return b
}

// What version 2 brought stands in no chunk of version 1.
func TestAChunkOfVersion1HasNoFramesOfVersion2(t *testing.T) {
	base := rawBase(hashRecord(OpWhole, "h", 1, field("a", "1")))
	for text, raws := range map[string][][]byte{
		"unknown frame kind 11": {base, rawLayer(1, hashRecord(OpPatch, "h", 1, field("a", "2")))},
		"unknown frame kind 10": {rawBase(rawRecord(Key{Type: TypeHash, Name: []byte("l"), Count: 1, Loose: true}, field("a", "1")))},
	} {
		s := forgeLayers(t, raws...)
		for ref := range s.m.AllChunks() {
			data, err := s.Chunk(ctx, ref.ID)
			require.NoError(t, err)
			data[4] = 1
			body := data[:len(data)-trailerSize]
			binary.LittleEndian.PutUint32(data[len(body):], crc32.Checksum(body, castagnoli))
			s.Put(ref.ID, data)
		}
		require.ErrorContains(t, refused(t, s, text, ErrCorrupt), text)
	}
}

// A section that only one layer has needs no order, as long as the manifest
// doesn't say so: a rescale puts new operator state under old keyed layers.
func TestASectionOfOneLayerNeedsNoOrder(t *testing.T) {
	a := worldOf(hashKey(SectionKeyed, "h", 3))
	b := worldOf(hashKey(SectionKeyed, "h", 4), key(SectionKeyed, TypeString, "s", element("", "v", 0)))
	s := layeredOf(t, EncoderOptions{}, a, b)
	var operator []RecordedKey
	for i := range 20 {
		k := listKey(SectionOperator, "job:o"+string(rune('a'+i)), 2)
		operator = append(operator, k)
		b.put(k)
	}
	sum := encodeLayers(t, &s.MemChunks, EncoderOptions{}, operator)
	require.False(t, sum.Sorted)
	m := stacked(t, &Manifest{Chunks: append(slices.Clone(s.m.Chunks), sum.Chunks...), Layers: s.m.Layers, Sorted: true}, Summary{}, b)
	s.m = m
	require.ErrorContains(t, refused(t, s, "said to be sorted", ErrCorrupt), "comes after key")
	m.Sorted = false
	verified(t, s)
	require.Empty(t, DiffKeys(b.keys(t), walk(t, s)))
	_, _, err := Stack(m, nil)
	require.ErrorContains(t, err, "aren't in order")
	out := merged(t, s, 0, 0)
	require.False(t, out.m.Sorted)
	require.Empty(t, DiffKeys(b.keys(t), walk(t, out)))
}

// Verify tells of every bad chunk in every layer and of what doesn't fit
// together, too.
func TestVerifyReportsAllProblemsOfLayers(t *testing.T) {
	a, b, c := threeWorlds()
	s := layeredOf(t, EncoderOptions{ChunkTarget: 4000}, a, b, c)
	want := 0
	for i := range 3 {
		refs := s.m.layer(i)
		s.Put(refs[0].ID, []byte("garbage"))
		s.Remove(refs[len(refs)-1].ID)
		want += 2
	}
	problems, err := Verify(ctx, s, s.m)
	require.NoError(t, err)
	require.Len(t, problems, want, lines(problems))
	require.Contains(t, problems[0].What, "chunk 0 (keyed")
	require.Contains(t, problems[5].What, "of layer 2")

	s = forgeLayers(t, rawBase(hashRecord(OpWhole, "h", 2, field("a", "1"), field("b", "2"))),
		rawLayer(1, hashRecord(OpPatch, "h", 9, field("c", "1"))))
	second, data, err := sealChunk([]byte("\x01 not a frame"), nil)
	require.NoError(t, err)
	s.Put(second.ID, data)
	s.m.Layers[0].Chunks = append(s.m.Layers[0].Chunks, second)
	s.m.Checkpoint.FullBytes += second.Stored
	problems, err = Verify(ctx, s, s.m)
	require.NoError(t, err)
	require.NotEmpty(t, problems)
	require.Contains(t, lines(problems), "without a salt frame")
}

func TestErrorsOfSourceAndSinkComeThroughLayers(t *testing.T) {
	a, b, c := threeWorlds()
	s := layeredOf(t, EncoderOptions{ChunkTarget: 20_000}, a, b, c)
	chunks := len(slices.Collect(s.m.AllChunks()))
	for k := range chunks {
		require.ErrorIs(t, Walk(ctx, &lockedSource{src: s, left: k, err: errFull}, s.m, nil), errFull)
		_, err := Verify(ctx, &lockedSource{src: s, left: k, err: ErrClosed}, s.m)
		require.ErrorIs(t, err, ErrClosed)
	}
	calls := 0
	require.NoError(t, Walk(ctx, s, s.m, sinkFunc(func() error { calls++; return nil })))
	for k := 0; k < calls; k += 7 {
		left := k
		err := Walk(ctx, s, s.m, sinkFunc(func() error {
			if left--; left < 0 {
				return errFull
			}
			return nil
		}))
		require.Equal(t, errFull, err, "as it is")
	}
	stopped, cancel := context.WithCancel(ctx)
	err := Walk(stopped, s, s.m, sinkFunc(func() error { cancel(); return nil }))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrCorrupt)
	_, err = Verify(stopped, s, s.m)
	require.ErrorIs(t, err, context.Canceled)
}

// lockedSource fails from the k-th chunk on; the layers ask side by side.
type lockedSource struct {
	mu   sync.Mutex
	src  ChunkSource
	left int
	err  error
}

func (l *lockedSource) Chunk(ctx context.Context, id ChunkID) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left--; l.left < 0 {
		return nil, l.err
	}
	return l.src.Chunk(ctx, id)
}
