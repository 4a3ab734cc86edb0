package snapshot

import (
	"context"
	"errors"
	"fmt"
)

// Verify reads a checkpoint whole, as Walk does, and gives every problem that
// it finds: with the manifest itself, and with each chunk and key. It goes on
// after a bad chunk; the totals are compared when all chunks could be read.
// Layers are merged; when a chunk of them can't be read, each layer is read by
// itself instead, to find all that are bad. The error is for a walk that could
// not go on: the context ended, or the store is closed.
func Verify(ctx context.Context, src ChunkSource, m *Manifest) ([]Problem, error) {
	v := &verifier{ctx: ctx, src: src, m: m, all: m.check().list}
	if m.Format > FormatVersion {
		return locate(m, v.all), nil // what it holds is not known here
	}
	var p problems
	checkChunks(m, &p)
	before := len(v.all)
	totals, err := v.read(len(m.Layers) > 0 && len(p.list) == 0)
	if err != nil {
		return locate(m, v.all), fmt.Errorf("verify checkpoint %d: %w", m.Checkpoint.ID, err)
	}
	if totals != nil && len(v.all) == before {
		for _, d := range totals.compare(m) {
			v.all = append(v.all, Problem{What: "totals", Detail: d})
		}
	}
	return locate(m, v.all), nil
}

// verifier collects problems.
type verifier struct {
	ctx context.Context
	src ChunkSource
	m   *Manifest
	all []Problem
	// merge are those of all that only merging shows.
	merge []Problem
	stop  error // what ended the walk
}

// read reads all chunks. It gives no totals when the layers couldn't be merged.
func (v *verifier) read(merge bool) (*sectionTotals, error) {
	every := wanted(nil)
	if merge {
		before := len(v.all)
		g := newMerger(v.m, 0, nil, v.fail)
		err := g.walk(v.ctx, v.src, every)
		if err == nil || v.ended(err) {
			return &g.totals, v.stop
		}
		// A chunk is bad: the layers are read one by one.
		v.all = append(v.all[:before], v.merge...)
		defer v.atLeast(before, err)
	}
	var last *walker
	for i := range 1 + len(v.m.Layers) {
		last = newWalker(v.m, i, nil, v.fail)
		if err := last.walk(v.ctx, v.src, every); err != nil {
			v.ended(err)
			return nil, v.stop
		}
	}
	if len(v.m.Layers) > 0 {
		return nil, nil
	}
	return &last.totals, nil
}

// fail collects an error, and gives it back when it ends the walk.
func (v *verifier) fail(err error) error {
	if v.ctx.Err() != nil || errors.Is(err, ErrClosed) {
		v.stop = err
		return err
	}
	var c *ChunkError
	if errors.As(err, &c) {
		v.all = append(v.all, c.problem())
		if c.merging {
			v.merge = append(v.merge, c.problem())
		}
	} else {
		v.all = append(v.all, Problem{What: "chunks", Detail: err.Error()})
	}
	return nil
}

// atLeast adds what ended the merging when nothing else was found.
func (v *verifier) atLeast(before int, err error) {
	if v.stop == nil && len(v.all) == before {
		_ = v.fail(err) // it is collected
	}
}

// ended reports whether a walk's error is no problem of the checkpoint.
func (v *verifier) ended(err error) bool {
	if v.stop == nil && (v.ctx.Err() != nil || errors.Is(err, ErrClosed)) {
		v.stop = err
	}
	return v.stop != nil
}

func (e *ChunkError) problem() Problem {
	return Problem{What: e.chunk(), Detail: e.detail()}
}

// locate says whose problems these are.
func locate(m *Manifest, all []Problem) []Problem {
	for i := range all {
		all[i].Job, all[i].Checkpoint = m.Checkpoint.Job, m.Checkpoint.ID
	}
	return all
}
