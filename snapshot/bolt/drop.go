package bolt

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
)

// dropPerTx is how many chunks one transaction removes: a few hundred pages
// of index and neighbours, so that a writer never waits long for a deletion.
const dropPerTx = 256

type candidate struct {
	id  snapshot.ChunkID
	seq uint64
}

// sweep removes the garbage. Each transaction leaves the file consistent, so
// it may stop anywhere; what is left stays on the list, and what a kill left
// is found by Open.
func (db *DB) sweep(ctx context.Context) error {
	ids := db.mem.takeGarbage()
	if len(ids) == 0 {
		return nil
	}
	all, err := db.candidates(ctx, ids)
	if err != nil {
		db.mem.discard(ids, false)
		return err
	}
	for part := range slices.Chunk(all, dropPerTx) {
		if err == nil {
			err = db.removing(func() error { return db.drop(ctx, part) })
		}
		if err != nil {
			db.mem.discard(idsOf(part), false)
		} else {
			db.mem.cleared(idsOf(part))
			crashpoint.At(crashpoint.SweepDone)
		}
	}
	return err
}

func idsOf(part []candidate) []snapshot.ChunkID {
	ids := make([]snapshot.ChunkID, len(part))
	for i, c := range part {
		ids[i] = c.id
	}
	return ids
}

// candidates gives those of ids that are stored and have no reference, in the
// order in which they lie in the file, so that neighbours go together. The
// others are no garbage.
func (db *DB) candidates(ctx context.Context, ids []snapshot.ChunkID) (all []candidate, err error) {
	var others []snapshot.ChunkID
	err = db.view(ctx, func(tx *bbolt.Tx) error {
		for _, id := range ids {
			// An entry that can't be read stays: Check reports it.
			if e, ok, err := lookup(tx, id); err == nil && ok && e.refs == 0 {
				all = append(all, candidate{id, e.seq})
			} else {
				others = append(others, id)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	db.mem.cleared(others)
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.seq, b.seq) })
	return all, nil
}

// drop removes chunks in one transaction, but for those that have a reference
// or are needed by a running attempt by now. The attempt looks after the
// latter when it ends.
func (db *DB) drop(ctx context.Context, part []candidate) error {
	var doomed []snapshot.ChunkID
	defer func() { db.mem.spare(doomed) }()
	return db.update(ctx, "remove chunks", func(tx *bbolt.Tx) error {
		chunks, index := tx.Bucket(bucketChunks), tx.Bucket(bucketIndex)
		for _, c := range part {
			e, ok, err := lookup(tx, c.id)
			if err != nil {
				return err
			}
			if !ok || e.refs > 0 || !db.mem.doom(c.id) {
				continue
			}
			doomed = append(doomed, c.id)
			if err := chunks.Delete(seqKey(e.seq)); err != nil {
				return fmt.Errorf("chunk %s: %w", c.id, err)
			}
			if err := index.Delete(c.id[:]); err != nil {
				return fmt.Errorf("chunk %s: %w", c.id, err)
			}
		}
		return nil
	})
}

// recover brings the file to where a clean stop would have left it: attempts
// in progress are failed, and chunks without a reference are found, for the
// sweeper to remove. It is the same work whatever was interrupted, itself
// included.
func (db *DB) recover(ctx context.Context) error {
	late, err := db.interrupted(ctx)
	if err != nil {
		return err
	}
	if len(late) > 0 {
		err := db.update(ctx, "fail interrupted attempts", func(tx *bbolt.Tx) error { return db.saveFailures(tx, late) })
		if err != nil {
			return err
		}
		crashpoint.At(crashpoint.RowsFailed)
	}
	if err := db.raise(ctx); err != nil {
		return err
	}
	ids, err := db.unreferenced(ctx)
	if err != nil {
		return err
	}
	db.mem.discard(ids, false)
	return nil
}

// interrupted finds the rows in progress. A row that can't be read is left to
// List and Check, which name it: it must not keep the other jobs from running.
func (db *DB) interrupted(ctx context.Context) (map[place]snapshot.Failure, error) {
	late := map[place]snapshot.Failure{}
	err := db.view(ctx, func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketJobs).ForEachBucket(func(job []byte) error {
			h, _, err := openHistory(tx, string(job))
			if err != nil {
				return nil
			}
			return h.rows.ForEach(func(k, v []byte) error {
				if c, err := decodeRow(h.job, k, v); err == nil && c.State == snapshot.StateInProgress {
					late[place{h.job, c.ID}] = snapshot.Failure{
						Reason:  snapshot.FailInterrupted,
						Message: "the coordinator ended while this checkpoint was being made",
					}
				}
				return nil
			})
		})
	})
	return late, err
}

// unreferenced finds the chunks that no manifest names.
func (db *DB) unreferenced(ctx context.Context) (ids []snapshot.ChunkID, err error) {
	err = db.view(ctx, func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketIndex).ForEach(func(k, v []byte) error {
			// Check reports one that can't be read; it must not keep the store
			// from opening.
			if e, err := decodeEntry(v); err == nil && len(k) == len(snapshot.ChunkID{}) && e.refs == 0 {
				ids = append(ids, snapshot.ChunkID(k))
			}
			return nil
		})
	})
	return ids, err
}
