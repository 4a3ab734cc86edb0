package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
)

// MemChunks keeps chunks in memory: for tests and for small states. The zero
// value is empty and ready. Safe for concurrent use.
type MemChunks struct {
	mu   sync.Mutex
	data map[ChunkID][]byte
}

var (
	_ ChunkSource = (*MemChunks)(nil)
	_ ChunkWriter = (*MemChunks)(nil)
)

// Chunk gives a copy of a chunk.
func (m *MemChunks) Chunk(ctx context.Context, id ChunkID) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.data[id]
	if !ok {
		return nil, fmt.Errorf("chunk %s: %w", id, ErrNoChunk)
	}
	return bytes.Clone(b), nil
}

// WriteChunk keeps a copy of a chunk, unless it has it already.
func (m *MemChunks) WriteChunk(ctx context.Context, c Chunk) (fresh bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.data[c.Ref.ID]; ok {
		return false, nil
	}
	m.put(c.Ref.ID, c.Data)
	return true, nil
}

// Put stores any bytes under an id, also wrong ones, in the place of what was
// there: for tests of damage.
func (m *MemChunks) Put(id ChunkID, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.put(id, data)
}

func (m *MemChunks) put(id ChunkID, data []byte) {
	if m.data == nil {
		m.data = map[ChunkID][]byte{}
	}
	m.data[id] = bytes.Clone(data)
}

// Remove drops a chunk; one that isn't there is no error.
func (m *MemChunks) Remove(id ChunkID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.data, id)
}

// IDs lists the chunks in the order of their ids.
func (m *MemChunks) IDs() []ChunkID {
	m.mu.Lock()
	defer m.mu.Unlock()
	ids := make([]ChunkID, 0, len(m.data))
	for id := range m.data {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b ChunkID) int { return bytes.Compare(a[:], b[:]) })
	return ids
}
