package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
)

// Commit implements [snapshot.Writer]. The one commit point of a checkpoint is
// the transaction of publish: before it all its chunks are durable and nothing
// names them; it writes the manifest, the completed row and the reference of
// each chunk; after it the checkpoint is listed.
//
// What it names is known to be whole: chunks that this attempt stored were read
// back, those that it found stored were checked by WriteChunk, and all others
// (a rescale takes its base's) are read and checked here, before the
// transaction; of those that an incremental checkpoint takes from its parent,
// a part (see checkSome). snapshot.ErrCorrupt when one is damaged.
//
// A chunk that was stored before with an envelope of another length keeps it,
// and the stored manifest says so.
func (w *writer) Commit(ctx context.Context, m *snapshot.Manifest) error {
	if err := w.usable(ctx); err != nil {
		return err
	}
	if err := w.checkManifest(m); err != nil {
		return err
	}
	if err := w.settle(ctx, m, !m.Checkpoint.Incremental); err != nil {
		return fmt.Errorf("%s: commit: %w", w.at, err)
	}
	crashpoint.At(crashpoint.CommitReady)
	if err := w.publish(ctx, m); err != nil {
		return fmt.Errorf("%s: commit: %w", w.at, err)
	}
	crashpoint.At(crashpoint.CommitDone)
	w.ended = "committed"
	w.keep(m)
	w.release(nil)
	return nil
}

// settle makes every chunk that a manifest names durable, and checks those that
// this attempt has not written: with all every one, otherwise some (see
// checkSome).
func (w *chunkWriter) settle(ctx context.Context, m *snapshot.Manifest, all bool) error {
	if err := w.flush(); err != nil {
		return err
	}
	if err := w.land(); err != nil {
		return err
	}
	if !all {
		return w.checkSome(ctx, m)
	}
	return w.checkOthers(ctx, m)
}

// keep notes what a committed manifest names.
func (w *chunkWriter) keep(m *snapshot.Manifest) {
	for ref := range m.AllChunks() {
		w.kept[ref.ID] = true
	}
}

func (w *writer) checkManifest(m *snapshot.Manifest) error {
	c := m.Checkpoint
	switch {
	case c.Job != w.row.Job || c.ID != w.row.ID:
		return fmt.Errorf("job %q checkpoint %s: the manifest is of job %q checkpoint %s", w.row.Job, w.row.ID, c.Job, c.ID)
	case c.Kind != w.row.Kind || c.Trigger != w.row.Trigger || c.Name != w.row.Name:
		return fmt.Errorf("job %q checkpoint %s: the manifest is of a %s %q by %s, the attempt began as a %s %q by %s",
			w.row.Job, w.row.ID, c.Kind, c.Name, c.Trigger, w.row.Kind, w.row.Name, w.row.Trigger)
	}
	return m.Validate()
}

// publish is the transaction that makes the checkpoint listed.
func (w *writer) publish(ctx context.Context, m *snapshot.Manifest) error {
	return w.db.update(ctx, "commit", func(tx *bbolt.Tx) error {
		h, ok, err := openHistory(tx, w.row.Job)
		if err != nil {
			return err
		}
		row, there, err := h.row(w.row.ID)
		if err != nil {
			return err
		}
		if !ok || !there || row.State != snapshot.StateInProgress {
			return fmt.Errorf("%w: the attempt is not in the history", snapshot.ErrNoCheckpoint)
		}
		stored, err := reference(tx, m)
		if err != nil {
			return err
		}
		listed := stored.Checkpoint
		stored.Checkpoint.Shrunk = nil
		b, err := encode(stored)
		if err != nil {
			return err
		}
		if err := h.manifests.Put(idKey(w.row.ID), b); err != nil {
			return fmt.Errorf("manifest of %d bytes: %w", len(b), err)
		}
		err = h.putRow(listed)
		crashpoint.At(crashpoint.CommitOpen)
		return err
	})
}

// encode makes the manifest's bytes and reads them again before anyone relies
// on them.
func encode(m *snapshot.Manifest) ([]byte, error) {
	b, err := snapshot.EncodeManifest(m)
	if err != nil {
		return nil, err
	}
	back, err := snapshot.DecodeManifest(b)
	if err != nil {
		return nil, fmt.Errorf("the manifest can't be read back: %w", err)
	}
	again, err := snapshot.EncodeManifest(back)
	if err != nil {
		return nil, fmt.Errorf("the manifest can't be written again: %w", err)
	}
	if !bytes.Equal(b, again) {
		return nil, errors.New("the manifest that was read back differs from the one written: this is a bug")
	}
	return b, nil
}

// reference counts a manifest in on its chunks, each of which must be stored,
// and gives a copy of it with the lengths that the store has.
func reference(tx *bbolt.Tx, m *snapshot.Manifest) (*snapshot.Manifest, error) {
	lengths := map[snapshot.ChunkID]uint64{}
	full := m.Checkpoint.FullBytes
	for ref := range m.AllChunks() {
		e, ok, err := lookup(tx, ref.ID)
		switch {
		case err != nil:
			return nil, err
		case !ok: // entry and bytes come and go in one transaction
			return nil, fmt.Errorf("%w: chunk %s, which the manifest names", snapshot.ErrNoChunk, ref.ID)
		case e.refs == math.MaxUint32:
			return nil, fmt.Errorf("chunk %s: too many checkpoints share it", ref.ID)
		}
		full += uint64(e.stored) - ref.Stored // modulo 2^64: right also when it shrinks
		if _, counted := lengths[ref.ID]; counted {
			continue // EncodeManifest refuses it
		}
		lengths[ref.ID] = uint64(e.stored)
		e.refs++
		if err := tx.Bucket(bucketIndex).Put(ref.ID[:], e.encode()); err != nil {
			return nil, fmt.Errorf("chunk %s: %w", ref.ID, err)
		}
	}
	out := withLengths(m, lengths)
	if out.Checkpoint.FullBytes = full; full != m.Checkpoint.FullBytes {
		out.Checkpoint.StoredBytes = min(out.Checkpoint.StoredBytes, full)
	}
	return out, nil
}

// withLengths is a copy of a manifest with its own lists of chunks, in which
// the stored lengths are as given.
func withLengths(m *snapshot.Manifest, lengths map[snapshot.ChunkID]uint64) *snapshot.Manifest {
	measured := func(refs []snapshot.ChunkRef) []snapshot.ChunkRef {
		refs = slices.Clone(refs)
		for i := range refs {
			refs[i].Stored = lengths[refs[i].ID]
		}
		return refs
	}
	out := *m
	out.Chunks, out.Layers = measured(m.Chunks), slices.Clone(m.Layers)
	for i := range out.Layers {
		out.Layers[i].Chunks = measured(out.Layers[i].Chunks)
	}
	return &out
}

// Fail implements [snapshot.Writer]. After Commit it is an error and changes
// nothing; a second Fail does nothing, the first reason stays. When the row
// can't be written now, the error says so, the history shows the failure all
// the same, and the next Begin writes it.
func (w *writer) Fail(ctx context.Context, f snapshot.Failure) error {
	switch w.ended {
	case "committed":
		return fmt.Errorf("job %q checkpoint %s: committed already, so it can't fail (%s)", w.row.Job, w.row.ID, f.Message)
	case "failed":
		return nil
	}
	// The batch under way must be over before its chunks are dropped; its
	// error is of no interest any more.
	_ = w.land()
	err := w.db.update(ctx, "record a failed attempt", func(tx *bbolt.Tx) error {
		h, ok, err := openHistory(tx, w.row.Job)
		if err != nil {
			return err
		}
		row, there, err := h.row(w.row.ID)
		if err != nil {
			return err
		}
		if !ok || !there || row.State != snapshot.StateInProgress {
			return fmt.Errorf("%w: the attempt is not in the history", snapshot.ErrNoCheckpoint)
		}
		return h.putRow(failed(row, f, w.db.opts.Now().Sub(row.StartedAt)))
	})
	w.ended = "failed"
	if err != nil {
		w.release(&f)
		return fmt.Errorf("job %q checkpoint %s: record the failure (%s: %s): %w", w.row.Job, w.row.ID, f.Reason, f.Message, err)
	}
	w.release(nil)
	return nil
}

// Abort implements [snapshot.Writer].
func (w *writer) Abort() {
	if w.ended != "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// There is no one to tell; the failure is kept in memory and saved by the
	// next Begin, or by Open after a restart.
	_ = w.Fail(ctx, snapshot.Failure{Reason: snapshot.FailAborted, Message: "the attempt was given up"})
}

// release ends the attempt in memory, and has the chunks that nothing needs
// removed in the background. Those that it did not store itself are looked at
// too: whoever stored them may have left them because this attempt needed
// them.
func (w *writer) release(unsaved *snapshot.Failure) {
	w.db.mem.finish(w.at, w.seen, w.kept, unsaved)
	w.recycle()
	w.db.sweeper.wake()
}
