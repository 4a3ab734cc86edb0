package track

import "fmt"

// keyNameCost is what a name counts beside its bytes in [Limits].Bytes: its place
// in the map and the Key.
const keyNameCost = 64

// keyMarks are the marks of a watch of whole keys while they grow, in bounded
// memory. Not safe for concurrent use.
type keyMarks struct {
	marks Marks
	slab  []Key // Keys that were allocated together and are not used yet
	size  int   // bytes that count
	limit int
}

// add marks a key.
func (m *keyMarks) add(name []byte) {
	if m.marks.All {
		return
	}
	if k, ok := m.marks.Keys[string(name)]; ok {
		k.Writes++
		return
	}
	m.size += len(name) + keyNameCost
	if m.size > m.limit {
		m.setAll(fmt.Sprintf("more keys were written than %d bytes of marks hold", m.limit))
		return
	}
	if m.marks.Keys == nil {
		m.marks.Keys = make(map[string]*Key)
	}
	if len(m.slab) == 0 {
		m.slab = make([]Key, min(256, 1+len(m.marks.Keys)))
	}
	k := &m.slab[0]
	m.slab = m.slab[1:]
	k.Whole, k.Writes = true, 1
	m.marks.Keys[string(name)] = k
}

// setAll marks everything. The first reason stays: what comes after it is
// often only its consequence.
func (m *keyMarks) setAll(reason string) {
	if !m.marks.All {
		m.marks, m.slab, m.size = Marks{All: true, Reason: reason}, nil, 0
	}
}

// take gives the marks and begins anew.
func (m *keyMarks) take() Marks {
	taken := m.marks
	m.marks, m.slab, m.size = Marks{}, nil, 0
	return taken
}

// count is how many keys are marked, -1 for all.
func (m *keyMarks) count() int {
	if m.marks.All {
		return -1
	}
	return len(m.marks.Keys)
}
