package archive

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"

	"keyframe/snapshot"
)

// Info is what was written.
type Info struct {
	Bytes  uint64 // of the whole file
	Chunks int
}

// SourceError says that the checkpoint itself could not be read, by Write: where
// it was to be written is not at fault. Err wraps what the source gave, or
// snapshot.ErrCorrupt.
type SourceError struct{ Err error }

// Error is the cause's.
func (e *SourceError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *SourceError) Unwrap() error { return e.Err }

// Write writes a checkpoint as an archive: the same bytes for the same chunks
// and manifest. Each chunk is checked whole before it is written, so that what
// is damaged in src is never passed on; such errors are a *SourceError. In memory are two chunks, the manifest and 44 bytes for
// each chunk. After an error what was written is no archive: it has no footer.
func Write(ctx context.Context, w io.Writer, src snapshot.ChunkSource, m *snapshot.Manifest) (Info, error) {
	manifest, err := snapshot.EncodeManifest(m)
	if err != nil {
		return Info{}, &SourceError{err}
	}
	out := &stream{w: w, sum: sha256.New()}
	if err := out.write(head()); err != nil {
		return Info{}, err
	}
	var table, buf []byte
	chunks := 0
	for ref := range m.AllChunks() {
		var e entry
		if e, buf, err = out.chunk(ctx, src, ref, buf); err != nil {
			return Info{}, fmt.Errorf("chunk %d (%s, %s) of checkpoint %d: %w", chunks, ref.Section, ref.ID, m.Checkpoint.ID, err)
		}
		table = e.append(table)
		chunks++
	}
	p := places{manifest: out.at, manifestLength: uint64(len(manifest)), table: out.at + uint64(len(manifest)), chunks: uint64(chunks)}
	if err := out.finish(manifest, table, p); err != nil {
		return Info{}, err
	}
	return Info{Bytes: out.at, Chunks: chunks}, nil
}

// stream counts and sums what goes to w.
type stream struct {
	w   io.Writer
	sum hash.Hash
	at  uint64
}

func (s *stream) write(b []byte) error {
	n, err := s.w.Write(b)
	s.at += uint64(n)
	s.sum.Write(b[:n])
	if err != nil {
		return fmt.Errorf("write at byte %d: %w", s.at, err)
	}
	return nil
}

// chunk writes one envelope with its length before it, and gives its place.
// buf is used for what is inside, and given back.
func (s *stream) chunk(ctx context.Context, src snapshot.ChunkSource, ref snapshot.ChunkRef, buf []byte) (entry, []byte, error) {
	data, raw, err := sound(ctx, src, ref, buf)
	if err != nil {
		return entry{}, buf, &SourceError{err}
	}
	if err := s.write(binary.LittleEndian.AppendUint32(nil, uint32(len(data)))); err != nil {
		return entry{}, raw, err
	}
	e := entry{id: ref.ID, offset: s.at, length: uint32(len(data))}
	return e, raw, s.write(data)
}

// sound fetches a chunk and checks it whole; raw is its content, in buf's room.
func sound(ctx context.Context, src snapshot.ChunkSource, ref snapshot.ChunkRef, buf []byte) (data, raw []byte, err error) {
	if data, err = src.Chunk(ctx, ref.ID); err != nil {
		return nil, nil, err
	}
	got, raw, err := snapshot.OpenChunk(data, buf)
	if err != nil {
		return nil, nil, err
	}
	if got.ID != ref.ID || got.Section != ref.Section || got.Raw != ref.Raw {
		return nil, nil, fmt.Errorf("the store has chunk %s (%s, %d raw bytes), the manifest names %d: %w", got.ID, got.Section, got.Raw, ref.Raw, snapshot.ErrCorrupt)
	}
	return data, raw, nil
}

// finish writes what follows the chunks.
func (s *stream) finish(manifest, table []byte, p places) error {
	foot := p.append(nil)
	sum := indexSum(head(), table, foot)
	foot = append(foot, sum[:]...)
	for _, b := range [][]byte{manifest, table, foot} {
		if err := s.write(b); err != nil {
			return err
		}
	}
	return s.write(append(s.sum.Sum(nil), endMagic...))
}
