package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"math"
)

// tracker holds the grammar of a Sink and what is known of the open key. The
// encoder and the reader use the same one, so that what is refused on the way
// out is refused on the way in. After an error it must not be used again,
// except that the reader may go on after a mismatch.
type tracker struct {
	open   bool
	key    Key // its Name is the tracker's own
	size   uint64
	left   uint64 // bytes that the open value lacks
	field  uint64 // length of the open element's field
	bytes  uint64 // name, fields and values of the finished elements
	digest Digester
	// blind: the key's beginning could not be read, so its count and digest
	// can't be checked (Verify goes on after a bad chunk).
	blind   bool
	skipped uint64 // elements before what was read, when blind
	removed uint64 // of the finished elements, those that are removed
	names   uint64 // bytes of the fields or members of a patch
	// owes is what is wrong with the count of a loose key that has ended: a
	// newer record of it must follow.
	owes error
}

// begin opens a key.
func (t *tracker) begin(k Key) error {
	if t.open {
		return fmt.Errorf("key %s begins while key %s is open", quote(k.Name), quote(t.key.Name))
	}
	if err := checkKey(k); err != nil {
		return &inKey{name: bytes.Clone(k.Name), err: err}
	}
	name := append(t.key.Name[:0], k.Name...)
	t.key, t.open = k, true
	t.key.Name = name
	t.size, t.left, t.blind, t.skipped = 0, 0, false, 0
	t.removed, t.names, t.owes = 0, 0, nil
	t.bytes = uint64(len(name))
	t.digest.Reset(k.Type)
	return nil
}

func checkKey(k Key) error {
	switch {
	case !k.Section.Valid():
		return fmt.Errorf("unknown %s", k.Section)
	case !k.Type.Valid():
		return fmt.Errorf("unknown %s", k.Type)
	case len(k.Name) > MaxName:
		return fmt.Errorf("name of %d bytes: at most %d", len(k.Name), MaxName)
	case k.ExpireAt < 0:
		return fmt.Errorf("expiry %d ms: want 0 for none or a time since 1970", k.ExpireAt)
	case k.Type == TypeMissing && (k.ExpireAt != 0 || k.Count != 0):
		return fmt.Errorf("is missing, but has the expiry %d and %d elements", k.ExpireAt, k.Count)
	case (k.Type == TypeString || k.Type == TypeOpaque) && k.Count != 1:
		return fmt.Errorf("%s with %d elements: want 1", k.Type, k.Count)
	case k.Type != TypeOpaque && (k.TypeName != "" || k.Server != ""):
		return fmt.Errorf("%s with the type name %q and server %q: only opaque keys have them", k.Type, k.TypeName, k.Server)
	case k.Type == TypeOpaque && k.TypeName == "":
		return errors.New("opaque without a type name")
	case len(k.TypeName) > maxLabel || len(k.Server) > maxLabel:
		return fmt.Errorf("type name of %d bytes, server version of %d: at most %d", len(k.TypeName), len(k.Server), maxLabel)
	case k.Op != OpWhole:
		return checkOp(k)
	}
	return nil
}

// element takes the first part of an element.
func (t *tracker) element(e Element) error {
	if err := t.checkElement(e); err != nil {
		return err
	}
	t.size, t.left, t.field = e.Size, e.Size-uint64(len(e.Value)), uint64(len(e.Field))
	if e.Removed {
		t.size, t.field = 0, 0 // it brings no bytes
		t.removed++
	}
	t.digest.Element(e)
	if t.left == 0 {
		t.bytes += t.field + t.size
	}
	return nil
}

func (t *tracker) checkElement(e Element) error {
	if !t.open {
		return errors.New("an element comes before any key")
	}
	if err := t.elementError(e); err != nil {
		return t.wrap(err)
	}
	return nil
}

func (t *tracker) elementError(e Element) error {
	switch {
	case t.left > 0:
		return fmt.Errorf("an element begins while the value before lacks %d of %d bytes", t.left, t.size)
	case len(e.Value) > MaxPart:
		return fmt.Errorf("%d bytes of a value at once: at most %d", len(e.Value), MaxPart)
	case uint64(len(e.Value)) > e.Size:
		return fmt.Errorf("value has %d bytes, its size says %d", len(e.Value), e.Size)
	case len(e.Field) > MaxName:
		return fmt.Errorf("field of %d bytes: at most %d", len(e.Field), MaxName)
	case len(e.Field) > 0 && t.key.Type != TypeHash:
		return fmt.Errorf("a %s has the field %s: only hashes have fields", t.key.Type, quote(e.Field))
	case math.IsNaN(e.Score):
		return errors.New("score is not a number")
	case math.Float64bits(e.Score) != 0 && t.key.Type != TypeZSet:
		return fmt.Errorf("a %s has the score %v: only zsets have scores", t.key.Type, e.Score)
	case t.key.Type == TypeMissing:
		return errors.New("is missing, but has an element")
	case (t.key.Type == TypeString || t.key.Type == TypeOpaque) && t.count() > 0:
		return fmt.Errorf("%s with more than one element", t.key.Type)
	case e.Removed || t.key.Op == OpPatch:
		return t.patchError(e)
	}
	return nil
}

// part takes the next bytes of the open value. No bytes at all are no part.
func (t *tracker) part(b []byte) error {
	if err := t.checkPart(b); err != nil || len(b) == 0 {
		return err
	}
	t.left -= uint64(len(b))
	t.digest.Part(b)
	if t.left == 0 {
		t.bytes += t.field + t.size
	}
	return nil
}

func (t *tracker) checkPart(b []byte) error {
	switch {
	case !t.open:
		return errors.New("a part comes before any key")
	case len(b) > MaxPart:
		return t.wrap(fmt.Errorf("part of %d bytes: at most %d", len(b), MaxPart))
	case uint64(len(b)) > t.left:
		return t.wrap(fmt.Errorf("part of %d bytes, the value lacks %d of %d", len(b), t.left, t.size))
	}
	return nil
}

// count is how many elements of the open key are finished.
func (t *tracker) count() uint64 { return t.skipped + t.digest.Count() }

// end closes the key and gives what it holds. The key is closed also when
// there is an error.
func (t *tracker) end(expired bool) (KeyEnd, error) {
	if !t.open {
		return KeyEnd{}, errors.New("an end comes before any key")
	}
	t.open = false
	end := KeyEnd{Count: t.count(), Digest: t.digest.Sum(), Expired: expired}
	if t.blind {
		return end, nil
	}
	err := t.checkEnd(end)
	if err == nil {
		err = t.checkCount(end)
		if t.key.Loose && t.key.Op == OpWhole {
			t.owes, err = err, nil
		}
	}
	if err != nil {
		return end, t.wrap(err)
	}
	return end, nil
}

func (t *tracker) checkEnd(end KeyEnd) error {
	switch {
	case end.Expired && t.key.ExpireAt == 0:
		return errors.New("is marked as expired, but has no expiry")
	case !end.Expired && t.left > 0:
		return fmt.Errorf("ends while a value lacks %d of %d bytes", t.left, t.size)
	}
	return nil
}

// checkCount holds what came to what the server said.
func (t *tracker) checkCount(end KeyEnd) error {
	k := t.key
	switch {
	case k.Op == OpPatch:
		return t.patchCount(end)
	case end.Expired && end.Count > k.Count:
		return fmt.Errorf("%d elements were read, the server said %d", end.Count, k.Count)
	case end.Expired:
		return nil
	case end.Count != k.Count:
		return fmt.Errorf("%d elements were read, the server said %d: it changed while it was being read", end.Count, k.Count)
	case end.Count == 0 && k.Type != TypeMissing:
		return fmt.Errorf("%s without elements: the server has no such keys, so it vanished while it was being read", k.Type)
	}
	return nil
}

// sameEnd compares what an end says with what was counted.
func (t *tracker) sameEnd(said, got KeyEnd) error {
	switch {
	case t.blind:
		return nil
	case said.Count != got.Count:
		return t.wrap(fmt.Errorf("%d elements, its end says %d", got.Count, said.Count))
	case said.Digest != got.Digest:
		return t.wrap(fmt.Errorf("digest %016x, its end says %016x", got.Digest, said.Digest))
	}
	return nil
}

// wrap names the key. Its name is copied: the tracker's own is overwritten.
func (t *tracker) wrap(err error) error { return &inKey{name: bytes.Clone(t.key.Name), err: err} }

// inKey is an error about one key.
type inKey struct {
	name []byte
	err  error
}

func (e *inKey) Error() string { return fmt.Sprintf("key %s: %v", quote(e.name), e.err) }

func (e *inKey) Unwrap() error { return e.err }

// quote shows a name of any bytes and any length in an error.
func quote(name []byte) string {
	const most = 200
	if len(name) > most {
		return fmt.Sprintf("%q… (%d bytes)", name[:most], len(name))
	}
	return fmt.Sprintf("%q", name)
}

// SectionTotals counts what one section of a checkpoint holds.
type SectionTotals struct {
	Section  Section
	Keys     uint64 // that exist
	Missing  uint64 // names without a key
	Expired  uint64 // of Keys, those that expired while they were being read
	Elements uint64 // finished ones
	Bytes    uint64 // logical: names of the keys that exist, fields and values
	Chunks   int
	Stored   uint64 // bytes of all its chunks
	Fresh    uint64 // bytes of those chunks that weren't in the store before
}

// add counts the key that t has just ended.
func (s *SectionTotals) add(t *tracker, end KeyEnd) {
	if t.key.Op == OpGone {
		return
	}
	if t.key.Type == TypeMissing {
		s.Missing++
		return
	}
	s.Keys++
	s.Elements += end.Count
	s.Bytes += t.bytes
	if end.Expired {
		s.Expired++
	}
}

// sectionTotals are the totals by section.
type sectionTotals [SectionSource + 1]SectionTotals

func newTotals() (s sectionTotals) {
	for i := range s {
		s[i].Section = Section(i)
	}
	return s
}

// chunk counts a chunk that was read.
func (s *sectionTotals) chunk(ref ChunkRef) {
	t := &s[ref.Section]
	t.Chunks++
	t.Stored += ref.Stored
}
