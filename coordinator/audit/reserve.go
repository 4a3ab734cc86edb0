package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// reserved is how much room on the disk is kept behind the log's end: on a disk
// that is full, whoever frees room must be able to write down that they do. It
// is enough for about a thousand lines of the usual length.
const reserved = 512 << 10

// reserve sees that there is room behind the end of the open file, in steps. A
// disk without room gives less, or nothing.
func (l *Log) reserve() {
	if !l.tight() {
		return
	}
	for n := int64(reserved); n >= MaxLine && l.size+n > l.ahead; n /= 2 {
		if l.allocate(l.file, l.size, n) == nil {
			l.ahead = l.size + n
			return
		}
	}
}

// tight reports whether less is reserved than should be.
func (l *Log) tight() bool { return l.ahead-l.size < reserved/2 }

// room gives an error when not even one line fits behind the end of the open
// file. Where nothing can be reserved it tries with another file.
func (l *Log) room() error {
	l.reserve()
	if l.ahead-l.size >= MaxLine {
		return nil
	}
	err := l.allocate(l.file, l.size, MaxLine)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EOPNOTSUPP) {
		err = tryRoom(l.path)
	}
	if err != nil {
		return fmt.Errorf("there is no room for another line: %w", err)
	}
	return nil
}

// tryRoom writes a file as long as the longest line beside the log.
func tryRoom(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".room-*")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, MaxLine))
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}
