package track

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"
)

// errGarbled (wrapped) says that what came isn't a replication stream: its
// place in it is lost, and only a full resync helps.
var errGarbled = errors.New("not a replication stream")

const (
	wireBuffer = 256 << 10 // bytes read at once; also the longest argument that isn't copied
	longestArg = 1 << 20   // what is held of one argument
	maxLine    = 64 << 10
)

// wire is the receiving half of a link: lines and arguments, with the count of
// all bytes. It holds at most its buffer and one argument of longestArg.
type wire struct {
	nc      net.Conn
	r       *bufio.Reader
	silence time.Duration

	in      int64  // bytes that came from the network
	base    int64  // the stream's offset at in = 0
	skip    int64  // bytes of the last argument that are still to be passed over
	scratch []byte // for an argument longer than the buffer
}

func newWire(nc net.Conn, silence time.Duration) *wire {
	w := &wire{nc: nc, silence: silence}
	w.r = bufio.NewReaderSize((*wireSource)(w), wireBuffer)
	return w
}

// wireSource is the network under the buffer.
type wireSource wire

func (s *wireSource) Read(p []byte) (int, error) {
	if err := s.nc.SetReadDeadline(time.Now().Add(s.silence)); err != nil {
		return 0, fmt.Errorf("set deadline: %w", err)
	}
	n, err := s.nc.Read(p)
	s.in += int64(n)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, fmt.Errorf("the link is dead, no byte came for %v: %w", s.silence, err)
	case errors.Is(err, io.EOF):
		return n, fmt.Errorf("the server closed the link: %w", io.ErrUnexpectedEOF)
	}
	return n, err
}

// offset is how far the stream has been read.
func (w *wire) offset() int64 { return w.base + w.in - int64(w.r.Buffered()) }

// first waits for the next byte, but no longer than asked.
func (w *wire) first(wait time.Duration) error {
	silence := w.silence
	w.silence = min(wait, silence)
	_, err := w.r.Peek(1)
	w.silence = silence
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// begin says that the next byte is the one after offset.
func (w *wire) begin(offset int64) { w.base += offset - w.offset() }

// line reads one line without its end, which may be empty. It is valid until
// the next read.
func (w *wire) line() ([]byte, error) {
	b, err := w.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) || err == nil && len(b) > maxLine {
		return nil, fmt.Errorf("%w: a line of more than %d bytes", errGarbled, maxLine)
	}
	if err != nil {
		return nil, err
	}
	b = b[:len(b)-1]
	if n := len(b); n > 0 && b[n-1] == '\r' {
		b = b[:n-1]
	}
	return b, nil
}

// number reads a line of a kind ('*' or '$') and a number.
func (w *wire) number(kind byte) (int64, error) {
	b, err := w.line()
	if err != nil {
		return 0, err
	}
	if len(b) < 2 || len(b) > 19 || b[0] != kind {
		return 0, fmt.Errorf("%w: line %.40q where %q was due", errGarbled, b, kind)
	}
	var n int64
	for _, d := range b[1:] {
		if d < '0' || d > '9' {
			return 0, fmt.Errorf("%w: number %.40q", errGarbled, b)
		}
		n = n*10 + int64(d-'0')
	}
	return n, nil
}

// argument is an argument, or its beginning.
type argument struct {
	b    []byte // valid until the next read
	size int64  // of all of it
}

func (a argument) whole() bool { return int64(len(a.b)) == a.size }

// arg reads the next argument. One that is longer than limit is only begun;
// the rest is passed over.
func (w *wire) arg(limit int64) (argument, error) {
	if err := w.pass(); err != nil {
		return argument{}, err
	}
	size, err := w.number('$')
	if err != nil {
		return argument{}, err
	}
	if size > limit || size+2 <= wireBuffer {
		b, err := w.r.Peek(int(min(size, limit, wireBuffer-2)))
		w.skip = size + 2
		return argument{b, size}, err
	}
	if int64(cap(w.scratch)) < size {
		w.scratch = make([]byte, size) // up to the limit
	}
	b := w.scratch[:size]
	_, err = io.ReadFull(w.r, b)
	w.skip = 2
	return argument{b, size}, err
}

// pass passes over what is left of the last argument.
func (w *wire) pass() error {
	if w.skip == 0 {
		return nil
	}
	if w.skip > 2 {
		if _, err := w.r.Discard(int(w.skip - 2)); err != nil {
			return err
		}
	}
	w.skip = 0
	end, err := w.r.Peek(2)
	if err != nil {
		return err
	}
	if end[0] != '\r' || end[1] != '\n' {
		return fmt.Errorf("%w: an argument that ends with %q", errGarbled, end)
	}
	_, err = w.r.Discard(2)
	return err
}

// passArgs passes over n arguments.
func (w *wire) passArgs(n int64) error {
	for range n {
		if _, err := w.arg(0); err != nil {
			return err
		}
	}
	return w.pass()
}

// largestEmptyRDB is more than a server needs for an RDB without keys.
const largestEmptyRDB = 16 << 20

var errFullRDB = fmt.Errorf("%w: the server sends its data although none was asked for", ErrDenied)

const markLength = 40

// passRDB passes over an RDB in either form.
func (w *wire) passRDB() error {
	head, err := w.reply()
	if err != nil {
		return err
	}
	if mark, ok := bytes.CutPrefix(head, []byte("$EOF:")); ok {
		if len(mark) != markLength {
			return fmt.Errorf("%w: RDB header %.80q", errGarbled, head)
		}
		return w.passUntil(bytes.Clone(mark))
	}
	size, err := strconv.ParseInt(string(bytes.TrimPrefix(head, []byte("$"))), 10, 64)
	if err != nil || head[0] != '$' || size < 0 {
		return fmt.Errorf("%w: RDB header %.80q", errGarbled, head)
	}
	if size > largestEmptyRDB {
		return fmt.Errorf("%w: %d bytes", errFullRDB, size)
	}
	_, err = w.r.Discard(int(size))
	return err
}

// passUntil passes over all bytes up to the mark and the mark.
func (w *wire) passUntil(mark []byte) error {
	for passed := 0; passed <= largestEmptyRDB; {
		if _, err := w.r.Peek(len(mark)); err != nil {
			return err
		}
		b, err := w.r.Peek(w.r.Buffered())
		if err != nil {
			return err
		}
		n, found := bytes.Index(b, mark), true
		if n < 0 {
			n, found = len(b)-len(mark)+1, false // the mark may have begun
		} else {
			n += len(mark)
		}
		if _, err := w.r.Discard(n); err != nil || found {
			return err
		}
		passed += n
	}
	return fmt.Errorf("%w: more than %d bytes", errFullRDB, largestEmptyRDB)
}

// reply reads a line that isn't empty: servers send empty ones to say that
// they are still at it.
func (w *wire) reply() ([]byte, error) {
	for {
		b, err := w.line()
		if err != nil || len(b) > 0 {
			return b, err
		}
	}
}
