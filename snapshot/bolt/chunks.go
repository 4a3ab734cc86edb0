package bolt

import (
	"context"
	"fmt"

	"go.etcd.io/bbolt"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
)

// chunkWriter stores the chunks of one attempt or rewrite. Chunks gather in a
// batch; a full batch is stored by a goroutine while the next one fills, so
// that its sync costs the cut no time. Memory: two batches, what bbolt needs
// for one, and the content of two chunks that are checked.
type chunkWriter struct {
	db     *DB
	at     place
	ended  string                    // "committed" or "failed", then the writer is done
	err    error                     // of a batch: sticky
	seen   map[snapshot.ChunkID]bool // pinned; written by this attempt, or read and found whole
	kept   map[snapshot.ChunkID]bool // named by the committed manifest
	batch  *batch
	spare  *batch       // the one that was stored last, empty, if any
	flight chan flushed // nil when no batch is being stored
	stored uint64
	buf    []byte // for the content of chunks that are checked
}

func newChunkWriter(db *DB, at place) chunkWriter {
	return chunkWriter{db: db, at: at, seen: map[snapshot.ChunkID]bool{}, kept: map[snapshot.ChunkID]bool{}, batch: db.spares.take()}
}

type flushed struct {
	batch *batch // for reuse
	known uint64 // bytes of chunks that another attempt stored meanwhile
	err   error
}

// StoredBytes implements [snapshot.Writer] and [snapshot.Rewriter].
func (w *chunkWriter) StoredBytes() uint64 { return w.stored }

// usable gives the error of a writer that can't go on.
func (w *chunkWriter) usable(ctx context.Context) error {
	if w.ended != "" {
		return fmt.Errorf("%s: the attempt has %s already", w.at, w.ended)
	}
	if w.err != nil {
		return w.err
	}
	return ctx.Err()
}

func checkChunk(c snapshot.Chunk) error {
	switch {
	case len(c.Data) == 0 || uint64(len(c.Data)) != c.Ref.Stored:
		return fmt.Errorf("chunk %s: it has %d bytes and says %d", c.Ref.ID, len(c.Data), c.Ref.Stored)
	case len(c.Data) > 2*snapshot.MaxChunk:
		return fmt.Errorf("chunk %s: %d bytes are more than the store takes (%d)", c.Ref.ID, len(c.Data), 2*snapshot.MaxChunk)
	}
	return nil
}

// WriteChunk implements [snapshot.ChunkWriter]. What it takes is durable only
// after Commit; an error of storing may come with a later call. A chunk that is
// stored already is read and checked; a damaged one is stored again, and fresh.
func (w *chunkWriter) WriteChunk(ctx context.Context, c snapshot.Chunk) (fresh bool, err error) {
	if err := w.usable(ctx); err != nil {
		return false, err
	}
	if err := checkChunk(c); err != nil {
		return false, err
	}
	if _, ok := w.seen[c.Ref.ID]; ok {
		return false, nil
	}
	must := w.db.mem.pin(c.Ref.ID)
	w.seen[c.Ref.ID] = true
	if !must {
		known, err := w.db.has(ctx, c.Ref.ID, &w.buf)
		if err != nil || known {
			// After an error the chunk is not written, so the next call
			// must not take it for known.
			if err != nil {
				w.db.mem.unpin(c.Ref.ID)
				delete(w.seen, c.Ref.ID)
			}
			return false, err
		}
	}
	w.batch.add(c.Ref.ID, c.Data, w.db.opts.BatchBytes)
	w.stored += uint64(len(c.Data))
	if len(w.batch.data) >= w.db.opts.BatchBytes {
		return true, w.flush()
	}
	return true, nil
}

// flush hands the batch to a goroutine, after the one before has come back.
func (w *chunkWriter) flush() error {
	if err := w.land(); err != nil {
		return err
	}
	if len(w.batch.items) == 0 {
		return nil
	}
	b, flight := w.batch, make(chan flushed, 1)
	if w.batch, w.spare = w.spare, nil; w.batch == nil {
		w.batch = w.db.spares.take()
	}
	w.flight = flight
	go func() {
		known, err := w.db.storeBatch(b)
		flight <- flushed{b, known, err}
	}()
	return nil
}

// land waits for the batch under way, which is the spare one then.
func (w *chunkWriter) land() error {
	if w.flight == nil {
		return w.err
	}
	done := <-w.flight
	w.flight = nil
	w.stored -= done.known
	if done.err != nil && w.err == nil {
		w.err = fmt.Errorf("%s: %w", w.at, done.err)
	}
	done.batch.reset()
	w.spare = done.batch
	return w.err
}

// recycle drops what a writer that is done has no use for. No batch is under way
// any more.
func (w *chunkWriter) recycle() {
	w.db.spares.give(w.db.opts.BatchBytes, w.batch, w.spare)
	w.seen, w.kept, w.batch, w.spare, w.buf = nil, nil, nil, nil, nil
}

// storeBatch stores the chunks of a batch in one transaction, without a
// reference, and reads them back. It gives the bytes of those that were there
// already, and whole.
//
// It does not take the caller's context: it runs beside the caller, is
// bounded, and an attempt that is stopped drops its chunks anyway.
func (db *DB) storeBatch(b *batch) (known uint64, err error) {
	err = db.update(context.Background(), "store chunks", func(tx *bbolt.Tx) (err error) {
		p := &putter{db: db, tx: tx, lost: db.lost.Load()}
		for i := range b.items {
			it := &b.items[i]
			if it.known, err = p.put(it.id, b.data[it.start:it.end]); err != nil {
				return err
			}
			if it.known {
				known += uint64(it.end - it.start)
			}
		}
		return nil
	})
	if err != nil {
		return known, err
	}
	crashpoint.At(crashpoint.ChunksStored)
	return known, db.readBack(b)
}
