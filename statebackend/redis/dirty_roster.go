package redis

import (
	"maps"
	"slices"

	"keyframe/snapshot"
)

// Bounds of what is remembered of a job's names between its cuts. Variables
// for tests.
var (
	// rosterMost is up to how many names their types are known: 9 bytes each.
	rosterMost = 2 << 20
	// rosterNames is up to how many bytes of names they are kept themselves.
	rosterNames = 16 << 20
)

// roster knows which names a checkpoint's layers have and as which type each
// was pushed last. A patch may only stand on a key of its own type, and a name
// that has left the index must be told as gone: both are known from here, and
// not guessed.
//
// A name is known by its hash. Two names of one hash (one in 10^8 with a
// million of them) would share a type: the merge of the layers would notice.
//
// The sorted arrays are shared by the rosters of successive cuts and never
// changed; what differs lies over them.
type roster struct {
	hashes []uint64
	types  []snapshot.KeyType
	names  []string // beside hashes; nil when they aren't kept
	over   map[uint64]rosterEntry
	count  int // of names
	// blind: there are too many names to know any. Then each key that was
	// written is read whole, and asked for in the index.
	blind bool
	// nameless: names are not kept, because they needn't be or are too long.
	nameless bool
	size     int // bytes of the names that are kept
	// streams are the keys that must be read again each time where only the
	// keys are tracked: the server doesn't tell when a stream's groups change.
	streams map[string]bool
	// foreign are the names of the index outside the job's root.
	foreign map[string]bool
	// meta are the job's own keys that are there.
	meta map[string]snapshot.KeyType
}

type rosterEntry struct {
	typ  snapshot.KeyType
	gone bool
	name string
}

// newRoster is empty; a base is pushed into it in the order of CompareNames.
func newRoster(keepNames bool) *roster {
	return &roster{over: map[uint64]rosterEntry{}, nameless: !keepNames,
		streams: map[string]bool{}, foreign: map[string]bool{}, meta: map[string]snapshot.KeyType{}}
}

// clone gives a roster that can be changed without changing r.
func (r *roster) clone() *roster {
	c := *r
	c.over, c.streams, c.foreign, c.meta = maps.Clone(r.over), maps.Clone(r.streams), maps.Clone(r.foreign), maps.Clone(r.meta)
	return &c
}

// expect makes room for about that many names of a base.
func (r *roster) expect(names int64) {
	if names <= int64(rosterMost) {
		r.hashes, r.types = make([]uint64, 0, names), make([]snapshot.KeyType, 0, names)
	}
}

// append adds the next name of a base, in the order of the hashes.
func (r *roster) append(name []byte, t snapshot.KeyType) {
	r.count++
	if r.blind {
		return
	}
	if r.count > rosterMost {
		r.blindfold()
		return
	}
	r.hashes = append(r.hashes, snapshot.NameHash(name))
	r.types = append(r.types, t)
	if r.keeps(name) {
		r.names = append(r.names, string(name))
	}
}

func (r *roster) blindfold() {
	r.blind, r.nameless = true, true
	r.hashes, r.types, r.names, r.over = nil, nil, nil, map[uint64]rosterEntry{}
}

// keeps reports whether a name is kept, and gives up keeping any beyond the
// bound.
func (r *roster) keeps(name []byte) bool {
	if r.nameless {
		return false
	}
	if r.size += len(name) + 16; r.size > rosterNames {
		r.nameless, r.names = true, nil
		for h, e := range r.over {
			e.name = ""
			r.over[h] = e
		}
		return false
	}
	return true
}

// get gives the type that a name was pushed as last; false when it isn't known
// to be in the index.
func (r *roster) get(name []byte) (snapshot.KeyType, bool) {
	h := snapshot.NameHash(name)
	if e, ok := r.over[h]; ok {
		return e.typ, !e.gone
	}
	if i, ok := slices.BinarySearch(r.hashes, h); ok {
		return r.types[i], true
	}
	return 0, false
}

// set notes what a name was pushed as.
func (r *roster) set(name []byte, t snapshot.KeyType) {
	before, was := r.get(name)
	if was && before == t {
		return
	}
	if !was {
		r.count++
	}
	if r.blind {
		return
	}
	e := rosterEntry{typ: t}
	h := snapshot.NameHash(name)
	if _, based := slices.BinarySearch(r.hashes, h); !based && r.keeps(name) {
		e.name = string(name)
	}
	r.put(h, e)
}

// remove notes that a name was pushed as gone.
func (r *roster) remove(name []byte) {
	delete(r.streams, string(name))
	delete(r.foreign, string(name))
	if _, ok := r.get(name); !ok {
		return
	}
	r.count--
	r.put(snapshot.NameHash(name), rosterEntry{gone: true})
}

func (r *roster) put(h uint64, e rosterEntry) {
	r.over[h] = e
	if len(r.over) > max(1<<16, len(r.hashes)/8) {
		r.settle()
	}
}

// settle makes new arrays of all.
func (r *roster) settle() {
	if r.count > rosterMost {
		r.blindfold()
		return
	}
	more := slices.Sorted(maps.Keys(r.over))
	n := &roster{hashes: make([]uint64, 0, r.count), types: make([]snapshot.KeyType, 0, r.count)}
	add := func(h uint64, t snapshot.KeyType, name string) {
		n.hashes, n.types = append(n.hashes, h), append(n.types, t)
		if !r.nameless {
			n.names = append(n.names, name)
		}
	}
	for i, h := range r.hashes {
		for len(more) > 0 && more[0] < h {
			if e := r.over[more[0]]; !e.gone {
				add(more[0], e.typ, e.name)
			}
			more = more[1:]
		}
		e, ok := r.over[h]
		if ok {
			more = more[1:]
		}
		switch {
		case !ok:
			add(h, r.types[i], r.nameAt(i))
		case !e.gone:
			add(h, e.typ, r.nameAt(i))
		}
	}
	for _, h := range more {
		if e := r.over[h]; !e.gone {
			add(h, e.typ, e.name)
		}
	}
	r.hashes, r.types, r.names, r.over = n.hashes, n.types, n.names, map[uint64]rosterEntry{}
}

func (r *roster) nameAt(i int) string {
	if r.names == nil {
		return ""
	}
	return r.names[i]
}

// missingFrom gives the names that a complete walk over the index hasn't seen;
// false when there are such but their names aren't known. seen has the hashes
// that were seen, sorted.
func (r *roster) missingFrom(seen []uint64) (left []string, known bool) {
	known = true
	miss := func(h uint64, name string) {
		if _, ok := slices.BinarySearch(seen, h); ok {
			return
		}
		left = append(left, name)
		known = known && !r.nameless
	}
	for i, h := range r.hashes {
		if _, over := r.over[h]; !over {
			miss(h, r.nameAt(i))
		}
	}
	for h, e := range r.over {
		if e.gone {
			continue
		}
		if i, ok := slices.BinarySearch(r.hashes, h); ok && e.name == "" {
			e.name = r.nameAt(i)
		}
		miss(h, e.name)
	}
	return left, known
}

// note takes what a key of a layer says of its name.
func (r *roster) note(k snapshot.Key, name []byte) {
	switch {
	case k.Op == snapshot.OpPatch || k.Section == snapshot.SectionSource:
	case k.Section == snapshot.SectionMeta && k.Type == snapshot.TypeMissing:
		delete(r.meta, string(name))
	case k.Section == snapshot.SectionMeta:
		r.meta[string(name)] = k.Type
	case k.Op == snapshot.OpGone:
		r.remove(name)
	default:
		r.set(name, k.Type)
		r.noteStream(k, name)
	}
}

// noteStream remembers the streams among the state.
func (r *roster) noteStream(k snapshot.Key, name []byte) {
	if k.Type == snapshot.TypeOpaque && k.TypeName == "stream" {
		r.streams[string(name)] = true
	} else if len(r.streams) > 0 {
		delete(r.streams, string(name))
	}
}
