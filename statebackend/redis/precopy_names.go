package redis

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"sort"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// nameBudget is how many bytes the names of one pass over the index may take,
// with what is kept beside each. A variable for tests.
var nameBudget = 16 << 20

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
	bytes  []byte
	names  []arenaName
}

type arenaName struct {
	hash uint64
	at   uint32
	size uint32
}

// reset begins a pass for hashes from on.
func (a *nameArena) reset(from uint64) {
	a.from, a.last = from, true
	a.bytes, a.names = a.bytes[:0], a.names[:0]
}

func (a *nameArena) name(i int) []byte {
	n := a.names[i]
	return a.bytes[n.at : n.at+n.size : n.at+n.size]
}

// add keeps a name if it is of the range.
func (a *nameArena) add(name []byte) error {
	hash := snapshot.NameHash(name)
	if hash < a.from || (!a.last && hash >= a.below) {
		return nil
	}
	for len(a.bytes)+len(name)+nameCost*(len(a.names)+1) > a.budget && len(a.names) > 0 {
		if err := a.shrink(); err != nil {
			return err
		}
		if hash >= a.below {
			return nil
		}
	}
	if len(a.bytes)+len(name) > math.MaxUint32 {
		return fmt.Errorf("names of %d bytes in one pass over the index", len(a.bytes))
	}
	a.names = append(a.names, arenaName{hash, uint32(len(a.bytes)), uint32(len(name))})
	a.bytes = append(a.bytes, name...)
	return nil
}

// shrink sorts, and drops the upper half of the hashes when dropping what came
// twice isn't enough.
func (a *nameArena) shrink() error {
	a.sort()
	if len(a.bytes)+nameCost*len(a.names) <= a.budget/2 {
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
	a.pack()
	return nil
}

// sort brings the names into the order of CompareNames, each once.
func (a *nameArena) sort() {
	sort.Slice(a.names, func(i, j int) bool {
		if a.names[i].hash != a.names[j].hash {
			return a.names[i].hash < a.names[j].hash
		}
		return bytes.Compare(a.name(i), a.name(j)) < 0
	})
	kept := a.names[:0]
	for i, n := range a.names {
		if len(kept) > 0 {
			last := kept[len(kept)-1]
			if last.hash == n.hash && bytes.Equal(a.bytes[last.at:last.at+last.size], a.name(i)) {
				continue
			}
		}
		kept = append(kept, n)
	}
	a.names = kept
	a.pack()
}

// pack moves the bytes of the names that are kept together.
func (a *nameArena) pack() {
	used := 0
	for _, n := range a.names {
		used += int(n.size)
	}
	if used == len(a.bytes) {
		return
	}
	packed := make([]byte, 0, max(used, cap(a.bytes)/2))
	for i := range a.names {
		name := a.name(i)
		a.names[i].at = uint32(len(packed))
		packed = append(packed, name...)
	}
	a.bytes = packed
}

// arenaSource gives the names of a sorted arena to a reader, in their order.
type arenaSource struct {
	job   statebackend.Job
	arena *nameArena
	next_ int
}

var _ nameSource = (*arenaSource)(nil)

func (s *arenaSource) next(limit int) ([]keyInfo, error) {
	n := min(limit, len(s.arena.names)-s.next_)
	batch := make([]keyInfo, n)
	for i := range batch {
		name := s.arena.name(s.next_ + i)
		batch[i] = keyInfo{name: name, section: statebackend.Classify(s.job, name)}
	}
	s.next_ += n
	return batch, nil
}

// sortNames brings names into the order of CompareNames.
func sortNames[T any](all []T, name func(T) []byte) {
	type ranked struct {
		hash uint64
		item T
	}
	by := make([]ranked, len(all))
	for i, item := range all {
		by[i] = ranked{snapshot.NameHash(name(item)), item}
	}
	slices.SortFunc(by, func(x, y ranked) int {
		if x.hash != y.hash {
			if x.hash < y.hash {
				return -1
			}
			return 1
		}
		return bytes.Compare(name(x.item), name(y.item))
	})
	for i, r := range by {
		all[i] = r.item
	}
}
