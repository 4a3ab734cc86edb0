package torture

import (
	"fmt"
	"sync"
)

// replays gives the model of any step without starting from the beginning
// each time. Safe for concurrent use.
type replays struct {
	mu   sync.Mutex
	kept [writers]map[uint64]*model
}

// everySteps is how far apart the kept models are.
const everySteps = 20000

func (r *replays) at(id int, seq uint64) *model {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept[id] == nil {
		r.kept[id] = map[uint64]*model{}
	}
	m := newModel(id)
	for n := seq / everySteps; n > 0; n-- {
		if kept := r.kept[id][n]; kept != nil {
			m = kept.clone()
			break
		}
	}
	for m.seq < seq {
		m.step(0, nil)
		if m.seq%everySteps == 0 {
			r.kept[id][m.seq/everySteps] = m.clone()
		}
	}
	return m
}

// chains remembers which transaction followed which: each writes a link of its
// own, that no other ever has. So a state that lacks an acknowledged write is
// told from one that has it, also when the same steps were made again since.
// Safe for concurrent use.
type chains struct {
	mu      sync.Mutex
	newest  uint64
	parents map[uint64]uint64
}

// after gives a new link that follows another one; 0 is the beginning.
func (c *chains) after(parent uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parents == nil {
		c.parents = map[uint64]uint64{}
	}
	c.newest++
	c.parents[c.newest] = parent
	return c.newest
}

// lost says which writer's newest link before is not in the past of now, "" when
// all are.
func (c *chains) lost(before, now seqs) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, want := range before.link {
		link := now.link[id]
		for link > want { // links only grow
			link = c.parents[link]
		}
		if link != want {
			return fmt.Sprintf("writer %d: transaction %d (step %d) is not in the past of %d (step %d)", id, want, before.writer[id], now.link[id], now.writer[id])
		}
	}
	return ""
}
