package bolt

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"go.etcd.io/bbolt"

	"keyframe/snapshot"
)

var _ snapshot.Writer = (*writer)(nil)

// writer makes one checkpoint.
type writer struct {
	chunkWriter
	row snapshot.Checkpoint
}

// Begin implements [snapshot.Store].
func (db *DB) Begin(ctx context.Context, a snapshot.Attempt) (snapshot.Writer, error) {
	row := snapshot.Checkpoint{
		Job: a.Job, Kind: a.Kind, Name: a.Name, Note: a.Note, Trigger: a.Trigger,
		State: snapshot.StateInProgress, StartedAt: a.StartedAt, Parent: a.Parent,
	}
	late := db.mem.failures()
	err := db.update(ctx, "begin a checkpoint", func(tx *bbolt.Tx) error {
		if err := db.saveFailures(tx, late); err != nil {
			return err
		}
		h, err := makeHistory(tx, a.Job)
		if err != nil {
			return err
		}
		if row.ID, err = h.next(a.After); err != nil {
			return err
		}
		// Within the transaction, so that no one sees the row in progress
		// with nobody at work on it.
		db.mem.start(place{a.Job, row.ID})
		return errors.Join(h.bucket.Put(keyLast, idKey(row.ID)), h.putRow(row))
	})
	if err != nil {
		db.mem.finish(place{a.Job, row.ID}, nil, nil, nil)
		return nil, err
	}
	db.mem.saved(late)
	return &writer{newChunkWriter(db, place{a.Job, row.ID}), row}, nil
}

// next is the id that follows everything the job ever had and after.
func (h history) next(after snapshot.ID) (snapshot.ID, error) {
	last, err := h.last()
	if err != nil {
		return 0, err
	}
	// The rows can only be ahead of the counter in a damaged file; then the
	// rows are right.
	if k, _ := h.rows.Cursor().Last(); k != nil {
		n, err := number(k)
		if err != nil {
			return 0, fmt.Errorf("job %q: key of the history: %w", h.job, err)
		}
		last = max(last, snapshot.ID(n))
	}
	last = max(last, after)
	if last == math.MaxUint64 {
		return 0, fmt.Errorf("job %q: no checkpoint id is left after %s", h.job, last)
	}
	return last + 1, nil
}

// saveFailures writes the failures that could not be written when they came.
func (db *DB) saveFailures(tx *bbolt.Tx, late map[place]snapshot.Failure) error {
	for p, f := range late {
		h, ok, err := openHistory(tx, p.job)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		c, ok, err := h.row(p.id)
		if err != nil {
			return err
		}
		if !ok || c.State != snapshot.StateInProgress {
			continue // deleted since
		}
		if err := h.putRow(failed(c, f, 0)); err != nil {
			return err
		}
	}
	return nil
}

// failed is a row as it is when the attempt failed after d.
func failed(c snapshot.Checkpoint, f snapshot.Failure, d time.Duration) snapshot.Checkpoint {
	c.State, c.Failure = snapshot.StateFailed, &f
	c.DurationMs = max(0, d.Milliseconds())
	return c
}

func (w *writer) ID() snapshot.ID { return w.row.ID }
