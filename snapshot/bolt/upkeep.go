package bolt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"go.etcd.io/bbolt"

	"keyframe/snapshot"
)

var _ snapshot.Upkeep = (*DB)(nil)

// task is a compaction or a backup under way.
type task struct {
	*copier
	began time.Time
	held  time.Duration // how long writers had to wait
}

// upkeeping runs a compaction or a backup: one at a time, and not longer than
// the store is open.
func (db *DB) upkeeping(ctx context.Context, what string, fn func(context.Context) error) error {
	if !db.upkeep.TryLock() {
		return fmt.Errorf("store %s: %s: %w: try again when that has ended", db.path, what, snapshot.ErrUpkeep)
	}
	defer db.upkeep.Unlock()
	if err := db.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(db.ending, func() { cancel(snapshot.ErrClosed) })()
	// Between two transactions, so that none has noted its mends before.
	db.writing.Lock()
	db.mends.begin()
	db.writing.Unlock()
	defer db.mends.end()
	err := fn(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	if err != nil {
		return fmt.Errorf("store %s: %s: %w", db.path, what, err)
	}
	return nil
}

// begin lays down the copy in f, a new file; where that fails it is removed.
func (db *DB) begin(f *os.File, total int64, progress func(snapshot.UpkeepProgress)) (*task, error) {
	c, err := db.newCopier(f.Name(), f)
	if err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()))
	}
	if progress != nil {
		c.tell = func(phase string) {
			progress(snapshot.UpkeepProgress{Phase: phase, Done: c.copied, Total: max(total, c.copied)})
		}
	}
	return &task{copier: c, began: time.Now()}, nil
}

// sized gives the file's size, and how much of it a copy will have.
func (db *DB) sized(ctx context.Context) (file, used int64, err error) {
	err = db.view(ctx, func(*bbolt.Tx) error {
		info, err := db.handle.Stat()
		if err != nil {
			return err
		}
		free := db.file.Stats()
		file = info.Size()
		used = file - int64(free.FreePageN+free.PendingPageN)*int64(db.file.Info().PageSize)
		return nil
	})
	return file, used, err
}

// hasRoom refuses a copy for which a folder has no room, before anything is
// written: with a tenth more and 32 MiB for what is written meanwhile.
func (db *DB) hasRoom(dir string, used int64) error {
	free, known, err := db.opts.room(dir)
	if err != nil {
		return err
	}
	need := uint64(used + used/10 + 32<<20)
	if known && free < need {
		return fmt.Errorf("%w: the copy may need %d bytes, the disk of folder %s has %d free: free some, and try again",
			snapshot.ErrNoSpace, need, dir, free)
	}
	return nil
}

// hold copies all there is, and then runs fn with writers held off and the copy
// equal to the store.
func (t *task) hold(ctx context.Context, fn func() error) error {
	if err := t.follow(ctx); err != nil {
		return err
	}
	t.reached("check")
	if err := t.prove(ctx, true); err != nil {
		return err
	}
	if err := t.follow(ctx); err != nil {
		return err
	}
	t.reached("level")
	t.db.writing.Lock()
	begun := time.Now()
	defer func() {
		t.held = time.Since(begun)
		t.db.writing.Unlock()
	}()
	if err := t.db.Err(); err != nil {
		return err
	}
	if err := t.level(ctx); err != nil {
		return err
	}
	return fn()
}

func (t *task) heldMs() float64 { return float64(t.held.Microseconds()) / 1000 }

func (t *task) tookMs() int64 { return time.Since(t.began).Milliseconds() }

// discard closes and removes a copy that has not come to anything.
func (t *task) discard() error {
	err := t.dst.Close()
	if gone := os.Remove(t.name); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, fmt.Errorf("remove the unfinished copy: %w", gone))
	}
	return err
}
