package copies

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/snapshot/archive"
)

// staleAfter is how old a file in the making is when nobody can be at work on
// it any more: one that is being written is touched all the time.
const staleAfter = time.Hour

// file is a copy that lies in a directory.
type file struct {
	id    snapshot.ID
	bytes int64
	at    time.Time // when it was made
}

// folder holds one job's copies, by file name.
type folder struct {
	job    string // "" when no copy of it can be read
	server string
	files  map[string]file
}

// newest is the copy of the highest id.
func (f folder) newest() (name string, id snapshot.ID) {
	for n, one := range f.files {
		if one.id > id || (one.id == id && n > name) {
			name, id = n, one.id
		}
	}
	return name, id
}

// present makes sure that the directory is there and is the one that was used
// before. A new one gets its marker.
func (d *dir) present(ctx context.Context) error {
	path := filepath.Join(d.path, markerFile)
	mark, err := os.ReadFile(path)
	known, used, getErr := d.k.o.Journal.Get(ctx, bucketDirs, d.path)
	switch {
	case getErr != nil:
		return fmt.Errorf("what is known of copies in %s: %w", d.path, getErr)
	case err == nil && used && string(known) == string(mark):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		if info, err := os.Stat(d.path); err != nil {
			return fmt.Errorf("the directory of copies can't be used (create it, or mount what it lies on): %w", err)
		} else if !info.IsDir() {
			return fmt.Errorf("%s is no directory", d.path)
		}
		if used {
			return fmt.Errorf("%s has no file %s any more: what is there is not the directory of before. Mount it; if it is a new disk, put an empty file of that name there", d.path, markerFile)
		}
		if mark, err = d.mark(path); err != nil {
			return fmt.Errorf("begin a directory of copies: %w", err)
		}
		crashpoint.At(crashpoint.CopiesMarked)
	case err != nil:
		return fmt.Errorf("directory of copies: %w", err)
	}
	if err := d.k.o.Journal.Put(ctx, bucketDirs, d.path, mark); err != nil {
		return fmt.Errorf("remember the directory of copies %s: %w", d.path, err)
	}
	return nil
}

// mark makes a new directory's marker.
func (d *dir) mark(path string) ([]byte, error) {
	var id [8]byte
	rand.Read(id[:]) // never fails (it ends the process instead)
	mark := []byte(hex.EncodeToString(id[:]) + "\n")
	f, err := d.k.o.Disk.Create(path)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(mark)
	if err == nil {
		err = f.Sync()
	}
	return mark, errors.Join(err, f.Close())
}

// scan reads what the directory holds: by names, since a file has its name only
// when it is whole. Of each folder one manifest is read, once.
func (d *dir) scan(ctx context.Context) (map[string]folder, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("list the copies: %w", err)
	}
	all := map[string]folder{}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		f, err := d.scanFolder(e.Name())
		if err != nil {
			return nil, fmt.Errorf("list the copies: %w", err)
		}
		if len(f.files) > 0 {
			all[e.Name()] = f
		}
	}
	return all, nil
}

func (d *dir) scanFolder(name string) (folder, error) {
	f := folder{files: map[string]file{}}
	entries, err := os.ReadDir(filepath.Join(d.path, name))
	if err != nil {
		return f, err
	}
	for _, e := range entries {
		info, err := e.Info()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // removed since
		case err != nil:
			return f, err
		case archive.Unfinished(e.Name()):
			if d.k.o.Now().Sub(info.ModTime()) > staleAfter {
				// It is tried again at the next look.
				_ = d.k.o.Disk.Remove(filepath.Join(d.path, name, e.Name()))
			}
			continue
		}
		if id, ok := idOf(e.Name()); ok && info.Mode().IsRegular() {
			f.files[e.Name()] = file{id: id, bytes: info.Size(), at: info.ModTime().UTC()}
		}
	}
	d.mu.Lock()
	known, ok := d.folders[name]
	d.mu.Unlock()
	if ok && known.job != "" {
		f.job, f.server = known.job, known.server
		return f, nil
	}
	for n := range f.files {
		if a, err := archive.Open(filepath.Join(d.path, name, n)); err == nil {
			f.job, f.server = a.Manifest().Checkpoint.Job, a.Manifest().Identity.Server
			_ = a.Close() // it was only read
			break
		}
	}
	return f, nil
}
