package witness

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// quietFor is how long a copy waits for a moment without a commit.
const quietFor = 10 * time.Second

// metaPages is how much of a file its two meta pages are at most: pages have
// 4 KiB to 64 KiB.
const metaPages = 2 * 64 << 10

// copyQuiet copies a bbolt file so that what is reachable from its newest meta
// page is whole: a transaction writes only pages that the one before it doesn't
// need, and its meta page last. So a copy during which no meta page changed is
// what was committed before it began.
func copyQuiet(from, to string) error {
	until := time.Now().Add(quietFor)
	for try := 1; ; try++ {
		before, err := head(from)
		if err != nil {
			return err
		}
		if err := copyFile(from, to); err != nil {
			return err
		}
		copied, err := head(to)
		if err != nil {
			return err
		}
		after, err := head(from)
		if err != nil {
			return err
		}
		if bytes.Equal(before, after) && bytes.Equal(before, copied) {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("a transaction was committed during each of %d copies: stop the one who writes", try)
		}
	}
}

// head is the two meta pages' content, whatever their size: what bbolt keeps
// of a meta page is at its beginning, and only page size and offset vary.
func head(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was read only
	b := make([]byte, metaPages)
	n, err := io.ReadFull(f, b)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	const size = 24 // of the page size within a meta page: 16 bytes of page, magic, version
	if n < size+4 {
		return nil, fmt.Errorf("%s: %d bytes", path, n)
	}
	page := int(b[size]) | int(b[size+1])<<8 | int(b[size+2])<<16
	const content = 80
	if page < 1024 || page > metaPages/2 || n < page+content {
		return nil, fmt.Errorf("%s: its pages have %d bytes, it has %d", path, page, n)
	}
	return append(b[:content:content], b[page:page+content]...), nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // it was read only
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
