package bolt

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
)

var _ snapshot.Rewriter = (*rewriter)(nil)

// rewriter puts other chunks under a completed checkpoint.
type rewriter struct {
	chunkWriter
}

// Rewrite implements [snapshot.Store]. Nothing in the file tells of a rewrite
// before its commit: its chunks have no reference, as those of an attempt.
func (db *DB) Rewrite(ctx context.Context, job string, id snapshot.ID) (snapshot.Rewriter, error) {
	// A deletion that began before is waited for.
	db.deleting.Lock()
	defer db.deleting.Unlock()
	at := place{job, id}
	err := db.view(ctx, func(tx *bbolt.Tx) error {
		_, _, err := manifestOf(tx, at)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !db.mem.rewrite(at) {
		return nil, fmt.Errorf("%s: %w: its layers are being merged", at, snapshot.ErrInUse)
	}
	return &rewriter{newChunkWriter(db, at)}, nil
}

// manifestOf gives the history of a completed checkpoint and its manifest.
func manifestOf(tx *bbolt.Tx, at place) (history, *snapshot.Manifest, error) {
	h, _, err := completed(tx, at.job, at.id)
	if err != nil {
		return h, nil, err
	}
	b := h.manifests.Get(idKey(at.id))
	if b == nil {
		return h, nil, fmt.Errorf("%s: %w: it has no manifest", at, snapshot.ErrCorrupt)
	}
	m, err := readManifest(at, b)
	if err != nil {
		return h, nil, fmt.Errorf("%s: %w", at, err)
	}
	return h, m, nil
}

// Commit implements [snapshot.Rewriter]. The one commit point is the
// transaction of replace. Chunks that only the old manifest named go in the
// background, but not while somebody holds the checkpoint who may be reading
// by it.
func (r *rewriter) Commit(ctx context.Context, m *snapshot.Manifest) error {
	if err := r.usable(ctx); err != nil {
		return err
	}
	err := m.Validate()
	if err == nil {
		err = r.settle(ctx, m, false)
	}
	var dropped []snapshot.ChunkID
	if err == nil {
		crashpoint.At(crashpoint.MergeReady)
		dropped, err = r.replace(ctx, m)
	}
	if err != nil {
		return fmt.Errorf("%s: rewrite: %w", r.at, err)
	}
	crashpoint.At(crashpoint.MergeDone)
	r.ended = "committed"
	r.keep(m)
	r.release(dropped)
	return nil
}

// replace is the transaction that swaps the manifest, the row and the
// references. It gives the chunks that have no reference any more.
func (r *rewriter) replace(ctx context.Context, m *snapshot.Manifest) (dropped []snapshot.ChunkID, err error) {
	err = r.db.update(ctx, "rewrite a checkpoint", func(tx *bbolt.Tx) error {
		h, old, err := manifestOf(tx, r.at)
		if err != nil {
			return err
		}
		if err := sameContent(old, m); err != nil {
			return err
		}
		row, _, err := h.row(r.at.id)
		if err != nil {
			return err
		}
		// In this order no chunk that both name loses its last reference.
		stored, err := reference(tx, m)
		if err != nil {
			return err
		}
		if dropped, err = uncount(tx, h, r.at.id); err != nil {
			return err
		}
		now := stored.Checkpoint
		follow(&row, now)
		stored.Checkpoint = old.Checkpoint
		follow(&stored.Checkpoint, now)
		b, err := encode(stored)
		if err != nil {
			return err
		}
		// Before the commit, so that no check finds them without an owner.
		r.db.mem.discard(dropped, true)
		err = errors.Join(h.manifests.Put(idKey(r.at.id), b), h.putRow(row))
		crashpoint.At(crashpoint.MergeOpen)
		return err
	})
	if err != nil {
		r.db.mem.cleared(dropped)
	}
	return dropped, err
}

// follow takes over what a rewrite may change of a checkpoint.
func follow(c *snapshot.Checkpoint, now snapshot.Checkpoint) {
	c.FullBytes, c.Layers = now.FullBytes, now.Layers
	c.Bytes, c.BytesEstimated = now.Bytes, now.BytesEstimated
	c.StoredBytes = min(c.StoredBytes, c.FullBytes)
}

// sameContent holds a manifest against the one that it is to replace. Only
// chunks and what follows from them may differ.
func sameContent(old, m *snapshot.Manifest) error {
	is, was := m.Checkpoint, old.Checkpoint
	differs := func(field string, now, before any) error {
		return fmt.Errorf("its %s is %v, that of the checkpoint %v: a rewrite keeps the content", field, now, before)
	}
	switch {
	case is.Job != was.Job || is.ID != was.ID:
		return fmt.Errorf("the manifest is of job %q checkpoint %s", is.Job, is.ID)
	case is.Keys != was.Keys:
		return differs("number of keys", is.Keys, was.Keys)
	case is.Elements != was.Elements:
		return differs("number of elements", is.Elements, was.Elements)
	case is.Missing != was.Missing:
		return differs("number of missing keys", is.Missing, was.Missing)
	case is.Bytes != was.Bytes && !was.BytesEstimated:
		return differs("number of bytes", is.Bytes, was.Bytes)
	case m.Identity != old.Identity:
		return differs("identity", m.Identity, old.Identity)
	case !m.CutAt.Equal(old.CutAt) || m.Incarnation != old.Incarnation || m.Attempt != old.Attempt:
		return differs("cut", m.CutAt, old.CutAt)
	case m.Server != old.Server || m.KeyGroups != old.KeyGroups:
		return differs("layout", m.KeyGroups, old.KeyGroups)
	}
	follow(&is, was)
	is.StoredBytes, is.Pinned, is.Bad, is.Drill, is.Shrunk = was.StoredBytes, was.Pinned, was.Bad, was.Drill, was.Shrunk
	if !sameRow(is, was) {
		return errors.New("its record differs from the checkpoint's in more than its bytes and layers: a rewrite keeps the rest")
	}
	return nil
}

// Abort implements [snapshot.Rewriter].
func (r *rewriter) Abort() {
	if r.ended != "" {
		return
	}
	// The batch under way must be over before its chunks are dropped; its
	// error is of no interest any more.
	_ = r.land()
	r.ended = "been given up"
	r.release(nil)
}

// release ends the rewrite in memory, and has what nothing needs any more
// removed in the background.
func (r *rewriter) release(dropped []snapshot.ChunkID) {
	r.db.mem.rewritten(r.at, r.seen, r.kept, dropped)
	r.recycle()
	r.db.sweeper.wake()
}
