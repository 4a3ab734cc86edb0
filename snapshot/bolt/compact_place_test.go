package bolt

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot/storetest"
)

// TestACompactionFollowsALink: the path may be one to the file.
func TestACompactionFollowsALink(t *testing.T) {
	f := inFolder(t)
	churned(t, f)
	require.NoError(t, f.db.Close())
	elsewhere := filepath.Join(t.TempDir(), "real.db")
	require.NoError(t, os.Rename(f.path, elsewhere))
	require.NoError(t, os.Symlink(elsewhere, f.path))
	require.NoError(t, os.Chmod(elsewhere, 0o640))
	left := elsewhere + compactSuffix + "77"
	require.NoError(t, os.WriteFile(left, []byte("half"), 0o600))
	f.open()
	_, err := f.db.Compact(context.Background(), nil)
	require.NoError(t, err)
	info, err := os.Lstat(f.path)
	require.NoError(t, err)
	require.Equal(t, os.ModeSymlink, info.Mode().Type())
	require.Equal(t, []string{"real.db"}, names(t, filepath.Dir(elsewhere)), "and what a kill left there is removed")
	info, err = os.Stat(elsewhere)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm(), "the new file has the old one's mode")
	mustBeChurned(t, f.db)
	mustBeChurned(t, f.reopen())
}

// TestAFileThatReplacesTheStoreIsNotReplaced by a compaction under way.
func TestAFileThatReplacesTheStoreIsNotReplaced(t *testing.T) {
	for name, test := range lostPaths {
		f := inFolder(t)
		churned(t, f)
		var other []byte
		f.db.opts.onCopy = func(phase string, _ *copier) {
			if phase != "walk" {
				return
			}
			if test.lose(t, f.path); name == "replaced" {
				var err error
				other, err = os.ReadFile(f.path)
				require.NoError(t, err)
			}
		}
		_, err := f.db.Compact(context.Background(), nil)
		require.ErrorContains(t, err, test.says, name)
		require.ErrorContains(t, f.db.Err(), test.says, name)
		if name == "replaced" {
			b, err := os.ReadFile(f.path)
			require.NoError(t, err)
			require.True(t, bytes.Equal(other, b), "it is left alone")
		}
		storetest.MustHold(t, f.db, "flights", 12, storetest.Keys("old-11", 300))
		_, err = f.db.Compact(context.Background(), nil)
		require.Equal(t, f.db.Err(), err, "a store that has stopped is not copied")
	}
}

// TestTheLockGoesOverToTheNewFile: at no moment can another process open the
// store, and one that waited for the old file opens the new one.
func TestTheLockGoesOverToTheNewFile(t *testing.T) {
	f := inFolder(t)
	churned(t, f)
	f.db.opts.onCopy = func(phase string, _ *copier) {
		if phase == "copy" {
			return
		}
		_, err := Open(context.Background(), f.path, Options{Timeout: time.Millisecond})
		require.ErrorIs(t, err, ErrHeld, phase)
	}
	old, err := os.Open(f.path)
	require.NoError(t, err)
	defer func() { require.NoError(t, old.Close()) }()
	type opened struct {
		db  *DB
		err error
	}
	waiting := make(chan opened, 1)
	go func() {
		db, err := Open(context.Background(), f.path, Options{Timeout: 30 * time.Second})
		waiting <- opened{db, err}
	}()
	_, err = f.db.Compact(context.Background(), nil)
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(old.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), "nobody has the old file")
	require.NoError(t, syscall.Flock(int(old.Fd()), syscall.LOCK_UN))
	require.ErrorContains(t, held(f.path, 0), fmt.Sprintf("process %d", os.Getpid()))
	storetest.MustTake(t, f.db, storetest.Attempt("trains"), storetest.Keys("after", 100))
	require.NoError(t, f.db.Close())
	o := <-waiting
	require.NoError(t, o.err)
	f.db = o.db
	mustBeChurned(t, f.db)
	storetest.MustHold(t, f.db, "trains", 1, storetest.Keys("after", 100))
}

// TestTheNewFileIsFollowedByTheRescue: what an error says of the open file is
// of the new one.
func TestTheNewFileIsFollowedByTheRescue(t *testing.T) {
	f := inFolder(t)
	churned(t, f)
	_, err := f.db.Compact(context.Background(), nil)
	require.NoError(t, err)
	require.NoError(t, os.Remove(f.path))
	_, err = f.db.Begin(context.Background(), storetest.Attempt("flights"))
	found := copyCommand.FindStringSubmatch(err.Error())
	require.NotNil(t, found, "%v", err)
	b, err := os.ReadFile(found[1])
	require.NoError(t, err)
	safe := filepath.Join(t.TempDir(), "keyframe.db")
	require.NoError(t, os.WriteFile(safe, b, 0o600))
	db, err := Open(context.Background(), safe, Options{})
	require.NoError(t, err)
	mustBeChurned(t, db)
	require.NoError(t, db.Close())
}

// TestAnAbandonedBackupIsTakenOver, and nothing else under that name.
func TestAnAbandonedBackupIsTakenOver(t *testing.T) {
	f := inFolder(t)
	churned(t, f)
	file := f.path + ".copy"
	require.NoError(t, os.WriteFile(file+tmpSuffix, storeFile(t)[:9<<10], 0o600))
	busy, err := os.Open(file + tmpSuffix)
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(busy.Fd()), syscall.LOCK_SH))
	_, err = f.db.Backup(context.Background(), file, nil)
	require.ErrorIs(t, err, fs.ErrExist, "somebody has it open")
	require.NoError(t, busy.Close())
	_, err = f.db.Backup(context.Background(), file, nil)
	require.NoError(t, err)
	mustBeChurned(t, f.db)
	require.Equal(t, []string{"keyframe.db", "keyframe.db.copy"}, names(t, filepath.Dir(f.path)))
}
