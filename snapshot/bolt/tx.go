package bolt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"
	"strings"
	"syscall"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"keyframe/snapshot"
)

// broken is why the store stopped, see DB.commitFailed.
type broken struct {
	err   error
	reads bool // reads are refused too
}

// view runs fn in a read transaction. Everything that fn keeps must be copied:
// the mapped bytes go with the transaction.
func (db *DB) view(ctx context.Context, fn func(*bbolt.Tx) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if b := db.broken.Load(); b != nil && b.reads {
		return b.err
	}
	db.swap.RLock()
	defer db.swap.RUnlock()
	defer db.catch(&err)
	defer guardFaults()()
	return db.named(db.file.View(fn))
}

// update runs fn in a write transaction; what it did is durable when update
// returns nil, and undone when it returns an error. It is refused when the path
// leads to another file by now. Transactions are bounded, so waiting for the
// one before is not cut short by ctx.
func (db *DB) update(ctx context.Context, what string, fn func(*bbolt.Tx) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	db.writing.Lock()
	defer db.writing.Unlock()
	if b := db.broken.Load(); b != nil {
		return b.err
	}
	db.swap.RLock()
	defer db.swap.RUnlock()
	defer db.catch(&err)
	defer guardFaults()()
	tx, err := db.file.Begin(true)
	if err != nil {
		return db.named(err)
	}
	// After a commit this does nothing (it says ErrTxClosed); in a panic it
	// frees the writer's lock.
	defer func() { _ = tx.Rollback() }()
	id := tx.ID()
	db.file.AllocSize = growth(tx.Size())
	if err := fn(tx); err != nil {
		return db.named(err)
	}
	if hook := db.opts.beforeCommit; hook != nil {
		hook(what)
	}
	if err := db.stillThere(); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return db.commitFailed(what, id, err)
	}
	return nil
}

// growth is by how much more than it needs the file grows when it must, with
// used bytes in use: as much again, so that it is made longer and synced now
// and then only, and no more than bbolt's own step. bbolt alone would make a
// file of a few kilobytes 16 MiB long, because it goes by the mapping (see
// initialMap) and not by the file.
func growth(used int64) int { return int(min(max(used, 128<<10), 16<<20)) }

// named wraps an error with the store's path, and says ErrClosed for what
// bbolt says of a closed file.
func (db *DB) named(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, berrors.ErrDatabaseNotOpen):
		return fmt.Errorf("store %s: %w", db.path, snapshot.ErrClosed)
	}
	return fmt.Errorf("store %s: %w", db.path, err)
}

// commitFailed sorts out what a failed commit left behind. bbolt writes the
// pages, syncs, writes the meta page, syncs.
//
// When the meta page is not that of the failed transaction, nothing of it
// counts. A write for which the disk had no room then only costs this transaction,
// and the next may find room. Any other error, and any of a sync (after one
// nobody knows what the system still writes), is of a disk that can't be relied on: writing stops,
// what was committed stays readable. When the meta page is there but its sync
// failed, memory and disk may disagree about what is committed, so reading
// stops as well.
func (db *DB) commitFailed(what string, id int, cause error) error {
	now := id
	// An error here leaves now = id: the state is unknown, the worst case.
	_ = db.file.View(func(tx *bbolt.Tx) error {
		now = tx.ID()
		return nil
	})
	switch {
	case now >= id:
		return db.stop(&broken{reads: true, err: fmt.Errorf("store %s: %s: %w: the file could not be synced, so what is on the disk is unknown: "+
			"check the disk and restart the coordinator, which reads the file anew", db.path, what, cause)})
	case outOfSpace(cause) && !syncFailed(cause):
		return fmt.Errorf("store %s: %s: %w: nothing was changed; free space on its disk, or raise the limit, and try again", db.path, what, cause)
	}
	return db.stop(&broken{err: fmt.Errorf("store %s: %s: %w: nothing was changed, and nothing more will be written: "+
		"check the disk and restart the coordinator", db.path, what, cause)})
}

func (db *DB) stop(b *broken) error {
	db.broken.CompareAndSwap(nil, b)
	return b.err
}

// syncFailed tells an error of fsync or fdatasync, which bbolt gives as it is,
// or as text, from that of a write, which names the file.
func syncFailed(err error) bool {
	var write *fs.PathError
	var no syscall.Errno
	return strings.Contains(err.Error(), "file sync error") || errors.As(err, &no) && !errors.As(err, &write)
}

// outOfSpace also looks at the text, because bbolt flattens the error of
// growing the file.
func outOfSpace(err error) bool {
	for _, e := range []error{syscall.ENOSPC, syscall.EFBIG, syscall.EDQUOT} {
		if errors.Is(err, e) || strings.Contains(err.Error(), e.Error()) {
			return true
		}
	}
	return false
}

// catch turns a fault in the mapped file (a disk that can't read a page, a
// file cut short by someone else) and bbolt's own assertions into an error
// that stops the store. To be deferred around every use of the mapping.
func (db *DB) catch(err *error) {
	r := recover()
	if r == nil {
		return
	}
	*err = db.stop(&broken{reads: true, err: fmt.Errorf("store %s: %w: reading its pages failed: %v: "+
		"restart the coordinator, which checks the file; the state in Redis is not touched", db.path, snapshot.ErrCorrupt, r)})
}

// guardFaults makes a fault of this goroutine a panic that catch recovers. It
// gives the function that restores the former setting.
func guardFaults() func() {
	old := debug.SetPanicOnFault(true)
	return func() { debug.SetPanicOnFault(old) }
}
