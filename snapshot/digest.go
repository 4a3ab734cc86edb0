package snapshot

import (
	"encoding/binary"
	"math"

	"github.com/cespare/xxhash/v2"
)

// Digester computes the digest of one key's elements: what is compared to
// prove that a restored key equals the checkpoint. Each element is hashed by
// itself (xxHash64 over the field's length and bytes, the score's bits, the
// value's length and bytes); for ordered types the digest is a running
// polynomial of these hashes, otherwise their sum, so that it doesn't depend
// on the order in which a server lists a hash or a set. An element that a
// patch removes is hashed with 2^64-1 as its value's length, so that it differs
// from every one that it brings. It guards against
// mistakes and damage, not against an adversary.
//
// The zero Digester is ready after Reset.
type Digester struct {
	ordered bool
	count   uint64
	sum     uint64
	left    uint64 // bytes of the current value that are still to come
	h       xxhash.Digest
	short   [digestShort]byte // a short element as it is hashed
}

// Sizes of what is hashed for an element, in bytes.
const (
	digestHead  = 24  // the field's length, the score's bits, the value's length
	digestShort = 512 // up to which an element is hashed in one go
)

// orderMultiplier makes the sum depend on the order: an odd number, the
// golden ratio's 64 bits.
const orderMultiplier = 0x9e3779b97f4a7c15

// Reset begins a key of type t.
func (d *Digester) Reset(t KeyType) {
	d.ordered, d.count, d.sum, d.left = t.Ordered(), 0, 0, 0
}

// Element takes the first part of an element.
func (d *Digester) Element(e Element) {
	if uint64(len(e.Value)) == e.Size && digestHead+len(e.Field)+len(e.Value) <= digestShort {
		d.left = 0
		d.add(d.shortHash(&e))
		return
	}
	var head [digestHead]byte
	putHead(head[:], &e)
	d.h.Reset()
	// xxhash.Digest.Write never returns an error.
	_, _ = d.h.Write(head[:])
	_, _ = d.h.Write(e.Field)
	d.left = e.Size
	d.Part(e.Value)
}

func putHead(b []byte, e *Element) {
	binary.LittleEndian.PutUint64(b[0:], uint64(len(e.Field)))
	binary.LittleEndian.PutUint64(b[8:], math.Float64bits(e.Score))
	size := e.Size
	if e.Removed {
		size = math.MaxUint64
	}
	binary.LittleEndian.PutUint64(b[16:], size)
}

// shortHash hashes a whole element that fits: copying it together costs less
// than hashing its pieces.
func (d *Digester) shortHash(e *Element) uint64 {
	putHead(d.short[:digestHead], e)
	n := digestHead + copy(d.short[digestHead:], e.Field)
	n += copy(d.short[n:], e.Value)
	return xxhash.Sum64(d.short[:n])
}

// add counts an element by its hash.
func (d *Digester) add(hash uint64) {
	d.count++
	if d.ordered {
		d.sum = d.sum*orderMultiplier + hash
	} else {
		d.sum += hash
	}
}

// Part takes the next bytes of the current element's value.
func (d *Digester) Part(b []byte) {
	_, _ = d.h.Write(b) // never fails
	d.left -= min(d.left, uint64(len(b)))
	if d.left == 0 {
		d.add(d.h.Sum64())
	}
}

// Count is the number of elements finished since Reset.
func (d *Digester) Count() uint64 { return d.count }

// Sum is the digest of the elements finished since Reset.
func (d *Digester) Sum() uint64 { return d.sum }
