package redis

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"

	"keyframe/snapshot"
)

// nameSet remembers identities (names, fields, members) by over 100 bits of
// two seeded hashes, 20 bytes each or so, whatever their length.
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
	touched uint32            // so that looking is not left out
}

// seenHash is the hashes of one identity.
type seenHash struct{ first, second uint64 }

// seenTable is a hash table of 1<<bits slots, three quarters of which may be
// taken. The place of an identity is told by the upper bits of its first hash;
// a slot holds those below them, of the upper half, above the number of the
// identity, from 1 on, by which the rest of its hashes is found. So what is
// looked at for each identity is one slot, as a rule, and the slots are as
// small as can be: they should stay in the processor's second cache.
//
// What is compared is all bits but those of the place: 32-bits of the slot and
// 96 of the rest, over 100 with up to 2^27 slots.
type seenTable struct {
	bits  int
	slots []uint32 // 0 is free
	rests []seenRest
}

// seenRest is what the slot of an identity doesn't hold of its hashes. It is
// made of halves so that it takes 12 bytes.
type seenRest struct{ first, high, low uint32 }

func (h seenHash) rest() seenRest {
	return seenRest{uint32(h.first), uint32(h.second >> 32), uint32(h.second)}
}

// seenBits is how many bits tell the place in a table for that many.
func seenBits(expected int) int { return max(bits.Len(uint(expected+expected/3)), 4) }

func newSeenTable(expected int) seenTable {
	n := seenBits(expected)
	return seenTable{bits: n, slots: make([]uint32, 1<<n), rests: make([]seenRest, 0, expected)}
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
	s.now = seenTable{bits: n, slots: s.now.slots[:1<<n], rests: s.now.rests[:0]}
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
	n := 0
	for i := range run {
		id := run[i].Value
		if fields {
			id = run[i].Field
		}
		if !s.admits(id) {
			continue
		}
		h := s.hash(id, uint64(len(id)))
		s.run[n] = h
		n = keepAt(run, n, i)
		// The slots lie anywhere in a large table: looking at all of them
		// here lets the processor fetch them side by side.
		s.touched |= s.now.slots[h.first>>(64-s.now.bits)]
	}
	run, n = run[:n], 0
	for i := range run {
		if s.put(s.run[i]) {
			n = keepAt(run, n, i)
		}
	}
	return run[:n]
}

// keepAt moves element i to the place n, where nearly all are already.
func keepAt(run []snapshot.Element, n, i int) int {
	if n != i {
		run[n] = run[i]
	}
	return n + 1
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
	if 4*(len(s.now.rests)+1) > 3*len(s.now.slots) {
		s.old = append(s.old, s.now)
		s.now = newSeenTable(2 * len(s.now.rests))
	}
	return true
}

// find gives the slot that is free for h, -1 when it is there.
func (t *seenTable) find(h seenHash) int {
	mask := uint32(len(t.slots) - 1)
	upper := uint32(h.first >> 32)
	for at := upper >> (32 - t.bits); ; at = (at + 1) & mask {
		slot := t.slots[at]
		if slot == 0 {
			return int(at)
		}
		if (slot^upper<<t.bits)&^mask == 0 && t.rests[slot&mask-1] == h.rest() {
			return -1
		}
	}
}

func (t *seenTable) take(at int, h seenHash) {
	t.rests = append(t.rests, h.rest())
	t.slots[at] = uint32(h.first>>32)<<t.bits | uint32(len(t.rests))
}
