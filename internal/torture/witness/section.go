package witness

import "fmt"

// reader reads the chunks of one section of one layer, one after the other,
// into records.
type reader struct {
	layer   int // 0 is the base
	section byte
	records []*record

	open  *record
	value *element // of the open key, that lacks bytes
	lacks uint64
}

// chunk reads a chunk's raw content, of an envelope of that version.
func (r *reader) chunk(raw []byte, version byte) error {
	c := &cursor{b: raw[1:]} // the section was checked
	salted := len(c.b) > 0 && c.b[0] == frameSalt
	if salted != (r.layer > 0) {
		return fmt.Errorf("a chunk of layer %d begins with a salt: %t", r.layer, salted)
	}
	if salted {
		c.u8()
		c.u64()
		c.uvarint()
	}
	if r.open != nil {
		r.resume(c)
	}
	if c.err == nil && len(c.b) == 0 {
		return fmt.Errorf("no frame is in it")
	}
	for c.err == nil && len(c.b) > 0 {
		kind := c.u8()
		if version == 1 && kind > frameEnd {
			return fmt.Errorf("frame %d in a chunk of version 1", kind)
		}
		r.frame(c, kind)
	}
	return c.err
}

// resume reads the frame by which a chunk goes on with the open key.
func (r *reader) resume(c *cursor) {
	frame, kind, name := c.u8(), c.u8(), string(c.bytes(maxName))
	done, lacks := c.uvarint(), c.uvarint()
	if c.err == nil && (frame != frameResume || kind != r.open.kind || name != r.open.name || done != r.open.finished || lacks != r.lacks) {
		c.fail("frame %d resumes key %q of type %d after %d elements and %d bytes short; open is %q of type %d after %d, %d short",
			frame, name, kind, done, lacks, r.open.name, r.open.kind, r.open.finished, r.lacks)
	}
}

func (r *reader) frame(c *cursor, kind byte) {
	if starts := kind == frameKey || kind == frameLoose || kind == framePatch || kind == frameGone; starts != (r.open == nil) {
		c.fail("frame %d while a key is open: %t", kind, r.open != nil)
		return
	}
	if kind == framePart != (r.lacks > 0) && kind != frameEnd {
		c.fail("key %q: frame %d while a value lacks %d bytes", r.open.name, kind, r.lacks)
		return
	}
	switch kind {
	case frameKey, frameLoose, framePatch, frameGone:
		r.begin(c, kind)
	case frameElement, frameLong, frameRemoved:
		r.element(c, kind)
	case framePart:
		r.part(c)
	case frameEnd:
		r.end(c)
	default:
		c.fail("key %q: frame of kind %d", r.open.name, kind)
	}
}

func (r *reader) begin(c *cursor, kind byte) {
	k := c.head(kind)
	if c.err != nil {
		return
	}
	if (kind == framePatch || kind == frameGone) && (r.layer == 0 || r.section == sectionSource) {
		c.fail("key %q: frame %d in layer %d of section %d", k.name, kind, r.layer, r.section)
	}
	if n := len(r.records); r.layer > 0 && n > 0 && !before(r.records[n-1].name, k.name) {
		c.fail("key %q comes after %q in layer %d", k.name, r.records[n-1].name, r.layer)
	}
	r.open, r.value, r.lacks = k, nil, 0
}

// before is the order of keys in a layer: by xxHash64, then by bytes.
func before(a, b string) bool {
	ha, hb := xxhash64([]byte(a)), xxhash64([]byte(b))
	return ha < hb || ha == hb && a < b
}

func (r *reader) element(c *cursor, kind byte) {
	k := r.open
	if k.kind == typeMissing || kind == frameRemoved && k.frame != framePatch {
		c.fail("key %q of type %d: frame %d", k.name, k.kind, kind)
		return
	}
	e, long := c.element(kind, k.kind)
	if k.frame == framePatch && k.kind != typeHash && (long > 0 || len(e.value) > maxMember) {
		c.fail("key %q: a patch has a member of more than %d bytes", k.name, maxMember)
	}
	if c.err != nil {
		return
	}
	// The bytes are the chunk's, which was unpacked for this reader alone.
	k.elements = append(k.elements, e)
	if long > 0 {
		r.value, r.lacks = &k.elements[len(k.elements)-1], long
		return
	}
	k.finished++
}

func (r *reader) part(c *cursor) {
	n := c.u32()
	if n == 0 || n > maxPart || uint64(n) > r.lacks {
		c.fail("key %q: a part of %d bytes, the value lacks %d", r.open.name, n, r.lacks)
		return
	}
	r.value.value = append(r.value.value, c.take(uint64(n))...)
	if r.lacks -= uint64(n); r.lacks == 0 {
		r.value = nil
		r.open.finished++
	}
}

// end closes a key and holds it to its count and digest.
func (r *reader) end(c *cursor) {
	k := r.open
	flags, count, sum := c.u8(), c.uvarint(), c.u64()
	k.expired = flags == 1
	k.elements = k.elements[:k.finished] // a last one may lack bytes
	got := digest(k.kind, k.elements)
	loose := k.frame == frameLoose || k.frame == framePatch // held to their count when layers are merged
	switch {
	case flags > 1:
		c.fail("key %q: flags %d", k.name, flags)
	case k.expired && k.expire == 0:
		c.fail("key %q: it expired and has no expiry", k.name)
	case !k.expired && r.lacks > 0:
		c.fail("key %q: its last value lacks %d bytes", k.name, r.lacks)
	case count != k.finished || sum != got:
		c.fail("key %q: %d elements of digest %016x, its end says %d of %016x", k.name, k.finished, got, count, sum)
	case k.expired && k.finished > k.count && !loose:
		c.fail("key %q: %d elements, more than the %d of its count", k.name, k.finished, k.count)
	case !k.expired && !loose:
		if err := k.whole(k.finished); err != nil {
			c.fail("%w", err)
		}
	}
	r.records = append(r.records, k)
	r.open, r.value, r.lacks = nil, nil, 0
}

// whole holds a key to its count: all its elements are n.
func (r *record) whole(n uint64) error {
	if n != r.count || n == 0 && r.kind != typeMissing && r.frame != frameGone {
		return fmt.Errorf("key %q: %d elements, its count is %d", r.name, n, r.count)
	}
	return nil
}
