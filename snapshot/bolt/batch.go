package bolt

import (
	"sync"

	"keyframe/snapshot"
)

// batch is chunks that are stored with one transaction.
type batch struct {
	data  []byte
	items []item
}

// item is one chunk in a batch's data.
type item struct {
	id         snapshot.ChunkID
	start, end int
	known      bool // found stored and whole
}

// fewBytes is the least that a batch makes room for.
const fewBytes = 64 << 10

// add copies a chunk to the batch, which is stored from full bytes on.
//
// To grow by append from nothing to some megabytes would cost a full
// checkpoint twice as much memory as it stores. So there are few steps: twice
// what is needed while that is little, so that a small checkpoint stays small,
// and then all that a batch is going to have, with the chunk that fills it.
func (b *batch) add(id snapshot.ChunkID, data []byte, full int) {
	start, need := len(b.data), len(b.data)+len(data)
	if need > cap(b.data) {
		size := max(2*need, fewBytes)
		if size > full/4 {
			size = max(need, full+len(data)+len(data)/8)
		}
		b.data = append(make([]byte, 0, size), b.data...)
	}
	b.data = append(b.data, data...)
	b.items = append(b.items, item{id: id, start: start, end: need})
}

// reset makes the batch an empty one with the same memory.
func (b *batch) reset() { b.data, b.items = b.data[:0], b.items[:0] }

// spares keeps the batches of an attempt for the next one: two, as many as an
// attempt has, and none that a huge chunk made grow. Safe for concurrent use.
type spares struct {
	mu   sync.Mutex
	free []*batch // empty
}

// sparesMost is how many batches one attempt fills and stores at a time.
const sparesMost = 2

// take gives an empty batch.
func (s *spares) take() *batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.free)
	if n == 0 {
		return &batch{}
	}
	b := s.free[n-1]
	s.free[n-1], s.free = nil, s.free[:n-1]
	return b
}

// give takes batches that nobody uses any more; nil is none.
func (s *spares) give(full int, all ...*batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range all {
		if b == nil || len(s.free) == sparesMost || cap(b.data) > 2*full {
			continue
		}
		b.reset()
		s.free = append(s.free, b)
	}
}
