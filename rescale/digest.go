package rescale

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"math/bits"
)

// ItemsDigest computes the digest of a list's items: hex SHA-256 over, for
// each item in order, its length (8 bytes, big-endian) and its bytes. Items
// may come in pieces: Begin with the item's size, then Write until that many
// bytes were given.
//
// The digest of the first n items comes out of the same pass. Not safe for
// concurrent use.
type ItemsDigest struct {
	h      hash.Hash
	at     int // whose digest Prefix is; negative for none
	prefix string
	items  int
	left   uint64 // bytes of the current item that are still to come
}

// NoPrefix asks NewItemsDigest for the digest of the whole only.
const NoPrefix = -1

// NewItemsDigest begins a list. Prefix will be the digest of its first n items;
// NoPrefix for none.
func NewItemsDigest(n int) *ItemsDigest {
	d := &ItemsDigest{h: sha256.New(), at: n}
	d.mark()
	return d
}

// Begin begins the next item, of size bytes. ErrInput when the one before is
// not complete.
func (d *ItemsDigest) Begin(size uint64) error {
	if d.left > 0 {
		return fmt.Errorf("%w: item %d lacks %d bytes", ErrInput, d.items, d.left)
	}
	var head [8]byte
	binary.BigEndian.PutUint64(head[:], size)
	_, _ = d.h.Write(head[:]) // a hash.Hash never fails
	d.left = size
	if size == 0 {
		d.done()
	}
	return nil
}

// Write takes the next bytes of the current item. ErrInput when there are more
// than Begin said.
func (d *ItemsDigest) Write(b []byte) (int, error) {
	if uint64(len(b)) > d.left {
		return 0, fmt.Errorf("%w: item %d is %d bytes longer than it was said to be", ErrInput, d.items, uint64(len(b))-d.left)
	}
	if len(b) == 0 {
		return 0, nil
	}
	_, _ = d.h.Write(b)
	if d.left -= uint64(len(b)); d.left == 0 {
		d.done()
	}
	return len(b), nil
}

func (d *ItemsDigest) done() {
	d.items++
	d.mark()
}

func (d *ItemsDigest) mark() {
	if d.items == d.at {
		d.prefix = d.whole()
	}
}

func (d *ItemsDigest) whole() string { return hex.EncodeToString(d.h.Sum(nil)) }

// Items is how many items are complete.
func (d *ItemsDigest) Items() int { return d.items }

// Prefix is the digest of the first n items; "" when there were fewer so far,
// or none was asked for.
func (d *ItemsDigest) Prefix() string { return d.prefix }

// Sum is the digest of all items. ErrInput when the last one is not complete.
func (d *ItemsDigest) Sum() (string, error) {
	if d.left > 0 {
		return "", fmt.Errorf("%w: item %d lacks %d bytes", ErrInput, d.items, d.left)
	}
	return d.whole(), nil
}

// FieldsDigest computes the digest of a hash, in whatever order its fields
// come: the SHA-256 of each field with its value (the field's length, its
// bytes, the value's length, its bytes; lengths are 8 bytes, big-endian) are
// added modulo 2²⁵⁶, and the digest is the hex SHA-256 of the number of fields
// and that sum. The zero FieldsDigest is ready. Not safe for concurrent use.
type FieldsDigest struct {
	h      hash.Hash
	sum    [4]uint64 // least significant first
	fields int
	left   uint64
}

// Begin begins the next field, whose value has size bytes. ErrInput when the
// one before is not complete.
func (d *FieldsDigest) Begin(field []byte, size uint64) error {
	if d.left > 0 {
		return fmt.Errorf("%w: the value of field %d lacks %d bytes", ErrInput, d.fields, d.left)
	}
	if d.h == nil {
		d.h = sha256.New()
	}
	d.h.Reset()
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(field)))
	_, _ = d.h.Write(n[:]) // a hash.Hash never fails
	_, _ = d.h.Write(field)
	binary.BigEndian.PutUint64(n[:], size)
	_, _ = d.h.Write(n[:])
	d.left = size
	if size == 0 {
		d.done()
	}
	return nil
}

// Write takes the next bytes of the current field's value. ErrInput when there
// are more than Begin said.
func (d *FieldsDigest) Write(b []byte) (int, error) {
	if uint64(len(b)) > d.left {
		return 0, fmt.Errorf("%w: the value of field %d is %d bytes longer than it was said to be", ErrInput, d.fields, uint64(len(b))-d.left)
	}
	if len(b) == 0 {
		return 0, nil
	}
	_, _ = d.h.Write(b)
	if d.left -= uint64(len(b)); d.left == 0 {
		d.done()
	}
	return len(b), nil
}

func (d *FieldsDigest) done() {
	var one [sha256.Size]byte
	d.h.Sum(one[:0])
	var carry uint64
	for i := range d.sum {
		limb := binary.LittleEndian.Uint64(one[8*i:])
		d.sum[i], carry = bits.Add64(d.sum[i], limb, carry)
	}
	d.fields++
}

// Fields is how many fields are complete.
func (d *FieldsDigest) Fields() int { return d.fields }

// Sum is the digest of all fields. ErrInput when the last one is not complete.
func (d *FieldsDigest) Sum() (string, error) {
	if d.left > 0 {
		return "", fmt.Errorf("%w: the value of field %d lacks %d bytes", ErrInput, d.fields, d.left)
	}
	var all [8 + 32]byte
	binary.BigEndian.PutUint64(all[:], uint64(d.fields))
	for i, limb := range d.sum {
		binary.LittleEndian.PutUint64(all[8+8*i:], limb)
	}
	whole := sha256.Sum256(all[:])
	return hex.EncodeToString(whole[:]), nil
}
