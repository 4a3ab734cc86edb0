package redis

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"

	"keyframe/snapshot"
)

// nameSet remembers identities (names, fields, members) by over 100 bits of
// two seeded hashes, 22 bytes each or so, whatever their length.
//
// Two different identities with one hash would make the second seem a
// repetition; where the distinct ones are counted against the server's count
// that is an error and not a loss, and another seed mends it.
type nameSet struct {
	seeds [2]maphash.Seed
	// Full tables, and the one that is being filled.
	old []seenTable
	now seenTable
	// Of shares > 1 only the identities of this share are let in; for the
	// others add says that they were there.
	share, shares uint64

	run     [runMost]seenHash // of the run that is looked up
	touched uint64            // so that looking is not left out
}

// seenHash is the hashes of one identity.
type seenHash struct{ first, second uint64 }

// seenTable is a hash table of 1<<bits slots, three quarters of which may be
// taken. The place of an identity is told by the upper bits of its first hash;
// a slot holds the lower ones above the number of the identity, from 1 on, by
// which its second hash is found. So what is looked at for each identity is
// one slot, as a rule, in as little memory as can be.
type seenTable struct {
	bits    int
	slots   []uint64 // 0 is free
	seconds []uint64
}

// seenBits is how many bits tell the place in a table for that many.
func seenBits(expected int) int { return max(bits.Len(uint(expected+expected/3)), 4) }

func newSeenTable(expected int) seenTable {
	n := seenBits(expected)
	return seenTable{bits: n, slots: make([]uint64, 1<<n), seconds: make([]uint64, 0, expected)}
}

// reset empties the set and makes room for that many.
func (s *nameSet) reset(expected int) {
	s.seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	s.old = nil
	s.share, s.shares = 0, 1
	n := seenBits(expected)
	if had := cap(s.now.slots); had < 1<<n || had > 8<<n {
		s.now = newSeenTable(expected)
		return
	}
	s.now = seenTable{bits: n, slots: s.now.slots[:1<<n], seconds: s.now.seconds[:0]}
	clear(s.now.slots)
}

// add reports whether the identity was not there yet. size is its whole
// length, of which b may be the beginning only.
func (s *nameSet) add(b []byte, size uint64) bool {
	return s.admits(b) && s.put(s.hash(b, size))
}

// admits tells whether an identity is of the share.
func (s *nameSet) admits(b []byte) bool {
	return s.shares <= 1 || snapshot.NameHash(b)%s.shares == s.share
}

// fresh keeps those elements of run, all whole and no more than runMost, whose
// identities were not there yet: their fields, or else their values.
func (s *nameSet) fresh(run []snapshot.Element, fields bool) []snapshot.Element {
	kept := run[:0]
	for i := range run {
		id := run[i].Value
		if fields {
			id = run[i].Field
		}
		if !s.admits(id) {
			continue
		}
		h := s.hash(id, uint64(len(id)))
		s.run[len(kept)] = h
		kept = append(kept, run[i])
		// The slots lie anywhere in a large table: looking at all of them
		// here lets the processor fetch them side by side.
		s.touched |= s.now.slots[h.first>>(64-s.now.bits)]
	}
	run, kept = kept, kept[:0]
	for i := range run {
		if s.put(s.run[i]) {
			kept = append(kept, run[i])
		}
	}
	return kept
}

func (s *nameSet) hash(b []byte, size uint64) seenHash {
	h := seenHash{maphash.Bytes(s.seeds[0], b), maphash.Bytes(s.seeds[1], b)}
	if uint64(len(b)) != size {
		var tail [8]byte
		binary.LittleEndian.PutUint64(tail[:], size)
		h.first ^= maphash.Bytes(s.seeds[0], tail[:])
		h.second ^= maphash.Bytes(s.seeds[1], tail[:])
	}
	return h
}

func (s *nameSet) put(h seenHash) bool {
	for i := range s.old {
		if s.old[i].find(h) < 0 {
			return false
		}
	}
	at := s.now.find(h)
	if at < 0 {
		return false
	}
	s.now.take(at, h)
	if 4*(len(s.now.seconds)+1) > 3*len(s.now.slots) {
		s.old = append(s.old, s.now)
		s.now = newSeenTable(2 * len(s.now.seconds))
	}
	return true
}

// find gives the slot that is free for h, -1 when it is there.
func (t *seenTable) find(h seenHash) int {
	mask := len(t.slots) - 1
	for at := int(h.first >> (64 - t.bits)); ; at = (at + 1) & mask {
		slot := t.slots[at]
		if slot == 0 {
			return at
		}
		if n := slot & uint64(mask); (slot^h.first<<t.bits)&^uint64(mask) == 0 && t.seconds[n-1] == h.second {
			return -1
		}
	}
}

func (t *seenTable) take(at int, h seenHash) {
	t.seconds = append(t.seconds, h.second)
	t.slots[at] = h.first<<t.bits | uint64(len(t.seconds))
}
