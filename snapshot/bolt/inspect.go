package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"keyframe/snapshot"
)

// inspect decides whether an open, locked file may be given to bbolt: it is
// a whole store of a format that we read. A fresh one was made just now, so
// bbolt needs no trial of it, and it may be empty (see linkFailed).
func (db *DB) inspect(ctx context.Context, f *os.File, fresh bool) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() == 0 && fresh {
		return nil
	}
	if err := examine(ctx, f, info.Size()); err != nil {
		return err
	}
	if probeRegistered.Load() && !fresh {
		return probeInChild(ctx, db.path)
	}
	return nil
}

// examine walks the pages and names what is wrong with the file.
func examine(ctx context.Context, f *os.File, size int64) error {
	if size == 0 {
		return emptied(errors.New("it is empty (0 bytes), which a store never is"))
	}
	if what := otherKind(f, size); what != "" {
		return fmt.Errorf("it is not a Keyframe store but %s, and is left as it is: name another file", what)
	}
	s, err := scanFile(ctx, f, size)
	switch {
	case errors.Is(err, errNotBolt) && holdsMarks(ctx, f, size):
		return damaged(fmt.Errorf("%w: neither of its meta pages can be read, and there are checkpoints in it", snapshot.ErrCorrupt))
	case errors.Is(err, errNotBolt) && isText(f, size):
		return fmt.Errorf("it is not a Keyframe store but a text, and is left as it is: name another file (%w)", err)
	case errors.Is(err, errNotBolt):
		return emptied(errors.New("neither of its meta pages can be read"))
	case errors.Is(err, snapshot.ErrCorrupt) && !holdsMarks(ctx, f, size):
		return emptied(err)
	case errors.Is(err, snapshot.ErrCorrupt):
		return damaged(err)
	case err != nil:
		return err
	}
	if err := s.identify(); err != nil {
		return err
	}
	if len(s.problems) > 0 {
		return damaged(fmt.Errorf("%w: %s (%d problems)", snapshot.ErrCorrupt, s.problems[0], len(s.problems)))
	}
	return nil
}

func damaged(err error) error {
	return fmt.Errorf("%w: the file is left as it is, and the state in Redis is not touched: "+
		"`coordinator store salvage` makes a new store of what is whole in it; or keep it aside under another name, "+
		"and start with a copy of it from a backup or with none", err)
}

// emptied is the error for a file that a store may have been in, and of which
// nothing is left.
func emptied(err error) error {
	if !errors.Is(err, snapshot.ErrCorrupt) {
		err = fmt.Errorf("%w: %w", snapshot.ErrCorrupt, err)
	}
	return fmt.Errorf("%w: %w: the file is left as it is, and the state in Redis is not touched: "+
		"put a copy of the store from a backup in its place; to start with a new store, remove the file, or keep it aside under another name", err, ErrNothing)
}

// ofOthers is the error for a bbolt file that isn't ours.
func (s *scan) ofOthers() error {
	return fmt.Errorf("it is a bbolt file of another program (its buckets: %.200q), and is left as it is: name another file",
		strings.Join(s.top, ", "))
}

// identify holds the file's marks against ours. A bbolt file without any
// bucket is one whose creation was interrupted, and is as good as new.
func (s *scan) identify() error {
	if len(s.top) == 0 && len(s.problems) == 0 {
		return nil
	}
	if got, ok := s.meta0[string(keyMagic)]; !ok || string(got) != magic {
		if len(s.problems) > 0 && !s.foreign() {
			return damaged(fmt.Errorf("%w: %s", snapshot.ErrCorrupt, s.problems[0]))
		}
		return s.ofOthers()
	}
	format := s.meta0[string(keyFormat)]
	if len(format) != 4 || binary.BigEndian.Uint32(format) == 0 {
		return damaged(fmt.Errorf("%w: its format version is %x", snapshot.ErrCorrupt, format))
	}
	if v := binary.BigEndian.Uint32(format); v > formatVersion {
		return fmt.Errorf("%w: it has format %d, this version reads up to %d, and it is left as it is: upgrade coordinator",
			snapshot.ErrNewerFormat, v, formatVersion)
	}
	for _, name := range [][]byte{bucketJobs, bucketChunks, bucketIndex, bucketJournal} {
		if !slices.Contains(s.top, string(name)) {
			return damaged(fmt.Errorf("%w: it has no bucket %s", snapshot.ErrCorrupt, name))
		}
	}
	return nil
}

// Probe reads every page of the store at path and gives an error if it is
// damaged, or no store. It only reads, whatever the bytes: it neither maps the
// file nor panics. Nobody should be writing the file meanwhile: Open probes
// under the file's lock.
func Probe(path string) (err error) {
	// Before it is opened: opening a pipe waits for its other end.
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("store %s: %w", path, err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("store %s: it is no regular file (%s)", path, info.Mode().Type())
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("store %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := examine(context.Background(), f, info.Size()); err != nil {
		return fmt.Errorf("store %s: %w", path, err)
	}
	return nil
}
