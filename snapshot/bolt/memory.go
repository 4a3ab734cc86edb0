package bolt

import (
	"fmt"
	"maps"
	"sync"

	"keyframe/snapshot"
)

// place is one row: a job and an id.
type place struct {
	job string
	id  snapshot.ID
}

func (p place) String() string { return fmt.Sprintf("job %q checkpoint %s", p.job, p.id) }

// memory is what the process knows and the file does not: which attempts run,
// which checkpoints are held, which chunks running attempts count on. It is
// gone with the process, as all of that is.
type memory struct {
	mu      sync.Mutex
	running map[place]bool
	held    map[place][]*readers
	// rewriting are the checkpoints that have a Rewriter open.
	rewriting map[place]bool
	// unsaved are failures whose row could not be written (a full disk). They
	// are shown at once and saved by the next transaction that begins.
	unsaved map[place]snapshot.Failure
	// pins counts, per chunk, the running attempts that need it.
	pins map[snapshot.ChunkID]int
	// doomed are the chunks that a transaction under way is removing: an
	// attempt that needs one stores it again.
	doomed map[snapshot.ChunkID]bool
	// garbage are chunks that lost their last reference or were never given
	// one. The value says whether a sweep has them in hand.
	garbage map[snapshot.ChunkID]bool
}

func newMemory() *memory {
	return &memory{
		running: map[place]bool{}, held: map[place][]*readers{}, rewriting: map[place]bool{}, unsaved: map[place]snapshot.Failure{},
		pins: map[snapshot.ChunkID]int{}, doomed: map[snapshot.ChunkID]bool{}, garbage: map[snapshot.ChunkID]bool{},
	}
}

// pin counts an attempt in on a chunk. It reports whether the attempt must
// store the chunk whatever the index says now, because it is being removed.
func (m *memory) pin(id snapshot.ChunkID) (store bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pins[id]++
	return m.doomed[id]
}

// unpin counts an attempt out on one chunk.
func (m *memory) unpin(id snapshot.ChunkID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(id)
}

func (m *memory) drop(id snapshot.ChunkID) {
	if m.pins[id]--; m.pins[id] <= 0 {
		delete(m.pins, id)
	}
}

// finish notes that an attempt is over. Of the chunks that it pinned those
// that its manifest does not name are garbage, unless others need them. A
// failure that could not be saved is kept until it can be.
func (m *memory) finish(p place, pinned, named map[snapshot.ChunkID]bool, unsaved *snapshot.Failure) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range pinned {
		m.drop(id)
		if !named[id] {
			m.garbage[id] = false
		}
	}
	delete(m.running, p)
	if unsaved != nil {
		m.unsaved[p] = *unsaved
	}
}

// doom reports whether a chunk may be removed now, and marks it if so. It is
// called within the write transaction that removes it.
func (m *memory) doom(id snapshot.ChunkID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pins[id] > 0 {
		return false
	}
	m.doomed[id] = true
	return true
}

// spare takes the marks of doom back, after the transaction.
func (m *memory) spare(ids []snapshot.ChunkID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		delete(m.doomed, id)
	}
}

// discard puts chunks on the list of garbage, or back on it. With taken they
// are known as garbage, but no sweep takes them yet.
func (m *memory) discard(ids []snapshot.ChunkID, taken bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		m.garbage[id] = taken
	}
}

// takeGarbage gives the garbage that no one has in hand, into the caller's.
func (m *memory) takeGarbage() []snapshot.ChunkID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []snapshot.ChunkID
	for id, taken := range m.garbage {
		if !taken {
			ids = append(ids, id)
			m.garbage[id] = true
		}
	}
	return ids
}

// cleared takes chunks that the caller has in hand off the list of garbage:
// they are removed, or someone needs them. Where that someone has let go of one
// meanwhile, it is on the list anew and stays there.
func (m *memory) cleared(ids []snapshot.ChunkID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		if m.garbage[id] {
			delete(m.garbage, id)
		}
	}
}

// expected reports whether a chunk without a reference is one that the
// process knows of.
func (m *memory) expected(id snapshot.ChunkID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, garbage := m.garbage[id]
	return garbage || m.pins[id] > 0
}

func (m *memory) start(p place) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running[p] = true
}

func (m *memory) isRunning(p place) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running[p]
}

// failures is a copy of what is unsaved.
func (m *memory) failures() map[place]snapshot.Failure {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.unsaved)
}

func (m *memory) saved(all map[place]snapshot.Failure) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for p := range all {
		delete(m.unsaved, p)
	}
}

// overlay shows a row as it is: failed, when only its record lags behind.
func (m *memory) overlay(c *snapshot.Checkpoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f, ok := m.unsaved[place{c.Job, c.ID}]; ok && c.State == snapshot.StateInProgress {
		c.State, c.Failure = snapshot.StateFailed, &f
	}
}
