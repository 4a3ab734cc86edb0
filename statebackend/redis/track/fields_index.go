package track

import "slices"

// anyDB stands for whichever database.
const anyDB = -1

// scope is what one watch marks.
type scope struct {
	db     int
	prefix string // the root with its colon
	extra  map[string]struct{}
}

// index finds the watches that a name concerns. It is made anew with every
// change of a watch, and never changed, so the stream reads it without a lock.
type index struct {
	all       []*indexed
	lengths   []int // of the prefixes, each once
	byPrefix  map[string][]*indexed
	withExtra []*indexed
}

type indexed struct {
	w *fieldsWatch
	scope
	longest int64 // of the extra names, in bytes
}

func newIndex(watches map[*fieldsWatch]struct{}) *index {
	x := &index{byPrefix: map[string][]*indexed{}}
	for w := range watches {
		e := &indexed{w: w, scope: w.scope}
		for name := range e.extra {
			e.longest = max(e.longest, int64(len(name)))
		}
		x.all = append(x.all, e)
		x.byPrefix[e.prefix] = append(x.byPrefix[e.prefix], e)
		if len(e.extra) > 0 {
			x.withExtra = append(x.withExtra, e)
		}
		if !slices.Contains(x.lengths, len(e.prefix)) {
			x.lengths = append(x.lengths, len(e.prefix))
		}
	}
	return x
}

// find appends the watches for which an argument may be a name of theirs, in
// database db. The argument is a, or begins with a and has size bytes.
func (x *index) find(hits []*fieldsWatch, a argument, db int) []*fieldsWatch {
	for _, n := range x.lengths {
		if n > len(a.b) {
			continue
		}
		for _, e := range x.byPrefix[string(a.b[:n])] {
			if e.in(db) {
				hits = append(hits, e.w)
			}
		}
	}
	for _, e := range x.withExtra {
		if e.in(db) && e.lists(a) && !e.below(a) {
			hits = append(hits, e.w)
		}
	}
	return hits
}

func (e *indexed) in(db int) bool { return db == anyDB || e.db == db }

// below reports whether the argument begins with the prefix.
func (e *indexed) below(a argument) bool {
	return len(a.b) >= len(e.prefix) && string(a.b[:len(e.prefix)]) == e.prefix
}

// lists reports whether the argument is, or could be, one of the extra names.
func (e *indexed) lists(a argument) bool {
	if a.size > e.longest {
		return false
	}
	if !a.whole() {
		return true
	}
	_, ok := e.extra[string(a.b)]
	return ok
}

func nameSet(names [][]byte) map[string]struct{} {
	set := make(map[string]struct{}, len(names))
	for _, n := range names {
		set[string(n)] = struct{}{}
	}
	return set
}
