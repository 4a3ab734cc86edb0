package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"keyframe/coordinator/fault"
)

// Head is the newest line of a log: its number and hash.
type Head struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// Known is what is remembered of a log somewhere else than in it.
type Known struct {
	Head
	// Ends are the last lines of the files that were set aside, oldest first,
	// the newest maxEnds of them: a log whose older files were taken away
	// begins right after one of them, and nowhere else.
	Ends []Head `json:"ends,omitempty"`
}

// Anchor remembers the newest line, and where files end, somewhere else than in
// the log, so that lines cut off at its end or its beginning are missed. Load
// gives a zero Known when there is none.
type Anchor interface {
	Load() (Known, error)
	Save(Known) error
}

// Options of a log; the zero value is good.
type Options struct {
	MaxBytes int64            // of a file, then the next one begins; 0 is DefaultMaxBytes
	Now      func() time.Time // nil is the clock, in UTC
	Anchor   Anchor           // nil for none
}

const (
	// DefaultMaxBytes is how large a file gets before the next one begins.
	DefaultMaxBytes = 64 << 20
	// anchorEvery is how many lines are written between two anchors.
	anchorEvery = 32
	// maxEnds bounds Known: 64 GiB of lines.
	maxEnds = 1000
)

// Log appends to an audit log. Safe for concurrent use. It opens its file when
// it is first needed and again after a failure, so that a disk with room again
// needs no restart.
type Log struct {
	path string
	opts Options

	mu     sync.Mutex
	file   *os.File // nil: not open
	size   int64    // acknowledged bytes of file
	first  uint64   // seq of the first line in file, 0 when it has none
	head   Head     // newest acknowledged line
	known  bool     // head is this process's own knowledge
	ends   []Head   // last lines of files that were set aside, as remembered
	since  int      // lines since the last anchor
	broken error    // why it can't be written
	ahead  int64    // up to where file has room on the disk, see reserve
	closed bool

	write    func(*os.File, []byte) (int, error) // the system's, but in tests
	sync     func(*os.File) error
	allocate func(f *os.File, from, size int64) error
}

// New makes a log at a path; nothing is read or written yet.
func New(path string, o Options) *Log {
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC() }
	}
	return &Log{path: path, opts: o, write: (*os.File).Write, sync: (*os.File).Sync, allocate: allocate}
}

// Path is where the newest lines are.
func (l *Log) Path() string { return l.path }

// Check says whether a line could be written, as far as can be told without
// writing one: on a disk that is full, as long as there is room reserved.
func (l *Log) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.ready(); err != nil {
		return err
	}
	if err := l.room(); err != nil {
		return l.fail(err)
	}
	return nil
}

// Head is the newest line that was acknowledged or found.
func (l *Log) Head() Head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// Append writes one line and returns when it is on the disk, with its number
// and time. After an error nothing was written that counts.
func (l *Log) Append(e Entry) (Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.ready(); err != nil {
		return Entry{}, err
	}
	e, err := l.append(e)
	if err != nil {
		return Entry{}, l.fail(err)
	}
	l.reserve()
	if l.size >= l.opts.MaxBytes && !l.tight() { // the next file would have no room
		// The line is safe; what fails here is told to the next caller.
		_ = l.rotate()
	}
	return e, nil
}

// ready opens the file when it isn't, and makes sure that it is still the one
// that this log writes.
func (l *Log) ready() error {
	if l.closed {
		return fault.New(fault.Store, "", "the audit log %s is closed", l.path)
	}
	if l.file == nil {
		if err := l.open(); err != nil {
			return l.fail(err)
		}
	}
	if err := l.same(); err != nil {
		return l.fail(err)
	}
	l.broken = nil
	return nil
}

// same makes sure that nobody else has removed, replaced or written the file.
func (l *Log) same() error {
	at, err := os.Lstat(l.path)
	if err != nil {
		return fmt.Errorf("it is gone: %w", err)
	}
	ours, err := l.file.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(at, ours) {
		return errors.New("another file is in its place: put the file back that was there")
	}
	if ours.Size() != l.size {
		return fmt.Errorf("it has %d bytes, not the %d that were written: somebody else changed it; move it aside and restart the coordinator with another audit.path", ours.Size(), l.size)
	}
	return nil
}

// fail closes the file, so that the next call looks at it anew, and gives the
// error for callers.
func (l *Log) fail(err error) error {
	if l.file != nil {
		// What it holds beyond size was not acknowledged and doesn't count.
		_ = l.file.Close()
		l.file = nil
	}
	l.broken = fault.Wrap(err, fault.Store, "see that its disk has room and its folder can be written, and run `coordinator audit verify`", "the audit log %s can't be written", l.path)
	return l.broken
}

// append writes a line to the open file.
func (l *Log) append(e Entry) (Entry, error) {
	e.Seq, e.Prev, e.At = l.head.Seq+1, l.head.Hash, l.opts.Now()
	line, err := encode(e)
	if err != nil {
		return e, err
	}
	l.known = true // from now on the file may hold what wasn't acknowledged
	if _, err := l.write(l.file, append(line, '\n')); err != nil {
		return e, err
	}
	if err := l.sync(l.file); err != nil {
		return e, err
	}
	l.size += int64(len(line)) + 1
	l.head = Head{Seq: e.Seq, Hash: hashOf(line)}
	if l.first == 0 {
		l.first = e.Seq
	}
	if l.since++; l.since >= anchorEvery && l.anchor() != nil {
		l.since = anchorEvery // the line is safe; the next one tries again
	}
	return e, nil
}

func (l *Log) anchor() error {
	l.since = 0
	if l.opts.Anchor == nil || l.head.Seq == 0 {
		return nil
	}
	if err := l.opts.Anchor.Save(Known{l.head, l.ends}); err != nil {
		return fmt.Errorf("remember its newest line %d: %w", l.head.Seq, err)
	}
	return nil
}

// rotate sets the file aside under the number of its first line. The next one
// is made when it is needed, and goes on with the chain.
func (l *Log) rotate() error {
	aside := segmentName(l.path, l.first)
	// What is reserved behind its end isn't needed any more; where that can't be
	// given up it costs a little room.
	_ = l.file.Truncate(l.size)
	if _, err := os.Lstat(aside); err == nil {
		return l.fail(fmt.Errorf("%s is in the way", aside))
	}
	if err := os.Rename(l.path, aside); err != nil {
		return l.fail(err)
	}
	l.ends = append(slices.Clip(l.ends[max(0, len(l.ends)+1-maxEnds):]), l.head)
	err := errors.Join(syncFolder(l.path), l.anchor())
	if closeErr := l.file.Close(); err == nil {
		err = closeErr
	}
	l.file = nil
	if err != nil {
		return l.fail(err)
	}
	return nil
}

// Close remembers the newest line and closes the file. May be called twice.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	if l.file == nil {
		return nil
	}
	err := errors.Join(l.anchor(), l.file.Close())
	l.file = nil
	if err != nil {
		return fault.Wrap(err, fault.Store, "", "close the audit log %s", l.path)
	}
	return nil
}

// openFile opens or makes a log file that nobody else has. Links are refused:
// whoever may make one could choose the file that is written.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("it is no regular file")
	default:
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			err = fmt.Errorf("another process writes it: %w", err)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// syncFolder makes a file's name durable.
func syncFolder(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

var _ io.Closer = (*Log)(nil)
