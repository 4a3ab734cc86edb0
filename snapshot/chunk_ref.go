package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// ChunkID names a chunk by its content: the SHA-256 of its raw bytes.
type ChunkID [sha256.Size]byte

// ParseChunkID reads the 64 hex digits that String writes.
func ParseChunkID(s string) (ChunkID, error) {
	var id ChunkID
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(id) {
		return id, fmt.Errorf("chunk id %q: want %d hex digits", s, 2*len(id))
	}
	copy(id[:], b)
	return id, nil
}

// String is 64 hex digits.
func (id ChunkID) String() string { return hex.EncodeToString(id[:]) }

// MarshalJSON writes the hex form.
func (id ChunkID) MarshalJSON() ([]byte, error) { return json.Marshal(id.String()) }

// UnmarshalJSON reads the hex form.
func (id *ChunkID) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("chunk id: %w", err)
	}
	got, err := ParseChunkID(s)
	if err != nil {
		return err
	}
	*id = got
	return nil
}

// ChunkRef is a chunk as a manifest names it. Sizes are in bytes.
type ChunkRef struct {
	ID      ChunkID `json:"id"`
	Section Section `json:"section"`
	Raw     uint64  `json:"raw"`    // of its records
	Stored  uint64  `json:"stored"` // of its envelope, as a store keeps it
}

// Chunk is a sealed chunk: its envelope (FORMAT.md) and what it is.
type Chunk struct {
	Ref  ChunkRef
	Data []byte // valid until the next call to whoever gave it
}

// ChunkSource gives sealed chunks by id. The bytes are the caller's own copy.
// ErrNoChunk (wrapped) when there is none.
type ChunkSource interface {
	Chunk(ctx context.Context, id ChunkID) ([]byte, error)
}

// ChunkWriter takes sealed chunks. It copies what it keeps. A chunk that is
// already stored is not stored twice, but what is stored is checked first, and
// mended when it is damaged: fresh says whether it had to be stored.
type ChunkWriter interface {
	WriteChunk(ctx context.Context, c Chunk) (fresh bool, err error)
}
