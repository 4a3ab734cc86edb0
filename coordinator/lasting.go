package coordinator

import (
	"context"
	"sync"

	"keyframe/coordinator/restore"
	"keyframe/snapshot"
)

// mendable are the buckets that a recovery writes. All that is in them is made
// out again after a restart without it: a restore under way by the mark and its
// token, what is live by the record, a lease by the state store.
var mendable = map[string]bool{
	restore.Bucket: true, bucketLease: true, bucketUndo: true, bucketLineage: true, bucketServer: true, bucketSeen: true,
}

// lasting is the journal of a store that may stop. Once it has, what a recovery
// writes down stays in memory: lost state can then still be put back from a
// file that is open and has no name any more, or whose disk only reads. Nothing
// else is taken. Its errors are marked as the store's.
type lasting struct {
	snapshot.Journal
	stopped func() error

	mu   sync.Mutex
	late map[[2]string][]byte // nil for what was deleted
}

var _ snapshot.Journal = (*lasting)(nil)

func newLasting(j snapshot.Journal, stopped func() error) *lasting {
	return &lasting{Journal: j, stopped: stopped, late: map[[2]string][]byte{}}
}

// Put implements [snapshot.Journal].
func (l *lasting) Put(ctx context.Context, bucket, key string, value []byte) error {
	return l.write(bucket, key, append([]byte{}, value...), l.Journal.Put(ctx, bucket, key, value))
}

// Delete implements [snapshot.Journal].
func (l *lasting) Delete(ctx context.Context, bucket, key string) error {
	return l.write(bucket, key, nil, l.Journal.Delete(ctx, bucket, key))
}

// write is what became of a write to the journal, or keeps it in memory.
func (l *lasting) write(bucket, key string, value []byte, err error) error {
	if err == nil {
		return nil
	}
	if !mendable[bucket] || l.stopped() == nil {
		return storeTrouble(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late[[2]string{bucket, key}] = value
	return nil
}

// Get implements [snapshot.Journal].
func (l *lasting) Get(ctx context.Context, bucket, key string) ([]byte, bool, error) {
	l.mu.Lock()
	value, late := l.late[[2]string{bucket, key}]
	l.mu.Unlock()
	if late {
		return append([]byte(nil), value...), value != nil, nil
	}
	value, ok, err := l.Journal.Get(ctx, bucket, key)
	return value, ok, storeTrouble(err)
}

// storeError marks an error as the checkpoint store's, so that nobody looks for
// it in the state store.
type storeError struct{ error }

func (e storeError) Unwrap() error { return e.error }

func storeTrouble(err error) error {
	if err == nil {
		return nil
	}
	return storeError{err}
}
