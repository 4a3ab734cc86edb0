package torture

import "sync"

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
