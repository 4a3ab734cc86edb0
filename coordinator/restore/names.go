package restore

import (
	"bytes"
	"crypto/sha256"
	"slices"
)

// nameSet tells which names a checkpoint has, in 16 bytes for each, however
// long they are. Two names share 128 bits of SHA-256 in no real set.
type nameSet struct {
	sums   [][16]byte
	sorted bool
}

// presize bounds what a manifest's count may allocate before a name was seen.
const presize = 1 << 20

func newNameSet(expect uint64) *nameSet {
	return &nameSet{sums: make([][16]byte, 0, min(expect, presize))}
}

func sum128(name []byte) (s [16]byte) {
	full := sha256.Sum256(name)
	copy(s[:], full[:])
	return s
}

func compareSums(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) }

// add takes a name; a nil set takes none.
func (s *nameSet) add(name []byte) {
	if s == nil {
		return
	}
	s.sums, s.sorted = append(s.sums, sum128(name)), false
}

func (s *nameSet) has(name []byte) bool {
	if !s.sorted {
		slices.SortFunc(s.sums, compareSums)
		s.sorted = true
	}
	_, ok := slices.BinarySearchFunc(s.sums, sum128(name), compareSums)
	return ok
}
