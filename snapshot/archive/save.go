package archive

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
)

// tmpMark stands between an archive's name and the random end of the name that
// it has while it is written.
const tmpMark = ".tmp-"

// partAge is how old a part is when nobody can be at work on it any more: one
// that is being written is touched all the time.
const partAge = time.Hour

// Unfinished reports whether a file's name is one of an archive in the making.
func Unfinished(name string) bool {
	_, end, ok := strings.Cut(name, tmpMark)
	_, err := hex.DecodeString(end)
	return ok && err == nil && len(end) == 16
}

// Disk is what Save does with a file system: a seam for tests of what a fault
// between any two steps leaves.
type Disk interface {
	// Create makes a new file that only its owner reads and writes.
	Create(path string) (File, error)
	// Publish moves a file to a name that nothing has; fs.ErrExist otherwise.
	Publish(from, to string) error
	// Replace moves a file to a name, in the place of what has it.
	Replace(from, to string) error
	Remove(path string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(dir string) error
}

// File is a file that is written.
type File interface {
	io.Writer
	Sync() error
	Close() error
}

// OS is the file system of the host.
type OS struct{}

var _ Disk = OS{}

// Create implements [Disk].
func (OS) Create(path string) (File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// Publish implements [Disk]. By a link, which replaces nothing; where the file
// system has none (buckets, FAT), by a rename after a look.
func (OS) Publish(from, to string) error {
	err := os.Link(from, to)
	switch {
	case err == nil:
		crashpoint.At(crashpoint.ArchiveLinked)
		return os.Remove(from)
	case errors.Is(err, fs.ErrExist):
		return err
	}
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(&fs.PathError{Op: "publish", Path: to, Err: fs.ErrExist}, err)
	}
	return os.Rename(from, to)
}

// Replace implements [Disk].
func (OS) Replace(from, to string) error { return os.Rename(from, to) }

// Remove implements [Disk].
func (OS) Remove(path string) error { return os.Remove(path) }

// SyncDir implements [Disk].
func (OS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, errors.ErrUnsupported) {
		err = nil // some mounted buckets can't, and need not
	}
	return errors.Join(err, d.Close())
}

// Save makes the archive path of what fill writes. The file's name is the one
// commit point: it is written under another name in the same directory, synced,
// closed, read again and compared with its checksum, and only then gets its own
// name. A name that is taken is refused (fs.ErrExist), and nothing is replaced.
// After an error, or a kill at any moment, there is no file of that name, or
// the whole one; what a kill leaves under the other name is told by Unfinished,
// and removed by a later Save of the same name when it is an hour old.
func Save(ctx context.Context, disk Disk, path string, fill func(w io.Writer) error) (err error) {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("archive %s: %w", path, fs.ErrExist)
	}
	removeParts(disk, path)
	var end [8]byte
	rand.Read(end[:]) // never fails (it ends the process instead)
	tmp := path + tmpMark + hex.EncodeToString(end[:])
	f, err := disk.Create(tmp)
	if err != nil {
		return fmt.Errorf("create the archive: %w", err)
	}
	defer func() {
		if err != nil {
			// What can't be removed now is removed later, or by hand.
			_ = disk.Remove(tmp)
		}
	}()
	crashpoint.At(crashpoint.ArchiveBegun)
	if err := write(f, fill); err != nil {
		return fmt.Errorf("archive %s: %w", path, err)
	}
	crashpoint.At(crashpoint.ArchiveWritten)
	if err := proven(ctx, tmp); err != nil {
		return err
	}
	crashpoint.At(crashpoint.ArchiveProven)
	if err := disk.Publish(tmp, path); err != nil {
		return fmt.Errorf("give the archive its name: %w", err)
	}
	crashpoint.At(crashpoint.ArchiveNamed)
	if err := disk.SyncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("archive %s is written, and may be gone after a loss of power: sync its directory: %w", path, err)
	}
	crashpoint.At(crashpoint.ArchiveDone)
	return nil
}

// removeParts removes what was left of earlier files of that name. Best effort:
// they are in nobody's way.
func removeParts(disk Disk, path string) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return // making the file fails by the same reason, and says so
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), filepath.Base(path)+tmpMark) || !Unfinished(e.Name()) {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > partAge {
			_ = disk.Remove(filepath.Join(filepath.Dir(path), e.Name())) // as above
		}
	}
}

// write fills a file, makes it durable and closes it: a mounted bucket may tell
// of a failure only then.
func write(f File, fill func(io.Writer) error) error {
	b := bufio.NewWriterSize(f, 1<<20)
	err := fill(b)
	if err == nil {
		err = b.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// proven reads an archive again before anybody relies on it.
func proven(ctx context.Context, path string) error {
	a, err := Open(path)
	if err != nil {
		return err
	}
	return errors.Join(a.Check(ctx), a.Close())
}

// SaveCheckpoint is Save of one checkpoint's chunks and manifest.
func SaveCheckpoint(ctx context.Context, disk Disk, path string, src snapshot.ChunkSource, m *snapshot.Manifest) (info Info, err error) {
	err = Save(ctx, disk, path, func(w io.Writer) (err error) {
		info, err = Write(ctx, w, src, m)
		return err
	})
	return info, err
}
