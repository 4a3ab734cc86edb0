package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"go.etcd.io/bbolt"

	"keyframe/snapshot"
)

// Sizes of a copy in bytes. A step is one short read transaction of the store
// and one write transaction of the copy: memory is bounded by it (twice), and a
// writer that must wait for readers (when the map grows) waits for one step at
// most. bbolt writes the last page of a bucket anew in each transaction, so
// that smaller steps leave more of the copy free: 12 % with 8 MiB, 25 % with 4.
// What was written is synced now and then, so that little is left to be synced
// while writers wait.
const (
	stepBytes = 8 << 20
	syncBytes = 64 << 20
)

// copier makes another file equal to the store, which is at work meanwhile.
//
// Chunks are what is big, and they hardly change: they are appended under
// growing numbers, and removed. So they are copied in their order while others
// write (follow), until what came meanwhile is little. Then writers are held
// off for a moment in which both files are made the same to the last byte
// (level) and compared.
type copier struct {
	db   *DB
	name string // of the copy
	file *os.File
	dst  *bbolt.DB
	tell func(phase string)

	next     []byte // chunks below this key are copied, as far as they were there
	copied   int64  // bytes of chunks
	unsynced int64
}

// newCopier lays down a new file that is named name and open as f, which is
// the copier's from then on.
func (db *DB) newCopier(name string, f *os.File) (*copier, error) {
	dst, err := bbolt.Open(name, 0o600, &bbolt.Options{
		Timeout:         db.opts.Timeout,
		FreelistType:    bbolt.FreelistMapType,
		InitialMmapSize: initialMap(), // a compacted copy becomes the store
		NoSync:          true,         // until it is whole: see sync
		NoGrowSync:      true,         // which also keeps the file as small as its content
		OpenFile:        func(string, int, os.FileMode) (*os.File, error) { return f, nil },
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c := &copier{db: db, name: name, file: f, dst: dst, tell: func(string) {}}
	if err := dst.Update(layDown); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), dst.Close())
	}
	return c, nil
}

// reached tells a phase to those who watch, and to tests.
func (c *copier) reached(phase string) {
	c.tell(phase)
	if hook := c.db.opts.onCopy; hook != nil {
		hook(phase, c)
	}
}

// step runs fn with a read transaction of the store and a write transaction of
// the copy.
func (c *copier) step(ctx context.Context, fn func(src, dst *bbolt.Tx) error) error {
	return c.db.view(ctx, func(src *bbolt.Tx) error {
		return c.guarded(func() error {
			return c.dst.Update(func(dst *bbolt.Tx) error { return fn(src, dst) })
		})
	})
}

// guarded makes a fault of the copy's mapping, and bbolt's assertions over it,
// errors of the copy: they must not stop the store.
func (c *copier) guarded(fn func() error) (err error) {
	defer guardFaults()()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("copy %s: %v", c.name, r)
		}
	}()
	return fn()
}

// follow copies what has been written, until what comes meanwhile is less than
// a step.
func (c *copier) follow(ctx context.Context) error {
	for round := 0; round < 16; round++ { // writers that outrun it are held off sooner
		before := c.copied
		if err := c.chunks(ctx); err != nil {
			return err
		}
		if err := c.rest(ctx); err != nil {
			return err
		}
		if err := c.sync(); err != nil {
			return err
		}
		if c.copied-before < stepBytes {
			return nil
		}
	}
	return nil
}

// chunks copies the chunks that follow those that are copied.
func (c *copier) chunks(ctx context.Context) error {
	for more := true; more; {
		var err error
		if more, err = c.chunkStep(ctx); err != nil {
			return err
		}
		c.reached("copy")
		if c.unsynced >= syncBytes {
			if err := c.sync(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *copier) chunkStep(ctx context.Context) (more bool, err error) {
	var keys [][]byte
	size := 0
	err = c.step(ctx, func(src, dst *bbolt.Tx) error {
		from := src.Bucket(bucketChunks).Cursor()
		for k, v := from.Seek(c.next); k != nil; k, v = from.Next() {
			if size >= stepBytes {
				more = true
				return nil
			}
			if err := putChunk(dst, k, v); err != nil {
				return err
			}
			keys, size = append(keys, bytes.Clone(k)), size+len(v)
		}
		return nil
	})
	if err == nil {
		err = c.compare(ctx, keys)
	}
	if err != nil || len(keys) == 0 {
		return false, err
	}
	c.next = append(bytes.Clone(keys[len(keys)-1]), 0) // the key that follows
	c.copied += int64(size)
	c.unsynced += int64(size)
	return more, nil
}

// putChunk copies one chunk, if it is what was stored.
func putChunk(dst *bbolt.Tx, key, value []byte) error {
	if value == nil || !sound(value) {
		return fmt.Errorf("%w: chunk number %x is not what was stored, and a copy must be whole: `coordinator store verify` names what needs it: "+
			"delete that, or take a new checkpoint, which may store the chunk again", snapshot.ErrCorrupt, key)
	}
	b := dst.Bucket(bucketChunks)
	b.FillPercent = 1 // in the order of keys: no page is ever split
	if err := b.Put(key, value); err != nil {
		return fmt.Errorf("chunk number %x: %w", key, err)
	}
	return nil
}

// compare reads chunks of the copy back, and holds them against the store's.
func (c *copier) compare(ctx context.Context, keys [][]byte) error {
	return c.db.view(ctx, func(src *bbolt.Tx) error {
		return c.guarded(func() error {
			return c.dst.View(func(dst *bbolt.Tx) error {
				from, to := src.Bucket(bucketChunks), dst.Bucket(bucketChunks)
				for _, k := range keys {
					was, is := from.Get(k), to.Get(k)
					if is == nil || !sound(is) || was != nil && !bytes.Equal(was, is) && !c.db.mends.has(k) {
						return fmt.Errorf("copy %s: chunk number %x reads back as other bytes: check the memory and the disk", c.name, k)
					}
					letGo(src, was)
					letGo(dst, is)
				}
				return nil
			})
		})
	})
}

// rest copies everything but chunks, in steps.
func (c *copier) rest(ctx context.Context) error {
	for {
		l := leveller{room: stepBytes}
		done := false
		err := c.step(ctx, func(src, dst *bbolt.Tx) (err error) {
			done, err = l.top(src, dst)
			return err
		})
		if err != nil || done {
			return err
		}
		c.unsynced += stepBytes - int64(l.room)
	}
}

// level makes the copy the store's equal. Writers must be held off.
func (c *copier) level(ctx context.Context) error {
	if err := c.chunks(ctx); err != nil {
		return err
	}
	if err := c.rest(ctx); err != nil {
		return err
	}
	for _, again := range []bool{false, true} {
		different, err := c.levelChunks(ctx)
		if err == nil && again && different > 0 {
			err = fmt.Errorf("copy %s: %d chunks differ from the store's though they were made the same: this is a bug", c.name, different)
		}
		if err != nil {
			return err
		}
	}
	l := leveller{room: stepBytes}
	err := c.step(ctx, func(src, dst *bbolt.Tx) error {
		_, err := l.top(src, dst)
		return err
	})
	if err == nil && l.room != stepBytes {
		err = fmt.Errorf("copy %s: its records differ from the store's though they were made the same: this is a bug", c.name)
	}
	if err != nil {
		return err
	}
	return c.sync()
}

// levelChunks puts chunks right that came, went or were mended while others
// were copied, and gives how many.
func (c *copier) levelChunks(ctx context.Context) (different int, err error) {
	var puts [][]byte
	err = c.step(ctx, func(src, dst *bbolt.Tx) error {
		from, to := src.Bucket(bucketChunks), dst.Bucket(bucketChunks)
		if from.Sequence() != to.Sequence() {
			if err := to.SetSequence(from.Sequence()); err != nil {
				return err
			}
		}
		var extra [][]byte
		puts, extra = c.differences(from, to)
		different = len(puts) + len(extra)
		for _, k := range puts {
			if err := putChunk(dst, k, from.Get(k)); err != nil {
				return err
			}
		}
		for _, k := range extra {
			if err := to.Delete(k); err != nil {
				return fmt.Errorf("chunk number %x: %w", k, err)
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	c.db.mends.clear()
	return different, c.compare(ctx, puts)
}

// differences walks both buckets of chunks by their keys, without reading the
// chunks.
func (c *copier) differences(from, to *bbolt.Bucket) (puts, extra [][]byte) {
	a, b := from.Cursor(), to.Cursor()
	ak, av := a.First()
	bk, bv := b.First()
	for ak != nil || bk != nil {
		order := bytes.Compare(ak, bk)
		switch {
		case bk == nil || ak != nil && order < 0:
			puts = append(puts, bytes.Clone(ak))
			ak, av = a.Next()
		case ak == nil || order > 0:
			extra = append(extra, bytes.Clone(bk))
			bk, bv = b.Next()
		default:
			if len(av) != len(bv) || c.db.mends.has(ak) {
				puts = append(puts, bytes.Clone(ak))
			}
			ak, av = a.Next()
			bk, bv = b.Next()
		}
	}
	return puts, extra
}

// sync makes what was written durable.
func (c *copier) sync() error {
	c.unsynced = 0
	if err := c.dst.Sync(); err != nil {
		return fmt.Errorf("copy %s: sync: %w", c.name, err)
	}
	return nil
}

// prove walks the copy's pages, by plain reads and, with probe, also with
// bbolt in a child process, as Open does with a file.
func (c *copier) prove(ctx context.Context, probe bool) error {
	info, err := c.file.Stat()
	if err != nil {
		return err
	}
	if err := examine(ctx, c.file, info.Size()); err != nil {
		return fmt.Errorf("copy %s: %w", c.name, err)
	}
	if !probe || !probeRegistered.Load() {
		return nil
	}
	return c.probe(ctx)
}

func (c *copier) probe(ctx context.Context) (err error) {
	// The child opens the file too, so it is shared meanwhile.
	if err := relock(c.file, false); err != nil {
		return err
	}
	err = probeInChild(ctx, c.name)
	if lockErr := relock(c.file, true); lockErr != nil {
		return errors.Join(err, lockErr)
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", c.name, err)
	}
	return nil
}
