package redis

import (
	"encoding/binary"
	"math/bits"
	"sync"
)

// jonesPolynomial is the polynomial of the checksum under a DUMP payload:
// CRC-64 "Jones", reflected, no initial value, no final one (crc64.c of the
// server). hash/crc64 inverts both ends, so it can't be used.
const jonesPolynomial = 0xad93d23594c935a9

// crcTables are for 16 bytes at once: table k is the checksum of a byte that
// k zero bytes follow.
var crcTables = sync.OnceValue(func() *[16][256]uint64 {
	var t [16][256]uint64
	poly := bits.Reverse64(jonesPolynomial)
	for i := range t[0] {
		c := uint64(i)
		for range 8 {
			c = c>>1 ^ poly*(c&1)
		}
		t[0][i] = c
	}
	for k := 1; k < len(t); k++ {
		for i := range t[k] {
			c := t[k-1][i]
			t[k][i] = t[0][byte(c)] ^ c>>8
		}
	}
	return &t
})

// crc64Jones is the checksum of b.
func crc64Jones(b []byte) uint64 { return crcUpdate(0, b) }

// crcUpdate goes on with a checksum.
func crcUpdate(c uint64, b []byte) uint64 {
	t := crcTables()
	for len(b) >= 16 {
		x, y := binary.LittleEndian.Uint64(b)^c, binary.LittleEndian.Uint64(b[8:16])
		c = t[15][byte(x)] ^ t[14][byte(x>>8)] ^ t[13][byte(x>>16)] ^ t[12][byte(x>>24)] ^
			t[11][byte(x>>32)] ^ t[10][byte(x>>40)] ^ t[9][byte(x>>48)] ^ t[8][byte(x>>56)] ^
			t[7][byte(y)] ^ t[6][byte(y>>8)] ^ t[5][byte(y>>16)] ^ t[4][byte(y>>24)] ^
			t[3][byte(y>>32)] ^ t[2][byte(y>>40)] ^ t[1][byte(y>>48)] ^ t[0][byte(y>>56)]
		b = b[16:]
	}
	for _, x := range b {
		c = t[0][byte(c)^x] ^ c>>8
	}
	return c
}
