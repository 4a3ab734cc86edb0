package bolt

import "sync"

// mends remembers, while a copy is being made, which chunks got other bytes
// under the number that they have: the copy may have the old ones. A number is
// noted before its transaction commits.
type mends struct {
	mu   sync.Mutex
	keys map[string]bool // nil: nobody copies
}

func (m *mends) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys = map[string]bool{}
}

func (m *mends) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys = nil
}

// clear forgets those that have been copied again, while nobody writes.
func (m *mends) clear() { m.begin() }

func (m *mends) add(key []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keys != nil {
		m.keys[string(key)] = true
	}
}

func (m *mends) has(key []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.keys[string(key)]
}
