package snapshot

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// Merge makes layers into one, with the same content: from is the lowest, 0
// for the base. From 0 on everything becomes a plain base, whose Bytes are then
// exact; from i on, the layers i to the last become one layer over those below:
// there the newest record of each element wins, and what is removed or gone
// stays so for the layers below. New chunks, of all sections, go to w.
//
// It gives the new manifest, which differs in chunks, layers, order and
// FullBytes, and from 0 on in Bytes (the statistics by state and by group are
// made smaller where they were estimated above it); StoredBytes is at most
// FullBytes. m stays as it is. When there is nothing to merge the copy of m is
// all: nothing is written. Over and Salt of opts are set here.
//
// Errors are those of Walk, for all that is read, and w's. Memory is bounded as
// in Walk.
func Merge(ctx context.Context, src ChunkSource, m *Manifest, from int, w ChunkWriter, opts EncoderOptions) (*Manifest, error) {
	out := mapStrings(*m, func(s string) string { return s })
	if from < 0 || from > len(m.Layers) {
		return nil, fmt.Errorf("merge checkpoint %d from layer %d: it has layers 0 to %d", m.Checkpoint.ID, from, len(m.Layers))
	}
	if from == len(m.Layers) {
		return &out, nil
	}
	if err := walkable(m); err != nil {
		return nil, err
	}
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("merge: %w: %w", ErrCorrupt, err)
	}
	opts.Over, opts.Salt = from > 0, 0
	enc := NewEncoder(ctx, w, opts)
	g := newMerger(m, from, enc, func(err error) error { return err })
	if err := g.walk(ctx, src, wanted(nil)); err != nil {
		var s sinkError
		if errors.As(err, &s) {
			err = s.err
		}
		return nil, fmt.Errorf("merge checkpoint %d from layer %d: %w", m.Checkpoint.ID, from, err)
	}
	sum, err := enc.Close()
	if err != nil {
		return nil, fmt.Errorf("merge checkpoint %d from layer %d: %w", m.Checkpoint.ID, from, err)
	}
	if from == 0 {
		if p := g.totals.compare(m); len(p) > 0 {
			return nil, fmt.Errorf("manifest of checkpoint %d: %s: %w", m.Checkpoint.ID, p[0], ErrCorrupt)
		}
	}
	out.merged(from, sum)
	if err := out.Validate(); err != nil {
		return nil, fmt.Errorf("merge checkpoint %d from layer %d: %w", m.Checkpoint.ID, from, err)
	}
	return &out, nil
}

// merged puts what was merged into the manifest.
func (m *Manifest) merged(from int, sum Summary) {
	c := &m.Checkpoint
	m.Format = FormatVersion
	if from == 0 {
		m.Chunks, m.Layers, m.Sorted = sum.Chunks, nil, sum.Sorted
		c.Bytes, c.BytesEstimated = sum.Bytes, false
		m.fitStats()
	} else {
		m.Layers = append(slices.Clip(m.Layers[:from-1]), sum.Layers...)
		m.Layers = slices.DeleteFunc(m.Layers, func(l Layer) bool { return len(l.Chunks) == 0 })
	}
	if c.Layers > 0 {
		c.Layers = 1 + len(m.Layers)
	}
	c.FullBytes = 0
	for ref := range m.AllChunks() {
		c.FullBytes += ref.Stored
	}
	c.StoredBytes = min(c.StoredBytes, c.FullBytes)
}

// fitStats scales the bytes of statistics that are estimates down to the bytes
// that the checkpoint has.
func (m *Manifest) fitStats() {
	var states, groups sums
	for _, s := range m.States {
		states.add(0, 0, s.Bytes)
	}
	for i := range m.States {
		m.States[i].Bytes = states.fit(m.States[i].Bytes, m.Checkpoint.Bytes)
	}
	for _, g := range m.Groups {
		groups.add(0, 0, g.Bytes)
	}
	for i := range m.Groups {
		m.Groups[i].Bytes = groups.fit(m.Groups[i].Bytes, m.Checkpoint.Bytes)
	}
}

// fit gives a part of the sum of bytes as it is when the sum is only most.
func (s *sums) fit(part, most uint64) uint64 {
	if s.bytes <= most {
		return part
	}
	hi, lo := bits.Mul64(part, most)
	quo, _ := bits.Div64(hi, lo, s.bytes) // part ≤ bytes, so it is below most
	return quo
}
