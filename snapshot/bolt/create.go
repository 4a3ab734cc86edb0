package bolt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/bbolt"

	"keyframe/internal/crashpoint"
)

// newSuffix is between a store's name and a random part in the name of a file
// in the making.
const newSuffix = ".new-"

// create makes an empty store at path. The file appears there whole or not at
// all: it is made under another name and linked to its own when it is durable.
// That someone else makes it at the same time is no error.
func create(path string) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+newSuffix+"*") // mode 0600
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("its folder %s does not exist: make it first: %w", dir, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("its folder %s can't be written by user %d: change its owner or mode, or name another: %w", dir, os.Getuid(), err)
	case err != nil:
		return fmt.Errorf("can't make it: %w", err)
	}
	name := f.Name()
	// Where a crash keeps this from happening, the next Open does it.
	defer func() { _ = os.Remove(name) }()
	if err := fill(f); err != nil {
		return fmt.Errorf("can't make it: %w", err)
	}
	crashpoint.At(crashpoint.StoreMade)
	if err := os.Link(name, path); err != nil {
		return linkFailed(path, err)
	}
	crashpoint.At(crashpoint.StoreLinked)
	return syncDir(dir)
}

// fill makes f an empty store and closes it.
func fill(f *os.File) error {
	file, err := bbolt.Open(f.Name(), 0o600, &bbolt.Options{
		OpenFile: func(string, int, os.FileMode) (*os.File, error) { return f, nil },
	})
	if err != nil {
		return err
	}
	return errors.Join(file.Update(layDown), file.Close())
}

// linkFailed makes an empty file where the file system has no links; Open
// lays it down in place.
func linkFailed(path string, cause error) error {
	if errors.Is(cause, fs.ErrExist) {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("can't make it: %w", errors.Join(cause, err))
	}
	return f.Close()
}

// syncDir makes a new name in a folder durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("folder %s: %w", dir, err)
	}
	// Some systems can't sync a folder; there the name is as durable as they
	// make it.
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, fs.ErrInvalid) {
		return errors.Join(fmt.Errorf("sync folder %s: %w", dir, err), d.Close())
	}
	return d.Close()
}

// removeUnfinished removes what a creation or a compaction that was cut short
// left beside the store. Best effort: these files are in nobody's way.
func removeUnfinished(path string) {
	removeAll(path, newSuffix, path)
	// A compaction works beside the file that a link leads to.
	if target, err := filepath.EvalSymlinks(path); err == nil {
		removeAll(target, compactSuffix, path)
	}
}

func removeAll(name, suffix, path string) {
	dir := filepath.Dir(name)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.Type().IsRegular() && strings.HasPrefix(e.Name(), filepath.Base(name)+suffix) {
			removeAbandoned(filepath.Join(dir, e.Name()), path)
		}
	}
}

// removeAbandoned removes a file in the making that no one has locked, or that
// is the store itself under its first name.
func removeAbandoned(name, path string) {
	f, err := os.Open(name)
	if err != nil {
		return
	}
	// It was only read.
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return
	}
	store, err := os.Stat(path)
	if err != nil {
		return
	}
	if os.SameFile(info, store) || lockedByNone(f) {
		_ = os.Remove(name)
	}
}
