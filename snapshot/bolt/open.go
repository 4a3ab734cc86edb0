package bolt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// Options of Open; the zero value is right for a service.
type Options struct {
	// Timeout is how long Open waits for another process to let go of the
	// file, 2 s when 0.
	Timeout time.Duration
	// BatchBytes is from how many bytes on a batch of chunks is stored, 4 MiB
	// when 0. A running attempt holds two batches and two chunks at most; the
	// two batches of one are kept for the next.
	BatchBytes int
	// Now is the clock for the duration of failed attempts, time.Now when nil.
	Now func() time.Time

	// beforeCommit is called before each commit with what it is for: tests
	// break the file there.
	beforeCommit func(what string)
	// onCopy is called at each phase of a compaction or a backup, for tests.
	onCopy func(phase string, c *copier)
	// room is freeRoom, but for tests.
	room func(dir string) (bytes uint64, known bool, err error)
}

func (o Options) withDefaults() Options {
	if o.Timeout <= 0 {
		o.Timeout = 2 * time.Second
	}
	if o.BatchBytes <= 0 {
		o.BatchBytes = 4 << 20
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.room == nil {
		o.room = freeRoom
	}
	return o
}

// DB is a store file that this process owns. Safe for concurrent use.
//
// Locks are taken in this order: upkeep, deleting, writing, swap.
type DB struct {
	path string
	opts Options

	// swap guards the open file, which a compaction puts another in the place
	// of. Each transaction holds it for reading.
	swap   sync.RWMutex
	file   *bbolt.DB
	handle *os.File    // the open file; bbolt closes it
	info   os.FileInfo // what it was found to be, to know it again by
	fd     uintptr

	writing  sync.Mutex // held by each write transaction, and by a compaction while it switches
	upkeep   sync.Mutex // held by a compaction or a backup
	ending   context.Context
	end      context.CancelFunc // makes a compaction or a backup give up
	mends    mends
	mem      *memory
	sweeper  sweeper
	spares   spares
	spare    reserve    // of the disk's room
	deleting sync.Mutex // orders Delete, Hold and Rewrite
	broken   atomic.Pointer[broken]
	lost     atomic.Bool // the index lacks a chunk that a manifest names
}

// Open opens the store at path, and makes it (mode 0600) when there is none;
// its folder must exist. Attempts that were in progress are failed as
// interrupted, and what they left is removed.
//
// A file that is no store, is empty, is damaged (snapshot.ErrCorrupt), is of a newer
// format (snapshot.ErrNewerFormat), or is held by another process gives an
// error that says what to do, and is left as it is, byte for byte.
func Open(ctx context.Context, path string, opts Options) (*DB, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	db := &DB{path: path, opts: opts.withDefaults(), mem: newMemory()}
	db.ending, db.end = context.WithCancel(context.Background())
	f, err := db.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	if err := db.attach(f); err != nil {
		return nil, err
	}
	db.sweeper.start(db)
	if err := db.prepare(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	db.keepReserve()
	db.sweeper.wake()
	return db, nil
}

// acquire gives the store's file, open, locked against writers, and found to
// be whole and ours; or new and empty.
func (db *DB) acquire(ctx context.Context) (*os.File, error) {
	for {
		f, fresh, err := openFile(db.path)
		if err != nil {
			return nil, err
		}
		err = lockShared(ctx, f, db.opts.Timeout)
		if err == nil && !leadsTo(db.path, f) {
			// Who held it has put a compacted file in its place.
			if err := f.Close(); err != nil {
				return nil, err
			}
			continue
		}
		if err == nil {
			err = db.inspect(ctx, f, fresh)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	}
}

// leadsTo reports whether a path leads to an open file. Where that can't be
// seen it is taken for granted: each commit asks again.
func leadsTo(path string, f *os.File) bool {
	now, err := os.Stat(path)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	mine, err := f.Stat()
	return err != nil || os.SameFile(now, mine)
}

// openFile opens path for reading and writing, after making it if need be:
// then it is fresh.
func openFile(path string) (f *os.File, fresh bool, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := create(path); err != nil {
			return nil, false, err
		}
		fresh = true
	case err != nil:
		return nil, false, fmt.Errorf("can't look at it: %w", err)
	case info.IsDir():
		return nil, false, fmt.Errorf("it is a folder: name a file in it, such as %s", filepath.Join(path, "keyframe.db"))
	case !info.Mode().IsRegular():
		return nil, false, fmt.Errorf("it is no regular file (%s): name another one", info.Mode().Type())
	}
	f, err = os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrPermission) {
		return nil, false, fmt.Errorf("it can't be read and written by user %d: change its owner or mode: %w", os.Getuid(), err)
	}
	return f, fresh, err
}

// attach hands the file to bbolt, which locks it for itself.
func (db *DB) attach(f *os.File) (err error) {
	defer db.catch(&err)
	defer guardFaults()()
	if db.info, err = f.Stat(); err != nil {
		return errors.Join(db.named(err), f.Close())
	}
	db.handle, db.fd = f, f.Fd()
	db.file, err = bbolt.Open(db.path, 0o600, &bbolt.Options{
		Timeout:         db.opts.Timeout,
		FreelistType:    bbolt.FreelistMapType,
		InitialMmapSize: initialMap(),
		OpenFile:        func(string, int, os.FileMode) (*os.File, error) { return f, nil },
	})
	if errors.Is(err, berrors.ErrTimeout) {
		err = held(db.path, db.opts.Timeout)
	}
	return db.named(err)
}

// prepare lays a new file down, and recovers a used one.
func (db *DB) prepare(ctx context.Context) error {
	var empty bool
	err := db.view(ctx, func(tx *bbolt.Tx) error {
		k, _ := tx.Cursor().First()
		empty = k == nil
		return nil
	})
	if err != nil {
		return err
	}
	if empty {
		if err := db.update(ctx, "lay down the file", layDown); err != nil {
			return err
		}
	}
	removeUnfinished(db.path)
	return db.recover(ctx)
}

// Path is the file's path, as it was given to Open.
func (db *DB) Path() string { return db.path }

// Err gives the error that stopped the store (a disk that failed, a file that
// was removed), nil while it works. After one, only a restart helps. It looks
// whether the path still leads to the file, which otherwise only the next
// commit would find out.
func (db *DB) Err() error {
	if b := db.broken.Load(); b != nil {
		return b.err
	}
	// Who writes looks too, or is putting a compacted file in its place.
	if !db.writing.TryLock() {
		return nil
	}
	defer db.writing.Unlock()
	if db.ending.Err() != nil {
		return nil // closed
	}
	return db.stillThere()
}

// Close lets go of the file, after the transactions under way. It writes
// nothing: attempts that still run get snapshot.ErrClosed, and are failed as
// interrupted by the next Open, which also goes on with the deletions that
// wait. A compaction or a backup gives up. A second Close does nothing.
func (db *DB) Close() error {
	db.end()
	db.sweeper.end()
	db.spare.giveUp()
	db.upkeep.Lock()
	defer db.upkeep.Unlock()
	db.swap.RLock()
	defer db.swap.RUnlock()
	if err := db.file.Close(); err != nil {
		return fmt.Errorf("store %s: close: %w", db.path, err)
	}
	return nil
}

// ErrHeld is wrapped by Open when another process has the file.
var ErrHeld = errors.New("the store file is held")

// heldError tells who holds the file, and what to do.
type heldError struct{ text string }

func (e *heldError) Error() string { return e.text }
func (e *heldError) Unwrap() error { return ErrHeld }

// held is the error for a file that another process has.
func held(path string, waited time.Duration) error {
	who := "another process"
	if pid := holder(path); pid != "" {
		who = pid
	}
	return &heldError{fmt.Sprintf("%s holds it (waited %s): the daemon owns the store file; use the other commands of coordinator, "+
		"which ask the daemon over its API, or stop that process first", who, waited)}
}
