package bolt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
)

// tmpSuffix is what a backup in the making is called besides its own name.
const tmpSuffix = ".tmp"

// Backup implements [snapshot.Upkeep]: like [DB.Compact] up to the moment at
// which writers are held off and the copy is the store's equal, which is the
// moment that the backup shows. It is a store (mode 0600): [Open] opens it, and
// fails the attempts that were in progress.
//
// It is made as FILE.tmp and linked to its name when it is durable, so that no
// file is ever replaced. A FILE.tmp that a kill has left is taken over.
func (db *DB) Backup(ctx context.Context, file string, progress func(snapshot.UpkeepProgress)) (res snapshot.BackupResult, err error) {
	err = db.upkeeping(ctx, "back up to "+file, func(ctx context.Context) error {
		res, err = db.backup(ctx, file, progress)
		return err
	})
	return res, err
}

func (db *DB) backup(ctx context.Context, file string, progress func(snapshot.UpkeepProgress)) (res snapshot.BackupResult, err error) {
	if err := absent(file); err != nil {
		return res, err
	}
	if _, err := os.Stat(filepath.Dir(file)); err != nil {
		return res, fmt.Errorf("its folder must exist on the coordinator's host: %w", err)
	}
	_, used, err := db.sized(ctx)
	if err != nil {
		return res, err
	}
	if err := db.hasRoom(filepath.Dir(file), used); err != nil {
		return res, err
	}
	f, err := createTmp(file + tmpSuffix)
	if err != nil {
		return res, err
	}
	t, err := db.begin(f, used, progress)
	if err != nil {
		return res, err
	}
	crashpoint.At(crashpoint.BackupBegun)
	s, err := t.writeBackup(ctx, file)
	if err != nil {
		return res, errors.Join(err, t.discard())
	}
	return snapshot.BackupResult{
		File: file, Bytes: s.FileBytes, Jobs: s.Jobs, Checkpoints: s.Checkpoints, Chunks: s.Chunks,
		HeldMs: t.heldMs(), DurationMs: t.tookMs(),
	}, nil
}

// writeBackup fills the copy and gives it its name, and counts what it holds.
func (t *task) writeBackup(ctx context.Context, file string) (s snapshot.StoreStats, err error) {
	err = t.hold(ctx, func() (err error) {
		s, err = t.count(ctx)
		return err
	})
	if err != nil {
		return s, err
	}
	crashpoint.At(crashpoint.BackupLevel)
	t.reached("walk")
	if err := t.prove(ctx, true); err != nil {
		return s, err
	}
	return s, t.publish(file)
}

// count counts what the copy holds.
func (t *task) count(ctx context.Context) (s snapshot.StoreStats, err error) {
	err = t.guarded(func() error {
		return t.dst.View(func(tx *bbolt.Tx) error { return t.db.countAll(tx, &s) })
	})
	if err != nil {
		return s, fmt.Errorf("copy %s: %w", t.name, err)
	}
	info, err := t.file.Stat()
	if err != nil {
		return s, err
	}
	s.FileBytes = info.Size()
	return s, ctx.Err()
}

// publish gives the copy its name.
func (t *task) publish(file string) error {
	if err := t.file.Sync(); err != nil {
		return fmt.Errorf("copy %s: sync: %w", t.name, err)
	}
	crashpoint.At(crashpoint.BackupSynced)
	t.reached("rename")
	if err := linkOrRename(t.name, file); err != nil {
		return err
	}
	t.reached("renamed")
	if err := syncDir(filepath.Dir(file)); err != nil {
		return fmt.Errorf("%s is written, and may be gone after a loss of power: %w", file, err)
	}
	// It is whole and durable, and was only written here.
	_ = t.dst.Close()
	crashpoint.At(crashpoint.BackupDone)
	t.reached("done")
	return nil
}

// linkOrRename moves a file to a name that nothing has.
func linkOrRename(from, to string) error {
	err := os.Link(from, to)
	switch {
	case err == nil:
		crashpoint.At(crashpoint.FileLinked)
		if err := os.Remove(from); err != nil {
			return fmt.Errorf("%s is written, and %s is the same file: remove that name: %w", to, from, err)
		}
		return nil
	case errors.Is(err, fs.ErrExist):
		return absent(to)
	}
	// The file system has no links.
	if err := absent(to); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("give the copy its name: %w", err)
	}
	return nil
}

// absent refuses a file that exists.
func absent(file string) error {
	_, err := os.Lstat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at %s: %w", file, err)
	}
	return fmt.Errorf("%s: %w, and is left as it is: name another file", file, fs.ErrExist)
}

// createTmp makes the file of a backup in the making, in the place of one that
// a kill has left.
func createTmp(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrExist) && abandoned(name) {
		if err := os.Remove(name); err != nil {
			return nil, fmt.Errorf("remove what a backup that was cut short has left: %w", err)
		}
		f, err = os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil, fmt.Errorf("%s: %w, and is no backup that was cut short, so it is left as it is: move it away, or name another file",
			name, fs.ErrExist)
	case err != nil:
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	return f, nil
}

// abandoned reports whether a file is a backup in the making that no process
// has open: empty, or a bbolt file.
func abandoned(name string) bool {
	info, err := os.Lstat(name)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	// It was only read.
	defer func() { _ = f.Close() }()
	if !lockedByNone(f) {
		return false
	}
	if info.Size() == 0 {
		return true
	}
	_, err = readMeta(f, info.Size())
	return err == nil
}
