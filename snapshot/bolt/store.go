package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
)

var _ snapshot.Store = (*DB)(nil)

// Chunk implements [snapshot.ChunkSource].
func (db *DB) Chunk(ctx context.Context, id snapshot.ChunkID) (data []byte, err error) {
	err = db.view(ctx, func(tx *bbolt.Tx) error {
		e, ok, err := lookup(tx, id)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("chunk %s: %w", id, snapshot.ErrNoChunk)
		}
		b := tx.Bucket(bucketChunks).Get(seqKey(e.seq))
		if uint64(len(b)) != uint64(e.stored) {
			return fmt.Errorf("chunk %s: %w: %d bytes are stored, the index says %d", id, snapshot.ErrCorrupt, len(b), e.stored)
		}
		data = bytes.Clone(b)
		letGo(tx, b)
		return nil
	})
	return data, err
}

// List implements [snapshot.Store].
func (db *DB) List(ctx context.Context, job string) (all []snapshot.Checkpoint, err error) {
	err = db.view(ctx, func(tx *bbolt.Tx) error {
		h, ok, err := openHistory(tx, job)
		if err != nil || !ok {
			return err
		}
		return h.rows.ForEach(func(k, v []byte) error {
			c, err := decodeRow(job, k, v)
			if err != nil {
				return err
			}
			db.mem.overlay(&c)
			all = append(all, c)
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// completed gives the row of a completed checkpoint, or ErrNoCheckpoint with
// the reason.
func completed(tx *bbolt.Tx, job string, id snapshot.ID) (h history, c snapshot.Checkpoint, err error) {
	h, ok, err := openHistory(tx, job)
	if err != nil {
		return h, c, err
	}
	if ok {
		c, ok, err = h.row(id)
	}
	switch {
	case err != nil:
		return h, c, err
	case !ok:
		return h, c, fmt.Errorf("job %q checkpoint %s: %w", job, id, snapshot.ErrNoCheckpoint)
	case c.State != snapshot.StateCompleted:
		return h, c, fmt.Errorf("job %q checkpoint %s: %w: the attempt is %s", job, id, snapshot.ErrNoCheckpoint, c.State)
	}
	return h, c, nil
}

// Manifest implements [snapshot.Store]. Its checkpoint is as it was completed;
// marks that were set later (pinned, bad) are in List.
func (db *DB) Manifest(ctx context.Context, job string, id snapshot.ID) (*snapshot.Manifest, error) {
	var b []byte
	err := db.view(ctx, func(tx *bbolt.Tx) error {
		h, _, err := completed(tx, job, id)
		if err != nil {
			return err
		}
		b = bytes.Clone(h.manifests.Get(idKey(id)))
		return nil
	})
	if err != nil {
		return nil, err
	}
	m, err := snapshot.DecodeManifest(b)
	if err != nil {
		return nil, fmt.Errorf("store %s: job %q checkpoint %s: manifest: %w", db.path, job, id, err)
	}
	if m.Checkpoint.Job != job || m.Checkpoint.ID != id {
		return nil, fmt.Errorf("store %s: job %q checkpoint %s: %w: the manifest is of job %q checkpoint %s",
			db.path, job, id, snapshot.ErrCorrupt, m.Checkpoint.Job, m.Checkpoint.ID)
	}
	return m, nil
}

// Edit implements [snapshot.Store]: of completed checkpoints, ErrNoCheckpoint
// for all others.
func (db *DB) Edit(ctx context.Context, job string, id snapshot.ID, ch snapshot.Change) (c snapshot.Checkpoint, err error) {
	err = db.update(ctx, "edit a checkpoint", func(tx *bbolt.Tx) error {
		var h history
		if h, c, err = completed(tx, job, id); err != nil {
			return err
		}
		if ch.Pinned != nil {
			c.Pinned = *ch.Pinned
		}
		if ch.Bad != nil {
			c.Bad = *ch.Bad
		}
		if ch.Drill != nil {
			c.Drill = ch.Drill
		}
		if ch.Shrunk != nil {
			c.Shrunk = ch.Shrunk
		}
		return h.putRow(c)
	})
	return c, err
}

// Delete implements [snapshot.Store]. The checkpoint is gone with one
// transaction, which takes the row, the manifest and its references; its
// chunks follow in small ones in the background (see sweeper).
//
// Where the manifest is damaged or lost, the references of all chunks are
// counted anew (see recount). One of a newer version is not deleted.
func (db *DB) Delete(ctx context.Context, job string, id snapshot.ID) error {
	var ids []snapshot.ChunkID
	err := db.removing(func() (err error) {
		ids, err = db.forget(ctx, job, id)
		return err
	})
	if err != nil {
		return err
	}
	crashpoint.At(crashpoint.DeleteDone)
	db.mem.discard(ids, false)
	db.sweeper.wake()
	return nil
}

// forget is the first transaction of Delete. It gives the chunks that have no
// reference any more.
func (db *DB) forget(ctx context.Context, job string, id snapshot.ID) (free []snapshot.ChunkID, err error) {
	db.deleting.Lock()
	defer db.deleting.Unlock()
	at := place{job, id}
	if db.mem.isRunning(at) {
		return nil, fmt.Errorf("job %q checkpoint %s: %w: it is being made", job, id, snapshot.ErrInUse)
	}
	if db.mem.isHeld(at) {
		return nil, fmt.Errorf("job %q checkpoint %s: %w: it is being read, or its layers are being merged", job, id, snapshot.ErrInUse)
	}
	err = db.update(ctx, "delete a checkpoint", func(tx *bbolt.Tx) error {
		h, ok, err := openHistory(tx, job)
		if err != nil {
			return err
		}
		if !ok || h.rows.Get(idKey(id)) == nil {
			return fmt.Errorf("job %q checkpoint %s: %w", job, id, snapshot.ErrNoCheckpoint)
		}
		free, err = uncount(tx, h, id)
		if err != nil && !errors.Is(err, errUnknownChunks) {
			return fmt.Errorf("job %q checkpoint %s: %w", job, id, err)
		}
		if gone := errors.Join(h.manifests.Delete(idKey(id)), h.rows.Delete(idKey(id))); gone != nil {
			return gone
		}
		if err != nil {
			if free, err = recount(tx); err != nil {
				return err
			}
		}
		// Before the commit, so that no check finds them without an owner.
		db.mem.discard(free, true)
		crashpoint.At(crashpoint.DeleteOpen)
		return nil
	})
	if err != nil {
		db.mem.cleared(free)
	}
	return free, err
}

// uncount counts a row's manifest, if it has one, out of its chunks, and gives
// those that have no reference any more.
func uncount(tx *bbolt.Tx, h history, id snapshot.ID) (free []snapshot.ChunkID, err error) {
	b := h.manifests.Get(idKey(id))
	if b == nil {
		c, _, err := h.row(id)
		if err != nil || c.State == snapshot.StateCompleted {
			return nil, fmt.Errorf("%w: it has no manifest", errUnknownChunks)
		}
		return nil, nil
	}
	m, err := readManifest(place{h.job, id}, b)
	if err != nil {
		return nil, err
	}
	for id := range chunksOf(m) {
		e, ok, err := lookup(tx, id)
		if err != nil && !errors.Is(err, snapshot.ErrCorrupt) {
			return nil, err
		}
		if err != nil || !ok || e.refs == 0 {
			continue // lost before: Check reports it, deletion is the way out
		}
		if e.refs--; e.refs == 0 {
			free = append(free, id)
		}
		if err := tx.Bucket(bucketIndex).Put(id[:], e.encode()); err != nil {
			return nil, err
		}
	}
	return free, nil
}

// Hold implements [snapshot.Store]: of any row of the history.
func (db *DB) Hold(ctx context.Context, job string, id snapshot.ID) (release func(), err error) {
	// A deletion that began before is waited for.
	db.deleting.Lock()
	defer db.deleting.Unlock()
	err = db.view(ctx, func(tx *bbolt.Tx) error {
		h, ok, err := openHistory(tx, job)
		if err != nil {
			return err
		}
		if !ok || h.rows.Get(idKey(id)) == nil {
			return fmt.Errorf("job %q checkpoint %s: %w", job, id, snapshot.ErrNoCheckpoint)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	leave := db.mem.hold(place{job, id})
	return func() {
		if leave() {
			db.sweeper.wake()
		}
	}, nil
}

// Jobs implements [snapshot.Store], in the order of names.
func (db *DB) Jobs(ctx context.Context) (names []string, err error) {
	err = db.view(ctx, func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketJobs).ForEachBucket(func(name []byte) error {
			h, _, err := openHistory(tx, string(name))
			if err != nil {
				return err
			}
			if k, _ := h.rows.Cursor().First(); k != nil {
				names = append(names, string(name))
			}
			return nil
		})
	})
	return names, err
}
