package bolt

import (
	"bytes"
	"fmt"

	"go.etcd.io/bbolt"
)

// leveller makes buckets of one file equal to those of another. room is how
// many bytes it may still write; what is left then is for another transaction,
// which begins from the start: what is equal already costs a comparison.
type leveller struct{ room int }

// top levels all top-level buckets but the one of chunks.
func (l *leveller) top(src, dst *bbolt.Tx) (done bool, err error) {
	done = true
	err = src.ForEach(func(name []byte, from *bbolt.Bucket) error {
		if !done || bytes.Equal(name, bucketChunks) {
			return nil
		}
		to, err := dst.CreateBucketIfNotExists(name)
		if err != nil {
			return fmt.Errorf("bucket %q: %w", name, err)
		}
		if done, err = l.bucket(from, to); err != nil {
			return fmt.Errorf("bucket %q: %w", name, err)
		}
		return nil
	})
	return done && err == nil, err
}

func (l *leveller) bucket(from, to *bbolt.Bucket) (done bool, err error) {
	if from.Sequence() != to.Sequence() {
		if err := to.SetSequence(from.Sequence()); err != nil {
			return false, err
		}
		l.room--
	}
	at := from.Cursor()
	for k, v := at.First(); k != nil; k, v = at.Next() {
		if l.room <= 0 {
			return false, nil
		}
		if v != nil {
			err = l.value(to, k, v)
		} else {
			done, err = l.inner(from, to, k)
			if err == nil && !done {
				return false, nil
			}
		}
		if err != nil {
			return false, fmt.Errorf("key %q: %w", k, err)
		}
	}
	return l.prune(from, to)
}

func (l *leveller) value(to *bbolt.Bucket, k, v []byte) error {
	if have := to.Get(k); have != nil && bytes.Equal(have, v) {
		return nil
	}
	l.room -= len(k) + len(v) + 1
	return to.Put(k, v)
}

func (l *leveller) inner(from, to *bbolt.Bucket, k []byte) (done bool, err error) {
	if to.Bucket(k) == nil {
		l.room -= len(k) + 1
		if _, err := to.CreateBucket(k); err != nil {
			return false, err
		}
	}
	return l.bucket(from.Bucket(k), to.Bucket(k))
}

// prune removes what the source does not have. Keys are gathered first: a
// cursor doesn't outlive a change of its bucket.
func (l *leveller) prune(from, to *bbolt.Bucket) (done bool, err error) {
	var values, buckets [][]byte
	at := to.Cursor()
	for k, v := at.First(); k != nil; k, v = at.Next() {
		switch {
		case v != nil && from.Get(k) == nil:
			values = append(values, bytes.Clone(k))
		case v == nil && from.Bucket(k) == nil:
			buckets = append(buckets, bytes.Clone(k))
		}
	}
	for _, k := range values {
		if err := to.Delete(k); err != nil {
			return false, fmt.Errorf("key %q: %w", k, err)
		}
		l.room -= len(k) + 1
	}
	for _, k := range buckets {
		if err := to.DeleteBucket(k); err != nil {
			return false, fmt.Errorf("key %q: %w", k, err)
		}
		l.room -= len(k) + 1
	}
	return true, nil
}
