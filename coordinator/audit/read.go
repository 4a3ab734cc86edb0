package audit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// Query says which lines to read.
type Query struct {
	After uint64 // lines after this number, oldest first; 0 with Newest false begins with the first
	// Newest asks for the last Limit lines instead, oldest first.
	Newest bool
	Job    string // "" for all
	Limit  int    // at most MaxPage; 0 is MaxPage
}

// MaxPage is how many lines one Read gives at most.
const MaxPage = 1000

// Read gives lines that were acknowledged. A line that is no audit line is an
// error that names it; [Verify] goes on behind it.
func (l *Log) Read(ctx context.Context, q Query) ([]Entry, error) {
	if q.Limit <= 0 || q.Limit > MaxPage {
		q.Limit = MaxPage
	}
	files, done, err := l.files()
	if err != nil {
		return nil, fmt.Errorf("read the audit log %s: %w", l.path, err)
	}
	defer done()
	if q.Newest {
		return newest(ctx, files, q)
	}
	var out []Entry
	for i, f := range files {
		if i+1 < len(files) && files[i+1].first > 0 && files[i+1].first <= q.After+1 {
			continue // all of it is before
		}
		err := f.each(ctx, func(line []byte, n int) error {
			e, err := f.entry(line, n)
			if err == nil && e.Seq > q.After && q.matches(e) {
				out = append(out, e)
			}
			if len(out) == q.Limit {
				return errEnough
			}
			return err
		})
		if errors.Is(err, errEnough) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

var errEnough = errors.New("enough")

func (q Query) matches(e Entry) bool { return q.Job == "" || e.Job == q.Job }

// newest reads the files from the newest on, each whole, and keeps the last of
// what matches.
func newest(ctx context.Context, files []reader, q Query) ([]Entry, error) {
	var out []Entry
	for i := len(files) - 1; i >= 0 && len(out) < q.Limit; i-- {
		var ring []Entry // of this file
		err := files[i].each(ctx, func(line []byte, n int) error {
			e, err := files[i].entry(line, n)
			if err != nil || !q.matches(e) {
				return err
			}
			ring = append(ring, e)
			if want := q.Limit - len(out); len(ring) > 2*want {
				ring = append(ring[:0], ring[len(ring)-want:]...)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		ring = ring[max(0, len(ring)-(q.Limit-len(out))):]
		out = append(ring, out...)
	}
	return out, nil
}

// reader is a file of the log as far as it counts.
type reader struct {
	name  string
	first uint64 // by its name; 0 when it doesn't say
	size  int64  // negative: whole
	file  *os.File
}

// files are all files, oldest first: those that were set aside by their names,
// the current one as it stands now.
func (l *Log) files() (all []reader, done func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	size := int64(-1)
	if l.file != nil {
		size = l.size
	}
	all, err = listFiles(l.path, size)
	if err != nil {
		return nil, nil, err
	}
	return all, func() { closeAll(all) }, nil
}

// listFiles names the files; the current one is opened, since it may be set
// aside meanwhile.
func listFiles(path string, size int64) ([]reader, error) {
	aside, err := segments(path)
	if err != nil {
		return nil, err
	}
	var all []reader
	for _, s := range aside {
		all = append(all, reader{name: s.path, first: s.first, size: -1})
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	return append(all, reader{name: path, size: size, file: f}), nil
}

func closeAll(all []reader) {
	for _, r := range all {
		if r.file != nil {
			_ = r.file.Close() // it was only read
		}
	}
}

// each gives the lines of a file without their ends, numbered from 1.
func (r reader) each(ctx context.Context, f func(line []byte, n int) error) error {
	file := r.file
	if file == nil {
		var err error
		if file, err = os.Open(r.name); err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // it was only read
	}
	size := r.size
	if size < 0 {
		info, err := file.Stat()
		if err != nil {
			return err
		}
		size = info.Size()
	}
	in := bufio.NewReaderSize(io.NewSectionReader(file, 0, size), MaxLine)
	for n := 1; ; n++ {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		line, err := in.ReadSlice('\n')
		switch {
		case err == nil:
			if err := f(line[:len(line)-1], n); err != nil {
				return err
			}
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil
		case errors.Is(err, io.EOF):
			return &PartError{File: r.name, Line: n, Bytes: len(line)}
		case errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("%s line %d is longer than %d bytes", r.name, n, MaxLine)
		default:
			return err
		}
	}
}

func (r reader) entry(line []byte, n int) (Entry, error) {
	e, err := decode(line)
	if err != nil {
		return e, fmt.Errorf("%s line %d: %w", r.name, n, err)
	}
	return e, nil
}

// PartError is a file whose last line has no end.
type PartError struct {
	File  string
	Line  int
	Bytes int
}

// Error implements error.
func (e *PartError) Error() string {
	return fmt.Sprintf("%s line %d is not finished (%d bytes)", e.File, e.Line, e.Bytes)
}

var _ error = (*PartError)(nil)
