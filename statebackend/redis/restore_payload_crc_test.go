package redis

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// slowJones is the checksum bit by bit, as its definition has it.
func slowJones(b []byte) uint64 {
	var c uint64
	for _, x := range b {
		for bit := range 8 {
			top := c>>63 != 0
			c <<= 1
			if top != (x>>bit&1 != 0) {
				c ^= jonesPolynomial
			}
		}
	}
	var out uint64
	for i := range 64 {
		out = out<<1 | c>>i&1
	}
	return out
}

func TestTheChecksumIsTheServers(t *testing.T) {
	require.Equal(t, uint64(0xe9c6d914c4b8d9ca), crc64Jones([]byte("123456789")), "crc64.c's own test")
	rnd := rand.New(rand.NewPCG(3, 4))
	for n := range 200 {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		require.Equal(t, slowJones(b), crc64Jones(b), "%d bytes", n)
		require.Equal(t, slowJones(b), crcUpdate(crc64Jones(b[:n/3]), b[n/3:]), "%d bytes in two pieces", n)
	}
}

func BenchmarkChecksum(b *testing.B) {
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i * 7)
	}
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		crc64Jones(data)
	}
}
