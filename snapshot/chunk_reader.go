package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"math"
)

// ChunkError says where in a checkpoint's chunks something is wrong. Err
// wraps ErrCorrupt, ErrNewerFormat, ErrNoChunk or what the source gave.
type ChunkError struct {
	Index   int // of the chunk in the manifest
	ID      ChunkID
	Section Section
	Key     []byte // the key that it is about, nil when that isn't known
	Offset  int    // in the raw content; -1 when it concerns the whole chunk
	Err     error
}

// Error names the chunk, the key and the offset.
func (e *ChunkError) Error() string {
	return fmt.Sprintf("chunk %d (%s, %s): %s", e.Index, e.Section, e.ID, e.detail())
}

func (e *ChunkError) detail() string {
	s := e.Err.Error()
	if e.Offset >= 0 {
		s = fmt.Sprintf("at byte %d: %s", e.Offset, s)
	}
	var named *inKey
	if e.Key != nil && !errors.As(e.Err, &named) {
		s = fmt.Sprintf("in key %s: %s", quote(e.Key), s)
	}
	return s
}

// Unwrap gives the cause.
func (e *ChunkError) Unwrap() error { return e.Err }

// sinkError carries what a sink gave through the reader.
type sinkError struct{ err error }

func (e sinkError) Error() string { return e.err.Error() }

// reader turns the raw content of chunks into calls of a Sink. It lives as
// long as the walk over a manifest, since a key goes on from chunk to chunk.
type reader struct {
	tr     tracker
	sink   Sink // nil: only check
	totals [SectionSource + 1]SectionTotals
	// blind: the chunk before could not be read to its end, so that whatever
	// key the next one resumes is taken as it is.
	blind bool
	// mismatch takes what is wrong with a key whose frames are sound; when it
	// gives nil, reading goes on.
	mismatch func(offset int, err error) error

	section Section
	c       cursor
	frame   int // offset of the current frame
}

func newReader(sink Sink) *reader {
	r := &reader{sink: sink}
	for s := range r.totals {
		r.totals[s].Section = Section(s)
	}
	return r
}

// chunk reads the raw content of one chunk. An error that isn't a sinkError
// is about the bytes at r.frame.
func (r *reader) chunk(section Section, raw []byte) error {
	r.section, r.c, r.frame = section, cursor{b: raw, off: 1}, 1
	if err := r.start(); err != nil {
		return err
	}
	if !r.c.more() {
		return errors.New("the chunk has no frame")
	}
	for r.c.more() {
		r.frame = r.c.off
		if err := r.next(); err != nil {
			return err
		}
	}
	return nil
}

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

func (r *reader) next() error {
	switch kind := r.c.u8(); kind {
	case frameKey:
		return r.key()
	case frameElement, frameLong:
		return r.element(kind)
	case framePart:
		return r.part()
	case frameEnd:
		return r.end()
	case frameResume:
		return errors.New("a resume frame in the middle of a chunk")
	default:
		return fmt.Errorf("unknown frame kind %d", kind)
	}
}

func (r *reader) key() error {
	k := Key{Section: r.section, Type: KeyType(r.c.u8())}
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
	if r.c.err != nil {
		return r.c.err
	}
	if err := r.tr.begin(k); err != nil {
		return err
	}
	if r.sink == nil {
		return nil
	}
	return fromSink(r.sink.BeginKey(k))
}

func (r *reader) element(kind byte) error {
	var e Element
	switch r.tr.key.Type {
	case TypeHash:
		e.Field = r.c.bytes(MaxName, "field")
	case TypeZSet:
		e.Score = math.Float64frombits(r.c.u64())
	}
	e.Size = r.c.uvarint()
	if kind == frameElement {
		e.Value = r.c.take(e.Size, MaxPart, "value")
	} else if e.Size == 0 {
		r.c.fail(errors.New("a long element of 0 bytes"))
	}
	if r.c.err != nil {
		return r.c.err
	}
	if err := r.tr.element(e); err != nil {
		return err
	}
	if r.sink == nil {
		return nil
	}
	return fromSink(r.sink.Element(e))
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
	if err != nil && r.mismatch != nil {
		err = r.mismatch(r.frame, err)
	}
	if err != nil {
		return err
	}
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

// finish ends a section: no key may be open.
func (r *reader) finish() error {
	open := r.tr.open && !r.blind
	r.tr.open, r.blind = false, false
	if open {
		return r.tr.wrap(errors.New("is still open at the end of its section"))
	}
	return nil
}
