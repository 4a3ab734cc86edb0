package snapshot

import (
	"bytes"
	"errors"
	"fmt"
)

// ChunkError says where in a checkpoint's chunks something is wrong. Err
// wraps ErrCorrupt, ErrNewerFormat, ErrNoChunk or what the source gave.
type ChunkError struct {
	Layer   int // of the manifest: 0 is the base
	Index   int // of the chunk in its layer
	ID      ChunkID
	Section Section
	Key     []byte // the key that it is about, nil when that isn't known
	Offset  int    // in the raw content; -1 when it concerns the whole chunk
	Err     error
	// merging: each layer by itself is sound, but they don't fit together.
	merging bool
}

// Error names the chunk, its layer unless that is the base, the key and the
// offset.
func (e *ChunkError) Error() string { return e.chunk() + ": " + e.detail() }

func (e *ChunkError) chunk() string {
	layer := ""
	if e.Layer > 0 {
		layer = fmt.Sprintf(" of layer %d", e.Layer)
	}
	return fmt.Sprintf("chunk %d%s (%s, %s)", e.Index, layer, e.Section, e.ID)
}

func (e *ChunkError) detail() string {
	s := e.Err.Error()
	if e.Offset >= 0 {
		s = fmt.Sprintf("at byte %d: %s", e.Offset, s)
	}
	var named *inKey
	if e.Key != nil && !errors.As(e.Err, &named) {
		s = fmt.Sprintf("in key %s: %s", quote(e.Key), s)
	}
	return s
}

// Unwrap gives the cause.
func (e *ChunkError) Unwrap() error { return e.Err }

// unread is about a chunk that could not be got or opened.
func (p placed) unread(err error) *ChunkError {
	return &ChunkError{Layer: p.layer, Index: p.index, ID: p.ref.ID, Section: p.ref.Section, Offset: -1, Err: err}
}

// error is about the content of a chunk, which r has read so far.
func (p placed) error(r *reader, offset int, err error) *ChunkError {
	e := p.unread(fmt.Errorf("%w: %w", ErrCorrupt, err))
	e.Offset = offset
	var named *inKey
	if errors.As(err, &named) {
		e.Key = named.name
	} else if r.tr.open {
		e.Key = bytes.Clone(r.tr.key.Name)
	}
	return e
}
