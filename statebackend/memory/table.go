package memory

import (
	"iter"
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// pieceTarget is how many elements a piece of a table may hold on average: what
// a writer copies at most (about) when it is the first after a snapshot.
const pieceTarget = 64

// table is a map from bytes to T in pieces that snapshots share. A piece
// belongs to the table whose token it carries; others copy it before they
// write. Tables are written by one goroutine at a time, and a table that was
// frozen isn't written any more, so snapshots are read without a lock.
type table[T any] struct {
	pieces []piece[T] // a power of two of them
	n      int
	token  uint64
}

type piece[T any] struct {
	m     map[string]T
	token uint64
}

func newTable[T any](token uint64) *table[T] {
	return &table[T]{pieces: make([]piece[T], 1), token: token}
}

// fork gives a table with the same content that may be written; t may not be
// from then on.
func (t *table[T]) fork(token uint64) *table[T] {
	return &table[T]{pieces: slices.Clone(t.pieces), n: t.n, token: token}
}

func (t *table[T]) slot(key string) int {
	return int(xxhash.Sum64String(key) & uint64(len(t.pieces)-1))
}

func (t *table[T]) get(key string) (T, bool) {
	v, ok := t.pieces[t.slot(key)].m[key]
	return v, ok
}

// own gives the map of a piece, copied when it is shared.
func (t *table[T]) own(i int) map[string]T {
	p := &t.pieces[i]
	switch {
	case p.m == nil:
		p.m = make(map[string]T)
	case p.token != t.token:
		p.m = maps.Clone(p.m)
	}
	p.token = t.token
	return p.m
}

// set stores a value and reports whether the key is new.
func (t *table[T]) set(key string, v T) bool {
	m := t.own(t.slot(key))
	before := len(m)
	m[key] = v
	fresh := len(m) > before
	if fresh {
		t.n++
		if t.n > pieceTarget*len(t.pieces) {
			t.split()
		}
	}
	return fresh
}

// remove reports whether the key was there.
func (t *table[T]) remove(key string) bool {
	i := t.slot(key)
	if _, ok := t.pieces[i].m[key]; !ok {
		return false
	}
	delete(t.own(i), key)
	t.n--
	return true
}

// split doubles the number of pieces.
func (t *table[T]) split() {
	old := t.pieces
	t.pieces = make([]piece[T], 2*len(old))
	for _, p := range old {
		for k, v := range p.m {
			t.own(t.slot(k))[k] = v
		}
	}
}

// all gives the content in an order that depends on the content only (and on
// how large the table has been), so that equal states make equal chunks.
func (t *table[T]) all() iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		for _, p := range t.pieces {
			for _, k := range slices.Sorted(maps.Keys(p.m)) {
				if !yield(k, p.m[k]) {
					return
				}
			}
		}
	}
}

// unordered gives the keys in no order, without sorting.
func (t *table[T]) unordered() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, p := range t.pieces {
			for k := range p.m {
				if !yield(k) {
					return
				}
			}
		}
	}
}
