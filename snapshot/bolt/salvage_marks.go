package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"keyframe/snapshot"
)

// Chunks and manifests are found by their own marks, wherever they lie: each
// says how long it is and carries a checksum of all of it (FORMAT.md).
var (
	markChunk    = []byte("KFCK")
	markManifest = []byte("KFMF")
)

const (
	chunkHead    = 48 // bytes before a chunk's payload
	manifestHead = 44
	marksWindow  = 64 << 10 // a chunk is mostly larger, and is read anew
)

// marks is what was found by its marks.
type marks struct {
	chunks    map[snapshot.ChunkID]span
	manifests map[place][]span // in the order of the file: a rewrite leaves old ones behind
	highest   map[string]snapshot.ID
	newer     int // written by a newer version: not used
}

// findMarks reads a file of size bytes from its beginning to its end. Inside
// something whole nothing is looked for: what a user's value holds is no chunk
// of ours. progress (may be nil) is told how many bytes were read.
func findMarks(ctx context.Context, r io.ReaderAt, size int64, progress func(done, total int64)) (*marks, error) {
	m := &marks{chunks: map[snapshot.ChunkID]span{}, manifests: map[place][]span{}, highest: map[string]snapshot.ID{}}
	f := &finder{r: r, size: size, m: m, window: make([]byte, marksWindow)}
	for at := int64(0); at < size; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		next, err := f.step(at)
		if err != nil {
			return nil, err
		}
		at = next
		if progress != nil {
			progress(min(at, size), size)
		}
	}
	return m, nil
}

// holdsMarks reports whether a file has a manifest in it, without which its
// chunks are nothing. What can't be read has none.
func holdsMarks(ctx context.Context, r io.ReaderAt, size int64) bool {
	m := &marks{chunks: map[snapshot.ChunkID]span{}, manifests: map[place][]span{}, highest: map[string]snapshot.ID{}}
	f := &finder{r: r, size: size, m: m, window: make([]byte, marksWindow)}
	for at := int64(0); at < size && ctx.Err() == nil; {
		next, err := f.step(at)
		if err != nil {
			return false
		}
		if len(m.manifests)+m.newer > 0 {
			return true
		}
		at = next
	}
	return false
}

type finder struct {
	r      io.ReaderAt
	size   int64
	m      *marks
	window []byte
	data   []byte // of one envelope or manifest
	raw    []byte // its content
}

// step looks for the first mark from at on, and gives where to go on.
func (f *finder) step(at int64) (next int64, err error) {
	b := f.window[:min(marksWindow, f.size-at)]
	if _, err := f.r.ReadAt(b, at); err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("read %d bytes at %d: %w", len(b), at, err)
	}
	c, m := bytes.Index(b, markChunk), bytes.Index(b, markManifest)
	if m >= 0 && (c < 0 || m < c) {
		return f.manifest(at + int64(m))
	}
	if c >= 0 {
		return f.chunk(at + int64(c))
	}
	if at+int64(len(b)) >= f.size {
		return f.size, nil
	}
	return at + int64(len(b)-len(markChunk)+1), nil
}

// head reads the beginning of what a mark may begin; nil where the file ends.
func (f *finder) head(at int64, n int) ([]byte, error) {
	if f.size-at < int64(n) {
		return nil, nil
	}
	b := make([]byte, n)
	if _, err := f.r.ReadAt(b, at); err != nil {
		return nil, fmt.Errorf("read %d bytes at %d: %w", n, at, err)
	}
	return b, nil
}

// body reads size bytes that a header has promised; nil where there are none.
func (f *finder) body(at, size, most int64) ([]byte, error) {
	if size > most || size > f.size-at {
		return nil, nil
	}
	if int64(cap(f.data)) < size {
		f.data = make([]byte, size)
	}
	f.data = f.data[:size]
	if _, err := f.r.ReadAt(f.data, at); err != nil {
		return nil, fmt.Errorf("read %d bytes at %d: %w", size, at, err)
	}
	return f.data, nil
}

// chunk looks whether a whole chunk begins at at.
func (f *finder) chunk(at int64) (next int64, err error) {
	next = at + int64(len(markChunk))
	h, err := f.head(at, chunkHead)
	if err != nil || h == nil {
		return next, err
	}
	size := chunkHead + int64(binary.LittleEndian.Uint32(h[12:])) + 4
	b, err := f.body(at, size, snapshot.MaxChunk+chunkHead+4)
	if err != nil || b == nil {
		return next, err
	}
	ref, _, err := snapshot.OpenChunk(b, f.raw)
	if errors.Is(err, snapshot.ErrNewerFormat) {
		f.m.newer++
		return at + size, nil
	}
	if err != nil {
		return next, nil // no chunk, or a damaged one
	}
	if ref.Raw > uint64(cap(f.raw)) && ref.Raw <= maxKeptBuffer {
		f.raw = make([]byte, 0, ref.Raw+ref.Raw/8)
	}
	f.m.chunks[ref.ID] = span{at, size}
	return at + size, nil
}

// manifest looks whether a whole manifest begins at at, as a bucket's value:
// behind the checkpoint's id, its key.
func (f *finder) manifest(at int64) (next int64, err error) {
	next = at + int64(len(markManifest))
	h, err := f.head(at, manifestHead)
	if err != nil || h == nil {
		return next, err
	}
	size := manifestHead + int64(binary.LittleEndian.Uint32(h[8:]))
	b, err := f.body(at, size, snapshot.MaxManifest)
	if err != nil || b == nil {
		return next, err
	}
	m, err := snapshot.DecodeManifest(b)
	if errors.Is(err, snapshot.ErrNewerFormat) {
		f.m.newer++
		return at + size, nil
	}
	if err != nil {
		return next, nil // none, or a damaged one
	}
	p := place{m.Checkpoint.Job, m.Checkpoint.ID}
	f.m.highest[p.job] = max(f.m.highest[p.job], p.id)
	if key, err := f.head(at-8, 8); err == nil && key != nil && bytes.Equal(key, idKey(p.id)) {
		f.m.manifests[p] = append(f.m.manifests[p], span{at, size})
	}
	return at + size, nil
}
