package redis

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// nameBudget is how many bytes the names of one pass over the index may take,
// with what is kept beside each: each pass costs the server 0.7 µs a name. A
// variable for tests.
var nameBudget = 24 << 20

// nameCost is what a name takes beside its bytes.
const nameCost = 16

// nameArena holds the names of the index whose hash lies in a range, sorted
// and each once. An index whose names don't fit is read in several passes: each
// keeps the lowest hashes that fit and forgets the others.
type nameArena struct {
	budget int
	from   uint64 // hashes from here on are kept
	below  uint64 // up to here, without it, unless last is set
	last   bool   // the range reaches to the end
	size   int    // bytes of all names
	blocks [][]byte
	names  []arenaName
	// expected is how many names the index has, about.
	expected int64
}

// nameLikely is how long names are at least, as a rule: room is made for so
// many of them as fit then.
const nameLikely = 48

// expect makes room for that many names, or those that fit of them.
func (a *nameArena) expect(names int64) {
	a.expected = names
	if room := min(names, int64(a.budget/(nameCost+nameLikely))); int64(cap(a.names)) < room {
		a.names = make([]arenaName, 0, room)
	}
}

// Names lie in blocks, so that none is moved when there are more: in the block
// that the upper bits of a place tell, where the lower ones tell.
const (
	blockBits  = 20
	blocksMost = 1 << (32 - blockBits)
)

type arenaName struct {
	hash uint64
	at   uint32
	size uint32
}

// reset begins a pass for hashes from on.
func (a *nameArena) reset(from uint64) {
	a.from, a.last = from, true
	a.size, a.names = 0, a.names[:0]
	if len(a.blocks) > 0 {
		clear(a.blocks[1:])
		a.blocks = append(a.blocks[:0], a.blocks[0][:0])
	}
}

func (a *nameArena) name(i int) []byte { return a.bytes(a.names[i]) }

func (a *nameArena) bytes(n arenaName) []byte {
	from := n.at & (1<<blockBits - 1)
	return a.blocks[n.at>>blockBits][from : from+n.size : from+n.size]
}

// keep copies a name's bytes into the blocks.
func (a *nameArena) keep(name []byte) (at uint32, err error) {
	last := len(a.blocks) - 1
	if last < 0 || len(a.blocks[last])+len(name) > cap(a.blocks[last]) || len(a.blocks[last]) >= 1<<blockBits {
		if last++; last == blocksMost {
			return 0, fmt.Errorf("names of %d bytes in one pass over the index", a.size)
		}
		a.blocks = append(a.blocks, make([]byte, 0, max(1<<blockBits, len(name))))
	}
	at = uint32(last)<<blockBits | uint32(len(a.blocks[last]))
	a.blocks[last] = append(a.blocks[last], name...)
	a.size += len(name)
	return at, nil
}

// add keeps a name if it is of the range.
func (a *nameArena) add(name []byte) error {
	hash := snapshot.NameHash(name)
	if hash < a.from || (!a.last && hash >= a.below) {
		return nil
	}
	for a.size+len(name)+nameCost*(len(a.names)+1) > a.budget && len(a.names) > 0 {
		if err := a.shrink(len(name) + nameCost); err != nil {
			return err
		}
		if !a.last && hash >= a.below {
			return nil
		}
	}
	at, err := a.keep(name)
	a.names = append(a.names, arenaName{hash, at, uint32(len(name))})
	return err
}

// shrink makes room for that many bytes: it sorts, and drops the upper half of
// the hashes when dropping what came twice isn't enough.
func (a *nameArena) shrink(room int) error {
	if err := a.sort(); err != nil {
		return err
	}
	if a.size+nameCost*len(a.names)+room <= a.budget/2 {
		return nil
	}
	keep := len(a.names) / 2
	for keep > 0 && a.names[keep-1].hash == a.names[keep].hash {
		keep--
	}
	if keep == 0 {
		// One name, or several of one hash: what has the lowest hash must be
		// kept, however long it is.
		for keep < len(a.names) && a.names[keep].hash == a.names[0].hash {
			keep++
		}
		if keep == len(a.names) {
			a.budget *= 2
			return nil
		}
	}
	a.below, a.last = a.names[keep].hash, false
	a.names = a.names[:keep]
	return a.pack()
}

// sort brings the names into the order of CompareNames, each once.
func (a *nameArena) sort() error {
	slices.SortFunc(a.names, func(x, y arenaName) int {
		if c := cmp.Compare(x.hash, y.hash); c != 0 {
			return c
		}
		return bytes.Compare(a.bytes(x), a.bytes(y))
	})
	kept := a.names[:0]
	for i, n := range a.names {
		if i > 0 {
			if last := kept[len(kept)-1]; last.hash == n.hash && bytes.Equal(a.bytes(last), a.bytes(n)) {
				continue
			}
		}
		kept = append(kept, n)
	}
	all := len(a.names) == len(kept)
	if a.names = kept; all {
		return nil
	}
	return a.pack()
}

// pack moves the bytes of the names that are kept together.
func (a *nameArena) pack() error {
	packed := nameArena{}
	for i := range a.names {
		at, err := packed.keep(a.name(i))
		if err != nil {
			return err
		}
		a.names[i].at = at
	}
	a.blocks, a.size = packed.blocks, packed.size
	return nil
}

// arenaSource gives the names of a sorted arena to a reader, in their order. A
// handful of batches are on their way at a time, in the same memory again and
// again.
type arenaSource struct {
	job     statebackend.Job
	arena   *nameArena
	given   int          // names of the arena
	batches []arenaBatch // that were given, the oldest first
}

// arenaBatch is the memory of the keys of one batch.
type arenaBatch struct {
	end   int // of its keys, in the order of the source
	keys  []keyInfo
	bytes []byte // of their names
	free  bool
}

var _ reusingSource = (*arenaSource)(nil)

func (s *arenaSource) read(n int) {
	for i := range s.batches {
		s.batches[i].free = s.batches[i].end <= n
	}
}

// batch gives memory that nobody uses any more.
func (s *arenaSource) batch() arenaBatch {
	if len(s.batches) == 0 || !s.batches[0].free {
		return arenaBatch{}
	}
	b := s.batches[0]
	s.batches = s.batches[:copy(s.batches, s.batches[1:])]
	return b
}

func (s *arenaSource) next(limit int) ([]keyInfo, error) {
	all := s.arena.names[s.given:]
	all = all[:min(limit, len(all))]
	s.given += len(all)
	size := 0
	for _, n := range all {
		size += int(n.size)
	}
	b := s.batch()
	b.keys, b.bytes = slices.Grow(b.keys[:0], len(all)), slices.Grow(b.bytes[:0], size)
	// Sorted names lie anywhere in the arena, and are looked at many times
	// from here on: side by side they stay in the processor's cache.
	for _, n := range all {
		at := len(b.bytes)
		b.bytes = append(b.bytes, s.arena.bytes(n)...)
		name := b.bytes[at:len(b.bytes):len(b.bytes)]
		b.keys = append(b.keys, keyInfo{name: name, section: statebackend.Classify(s.job, name)})
	}
	b.end, b.free = s.given, false
	s.batches = append(s.batches, b)
	return b.keys, nil
}

// sortNames brings names into the order of CompareNames.
func sortNames[T any](all []T, name func(T) []byte) {
	type ranked struct {
		hash uint64
		at   int
	}
	by := make([]ranked, len(all))
	for i, item := range all {
		by[i] = ranked{snapshot.NameHash(name(item)), i}
	}
	slices.SortFunc(by, func(x, y ranked) int {
		if x.hash != y.hash {
			return cmp.Compare(x.hash, y.hash)
		}
		return bytes.Compare(name(all[x.at]), name(all[y.at]))
	})
	sorted := make([]T, len(all))
	for i, r := range by {
		sorted[i] = all[r.at]
	}
	copy(all, sorted)
}
