package snapshot

import (
	"context"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// heapInUse is what the heap holds after a collection, in bytes.
func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// peaks is a sink that samples the live heap every so many calls.
type peaks struct {
	Sink
	every, calls int
	most         uint64
}

func (p *peaks) sample() {
	if p.calls++; p.calls%p.every == 0 {
		p.most = max(p.most, heapInUse())
	}
}

func (p *peaks) Element(e Element) error {
	p.sample()
	return p.Sink.Element(e)
}

func (p *peaks) Part(b []byte) error {
	p.sample()
	return p.Sink.Part(b)
}

func pushList(sink Sink, name string, items int) error {
	if err := sink.BeginKey(Key{Section: SectionOperator, Type: TypeList, Name: []byte(name), Count: uint64(items)}); err != nil {
		return err
	}
	var item []byte
	for i := range items {
		item = strconv.AppendInt(append(item[:0], `{"delay":`...), int64(i)*7919, 10)
		if err := sink.Element(Element{Size: uint64(len(item)), Value: item}); err != nil {
			return err
		}
	}
	return sink.EndKey(KeyEnd{})
}

// pushValue pushes one value of size bytes that hardly compresses.
func pushValue(sink Sink, name string, size int) error {
	if err := sink.BeginKey(Key{Section: SectionKeyed, Type: TypeString, Name: []byte(name), Count: 1}); err != nil {
		return err
	}
	if err := sink.Element(Element{Size: uint64(size)}); err != nil {
		return err
	}
	buf := make([]byte, 256<<10)
	seed := uint64(1)
	for left := size; left > 0; {
		for i := range buf {
			seed = seed*6364136223846793005 + 1442695040888963407
			buf[i] = byte(seed >> 57)
		}
		n := min(left, len(buf))
		if err := sink.Part(buf[:n]); err != nil {
			return err
		}
		left -= n
	}
	return sink.EndKey(KeyEnd{})
}

// I8: memory is bounded, whatever the size of one key (cases 4).
func TestHugeKeysPassInBoundedMemory(t *testing.T) {
	const bound = 48 << 20
	const value = 64 << 20
	base := heapInUse()
	w := &discard{}
	enc := NewEncoder(ctx, w, EncoderOptions{})
	p := &peaks{Sink: enc, every: 20_000}
	require.NoError(t, pushHash(p, "job:hash", 300_000))
	require.NoError(t, pushList(p, "job:list", 300_000))
	p.every = 16
	require.NoError(t, pushValue(p, "job:value", value))
	sum, err := enc.Close()
	require.NoError(t, err)
	require.EqualValues(t, 600_001, sum.Elements)
	require.Greater(t, sum.Bytes, uint64(value))
	require.Equal(t, w.bytes, sum.Stored)
	require.Greater(t, sum.Sections[0].Chunks, 64)
	require.NotZero(t, p.most)
	t.Logf("peak of the live heap: %.1f MiB above the base", float64(p.most-min(p.most, base))/(1<<20))
	require.Less(t, p.most, base+bound, "peak %d above %d", p.most, base)
}

// counter counts what reaches it and how large it comes.
type counter struct {
	elements, bytes, largest uint64
}

func (c *counter) BeginKey(Key) error { return nil }
func (c *counter) Element(e Element) error {
	c.elements++
	return c.Part(e.Value)
}
func (c *counter) Part(b []byte) error {
	c.bytes += uint64(len(b))
	c.largest = max(c.largest, uint64(len(b)))
	return nil
}
func (c *counter) EndKey(KeyEnd) error { return nil }

func TestHugeKeysAreReadInBoundedMemory(t *testing.T) {
	s := &saved{}
	enc := NewEncoder(ctx, s, EncoderOptions{})
	require.NoError(t, pushHash(enc, "job:hash", 300_000))
	require.NoError(t, pushValue(enc, "job:value", 24<<20))
	sum, err := enc.Close()
	require.NoError(t, err)
	base := heapInUse() // the chunks are part of it
	c := &counter{}
	p := &peaks{Sink: c, every: 20_000}
	require.NoError(t, Walk(ctx, s, manifestOf(sum), p))
	require.EqualValues(t, 300_001, c.elements)
	require.Greater(t, c.bytes, uint64(24<<20))
	require.LessOrEqual(t, c.largest, uint64(MaxPart))
	require.NotZero(t, p.most)
	require.Less(t, p.most, base+16<<20, "peak %d above %d", p.most, base)
}

// I8: a walk over layers holds two chunks of each, and the fields of one key's
// patches; so does a merge.
func TestLayersAreReadInBoundedMemory(t *testing.T) {
	const fields, layers = 200_000, 8
	s := &saved{}
	enc := NewEncoder(ctx, s, EncoderOptions{})
	require.NoError(t, pushHash(enc, "job:hash", fields))
	for layer := range layers {
		require.NoError(t, enc.NextLayer())
		require.NoError(t, enc.BeginKey(Key{Section: SectionKeyed, Op: OpPatch, Type: TypeHash, Name: []byte("job:hash"), Count: fields}))
		for i := layer; i < fields; i += 40 {
			field, value := []byte("s:key-"+strconv.Itoa(i)), []byte(text(60, strconv.Itoa(layer)))
			require.NoError(t, enc.Element(Element{Field: field, Size: uint64(len(value)), Value: value}))
		}
		require.NoError(t, enc.EndKey(KeyEnd{}))
	}
	sum, err := enc.Close()
	require.NoError(t, err)
	m := manifestOf(sum)
	m.Layers, m.Sorted, m.States, m.Groups = sum.Layers[1:], true, nil, nil
	m.Checkpoint.Keys, m.Checkpoint.Elements, m.Checkpoint.BytesEstimated = 1, fields, true
	require.Len(t, m.Layers, layers)

	const bound = 40 << 20 // 9 layers of 2 chunks, their stored bytes, 40,000 fields
	base := heapInUse()    // the chunks are part of it
	p := &peaks{Sink: &counter{}, every: 20_000}
	require.NoError(t, Walk(ctx, s, m, p))
	require.NotZero(t, p.most)
	t.Logf("peak of the live heap: %.1f MiB above the base", float64(p.most-min(p.most, base))/(1<<20))
	require.Less(t, p.most, base+bound, "peak %d above %d", p.most, base)

	w := &discard{}
	out, err := Merge(ctx, &peakSource{ChunkSource: s, p: &peaks{every: 1}, limit: base + bound, t: t}, m, 0, w, EncoderOptions{})
	require.NoError(t, err)
	require.Equal(t, w.bytes, out.Checkpoint.FullBytes)
	require.False(t, out.Checkpoint.BytesEstimated)
}

// peakSource samples the live heap at each chunk.
type peakSource struct {
	ChunkSource
	p     *peaks
	limit uint64
	t     *testing.T
	mu    sync.Mutex
}

func (s *peakSource) Chunk(ctx context.Context, id ChunkID) ([]byte, error) {
	s.mu.Lock()
	s.p.sample()
	most := s.p.most
	s.mu.Unlock()
	if most > s.limit {
		s.t.Errorf("live heap of %d bytes: at most %d", most, s.limit)
	}
	return s.ChunkSource.Chunk(ctx, id)
}

// Names and fields of the largest size fit a chunk, and the buffers that they
// made grow aren't kept.
func TestTheLargestNamesFit(t *testing.T) {
	name := strings.Repeat(text(MaxName/16, "name"), 16)
	field := strings.Repeat(text(MaxName/16, "field"), 16)
	k := key(SectionKeyed, TypeHash, name, element("a", text(3<<20, "a"), 0), element(field, text(70_000, "v"), 0), element("c", "d", 0))
	s := encode(t, MaxChunkTarget, []RecordedKey{k, hashKey(SectionKeyed, "job:b", 130)})
	got := walk(t, s)
	require.Empty(t, DiffKeys([]RecordedKey{k}, clearEnd(got[:1])))
	require.Len(t, got[1].Elements, 130)
	for _, ref := range s.m.Chunks {
		require.LessOrEqual(t, ref.Raw, uint64(MaxChunk))
	}
	require.Greater(t, len(s.m.Chunks), 2)
	verified(t, s)
}

// clearEnd takes the computed ends away.
func clearEnd(keys []RecordedKey) []RecordedKey {
	for i := range keys {
		keys[i].End = KeyEnd{}
	}
	return keys
}

// Once its buffers are there, an encoder allocates per chunk, not per element.
func TestAnElementCostsNoAllocation(t *testing.T) {
	enc := NewEncoder(ctx, &discard{}, EncoderOptions{ChunkTarget: 128 << 10})
	require.NoError(t, pushHash(enc, "job:warm", 60_000))
	var names atomic.Int64
	const fields = 20_000
	allocs := testing.AllocsPerRun(5, func() {
		if err := pushHash(enc, "job:"+strconv.FormatInt(names.Add(1), 10), fields); err != nil {
			panic(err)
		}
	})
	require.Less(t, allocs, float64(fields)/50)
}
