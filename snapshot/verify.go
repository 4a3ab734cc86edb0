package snapshot

import (
	"context"
	"errors"
	"fmt"
)

// Verify reads a checkpoint whole, as Walk does, and gives every problem that
// it finds: with the manifest itself, and with each chunk and key. It goes on
// after a bad chunk; the totals are compared when all chunks could be read.
// The error is for a walk that could not go on: the context ended, or the
// store is closed.
func Verify(ctx context.Context, src ChunkSource, m *Manifest) ([]Problem, error) {
	all := m.check().list
	if m.Format > FormatVersion {
		return locate(m, all), nil // what it holds is not known here
	}
	var stop error
	w := &walker{reader: newReader(nil)}
	w.fail = func(err error) error {
		if ctx.Err() != nil || errors.Is(err, ErrClosed) {
			stop = err
			return err
		}
		var c *ChunkError
		if errors.As(err, &c) {
			all = append(all, c.problem())
		} else {
			all = append(all, Problem{What: "chunks", Detail: err.Error()})
		}
		return nil
	}
	before := len(all)
	if err := w.walk(ctx, src, m); err != nil {
		if stop == nil {
			stop = err
		}
		return locate(m, all), fmt.Errorf("verify checkpoint %d: %w", m.Checkpoint.ID, stop)
	}
	if len(all) == before {
		for _, d := range w.compare(m) {
			all = append(all, Problem{What: "totals", Detail: d})
		}
	}
	return locate(m, all), nil
}

func (e *ChunkError) problem() Problem {
	return Problem{What: fmt.Sprintf("chunk %d (%s, %s)", e.Index, e.Section, e.ID), Detail: e.detail()}
}

// locate says whose problems these are.
func locate(m *Manifest, all []Problem) []Problem {
	for i := range all {
		all[i].Job, all[i].Checkpoint = m.Checkpoint.Job, m.Checkpoint.ID
	}
	return all
}
