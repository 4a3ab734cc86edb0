package bolt

import (
	"slices"
	"sync"

	"keyframe/snapshot"
)

// readers are the holds of one checkpoint that were taken while it had one and
// the same manifest. A rewrite ends the group: who comes later reads the new
// manifest, and these may still read the chunks of the old one.
type readers struct {
	open  int
	ended bool
	keep  []snapshot.ChunkID // pinned until the last of them is done
}

// hold counts a reader in. release counts it out, once, and reports whether
// chunks became garbage with it.
func (m *memory) hold(p place) (release func() (garbage bool)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	groups := m.held[p]
	if len(groups) == 0 || groups[len(groups)-1].ended {
		groups = append(groups, &readers{})
		m.held[p] = groups
	}
	g := groups[len(groups)-1]
	g.open++
	var once sync.Once
	return func() (garbage bool) {
		once.Do(func() { garbage = m.leave(p, g) })
		return garbage
	}
}

func (m *memory) leave(p place, g *readers) (garbage bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g.open--; g.open > 0 {
		return false
	}
	rest := slices.DeleteFunc(slices.Clone(m.held[p]), func(o *readers) bool { return o == g })
	if m.held[p] = rest; len(rest) == 0 {
		delete(m.held, p)
	}
	for _, id := range g.keep {
		m.drop(id)
		m.garbage[id] = false
	}
	return len(g.keep) > 0
}

// isHeld reports whether a checkpoint has readers, or is being rewritten.
func (m *memory) isHeld(p place) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.held[p]) > 0 || m.rewriting[p]
}

// rewrite notes that a checkpoint is being rewritten, unless it is already.
func (m *memory) rewrite(p place) (ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rewriting[p] {
		return false
	}
	m.rewriting[p] = true
	return true
}

// rewritten ends a rewrite. Of the chunks that it pinned those that the new
// manifest does not name are garbage. What only the old manifest named goes
// too, but not before all who may be reading by it are done.
func (m *memory) rewritten(p place, pinned, named map[snapshot.ChunkID]bool, dropped []snapshot.ChunkID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.rewriting, p)
	for id := range pinned {
		m.drop(id)
		if !named[id] {
			m.garbage[id] = false
		}
	}
	for _, id := range dropped {
		m.garbage[id] = false
	}
	if len(dropped) == 0 {
		return
	}
	for _, g := range m.held[p] {
		g.ended = true
		g.keep = append(g.keep, dropped...)
		for _, id := range dropped {
			m.pins[id]++
		}
	}
}

// pinned reports whether a running attempt or a reader needs a chunk.
func (m *memory) pinned(id snapshot.ChunkID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pins[id] > 0
}
