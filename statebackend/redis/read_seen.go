package redis

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"

	"keyframe/snapshot"
)

// nameSet remembers identities (names, fields, members) by 128 bits of a
// seeded hash, 16 bytes each at a load of up to 4/5, whatever their length.
//
// Two different identities with one hash would make the second seem a
// repetition; where the distinct ones are counted against the server's count
// that is an error and not a loss, and another seed mends it.
type nameSet struct {
	seeds [2]maphash.Seed
	table [][2]uint64 // {0,0} is free
	used  int
	// Of shares > 1 only the identities of this share are let in; for the
	// others add says that they were there.
	share, shares uint64
}

// reset empties the set and makes room for that many.
func (s *nameSet) reset(expected int) {
	s.seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	want := max(expected+expected/4+8, 16)
	if want <= cap(s.table) {
		s.table = s.table[:want]
		clear(s.table)
	} else {
		s.table = make([][2]uint64, want)
	}
	s.used = 0
	s.share, s.shares = 0, 1
}

// add reports whether the identity was not there yet. size is its whole
// length, of which b may be the beginning only.
func (s *nameSet) add(b []byte, size uint64) bool {
	if s.shares > 1 && snapshot.NameHash(b)%s.shares != s.share {
		return false
	}
	var tail [8]byte
	binary.LittleEndian.PutUint64(tail[:], size)
	h := [2]uint64{s.sum(0, b, tail), s.sum(1, b, tail)}
	if h == [2]uint64{} {
		h[0] = 1
	}
	if 5*(s.used+1) > 4*len(s.table) {
		s.grow()
	}
	return s.put(h)
}

// fresh keeps those elements of run, all whole, whose identities were not there
// yet: their fields, or else their values.
func (s *nameSet) fresh(run []snapshot.Element, fields bool) []snapshot.Element {
	kept := run[:0]
	for i := range run {
		id := run[i].Value
		if fields {
			id = run[i].Field
		}
		if s.add(id, uint64(len(id))) {
			kept = append(kept, run[i])
		}
	}
	return kept
}

func (s *nameSet) sum(i int, b []byte, tail [8]byte) uint64 {
	sum := maphash.Bytes(s.seeds[i], b)
	if uint64(len(b)) == binary.LittleEndian.Uint64(tail[:]) {
		return sum
	}
	return sum ^ maphash.Bytes(s.seeds[i], tail[:])
}

func (s *nameSet) put(h [2]uint64) bool {
	at, _ := bits.Mul64(h[0], uint64(len(s.table)))
	for ; s.table[at] != [2]uint64{}; at = (at + 1) % uint64(len(s.table)) {
		if s.table[at] == h {
			return false
		}
	}
	s.table[at] = h
	s.used++
	return true
}

func (s *nameSet) grow() {
	old := s.table
	s.table = make([][2]uint64, 2*len(old)+16)
	s.used = 0
	for _, h := range old {
		if h != [2]uint64{} {
			s.put(h)
		}
	}
}
