package snapshot

import (
	"encoding/binary"
	"math"
)

// RunSink is a Sink that takes many whole elements of a key in one call: what
// a call costs is then paid once for all of them.
type RunSink interface {
	Sink
	// Elements does what Element does for each of run, in order. All are whole:
	// Size is len(Value). The slices are the caller's, run too.
	Elements(run []Element) error
}

var _ RunSink = (*Encoder)(nil)

// PushElements gives a run of whole elements to s: at once where it takes
// runs, and otherwise one by one.
func PushElements(s Sink, run []Element) error {
	if r, ok := s.(RunSink); ok {
		return r.Elements(run)
	}
	for i := range run {
		if err := s.Element(run[i]); err != nil {
			return err
		}
	}
	return nil
}

// Elements writes a run of whole elements.
func (e *Encoder) Elements(run []Element) error {
	for len(run) > 0 {
		if err := e.usable(); err != nil {
			return err
		}
		run = run[e.writePlain(run):]
		if len(run) == 0 {
			break
		}
		if err := e.Element(run[0]); err != nil {
			return err
		}
		run = run[1:]
	}
	return nil
}

// writePlain writes as many elements from the front of run as are nothing but
// frames in the open chunk, and gives their number. All others (those that are
// illegal or long, and the one before which the chunk is sealed) are left to
// Element, which checks them.
func (e *Encoder) writePlain(run []Element) int {
	t := &e.tr
	b := &e.builders[t.key.Section]
	if !t.open || t.left > 0 || t.key.Op != OpWhole || len(b.buf) == 0 {
		return 0
	}
	hash, zset := t.key.Type == TypeHash, t.key.Type == TypeZSet
	if !hash && !zset && t.key.Type != TypeList && t.key.Type != TypeSet {
		return 0
	}
	e.widen(b)
	buf, limit := b.buf, b.base+e.target
	for i := range run {
		el := &run[i]
		if len(buf) >= limit || !e.plain(el, hash, zset) {
			b.buf = buf
			return i
		}
		buf = append(buf, frameElement)
		if hash {
			buf = appendBytes(buf, el.Field)
		} else if zset {
			buf = binary.LittleEndian.AppendUint64(buf, math.Float64bits(el.Score))
		}
		buf = appendBytes(buf, el.Value)
		t.digest.Element(*el)
		t.bytes += uint64(len(el.Field) + len(el.Value))
	}
	b.buf = buf
	return len(run)
}

// plain tells that tracker.checkElement finds nothing wrong with a whole,
// short element in an open key of elements.
func (e *Encoder) plain(el *Element, hash, zset bool) bool {
	return !el.Removed && uint64(len(el.Value)) == el.Size && len(el.Value) <= e.whole &&
		(len(el.Field) == 0 || hash && len(el.Field) <= MaxName) &&
		(math.Float64bits(el.Score) == 0 || zset && el.Score == el.Score)
}
