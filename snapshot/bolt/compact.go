package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
)

// compactSuffix is between a store's name and a random part in the name of a
// compacted copy in the making.
const compactSuffix = ".compact-"

// Compact implements [snapshot.Upkeep]. Checkpoints go on while the file is
// copied beside itself (see copier). Then writers are held off, usually for
// some hundredths of a second: what changed is copied again, the copy is
// compared, synced and walked, and takes the file's place with a rename, which
// is the one moment at which the store is another file. Attempts, rewrites and
// holds that are open go on in it. Readers wait only for the store to let go
// of the old file.
//
// Killed before the rename, the old file stands and Open removes the copy;
// after it, the new one stands. A file that has another name too (a link)
// keeps its old content there.
func (db *DB) Compact(ctx context.Context, progress func(snapshot.UpkeepProgress)) (res snapshot.CompactResult, err error) {
	err = db.upkeeping(ctx, "compact", func(ctx context.Context) error {
		res, err = db.compact(ctx, progress)
		return err
	})
	return res, err
}

func (db *DB) compact(ctx context.Context, progress func(snapshot.UpkeepProgress)) (res snapshot.CompactResult, err error) {
	if !canCompact {
		return res, fmt.Errorf("%w: on this system an open file can't be replaced: back the store up and put the copy in its place", errors.ErrUnsupported)
	}
	// What waits to be removed need not be copied.
	if err := db.sweep(ctx); err != nil {
		return res, err
	}
	target, err := filepath.EvalSymlinks(db.path)
	if err != nil {
		return res, err
	}
	before, used, err := db.sized(ctx)
	if err != nil {
		return res, err
	}
	if err := db.hasRoom(filepath.Dir(target), used); err != nil {
		return res, err
	}
	f, err := os.CreateTemp(filepath.Dir(target), filepath.Base(target)+compactSuffix+"*") // mode 0600
	if err != nil {
		return res, fmt.Errorf("make the copy beside the file: %w", err)
	}
	t, err := db.begin(f, used, progress)
	if err != nil {
		return res, err
	}
	old, err := t.switchOver(ctx, target)
	if old == nil {
		return res, errors.Join(err, t.discard())
	}
	_ = old.Close() // only read since its last sync, and without a name: no loss
	crashpoint.At(crashpoint.CompactDone)
	t.reached("done")
	if err != nil {
		return res, err
	}
	return t.compacted(ctx, before)
}

func (t *task) compacted(ctx context.Context, before int64) (snapshot.CompactResult, error) {
	s, err := t.db.Stats(context.WithoutCancel(ctx))
	return snapshot.CompactResult{
		Path: t.db.path, BeforeBytes: before, AfterBytes: s.FileBytes, Chunks: s.Chunks, HeldMs: t.heldMs(), DurationMs: t.tookMs(),
	}, err
}

// switchOver copies, and puts the copy in the file's place. It gives the old
// file once the store has let go of it, also with an error.
func (t *task) switchOver(ctx context.Context, target string) (old *bbolt.DB, err error) {
	crashpoint.At(crashpoint.CompactBegun)
	err = t.hold(ctx, func() error {
		crashpoint.At(crashpoint.CompactLevel)
		t.reached("walk")
		if err := t.prove(ctx, false); err != nil {
			return err
		}
		if err := t.db.stillThere(); err != nil {
			return err
		}
		if err := t.finish(); err != nil {
			return err
		}
		crashpoint.At(crashpoint.CompactSynced)
		t.reached("rename")
		if err := os.Rename(t.name, target); err != nil {
			return fmt.Errorf("put the copy in the file's place: %w", err)
		}
		crashpoint.At(crashpoint.CompactRenamed)
		t.reached("renamed")
		var synced error
		if err := syncDir(filepath.Dir(target)); err != nil {
			// After a loss of power the old file may be there again.
			synced = t.db.stop(&broken{err: fmt.Errorf("store %s: compact: %w: which file the disk has is unknown, so nothing more is written: "+
				"check the disk and restart the coordinator", t.db.path, err)})
		}
		old = t.take()
		return synced
	})
	return old, err
}

// finish makes the copy a file like the old one, on the disk.
func (t *task) finish() error {
	mode := t.db.info.Mode().Perm()
	if err := errors.Join(t.file.Chmod(mode), t.file.Sync()); err != nil {
		return fmt.Errorf("copy %s: %w", t.name, err)
	}
	return nil
}

// take makes the copy the store's open file, after the reads under way. The
// copy has been open and locked since it was made, so nobody comes between.
func (t *task) take() (old *bbolt.DB) {
	db := t.db
	info, err := t.file.Stat()
	db.swap.Lock()
	defer db.swap.Unlock()
	if err != nil {
		info = db.info // the next commit says that another file is there
	}
	t.dst.NoSync, t.dst.NoGrowSync = false, false
	old = db.file
	db.file, db.handle, db.info, db.fd = t.dst, t.file, info, t.file.Fd()
	return old
}
