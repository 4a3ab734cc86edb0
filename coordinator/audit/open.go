package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// open finds the newest line and gets ready to write behind it.
func (l *Log) open() (err error) {
	before, err := l.before()
	if err != nil {
		return err
	}
	f, err := openFile(l.path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			l.file = nil
			err = errors.Join(err, f.Close())
		}
	}()
	t, err := readTail(f)
	if err != nil {
		return err
	}
	head, keep, err := l.goesOn(t, before)
	if err == nil && keep < t.size {
		err = cutBehind(f, keep)
	}
	if err == nil {
		err = syncFolder(l.path)
	}
	if err != nil {
		return err
	}
	l.file, l.size, l.first, l.head, l.ahead = f, keep, t.first, head, 0
	if keep == 0 {
		l.first = 0
	}
	l.reserve()
	if t.whole < t.size && !l.known {
		return l.tellRepair(t.size - t.whole)
	}
	return nil
}

// goesOn is after which line the log goes on, and how much of the file stays.
func (l *Log) goesOn(t tail, before Head) (Head, int64, error) {
	if l.known {
		return l.resume(t, before)
	}
	head := t.head
	if head.Seq == 0 {
		head = before
	}
	return head, t.whole, l.anchored(head)
}

// tellRepair writes down that a crash left a part of a line, which nobody was
// told of.
func (l *Log) tellRepair(n int64) error {
	_, err := l.append(Entry{Phase: PhaseNote, Principal: "coordinator", By: "coordinator", Action: "audit-repaired", Outcome: OutcomeDone,
		Params: map[string]any{"removedBytes": n, "reason": "a line that was not finished when the coordinator ended"}})
	return err
}

// before is the newest line of the files that were set aside.
func (l *Log) before() (Head, error) {
	aside, err := segments(l.path)
	if err != nil || len(aside) == 0 {
		return Head{Hash: genesis}, err
	}
	last := aside[len(aside)-1].path
	f, err := os.Open(last)
	if err != nil {
		return Head{}, err
	}
	t, err := readTail(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return Head{}, fmt.Errorf("%s: %w", last, err)
	}
	if t.head.Seq == 0 || t.whole < t.size {
		return Head{}, fmt.Errorf("%s was cut off: put it back whole", last)
	}
	return t.head, nil
}

// resume finds the newest acknowledged line again after a failure: what was
// written behind it does not count. Where it isn't the newest or the one before
// it, somebody else has changed the file.
func (l *Log) resume(t tail, before Head) (Head, int64, error) {
	switch l.head {
	case t.head:
		return l.head, t.whole, nil
	case t.second:
		return l.head, t.secondEnd, nil
	case before:
		if t.second.Seq == 0 { // at most one line, which was not acknowledged
			return l.head, 0, nil
		}
	}
	return Head{}, 0, fmt.Errorf("its newest line is %d, not the %d that was written: somebody else changed it; put the file back that was there", t.head.Seq, l.head.Seq)
}

// anchored compares what is found with what is remembered elsewhere.
func (l *Log) anchored(found Head) error {
	if l.opts.Anchor == nil {
		return nil
	}
	a, err := l.opts.Anchor.Load()
	if err != nil {
		return fmt.Errorf("what is remembered of its newest line: %w", err)
	}
	l.ends = a.Ends
	const remedy = "put the file back that was there, or begin another log by audit.path and keep this one as it is"
	switch {
	case a.Seq > found.Seq:
		return fmt.Errorf("it ends with line %d, and line %d was written: lines are missing; %s", found.Seq, a.Seq, remedy)
	case a.Seq == found.Seq && a.Seq > 0 && a.Hash != found.Hash:
		return fmt.Errorf("line %d is not the one that was written; %s", a.Seq, remedy)
	}
	return nil
}

// cutBehind removes what was not acknowledged.
func cutBehind(f *os.File, size int64) error {
	if err := f.Truncate(size); err != nil {
		return err
	}
	return f.Sync()
}

// tail is how a file ends.
type tail struct {
	size      int64  // of the file
	whole     int64  // up to the end of the last whole line
	head      Head   // of that line; Seq 0 when there is none
	second    Head   // of the line before
	secondEnd int64  // where it ends
	first     uint64 // seq of the first line
}

// readTail reads the first line and the last two.
func readTail(f *os.File) (t tail, err error) {
	info, err := f.Stat()
	if err != nil {
		return t, err
	}
	t.size = info.Size()
	if t.size == 0 {
		return t, nil
	}
	from := max(0, t.size-4*MaxLine)
	end := make([]byte, t.size-from)
	if _, err := io.ReadFull(io.NewSectionReader(f, from, t.size-from), end); err != nil {
		return t, err
	}
	stop := bytes.LastIndexByte(end, '\n')
	if stop < 0 {
		if from > 0 {
			return t, fmt.Errorf("its end is no audit line: %d bytes without an end", len(end))
		}
		return t, nil // the first line was not finished
	}
	t.whole = from + int64(stop) + 1
	if t.head, err = headOf(end[:stop]); err != nil {
		return t, fmt.Errorf("its last line: %w", err)
	}
	if prev := bytes.LastIndexByte(end[:stop], '\n'); prev >= 0 {
		t.secondEnd = from + int64(prev) + 1
		if t.second, err = headOf(end[:prev]); err != nil {
			return t, fmt.Errorf("its last line but one: %w", err)
		}
	}
	t.first, err = firstSeq(f)
	return t, err
}

// headOf is the last line of some lines.
func headOf(lines []byte) (Head, error) {
	line := lines[bytes.LastIndexByte(lines, '\n')+1:]
	e, err := decode(line)
	if err != nil {
		return Head{}, err
	}
	return Head{Seq: e.Seq, Hash: hashOf(line)}, nil
}

func firstSeq(f *os.File) (uint64, error) {
	buf := make([]byte, MaxLine)
	n, err := f.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	line, _, found := bytes.Cut(buf[:n], []byte{'\n'})
	if !found {
		return 0, errors.New("its first line has no end")
	}
	e, err := decode(line)
	if err != nil {
		return 0, fmt.Errorf("its first line: %w", err)
	}
	return e.Seq, nil
}

// segment is a file that was set aside.
type segment struct {
	path  string
	first uint64 // seq of its first line, by its name
}

// segmentName is the name of a file that begins with a line.
func segmentName(path string, first uint64) string { return fmt.Sprintf("%s.%020d", path, first) }

var segmentEnd = regexp.MustCompile(`^\.\d{20}$`)

// segments are the files that were set aside, oldest first.
func segments(path string) ([]segment, error) {
	names, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var all []segment
	base := filepath.Base(path)
	for _, n := range names {
		if len(n.Name()) < len(base) || n.Name()[:len(base)] != base || !segmentEnd.MatchString(n.Name()[len(base):]) {
			continue
		}
		first, err := strconv.ParseUint(n.Name()[len(base)+1:], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.Name(), err)
		}
		all = append(all, segment{path: filepath.Join(filepath.Dir(path), n.Name()), first: first})
	}
	slices.SortFunc(all, func(a, b segment) int { return int(min(max(int64(a.first)-int64(b.first), -1), 1)) })
	return all, nil
}
