package bolt

import (
	"context"
	"fmt"

	"go.etcd.io/bbolt"

	"keyframe/snapshot"
)

// Stats implements [snapshot.Store]. It reads the index, not the chunks.
func (db *DB) Stats(ctx context.Context) (s snapshot.StoreStats, err error) {
	err = db.view(ctx, func(tx *bbolt.Tx) error {
		// Of the open file, whatever its path leads to by now.
		info, err := db.handle.Stat()
		if err != nil {
			return err
		}
		s.Path, s.FileBytes = db.path, info.Size()
		free := db.file.Stats()
		s.FreeBytes = int64(free.FreePageN+free.PendingPageN) * int64(db.file.Info().PageSize)
		return db.countAll(tx, &s)
	})
	if err != nil {
		return snapshot.StoreStats{}, err
	}
	if err := db.Err(); err != nil {
		s.Stopped = err.Error()
	}
	if s.Damaged, err = Asides(db.path); err != nil {
		return snapshot.StoreStats{}, err
	}
	if s.LiveBytes > 0 {
		s.Ratio = float64(s.FileBytes) / float64(s.LiveBytes)
	}
	return s, nil
}

// countAll counts what a file holds.
func (db *DB) countAll(tx *bbolt.Tx, s *snapshot.StoreStats) error {
	err := tx.Bucket(bucketIndex).ForEach(func(k, v []byte) error {
		e, err := decodeEntry(v)
		if err != nil {
			return fmt.Errorf("chunk %x: %w", k, err)
		}
		if e.refs == 0 && len(k) == len(snapshot.ChunkID{}) && !db.mem.pinned(snapshot.ChunkID(k)) {
			s.WaitingChunks++
			s.WaitingBytes += int64(e.stored)
			return nil
		}
		s.Chunks++
		s.LiveBytes += int64(e.stored)
		return nil
	})
	if err != nil {
		return err
	}
	return tx.Bucket(bucketJobs).ForEachBucket(func(name []byte) error { return countHistory(tx, string(name), s) })
}

func countHistory(tx *bbolt.Tx, job string, s *snapshot.StoreStats) error {
	h, _, err := openHistory(tx, job)
	if err != nil {
		return err
	}
	rows := 0
	err = h.rows.ForEach(func(_, _ []byte) error { rows++; return nil })
	if err != nil {
		return err
	}
	if rows > 0 {
		s.Jobs++
	}
	s.Attempts += rows
	return h.manifests.ForEach(func(_, v []byte) error {
		s.Checkpoints++
		s.LiveBytes += int64(len(v))
		return nil
	})
}
