package bolt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"
)

// stillThere gives an error when the store's path no longer leads to the file
// that is open: what is written then goes with the process, so the store
// stops writing. It is asked before each commit. What is in the open file
// stays readable.
func (db *DB) stillThere() error {
	now, err := os.Stat(db.path)
	what := "another file was put in its place"
	switch {
	case err == nil && os.SameFile(now, db.info):
		return nil
	case err == nil:
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		what = "it was removed, or moved away with its folder"
	default:
		return fmt.Errorf("store %s: nothing was changed: can't see whether the file is still there: %w", db.path, err)
	}
	return db.stop(&broken{err: fmt.Errorf("store %s: %s while the coordinator has it open, so nothing more is written: "+
		"what it holds is lost when this process ends: %s", db.path, what, db.rescue())})
}

// rescue says how to get at a file that has no name any more.
func (db *DB) rescue() string {
	if runtime.GOOS != "linux" {
		return "if it was moved, move it back, and restart the coordinator"
	}
	return fmt.Sprintf("first copy it (cp /proc/%d/fd/%d /a/safe/place), or find where it was moved; "+
		"then stop the coordinator, put that file back as %s, and start it again", os.Getpid(), db.fd, db.path)
}
