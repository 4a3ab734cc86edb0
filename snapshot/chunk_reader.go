package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"math"
)

// sinkError carries what a sink gave through the reader.
type sinkError struct{ err error }

func (e sinkError) Error() string { return e.err.Error() }

// reader turns the raw content of the chunks of one layer into calls of a
// Sink. It lives as long as the walk over a manifest, since a key goes on from
// chunk to chunk.
type reader struct {
	tr     tracker
	sink   Sink   // nil: only check
	over   bool   // the layer stands over another: its chunks are salted
	names  uint64 // the most bytes of identities that one patch may have
	sorted bool   // the section's keys must be in order
	// alone: nothing stands over the layer, so a loose key is as strict as
	// any other.
	alone  bool
	order  order
	ended  KeyEnd // of the last key
	totals sectionTotals
	// blind: the chunk before could not be read to its end, so that whatever
	// key the next one resumes is taken as it is.
	blind bool
	// mismatch takes what is wrong with a key whose frames are sound; when it
	// gives nil, reading goes on.
	mismatch func(offset int, err error) error

	section Section
	version byte // of the chunk's envelope
	c       cursor
	frame   int // offset of the current frame
}

// newReader reads a layer of m (0: its base).
func newReader(m *Manifest, layer int, sink Sink) *reader {
	r := &reader{sink: sink, totals: newTotals(), over: layer > 0, alone: len(m.Layers) == 0}
	if r.over {
		r.names = m.Layers[layer-1].Names
	}
	return r
}

// opened is the raw content of a chunk, and the version of its envelope.
type opened struct {
	raw     []byte
	version byte
}

// chunk reads the raw content of one chunk. An error that isn't a sinkError
// is about the bytes at r.frame.
func (r *reader) chunk(section Section, o opened) error {
	if err := r.load(section, o); err != nil {
		return err
	}
	for r.c.more() {
		if err := r.next(); err != nil {
			return err
		}
	}
	return nil
}

// load begins a chunk: next reads its frames.
func (r *reader) load(section Section, o opened) error {
	r.section, r.version, r.c, r.frame = section, o.version, cursor{b: o.raw, off: 1}, 1
	if err := r.salt(); err != nil {
		return err
	}
	if err := r.start(); err != nil {
		return err
	}
	if !r.c.more() {
		return errors.New("the chunk has no frame")
	}
	return nil
}

// salt takes the salt, which the chunks of a layer over another have and no
// others.
func (r *reader) salt() error {
	salted := r.c.more() && r.c.b[r.c.off] == frameSalt
	switch {
	case salted && r.version < 2:
		return unknownFrame(frameSalt)
	case salted && !r.over:
		return errors.New("a salt frame in a base")
	case !salted && r.over:
		return errors.New("a layer's chunk without a salt frame")
	case !salted:
		return nil
	}
	r.c.u8()
	r.c.u64()
	r.c.uvarint()
	r.frame = r.c.off
	return r.c.err
}

func unknownFrame(kind byte) error { return fmt.Errorf("unknown frame kind %d", kind) }

// start takes the resume frame, which must be there exactly when a key is
// open.
func (r *reader) start() error {
	resumes := r.c.more() && r.c.b[r.c.off] == frameResume
	switch {
	case r.blind && !resumes:
		r.blind, r.tr.open = false, false
		return nil
	case !resumes && r.tr.open:
		return r.tr.wrap(errors.New("is open, but the section's next chunk doesn't resume it"))
	case !resumes:
		return nil
	}
	r.c.u8()
	t, name := KeyType(r.c.u8()), r.c.bytes(MaxName, "name")
	count, left := r.c.uvarint(), r.c.uvarint()
	if r.c.err != nil {
		return r.c.err
	}
	if r.blind {
		return r.resumeBlind(t, name, count, left)
	}
	return r.checkResume(t, name, count, left)
}

func (r *reader) checkResume(t KeyType, name []byte, count, left uint64) error {
	k := &r.tr
	switch {
	case !k.open:
		return fmt.Errorf("resumes key %s, but no key is open", quote(name))
	case !bytes.Equal(name, k.key.Name) || t != k.key.Type:
		return fmt.Errorf("resumes the %s key %s, but the %s key %s is open",
			t, quote(name), k.key.Type, quote(k.key.Name))
	case count != k.count():
		return k.wrap(fmt.Errorf("resumes after %d elements, but %d were read", count, k.count()))
	case left != k.left:
		return k.wrap(fmt.Errorf("resumes a value that lacks %d bytes, but %d are to come", left, k.left))
	}
	return nil
}

// resumeBlind takes over a key whose beginning was not read.
func (r *reader) resumeBlind(t KeyType, name []byte, count, left uint64) error {
	if !t.Valid() || t == TypeMissing {
		return fmt.Errorf("resumes key %s of %s", quote(name), t)
	}
	r.blind = false
	r.tr = tracker{open: true, blind: true, skipped: count, size: left, left: left}
	r.tr.key = Key{Section: r.section, Name: bytes.Clone(name), Type: t}
	r.tr.digest.Reset(t)
	if left > 0 { // its head is not known, so neither is its hash
		r.tr.digest.Element(Element{Size: left})
	}
	return nil
}

// next reads one frame.
func (r *reader) next() error {
	r.frame = r.c.off
	kind := r.c.u8()
	if kind > frameEnd && r.version < 2 {
		return unknownFrame(kind)
	}
	switch kind {
	case frameKey, framePatch, frameGone, frameLoose:
		return r.key(kind)
	case frameElement, frameLong, frameRemoved:
		return r.element(kind)
	case framePart:
		return r.part()
	case frameEnd:
		return r.end()
	case frameResume:
		return errors.New("a resume frame in the middle of a chunk")
	case frameSalt:
		return errors.New("a salt frame in the middle of a chunk")
	}
	return unknownFrame(kind)
}

func (r *reader) key(kind byte) error {
	k := r.readKey(kind)
	if r.c.err != nil {
		return r.c.err
	}
	if k.Op != OpWhole && !r.over {
		return &inKey{name: bytes.Clone(k.Name), err: errors.New("changes an older layer, but is in the base")}
	}
	if err := r.tr.begin(k); err != nil {
		return err
	}
	if r.sorted {
		if err := r.order.next(k.Name); err != nil {
			if err = r.mismatched(r.tr.wrap(err)); err != nil {
				return err
			}
		}
	}
	if r.sink == nil {
		return nil
	}
	return fromSink(r.sink.BeginKey(k))
}

func (r *reader) readKey(kind byte) Key {
	k := Key{Section: r.section}
	if kind == frameGone {
		k.Op, k.Name = OpGone, r.c.bytes(MaxName, "name")
		return k
	}
	if k.Loose = kind == frameLoose && !r.alone; kind == framePatch {
		k.Op = OpPatch
	}
	k.Type = KeyType(r.c.u8())
	k.Name = r.c.bytes(MaxName, "name")
	expire := r.c.uvarint()
	k.Count = r.c.uvarint()
	if k.Type == TypeOpaque {
		k.TypeName = string(r.c.bytes(maxLabel, "type name"))
		k.Server = string(r.c.bytes(maxLabel, "server version"))
	}
	if expire > math.MaxInt64 {
		r.c.fail(fmt.Errorf("expiry %d ms: want at most %d", expire, int64(math.MaxInt64)))
	}
	k.ExpireAt = int64(expire)
	return k
}

// mismatched gives what is wrong with a key whose frames are sound to whoever
// goes on after it.
func (r *reader) mismatched(err error) error {
	if err != nil && r.mismatch != nil {
		return r.mismatch(r.frame, err)
	}
	return err
}

func (r *reader) element(kind byte) error {
	e := r.readElement(kind)
	if r.c.err != nil {
		return r.c.err
	}
	if err := r.tr.element(e); err != nil {
		return err
	}
	if r.tr.key.Op == OpPatch {
		if err := r.name(e); err != nil {
			return err
		}
	}
	if r.sink == nil {
		return nil
	}
	return fromSink(r.sink.Element(e))
}

func (r *reader) readElement(kind byte) Element {
	t := r.tr.key.Type
	e := Element{Removed: kind == frameRemoved}
	switch {
	case t == TypeHash:
		e.Field = r.c.bytes(MaxName, "field")
	case t == TypeZSet && !e.Removed:
		e.Score = math.Float64frombits(r.c.u64())
	}
	if e.Removed {
		if t == TypeSet || t == TypeZSet {
			e.Value = r.c.bytes(maxMember, "member")
			e.Size = uint64(len(e.Value))
		}
		return e
	}
	e.Size = r.c.uvarint()
	if kind == frameElement {
		e.Value = r.c.take(e.Size, MaxPart, "value")
	} else if e.Size == 0 {
		r.c.fail(errors.New("a long element of 0 bytes"))
	}
	return e
}

// name counts what a patch's element is called.
func (r *reader) name(e Element) error {
	id := e.Field
	if r.tr.key.Type != TypeHash {
		if id = e.Value; uint64(len(id)) != e.Size {
			return r.tr.wrap(fmt.Errorf("a patch has a member of %d bytes in parts: want it whole", e.Size))
		}
	}
	if r.tr.name(id); r.tr.names > r.names {
		return r.tr.wrap(fmt.Errorf("a patch has more than the %d bytes of fields and members that its layer says", r.names))
	}
	return nil
}

func (r *reader) part() error {
	p := r.c.take(uint64(r.c.u32()), MaxPart, "part")
	if r.c.err != nil {
		return r.c.err
	}
	if len(p) == 0 {
		return errors.New("a part of 0 bytes")
	}
	if err := r.tr.part(p); err != nil {
		return err
	}
	if r.sink == nil {
		return nil
	}
	return fromSink(r.sink.Part(p))
}

func (r *reader) end() error {
	flags := r.c.u8()
	said := KeyEnd{Count: r.c.uvarint(), Digest: r.c.u64(), Expired: flags == flagExpired}
	if flags > flagExpired {
		r.c.fail(fmt.Errorf("unknown flags %d of a key's end", flags))
	}
	if r.c.err != nil {
		return r.c.err
	}
	if !r.tr.open {
		return errors.New("an end comes before any key")
	}
	got, err := r.tr.end(said.Expired)
	if err == nil {
		err = r.tr.sameEnd(said, got)
	}
	if err = r.mismatched(err); err != nil {
		return err
	}
	r.ended = got
	r.totals[r.section].add(&r.tr, got)
	if r.sink == nil {
		return nil
	}
	return fromSink(r.sink.EndKey(got))
}

func fromSink(err error) error {
	if err == nil {
		return nil
	}
	return sinkError{err}
}

// begin begins a section.
func (r *reader) begin(sorted bool) {
	r.sorted = sorted
	r.order.reset()
}

// finish ends a section: no key may be open.
func (r *reader) finish() error {
	open := r.tr.open && !r.blind
	r.tr.open, r.blind = false, false
	if open {
		return r.tr.wrap(errors.New("is still open at the end of its section"))
	}
	return nil
}
