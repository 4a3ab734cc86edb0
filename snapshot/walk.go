package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
)

// Walk reads the chunks of m in order, all sections or the ones named, and
// pushes the same keys in the same order into sink (nil: only check). It
// checks each envelope and checksum, the grammar, the count and digest of
// each key (EndKey brings both), that a key which is open at a chunk's end is
// resumed by the section's next chunk, and at the end, when it has read both
// the keyed and the operator section, that the totals are the manifest's.
//
// What the sink gets is valid during the call only. Its error comes back as
// it is. Errors about the checkpoint are a *ChunkError or name the manifest's
// field, and wrap ErrCorrupt, ErrNewerFormat or ErrNoChunk; the source's own
// errors are wrapped too. After an error what the sink has seen is worthless.
//
// One chunk is fetched ahead, so src is called from another goroutine, which
// has ended when Walk returns.
func Walk(ctx context.Context, src ChunkSource, m *Manifest, sink Sink, sections ...Section) error {
	if err := walkable(m); err != nil {
		return err
	}
	w := &walker{reader: newReader(sink), only: sections, fail: func(err error) error { return err }}
	if err := w.walk(ctx, src, m); err != nil {
		var s sinkError
		if errors.As(err, &s) {
			return s.err
		}
		return err
	}
	if w.wants(SectionKeyed) && w.wants(SectionOperator) {
		if p := w.compare(m); len(p) > 0 {
			return fmt.Errorf("manifest of checkpoint %d: %s: %w", m.Checkpoint.ID, p[0], ErrCorrupt)
		}
	}
	return nil
}

// walkable checks what a walk stands on: the format and the list of chunks.
func walkable(m *Manifest) error {
	if m.Format > FormatVersion {
		return fmt.Errorf("checkpoint of format %d, this program reads up to %d: %w", m.Format, FormatVersion, ErrNewerFormat)
	}
	var p problems
	checkChunks(m, &p)
	if err := p.err(m); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}

// walker reads chunks in order. fail decides whether the walk ends with an
// error or goes on after it.
type walker struct {
	*reader
	only []Section
	fail func(error) error
	raw  [2][]byte // one is read while the other is filled
}

func (w *walker) wants(s Section) bool { return len(w.only) == 0 || slices.Contains(w.only, s) }

// fetched is a chunk that was got and opened ahead.
type fetched struct {
	raw []byte
	err error
}

func (w *walker) walk(ctx context.Context, src ChunkSource, m *Manifest) error {
	ctx, cancel := context.WithCancel(ctx)
	var ahead chan fetched
	defer func() {
		cancel()
		if ahead != nil {
			<-ahead // src isn't called any more
		}
	}()
	indexes := w.indexes(m)
	if len(indexes) > 0 {
		ahead = w.fetch(ctx, src, m.Chunks[indexes[0]], 0)
	}
	for n, i := range indexes {
		got := <-ahead
		ahead = nil
		w.raw[n%2] = got.raw[:0]
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("walk checkpoint %d: %w", m.Checkpoint.ID, err)
		}
		if n+1 < len(indexes) {
			ahead = w.fetch(ctx, src, m.Chunks[indexes[n+1]], (n+1)%2)
		}
		last := n+1 == len(indexes) || m.Chunks[indexes[n+1]].Section != m.Chunks[i].Section
		if err := w.take(i, m.Chunks[i], got, last); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) indexes(m *Manifest) []int {
	var all []int
	for i, ref := range m.Chunks {
		if w.wants(ref.Section) {
			all = append(all, i)
		}
	}
	return all
}

// fetch gets and opens a chunk in the background.
func (w *walker) fetch(ctx context.Context, src ChunkSource, ref ChunkRef, slot int) chan fetched {
	out := make(chan fetched, 1)
	buf := w.raw[slot]
	go func() {
		raw, err := openRef(ctx, src, ref, buf)
		if err != nil {
			raw = buf
		}
		out <- fetched{raw: raw, err: err}
	}()
	return out
}

// openRef gets a chunk and checks that it is the one that the manifest names.
// Its stored size may differ: another version may have compressed the same
// content first.
func openRef(ctx context.Context, src ChunkSource, ref ChunkRef, buf []byte) ([]byte, error) {
	data, err := src.Chunk(ctx, ref.ID)
	if err != nil {
		return nil, fmt.Errorf("read it: %w", err)
	}
	got, raw, err := OpenChunk(data, buf)
	switch {
	case err != nil:
		return nil, err
	case got.ID != ref.ID:
		return nil, fmt.Errorf("the store gave chunk %s instead: %w", got.ID, ErrCorrupt)
	case got.Section != ref.Section || got.Raw != ref.Raw:
		return nil, fmt.Errorf("is of %s with %d raw bytes, the manifest says %s with %d: %w",
			got.Section, got.Raw, ref.Section, ref.Raw, ErrCorrupt)
	}
	return raw, nil
}

// take reads one chunk that was fetched; last says that its section ends.
func (w *walker) take(i int, ref ChunkRef, got fetched, last bool) error {
	w.mismatch = func(offset int, err error) error {
		return w.fail(w.chunkError(i, ref, offset, err))
	}
	var err error
	if got.err != nil {
		err = w.report(&ChunkError{Index: i, ID: ref.ID, Section: ref.Section, Offset: -1, Err: got.err})
	} else if err = w.chunk(ref.Section, got.raw); err != nil {
		err = w.chunkFailed(i, ref, err)
	} else {
		t := &w.totals[ref.Section]
		t.Chunks++
		t.Stored += ref.Stored
	}
	if err == nil && last {
		if err = w.finish(); err != nil {
			err = w.fail(w.chunkError(i, ref, -1, err))
		}
	}
	return err
}

func (w *walker) chunkFailed(i int, ref ChunkRef, err error) error {
	var s sinkError
	var c *ChunkError
	if errors.As(err, &s) || errors.As(err, &c) {
		return err
	}
	return w.report(w.chunkError(i, ref, w.frame, err))
}

// report fails for a chunk that could not be read to its end; when the walk
// goes on, it goes on blind.
func (w *walker) report(e *ChunkError) error {
	w.blind = true
	return w.fail(e)
}

func (w *walker) chunkError(i int, ref ChunkRef, offset int, err error) *ChunkError {
	e := &ChunkError{Index: i, ID: ref.ID, Section: ref.Section, Offset: offset}
	e.Err = fmt.Errorf("%w: %w", ErrCorrupt, err)
	var named *inKey
	if errors.As(err, &named) {
		e.Key = named.name
	} else if w.tr.open {
		e.Key = bytes.Clone(w.tr.key.Name)
	}
	return e
}

// compare gives where the totals of a whole walk differ from the manifest's.
func (w *walker) compare(m *Manifest) []string {
	k, o, c := w.totals[SectionKeyed], w.totals[SectionOperator], m.Checkpoint
	var out []string
	for _, t := range []struct {
		what      string
		said, got uint64
	}{
		{"keys", c.Keys, k.Keys + o.Keys},
		{"missing", c.Missing, k.Missing + o.Missing},
		{"elements", c.Elements, k.Elements + o.Elements},
		{"bytes", c.Bytes, k.Bytes + o.Bytes},
	} {
		if t.said != t.got {
			out = append(out, fmt.Sprintf("%s is %d, its chunks hold %d", t.what, t.said, t.got))
		}
	}
	return out
}
