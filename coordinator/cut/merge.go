package cut

import (
	"context"
	"fmt"

	"keyframe/coordinator/config"
	"keyframe/snapshot"
)

// When the layers of a checkpoint are merged in the background. Variables for
// tests.
var (
	// SoftLayers is how many layers a checkpoint has at most when the merging
	// keeps up.
	SoftLayers = 4
	// largeLayers is how many percent of the base's bytes the layers over it
	// may have before everything becomes a new base.
	largeLayers uint64 = 50
	// smallLayers is up to how many bytes they may have more than that, as long
	// as they are few: a small state isn't worth being written again each time.
	smallLayers uint64 = 1 << 20
)

// mergePlan says what is merged: the layers from the given one up, 0 for all.
type mergePlan struct{ from int }

// Due reports whether a checkpoint has come to so many layers, or so large
// ones, that they should be merged.
func Due(m *snapshot.Manifest) bool {
	_, due := plan(m)
	return due
}

// plan decides what to merge, a pure function of the layers' sizes. Large
// layers make a new base. Many become fewer: the newest ones go together up to
// the first that is much larger than all above it, so that what was merged
// isn't written again each time.
func plan(m *snapshot.Manifest) (mergePlan, bool) {
	n := len(m.Layers)
	if n == 0 || !m.Sorted {
		return mergePlan{}, false
	}
	base, above := stored(m.Chunks), uint64(0)
	for _, l := range m.Layers {
		above += stored(l.Chunks)
	}
	many, large := 1+n > SoftLayers, above*100 > base*largeLayers
	switch {
	case large && (many || above > smallLayers):
		return mergePlan{from: 0}, true
	case !many:
		return mergePlan{}, false
	}
	from, sum := n, stored(m.Layers[n-1].Chunks)
	for from > 1 && (from > SoftLayers-1 || stored(m.Layers[from-2].Chunks) <= 2*sum) {
		from--
		sum += stored(m.Layers[from-1].Chunks)
	}
	return mergePlan{from: from}, true
}

func stored(chunks []snapshot.ChunkRef) (n uint64) {
	for _, c := range chunks {
		n += c.Stored
	}
	return n
}

// Merger gives a completed checkpoint fewer layers with the same content. The
// one commit point is the store's (snapshot.Rewriter.Commit): before it nothing
// has changed.
type Merger struct {
	Store snapshot.Store
}

// Merge does what is due on base's checkpoint; base follows.
func (g Merger) Merge(ctx context.Context, job config.Job, base *Base) error {
	p, due := plan(base.Manifest)
	if !due {
		return nil
	}
	if p.from == 0 {
		return g.Flatten(ctx, job, base)
	}
	return g.rewrite(ctx, base, func(w snapshot.Rewriter) (*snapshot.Manifest, error) {
		return snapshot.Merge(ctx, g.Store, base.Manifest, p.from, w, snapshot.EncoderOptions{})
	})
}

// Flatten makes everything a new base, and counts it anew: where bytes were
// estimated they are exact then.
func (g Merger) Flatten(ctx context.Context, job config.Job, base *Base) error {
	d := newDraft(newTally(job.Key(), base.Manifest.Checkpoint.MaxParallelism))
	err := g.rewrite(ctx, base, func(w snapshot.Rewriter) (*snapshot.Manifest, error) {
		enc := snapshot.NewEncoder(ctx, w, snapshot.EncoderOptions{})
		// It checks every checksum and count, and the totals.
		if err := snapshot.Walk(ctx, g.Store, base.Manifest, newCounter(enc, d, func(string, uint64, uint64, uint64) {})); err != nil {
			return nil, err
		}
		sum, err := enc.Close()
		if err != nil {
			return nil, err
		}
		m := *base.Manifest
		m.Format = snapshot.FormatVersion
		m.Chunks, m.Layers, m.Sorted = sum.Chunks, nil, sum.Sorted
		m.States, m.Groups = d.stateStats(), d.groupStats()
		m.Checkpoint.Bytes, m.Checkpoint.BytesEstimated = sum.Bytes, false
		return &m, nil
	})
	if err == nil && base.ledger != nil {
		base.ledger = d.settle()
	}
	return err
}

// rewrite replaces the manifest of base's checkpoint by the one that change
// gives, whose chunks it has written.
func (g Merger) rewrite(ctx context.Context, base *Base, change func(w snapshot.Rewriter) (*snapshot.Manifest, error)) error {
	job, id := base.Manifest.Checkpoint.Job, base.Manifest.Checkpoint.ID
	w, err := g.Store.Rewrite(ctx, job, id)
	if err != nil {
		return fmt.Errorf("rewrite checkpoint %d of job %q: %w", id, job, err)
	}
	defer w.Abort()
	m, err := change(w)
	if err == nil {
		settleBytes(m)
		err = w.Commit(ctx, m)
	}
	if err != nil {
		return fmt.Errorf("merge the layers of checkpoint %d of job %q: %w", id, job, err)
	}
	base.Manifest = m
	return nil
}

// settleBytes makes the figures that follow from the chunks.
func settleBytes(m *snapshot.Manifest) {
	c := &m.Checkpoint
	c.Layers, c.FullBytes = 1+len(m.Layers), 0
	for ref := range m.AllChunks() {
		c.FullBytes += ref.Stored
	}
	c.StoredBytes = min(c.StoredBytes, c.FullBytes)
}
