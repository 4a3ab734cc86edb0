package redis

import (
	"encoding/binary"
	"math"

	"keyframe/snapshot"
)

// A key is staged fastest as one RESTORE of a payload that we write ourselves,
// in the plain encodings that every supported server reads (rdb.h and
// rdbLoadObject of the server): a type byte, the number of elements, and the
// elements one after the other. The server turns them into whatever encoding
// it would have chosen itself. Behind it come the version of the format and a
// CRC-64, which the server checks before it makes the key.
const (
	// payloadMost bounds a payload, and so the memory that gathering one takes
	// and how long the server is held up by loading it, some 30 ms. Elements
	// beyond it follow in plain commands.
	payloadMost = 8 << 20
	// payloadHead is the type and the number of elements, which is written
	// with four bytes so that it can be put in at the end.
	payloadHead = 1 + 5
	// payloadFoot is the format's version and the checksum.
	payloadFoot = 2 + 8
	// payloadVersion is the format of server version 6.2, the oldest supported.
	payloadVersion = 9
)

// The type bytes of the plain encodings.
const (
	rdbList  = 1
	rdbSet   = 2
	rdbHash  = 4
	rdbZSet2 = 5 // scores as binary doubles: exact, infinities too
)

// rdbTypes tells which types have a payload of ours. A string is one SET
// anyway, and what is opaque has the server's own payload.
var rdbTypes = [...]byte{
	snapshot.TypeHash: rdbHash, snapshot.TypeList: rdbList, snapshot.TypeSet: rdbSet, snapshot.TypeZSet: rdbZSet2,
}

func hasPayload(t snapshot.KeyType) bool { return int(t) < len(rdbTypes) && rdbTypes[t] != 0 }

// payload gathers the elements of one key. It is used again for the next one.
type payload struct {
	b     []byte
	zset  bool
	count uint32
	left  uint64  // bytes of the open value that are to come
	score float64 // of the open member, which it follows
}

// begin opens a key of a type that has a payload.
func (p *payload) begin(t snapshot.KeyType) {
	p.b = append(p.b[:0], rdbTypes[t], 0, 0, 0, 0, 0)
	p.zset, p.count, p.left = t == snapshot.TypeZSet, 0, 0
}

// fits says that the element can be added without making the payload too long.
func (p *payload) fits(e snapshot.Element) bool {
	const around = 2*9 + 8 // two lengths and a score
	have := uint64(len(p.b)) + uint64(len(e.Field)) + around + payloadFoot
	return e.Size <= payloadMost && have+e.Size <= payloadMost
}

// element adds an element that fits, or the beginning of it.
func (p *payload) element(hash bool, e snapshot.Element) {
	if hash {
		p.b = append(appendLength(p.b, uint64(len(e.Field))), e.Field...)
	}
	p.b = appendLength(p.b, e.Size)
	p.left, p.score = e.Size, e.Score
	p.part(e.Value)
}

// part adds the next bytes of the open value.
func (p *payload) part(b []byte) {
	p.b = append(p.b, b...)
	if p.left -= uint64(len(b)); p.left > 0 {
		return
	}
	if p.zset {
		p.b = binary.LittleEndian.AppendUint64(p.b, math.Float64bits(p.score))
	}
	p.count++
}

// body completes the payload but for its foot. It is valid until the next begin.
func (p *payload) body() []byte {
	p.b[1] = length32
	binary.BigEndian.PutUint32(p.b[2:], p.count)
	return p.b
}

// seal adds the foot.
func (p *payload) seal() []byte {
	p.b = sealed(p.body(), payloadVersion)
	return p.b
}

// sealed adds version and checksum.
func sealed(b []byte, version uint16) []byte {
	b = binary.LittleEndian.AppendUint16(b, version)
	return binary.LittleEndian.AppendUint64(b, crc64Jones(b))
}

// The first byte of a length: its two highest bits say how it goes on.
const (
	length14 = 0x40 // the byte's low six bits and the next byte
	length32 = 0x80 // the next four bytes, big endian
)

// lengthSize is how many bytes appendLength takes.
func lengthSize(n uint64) uint64 {
	switch {
	case n < 1<<6:
		return 1
	case n < 1<<14:
		return 2
	}
	return 5
}

// appendLength writes a length below 4 GiB as the format has it.
func appendLength(b []byte, n uint64) []byte {
	switch {
	case n < 1<<6:
		return append(b, byte(n))
	case n < 1<<14:
		return append(b, length14|byte(n>>8), byte(n))
	}
	return binary.BigEndian.AppendUint32(append(b, length32), uint32(n))
}
