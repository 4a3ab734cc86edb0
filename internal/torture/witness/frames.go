package witness

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Kinds of frames, FORMAT.md "Frames".
const (
	frameKey     = 1
	frameResume  = 2
	frameElement = 3
	frameLong    = 4
	framePart    = 5
	frameEnd     = 6
	framePatch   = 7
	frameGone    = 8
	frameRemoved = 9
	frameLoose   = 10
	frameSalt    = 11
)

// Types of keys, by their numbers.
const (
	typeMissing = iota
	typeString
	typeHash
	typeList
	typeSet
	typeZSet
	typeOpaque
)

// Limits in bytes, FORMAT.md "Limits".
const (
	maxName   = 16 << 20
	maxPart   = 1 << 20
	maxMember = 65536
	maxLabel  = 4096
)

// element is one element, or one that a patch removes.
type element struct {
	field, value []byte
	score        uint64 // its bits
	removed      bool
}

// id is by what an element of a hash, set or zset is known: field or member.
func (e element) id(kind byte) string {
	if kind == typeHash {
		return string(e.field)
	}
	return string(e.value)
}

// record is one key of one layer, with all its elements.
type record struct {
	frame    byte // key, loose key, patch or gone
	kind     byte
	name     string
	expire   uint64
	count    uint64
	typeName string // of opaque keys
	elements []element
	expired  bool
	finished uint64 // elements that the digest is over
}

// cursor reads a chunk's raw content. The first error stays, and everything
// after it reads as zero.
type cursor struct {
	b   []byte
	err error
}

func (c *cursor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
	c.b = nil
}

func (c *cursor) take(n uint64) []byte {
	if n > uint64(len(c.b)) {
		c.fail("%d bytes are wanted, %d are left", n, len(c.b))
		return nil
	}
	out := c.b[:n:n]
	c.b = c.b[n:]
	return out
}

func (c *cursor) u8() byte {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if b := c.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) uvarint() uint64 {
	n, size := binary.Uvarint(c.b)
	if size <= 0 {
		c.fail("a number is cut off or has more than 64 bits")
		return 0
	}
	c.b = c.b[size:]
	return n
}

// bytes reads a length and that many bytes, at most most.
func (c *cursor) bytes(most uint64) []byte {
	n := c.uvarint()
	if n > most {
		c.fail("%d bytes, at most %d are legal", n, most)
		return nil
	}
	return c.take(n)
}

// head reads what follows the kind of a key, loose key, patch or gone frame.
func (c *cursor) head(frame byte) *record {
	r := &record{frame: frame}
	if frame == frameGone {
		r.name = string(c.bytes(maxName))
		return r
	}
	r.kind, r.name = c.u8(), string(c.bytes(maxName))
	r.expire, r.count = c.uvarint(), c.uvarint()
	if r.kind == typeOpaque && frame != framePatch {
		r.typeName = string(c.bytes(maxLabel))
		c.bytes(maxLabel) // the server's version
		if r.typeName == "" {
			c.fail("key %q is opaque and has no type name", r.name)
		}
	}
	if err := r.legal(); err != nil {
		c.fail("key %q: %w", r.name, err)
	}
	return r
}

// legal holds the head of a record to what FORMAT.md allows.
func (r *record) legal() error {
	switch {
	case r.kind > typeOpaque:
		return fmt.Errorf("its type is %d", r.kind)
	case r.expire > math.MaxInt64:
		return fmt.Errorf("its expiry is %d", r.expire)
	case r.kind == typeMissing && (r.expire != 0 || r.count != 0):
		return fmt.Errorf("it is missing and has the expiry %d and the count %d", r.expire, r.count)
	case (r.kind == typeString || r.kind == typeOpaque) && r.count != 1:
		return fmt.Errorf("its count is %d", r.count)
	case r.frame == framePatch && r.kind != typeHash && r.kind != typeSet && r.kind != typeZSet:
		return fmt.Errorf("a patch of type %d", r.kind)
	}
	return nil
}

// element reads what follows the kind of an element, a long element (long is
// then the value's length) or a removed one.
func (c *cursor) element(frame, kind byte) (e element, long uint64) {
	if frame == frameRemoved {
		e.removed = true
		if kind == typeHash {
			e.field = c.bytes(maxName)
		} else {
			e.value = c.bytes(maxMember)
		}
		return e, 0
	}
	switch kind {
	case typeHash:
		e.field = c.bytes(maxName)
	case typeZSet:
		if e.score = c.u64(); math.IsNaN(math.Float64frombits(e.score)) {
			c.fail("a score is not a number")
		}
	}
	if frame == frameLong {
		if long = c.uvarint(); long == 0 {
			c.fail("a long element has no bytes")
		}
		return e, long
	}
	e.value = c.bytes(maxPart)
	return e, 0
}

// hash is the digest's part of one element. A removed member stands where the
// value stands, a removed field where the field does.
func (e element) hash() uint64 {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(e.field)))
	b = binary.LittleEndian.AppendUint64(b, e.score)
	size := uint64(len(e.value))
	if e.removed {
		size = math.MaxUint64
	}
	b = binary.LittleEndian.AppendUint64(b, size)
	return xxhash64(append(append(b, e.field...), e.value...))
}

// digest is over all finished elements, of an ordered key in their order.
func digest(kind byte, all []element) (sum uint64) {
	for _, e := range all {
		if kind == typeString || kind == typeList || kind == typeOpaque {
			sum *= 0x9e3779b97f4a7c15
		}
		sum += e.hash()
	}
	return sum
}
