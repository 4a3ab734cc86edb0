package snapshot

import (
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
// the keyed and the operator section, that the totals are the manifest's
// (bytes unless they are estimated).
//
// Layers are merged: what the sink gets is whole keys as they are with all
// layers, in the order of CompareNames, with their true count. The elements of
// a key that was patched come in an order of the walk's own, always the same.
//
// What the sink gets is valid during the call only. Its error comes back as
// it is. Errors about the checkpoint are a *ChunkError or name the manifest's
// field, and wrap ErrCorrupt, ErrNewerFormat or ErrNoChunk; the source's own
// errors are wrapped too. After an error what the sink has seen is worthless.
//
// One chunk of each layer is fetched ahead, so src is called from other
// goroutines, which have ended when Walk returns. In memory are two chunks of
// each layer, and the fields or members of one key's patches.
func Walk(ctx context.Context, src ChunkSource, m *Manifest, sink Sink, sections ...Section) error {
	if err := walkable(m); err != nil {
		return err
	}
	wants := wanted(sections)
	stop := func(err error) error { return err }
	var totals *sectionTotals
	var err error
	if len(m.Layers) == 0 {
		w := newWalker(m, 0, sink, stop)
		totals, err = &w.totals, w.walk(ctx, src, wants)
	} else {
		g := newMerger(m, 0, sink, stop)
		totals, err = &g.totals, g.walk(ctx, src, wants)
	}
	if err != nil {
		var s sinkError
		if errors.As(err, &s) {
			return s.err
		}
		return err
	}
	if wants(SectionKeyed) && wants(SectionOperator) {
		if p := totals.compare(m); len(p) > 0 {
			return fmt.Errorf("manifest of checkpoint %d: %s: %w", m.Checkpoint.ID, p[0], ErrCorrupt)
		}
	}
	return nil
}

func wanted(sections []Section) func(Section) bool {
	return func(s Section) bool { return len(sections) == 0 || slices.Contains(sections, s) }
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

// walker reads the chunks of one layer in order. fail decides whether the walk
// ends with an error or goes on after it.
type walker struct {
	*reader
	m     *Manifest
	layer int
	fail  func(error) error
}

func newWalker(m *Manifest, layer int, sink Sink, fail func(error) error) *walker {
	return &walker{reader: newReader(m, layer, sink), m: m, layer: layer, fail: fail}
}

func (w *walker) walk(ctx context.Context, src ChunkSource, wants func(Section) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	f := feed{src: src, all: placedOf(w.m, w.layer, wants)}
	defer func() {
		cancel()
		f.stop()
	}()
	f.start(ctx)
	var section Section
	for range f.all {
		p, got := f.next(ctx)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("walk checkpoint %d: %w", w.m.Checkpoint.ID, err)
		}
		if p.ref.Section != section {
			section = p.ref.Section
			w.begin(w.m.sorts(section))
		}
		if err := w.take(p, got); err != nil {
			return err
		}
	}
	return nil
}

// take reads one chunk that was fetched.
func (w *walker) take(p placed, got fetched) error {
	w.mismatch = func(offset int, err error) error {
		return w.fail(p.error(w.reader, offset, err))
	}
	var err error
	if got.err != nil {
		err = w.report(p.unread(got.err))
	} else if err = w.chunk(p.ref.Section, got.opened); err != nil {
		err = w.chunkFailed(p, err)
	} else {
		w.totals.chunk(p.ref)
	}
	if err == nil && p.last {
		if err = w.finish(); err != nil {
			err = w.fail(p.error(w.reader, -1, err))
		}
	}
	return err
}

func (w *walker) chunkFailed(p placed, err error) error {
	var s sinkError
	var c *ChunkError
	if errors.As(err, &s) || errors.As(err, &c) {
		return err
	}
	return w.report(p.error(w.reader, w.frame, err))
}

// report fails for a chunk that could not be read to its end; when the walk
// goes on, it goes on blind.
func (w *walker) report(e *ChunkError) error {
	w.blind = true
	return w.fail(e)
}

// compare gives where the totals of a whole walk differ from the manifest's.
func (s *sectionTotals) compare(m *Manifest) []string {
	k, o, c := s[SectionKeyed], s[SectionOperator], m.Checkpoint
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
		if t.said != t.got && (t.what != "bytes" || !c.BytesEstimated) {
			out = append(out, fmt.Sprintf("%s is %d, its chunks hold %d", t.what, t.said, t.got))
		}
	}
	return out
}
