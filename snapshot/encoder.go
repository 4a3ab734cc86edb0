package snapshot

import (
	"context"
	"errors"
	"fmt"
)

// Sizes of chunks, in bytes.
const (
	// DefaultChunkTarget is the raw size at which a chunk is sealed.
	DefaultChunkTarget = 1 << 20
	// LayerChunkTarget is the most at which a chunk of a layer is sealed: many
	// layers may be read side by side, with two chunks each in memory.
	LayerChunkTarget = 256 << 10
	// MaxChunkTarget leaves room below MaxChunk for one name and one field
	// of the largest size.
	MaxChunkTarget = 4 << 20
	// maxWhole is the size up to which a value is never cut.
	maxWhole = 64 << 10
)

// EncoderOptions tune an Encoder. The zero value is right for most.
type EncoderOptions struct {
	// ChunkTarget is the raw size in bytes at which a chunk is sealed: 0 is
	// DefaultChunkTarget, more than MaxChunkTarget is MaxChunkTarget.
	ChunkTarget int
	// Over says that what is written stands over a parent: its first layer
	// may hold patches and keys that are gone too, and its keys must come in
	// the order of CompareNames.
	Over bool
	// Salt makes the chunks of layers differ from those of all others; 0
	// takes a random number. With the same salt the same keys in the same
	// order give the same chunks.
	Salt uint64
}

// Summary is what an Encoder wrote. The numbers without a section are what a
// Checkpoint shows: of the keyed and operator sections, but Stored and Fresh
// of all. With more than one layer, or with patches, keys and elements are sums
// over what was pushed: only the layers together make a checkpoint's numbers.
type Summary struct {
	Chunks []ChunkRef // of the first layer; the sections in order: keyed, operator, meta, source
	// Layers are what was written, oldest first, without those that are empty;
	// the first is there always.
	Layers []Layer
	// Sorted says that the keys of each section of each layer came in the
	// order of CompareNames.
	Sorted   bool
	Keys     uint64 // that exist
	Missing  uint64
	Expired  uint64
	Elements uint64
	Bytes    uint64 // logical
	Stored   uint64 // bytes of all chunks: a Checkpoint's FullBytes
	Fresh    uint64 // bytes that were new to the store: its StoredBytes
	Sections []SectionTotals
}

// Encoder writes the keys that are pushed into it as chunks, each section
// into chunks of its own, and checks the grammar of the stream while it does.
// A key may expire while it is read: EndKey{Expired: true} is allowed in the
// middle of a value, whose element then isn't counted.
//
// EndKey's Count and Digest are computed here; when the caller gives either
// (as Walk does), both must agree.
//
// Not safe for concurrent use. Chunks are compressed in the background, one at
// a time, and written in the caller's goroutine. An Encoder may be dropped
// without Close: nothing runs on for longer than two compressions.
// After an error every call gives that error. It works for a subset of the
// sections: a rescale writes only what it replaces.
//
// In layers (NextLayer) the keys of each section come in the order of
// CompareNames; without, and not Over a parent, they may come in any. A loose
// key whose count is not what came must have a newer record by Close. Source
// keys are legal in the last layer that has any key only. A patch names each
// field or member once.
type Encoder struct {
	ctx      context.Context
	w        ChunkWriter
	target   int
	whole    int // values up to this size are never cut
	tr       tracker
	element  int // where the open short element begins in the builder; -1
	part     int // where the open part frame begins in the builder; -1
	builders [SectionSource + 1]builder
	layers   layering
	free     [][]byte // raw buffers to reuse
	outs     [][]byte // envelope buffers to reuse
	flights  []flight // the oldest first
	sum      Summary
	err      error
	closed   bool
}

// builder is the open chunk of one section.
type builder struct {
	buf    []byte     // empty when there is no open chunk
	base   int        // bytes of the section, the salt and the resume frame
	refs   []ChunkRef // of the open layer
	totals SectionTotals
	order  order
}

// NewEncoder makes an encoder that writes chunks to w under ctx.
func NewEncoder(ctx context.Context, w ChunkWriter, opts EncoderOptions) *Encoder {
	target := opts.ChunkTarget
	if target <= 0 {
		target = DefaultChunkTarget
	}
	target = min(target, MaxChunkTarget)
	e := &Encoder{ctx: ctx, w: w, target: target, whole: min(maxWhole, target/4), element: -1, part: -1}
	for s := range e.builders {
		e.builders[s].totals.Section = Section(s)
	}
	e.layers.begin(opts)
	return e
}

// fail keeps the first error for ever.
func (e *Encoder) fail(err error) error {
	if err != nil && e.err == nil {
		e.err = err
	}
	return e.err
}

// usable gives the error that the encoder is dead of.
func (e *Encoder) usable() error {
	if e.err == nil && e.closed {
		e.err = errors.New("encoder is closed")
	}
	return e.err
}

// BeginKey opens a key.
func (e *Encoder) BeginKey(k Key) error {
	if err := e.usable(); err != nil {
		return err
	}
	if err := e.tr.begin(k); err != nil {
		return e.fail(err)
	}
	if err := e.layers.key(k, &e.builders[k.Section].order); err != nil {
		return e.fail(e.tr.wrap(err))
	}
	b, err := e.room(false)
	if err != nil {
		return err
	}
	b.buf = appendKey(b.buf, k)
	return nil
}

// Element writes the first part of an element.
func (e *Encoder) Element(el Element) error {
	if err := e.usable(); err != nil {
		return err
	}
	if err := e.tr.checkElement(el); err != nil {
		return e.fail(err)
	}
	b, err := e.room(true)
	if err != nil {
		return err
	}
	if e.tr.key.Op == OpPatch {
		return e.patched(b, el)
	}
	if el.Size > uint64(e.whole) {
		return e.long(b, el)
	}
	return e.short(b, el)
}

// short begins an element whose value is never cut.
func (e *Encoder) short(b *builder, el Element) error {
	e.element = len(b.buf)
	b.buf = appendElement(b.buf, frameElement, e.tr.key.Type, el)
	b.buf = append(b.buf, el.Value...)
	return e.fail(e.tr.element(el))
}

// long begins an element whose value goes in parts. The tracker gets the
// value as the parts do, so that a resume frame tells where it stands.
func (e *Encoder) long(b *builder, el Element) error {
	e.element = -1
	b.buf = appendElement(b.buf, frameLong, e.tr.key.Type, el)
	value := el.Value
	el.Value = nil
	if err := e.tr.element(el); err != nil {
		return e.fail(err)
	}
	return e.writeParts(value)
}

// Part writes the next bytes of the open value.
func (e *Encoder) Part(p []byte) error {
	if err := e.usable(); err != nil {
		return err
	}
	if err := e.tr.checkPart(p); err != nil {
		return e.fail(err)
	}
	if len(p) == 0 || e.element < 0 {
		return e.writeParts(p)
	}
	b := &e.builders[e.tr.key.Section] // a short value stays whole
	b.buf = append(b.buf, p...)
	if err := e.tr.part(p); err != nil || e.tr.key.Op != OpPatch {
		return e.fail(err)
	}
	return e.named(b)
}

// writeParts appends bytes of a long value to part frames: it fills the open
// one, and the chunk, before it begins another, so that the chunks don't
// depend on how the caller cut the value.
func (e *Encoder) writeParts(p []byte) error {
	b := &e.builders[e.tr.key.Section]
	for len(p) > 0 {
		if e.part >= 0 && (e.full(b) || e.partLen(b) == MaxPart) {
			e.closePart(b)
		}
		if e.part < 0 {
			if _, err := e.room(true); err != nil {
				return err
			}
			e.part = len(b.buf)
			b.buf = append(b.buf, framePart, 0, 0, 0, 0)
		}
		// A part that was begun where the chunk was nearly full gets a byte.
		n := min(len(p), MaxPart-e.partLen(b), max(1, b.base+e.target-len(b.buf)))
		b.buf = append(b.buf, p[:n]...)
		e.widen(b)
		if err := e.tr.part(p[:n]); err != nil {
			return e.fail(err)
		}
		p = p[n:]
	}
	if e.tr.left == 0 && e.part >= 0 {
		e.closePart(b)
	}
	return nil
}

// EndKey closes the key.
func (e *Encoder) EndKey(said KeyEnd) error {
	if err := e.usable(); err != nil {
		return err
	}
	if e.tr.open {
		if said.Expired {
			e.abandon()
		}
		if _, err := e.room(true); err != nil {
			return err
		}
	}
	end, err := e.tr.end(said.Expired)
	if err == nil && (said.Count != 0 || said.Digest != 0) {
		err = e.tr.sameEnd(said, end)
	}
	if err != nil {
		return e.fail(err)
	}
	b := &e.builders[e.tr.key.Section]
	b.buf = appendEnd(b.buf, end)
	b.totals.add(&e.tr, end)
	e.layers.ended(&e.tr)
	return nil
}

// abandon ends a value that will not be finished because its key expired: a
// short element is taken back, a long one ends with the bytes it has.
func (e *Encoder) abandon() {
	if e.tr.left == 0 {
		return
	}
	b := &e.builders[e.tr.key.Section]
	if e.element >= 0 {
		b.buf = b.buf[:e.element]
		e.tr.left = 0
	} else if e.part >= 0 {
		e.closePart(b)
	}
}

// Close seals the open chunks and says what was written. A second call gives
// the same again.
func (e *Encoder) Close() (Summary, error) {
	if e.closed && e.err == nil {
		return e.sum, nil
	}
	if e.err != nil {
		return Summary{}, e.err
	}
	if e.tr.open {
		return Summary{}, e.fail(fmt.Errorf("key %s is still open at the end", quote(e.tr.key.Name)))
	}
	if err := e.endLayer(); err != nil {
		return Summary{}, err
	}
	if err := e.layers.close(); err != nil {
		return Summary{}, e.fail(err)
	}
	e.closed = true
	e.sum = e.summarize()
	e.free, e.outs = nil, nil
	return e.sum, nil
}

func (e *Encoder) summarize() Summary {
	s := Summary{Layers: e.layers.done, Sorted: e.layers.unsorted == nil}
	s.Chunks = s.Layers[0].Chunks
	for sec := SectionKeyed; sec <= SectionSource; sec++ {
		b := &e.builders[sec]
		s.Sections = append(s.Sections, b.totals)
		s.Stored += b.totals.Stored
		s.Fresh += b.totals.Fresh
		if sec == SectionKeyed || sec == SectionOperator {
			s.Keys += b.totals.Keys
			s.Missing += b.totals.Missing
			s.Expired += b.totals.Expired
			s.Elements += b.totals.Elements
			s.Bytes += b.totals.Bytes
		}
	}
	return s
}
