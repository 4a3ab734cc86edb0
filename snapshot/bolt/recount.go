package bolt

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"keyframe/snapshot"
)

// errUnknownChunks says that it is not known which chunks a checkpoint counts
// on: its manifest is damaged or lost.
var errUnknownChunks = errors.New("its chunks are unknown")

// readManifest gives the manifest of a place, which must be of that place. An
// error wraps errUnknownChunks, or snapshot.ErrNewerFormat: that one is no
// damage, and this version can neither use it nor delete it.
func readManifest(p place, b []byte) (*snapshot.Manifest, error) {
	m, err := snapshot.DecodeManifest(b)
	switch {
	case errors.Is(err, snapshot.ErrNewerFormat):
		return nil, fmt.Errorf("a newer version made it: upgrade coordinator: %w", err)
	case err != nil:
		return nil, fmt.Errorf("%w: its manifest can't be read: %w", errUnknownChunks, err)
	case m.Checkpoint.Job != p.job || m.Checkpoint.ID != p.id:
		return nil, fmt.Errorf("%w: %w: the manifest is of job %q checkpoint %s",
			errUnknownChunks, snapshot.ErrCorrupt, m.Checkpoint.Job, m.Checkpoint.ID)
	}
	return m, nil
}

// recount counts the references of all chunks anew, from all manifests, after
// one that could not be read is gone: its own were never counted out. It gives
// the chunks that have none. While another manifest of the file can't be read
// it changes nothing, as that one may count on any chunk; then the last one to
// be deleted brings the counts in order, and until then Check reports it.
func recount(tx *bbolt.Tx) (free []snapshot.ChunkID, err error) {
	refs, unknown, err := countReferences(tx)
	if err != nil || unknown {
		return nil, err
	}
	type change struct {
		id snapshot.ChunkID
		e  entry
	}
	var changes []change // not written while the index is walked
	err = tx.Bucket(bucketIndex).ForEach(func(k, v []byte) error {
		e, err := decodeEntry(v)
		if err != nil || len(k) != len(snapshot.ChunkID{}) {
			return nil // Check reports it
		}
		id := snapshot.ChunkID(k)
		if e.refs != refs[id] {
			e.refs = refs[id]
			changes = append(changes, change{id, e})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, c := range changes {
		if err := tx.Bucket(bucketIndex).Put(c.id[:], c.e.encode()); err != nil {
			return nil, fmt.Errorf("chunk %s: %w", c.id, err)
		}
		if c.e.refs == 0 {
			free = append(free, c.id)
		}
	}
	return free, nil
}

// countReferences counts, per chunk, the manifests that name it. unknown says
// that there is one, or should be, that can't be read and so is not counted.
func countReferences(tx *bbolt.Tx) (refs map[snapshot.ChunkID]uint32, unknown bool, err error) {
	refs = map[snapshot.ChunkID]uint32{}
	err = tx.Bucket(bucketJobs).ForEachBucket(func(name []byte) error {
		h, _, err := openHistory(tx, string(name))
		if err != nil {
			unknown = true
			return nil
		}
		err = h.rows.ForEach(func(k, v []byte) error {
			c, err := decodeRow(h.job, k, v)
			unknown = unknown || h.manifests.Get(k) == nil && (err != nil || c.State == snapshot.StateCompleted)
			return nil
		})
		if err != nil {
			return err
		}
		return h.manifests.ForEach(func(k, v []byte) error {
			n, err := number(k)
			if err != nil {
				unknown = true
				return nil
			}
			m, err := readManifest(place{h.job, snapshot.ID(n)}, v)
			if err != nil {
				unknown = true
				return nil
			}
			for id := range chunksOf(m) {
				refs[id]++
			}
			return nil
		})
	})
	return refs, unknown, err
}

// raise puts counts right that are too low, so that no deletion takes a chunk
// that a checkpoint needs, and the sweep of Open none of a damaged count. It
// notes whether a chunk that a manifest names is not in the index: an attempt
// that has its bytes stores it again, with the count of its references.
func (db *DB) raise(ctx context.Context) error {
	low := map[snapshot.ChunkID]entry{}
	err := db.view(ctx, func(tx *bbolt.Tx) error {
		refs, _, err := countReferences(tx)
		if err != nil {
			return err
		}
		for id, n := range refs {
			e, ok, err := lookup(tx, id)
			switch {
			case err != nil || !ok:
				db.lost.Store(true)
			case e.refs < n:
				e.refs = n
				low[id] = e
			}
		}
		return nil
	})
	if err != nil || len(low) == 0 {
		return err
	}
	return db.update(ctx, "raise the counts of references", func(tx *bbolt.Tx) error {
		for id, e := range low {
			if err := tx.Bucket(bucketIndex).Put(id[:], e.encode()); err != nil {
				return fmt.Errorf("chunk %s: %w", id, err)
			}
		}
		return nil
	})
}

// chunksOf is each chunk that a manifest names, once.
func chunksOf(m *snapshot.Manifest) map[snapshot.ChunkID]bool {
	all := map[snapshot.ChunkID]bool{}
	for ref := range m.AllChunks() {
		all[ref.ID] = true
	}
	return all
}
