package redis

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math"

	"keyframe/snapshot"
)

// payloadReader reads a payload of ours again, as the server will. It is how a
// payload is proved before it is sent: with the server's check of the CRC it
// stands for reading the key back.
type payloadReader struct {
	b      []byte
	digest snapshot.Digester
	fields distinct
	pack   listpack
}

// errPayload says that a payload isn't what its encoding asks for.
var errPayload = errors.New("payload is malformed")

// read gives what the payload, still without its foot, holds. When compact is set, and the key is a
// small hash, it also gathers the compact form: see packed.
func (r *payloadReader) read(body []byte, compact bool) (summary, error) {
	if len(body) < payloadHead || body[1] != length32 {
		return summary{}, errPayload
	}
	kind, count := body[0], binary.BigEndian.Uint32(body[2:])
	r.b = body[payloadHead:]
	t := payloadType(kind)
	if t == snapshot.TypeMissing {
		return summary{}, errPayload
	}
	r.digest.Reset(t)
	r.fields.reset(0)
	r.pack.reset(compact && kind == rdbHash && count <= packElements)
	if kind == rdbHash {
		r.fields.reset(count)
	}
	for range count {
		e, err := r.element(kind)
		if err != nil {
			return summary{}, err
		}
		if kind == rdbHash {
			if r.fields.repeats(e.Field) {
				return summary{}, errTwice(e.Field)
			}
			r.pack.add(e.Field, e.Value)
		}
		r.digest.Element(e)
	}
	if len(r.b) > 0 {
		return summary{}, errPayload
	}
	return summary{count: r.digest.Count(), digest: r.digest.Sum()}, nil
}

func errTwice(field []byte) error { return fmt.Errorf("field %.200q comes twice", field) }

func payloadType(kind byte) snapshot.KeyType {
	for t, k := range rdbTypes {
		if k == kind && k != 0 {
			return snapshot.KeyType(t)
		}
	}
	return snapshot.TypeMissing
}

func (r *payloadReader) element(kind byte) (e snapshot.Element, err error) {
	if kind == rdbHash {
		if e.Field, err = r.text(); err != nil {
			return e, err
		}
	}
	if e.Value, err = r.text(); err != nil {
		return e, err
	}
	e.Size = uint64(len(e.Value))
	if kind == rdbZSet2 {
		if len(r.b) < 8 {
			return e, errPayload
		}
		e.Score = math.Float64frombits(binary.LittleEndian.Uint64(r.b))
		r.b = r.b[8:]
	}
	return e, nil
}

// text takes a length and as many bytes.
func (r *payloadReader) text() ([]byte, error) {
	b := r.b
	if len(b) == 0 {
		return nil, errPayload
	}
	n, head := uint64(b[0]), 1
	switch b[0] & 0xc0 {
	case 0:
	case length14:
		if head = 2; len(b) >= head {
			n = uint64(b[0]&0x3f)<<8 | uint64(b[1])
		}
	default:
		if head = 5; len(b) >= head && b[0] == length32 {
			n = uint64(binary.BigEndian.Uint32(b[1:]))
		} else {
			return nil, errPayload
		}
	}
	if len(b) < head || n > uint64(len(b)-head) {
		return nil, errPayload
	}
	r.b = b[head+int(n):]
	return b[head : head+int(n)], nil
}

// distinctMost is up to how many fields a hash is searched for one that comes
// twice. A server that keeps the hash as a table refuses such a payload; one
// that keeps it as a list doesn't look, and does so up to
// hash-max-listpack-entries (512) fields.
const distinctMost = 1 << 16

var distinctSeed = maphash.MakeSeed()

// distinct finds a name that comes twice, by 63 bits of a hash with a random key
// for each: two names of the largest hash share them once in 2^32 restores, and
// not in the next one.
type distinct struct {
	table []uint64 // open addressing; 0 is free
	mask  uint64
}

// reset makes room for n names; 0, or more than are searched, for none.
func (d *distinct) reset(n uint32) {
	if n < 2 || n > distinctMost {
		d.mask = 0
		return
	}
	size := 4
	for size < int(n)*2 {
		size *= 2
	}
	if cap(d.table) < size {
		d.table = make([]uint64, size)
	}
	d.table = d.table[:size]
	clear(d.table)
	d.mask = uint64(size - 1)
}

func (d *distinct) repeats(name []byte) bool {
	if d.mask == 0 {
		return false
	}
	h := maphash.Bytes(distinctSeed, name) | 1
	for i := h >> 1; ; i++ {
		switch at := &d.table[i&d.mask]; *at {
		case 0:
			*at = h
			return false
		case h:
			return true
		}
	}
}
