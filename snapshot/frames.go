package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// The kinds of frames: FORMAT.md, "Frames". The numbers are part of the
// format.
const (
	frameKey     = 1 // begins a key
	frameResume  = 2 // continues a key of the section's chunk before
	frameElement = 3 // an element with its whole value
	frameLong    = 4 // an element whose value follows in parts
	framePart    = 5 // a part of such a value
	frameEnd     = 6 // ends a key

	// Since version 2.
	framePatch   = 7  // begins a key that changes an older layer's
	frameGone    = 8  // begins a key that has left the index
	frameRemoved = 9  // an element that is no longer in the key
	frameLoose   = 10 // begins a key whose count is that of its end
	frameSalt    = 11 // begins each chunk of a layer
)

// maxMember is the longest member of a set or a zset that a patch may hold, in
// bytes: a reader compares members whole. It is the writer's maxWhole too, so
// no longer one ever stands in a single frame.
const maxMember = 64 << 10

const (
	flagExpired = 1       // of an end frame
	maxLabel    = 4 << 10 // bytes of an opaque key's type name, or server version
	// partHeader is the size of a part frame before its bytes: the kind and
	// a length of fixed size, which is known only when the part is full.
	partHeader = 5
)

func appendBytes(b, s []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendKey begins a key with the frame that its operation has.
func appendKey(b []byte, k Key) []byte {
	kind := byte(frameKey)
	switch {
	case k.Op == OpGone:
		return appendBytes(append(b, frameGone), k.Name)
	case k.Op == OpPatch:
		kind = framePatch
	case k.Loose:
		kind = frameLoose
	}
	b = append(b, kind, byte(k.Type))
	b = appendBytes(b, k.Name)
	b = binary.AppendUvarint(b, uint64(k.ExpireAt))
	b = binary.AppendUvarint(b, k.Count)
	if k.Type == TypeOpaque {
		b = appendBytes(b, []byte(k.TypeName))
		b = appendBytes(b, []byte(k.Server))
	}
	return b
}

// appendResume continues t's key: the elements that were finished and the
// bytes that the open value still lacks.
func appendResume(b []byte, t *tracker) []byte {
	b = append(b, frameResume, byte(t.key.Type))
	b = appendBytes(b, t.key.Name)
	b = binary.AppendUvarint(b, t.digest.Count())
	return binary.AppendUvarint(b, t.left)
}

// appendElement writes an element frame (kind frameElement or frameLong)
// without its value.
func appendElement(b []byte, kind byte, t KeyType, e Element) []byte {
	b = append(b, kind)
	switch t {
	case TypeHash:
		b = appendBytes(b, e.Field)
	case TypeZSet:
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(e.Score))
	}
	return binary.AppendUvarint(b, e.Size)
}

// appendRemoved writes an element that a patch removes.
func appendRemoved(b []byte, t KeyType, e Element) []byte {
	b = append(b, frameRemoved)
	if t == TypeHash {
		return appendBytes(b, e.Field)
	}
	return appendBytes(b, e.Value)
}

// salt makes the content of a layer's chunk its own: a layer that brings back
// what an older one had must not be the same chunk, since a manifest names
// each chunk once.
type salt struct {
	id    uint64 // of the encoding
	layer uint64 // its number in it, from 0 on
}

func (s salt) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(append(b, frameSalt), s.id)
	return binary.AppendUvarint(b, s.layer)
}

func appendEnd(b []byte, e KeyEnd) []byte {
	var flags byte
	if e.Expired {
		flags = flagExpired
	}
	b = append(b, frameEnd, flags)
	b = binary.AppendUvarint(b, e.Count)
	return binary.LittleEndian.AppendUint64(b, e.Digest)
}

// errCut says that a frame needs more bytes than the chunk has.
var errCut = errors.New("the chunk ends inside a frame")

// cursor reads the fields of frames. Its first error stays; every later read
// gives zero values, so a frame is checked once, after its last field.
type cursor struct {
	b   []byte
	off int
	err error
}

func (c *cursor) more() bool { return c.off < len(c.b) }

func (c *cursor) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *cursor) u8() byte {
	if c.err != nil || c.off >= len(c.b) {
		c.fail(errCut)
		return 0
	}
	c.off++
	return c.b[c.off-1]
}

func (c *cursor) uvarint() uint64 {
	if c.err != nil {
		return 0
	}
	v, n := binary.Uvarint(c.b[c.off:])
	if n == 0 {
		c.fail(errCut)
		return 0
	}
	if n < 0 {
		c.fail(errors.New("a number has more than 64 bits"))
		return 0
	}
	c.off += n
	return v
}

func (c *cursor) u64() uint64 {
	if b := c.take(8, 8, "number"); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if b := c.take(4, 4, "number"); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// bytes reads a length and that many bytes, at most limit.
func (c *cursor) bytes(limit uint64, what string) []byte {
	return c.take(c.uvarint(), limit, what)
}

// take gives the next n bytes as a slice of the chunk, nil after an error.
func (c *cursor) take(n, limit uint64, what string) []byte {
	switch {
	case c.err != nil:
		return nil
	case n > limit:
		c.fail(fmt.Errorf("%s of %d bytes: at most %d", what, n, limit))
		return nil
	case n > uint64(len(c.b)-c.off):
		c.fail(errCut)
		return nil
	}
	c.off += int(n)
	return c.b[c.off-int(n) : c.off : c.off]
}
