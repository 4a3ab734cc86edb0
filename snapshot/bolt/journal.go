package bolt

import (
	"bytes"
	"context"
	"fmt"

	"go.etcd.io/bbolt"

	"keyframe/snapshot"
)

var _ snapshot.Journal = (*Journal)(nil)

// Journal is the part of a store's file that keeps small records. Bucket and
// key are names of 1 to MaxName bytes.
type Journal struct{ db *DB }

// Journal gives the file's journal; it closes with the store.
func (db *DB) Journal() *Journal { return &Journal{db} }

// MaxRecord is how many bytes a record of the journal may have.
const MaxRecord = 64 << 20

func checkRecord(bucket, key string) error {
	if err := checkName("journal bucket", bucket); err != nil {
		return err
	}
	return checkName("journal key", key)
}

// Put implements [snapshot.Journal].
func (j *Journal) Put(ctx context.Context, bucket, key string, value []byte) error {
	if err := checkRecord(bucket, key); err != nil {
		return err
	}
	if len(value) > MaxRecord {
		return fmt.Errorf("journal %s %q: the record has %d bytes, the store takes at most %d", bucket, key, len(value), MaxRecord)
	}
	return j.db.update(ctx, "write a journal record", func(tx *bbolt.Tx) error {
		b, err := tx.Bucket(bucketJournal).CreateBucketIfNotExists([]byte(bucket))
		if err != nil {
			return fmt.Errorf("journal %s: %w", bucket, err)
		}
		return b.Put([]byte(key), value)
	})
}

// Get implements [snapshot.Journal].
func (j *Journal) Get(ctx context.Context, bucket, key string) (value []byte, ok bool, err error) {
	if err := checkRecord(bucket, key); err != nil {
		return nil, false, err
	}
	err = j.db.view(ctx, func(tx *bbolt.Tx) error {
		if b := tx.Bucket(bucketJournal).Bucket([]byte(bucket)); b != nil {
			value = bytes.Clone(b.Get([]byte(key)))
		}
		return nil
	})
	return value, value != nil, err
}

// Delete implements [snapshot.Journal].
func (j *Journal) Delete(ctx context.Context, bucket, key string) error {
	if err := checkRecord(bucket, key); err != nil {
		return err
	}
	return j.db.update(ctx, "delete a journal record", func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketJournal).Bucket([]byte(bucket))
		if b == nil {
			return nil
		}
		return b.Delete([]byte(key))
	})
}

// Each implements [snapshot.Journal]: over a copy of the whole bucket.
func (j *Journal) Each(ctx context.Context, bucket string, fn func(key string, value []byte) error) error {
	if err := checkName("journal bucket", bucket); err != nil {
		return err
	}
	var keys []string
	var values [][]byte
	err := j.db.view(ctx, func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketJournal).Bucket([]byte(bucket))
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			keys, values = append(keys, string(k)), append(values, bytes.Clone(v))
			return nil
		})
	})
	if err != nil {
		return err
	}
	for i, key := range keys {
		if err := fn(key, values[i]); err != nil {
			return err
		}
	}
	return nil
}
