package track

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// Bounds of what is kept of one RESP3 message, in bytes. Everything longer is
// passed over or refused; no allocation is sized by a length that the server
// announces beyond them.
const (
	resp3Buffer = 64 << 10 // also the longest line
	maxName     = 1 << 20  // of a key's name in an invalidation
	maxAnswer   = 4 << 20  // of the text of an answer: INFO commandstats has some 40 KiB
	maxDepth    = 8        // of aggregates within each other
	maxCount    = 1 << 40  // elements of an aggregate, bytes of a string: not plausible beyond
)

// errResp3 (wrapped) says that the server sent something that isn't RESP3. The
// place in the stream is lost then.
var errResp3 = errors.New("not a RESP3 message")

// answer is one reply. Of aggregates only the kind is kept.
type answer struct {
	kind byte   // the first byte of the reply: '+', '$', '=', '%'…
	text string // of strings and numbers
	fail string // of an error reply, with its code; "" for none
}

// invalidations takes what the pushes say.
type invalidations interface {
	// invalid says that a key was written. The name is valid during the call.
	invalid(name []byte)
	// invalidAll says that any key may have been written.
	invalidAll(reason string)
}

// resp3 reads the messages of one connection with bounded memory. An error is
// final. A small reader of its own, because [resp.Conn] speaks RESP2, where
// nothing comes unasked.
type resp3 struct {
	br   *bufio.Reader
	sink invalidations
	long []byte // scratch for names that don't fit the buffer
}

func newResp3(r io.Reader, sink invalidations) *resp3 {
	return &resp3{br: bufio.NewReaderSize(r, resp3Buffer), sink: sink}
}

// next gives the next answer. Invalidations that come before it go to the
// sink, other pushes are passed over.
func (r *resp3) next() (answer, error) {
	for {
		kind, rest, err := r.head()
		if err != nil {
			return answer{}, err
		}
		switch kind {
		case '>':
			if err := r.push(rest); err != nil {
				return answer{}, err
			}
		case '|': // attributes of the reply that follows
			if err := r.skipAll(rest, 2, 1); err != nil {
				return answer{}, err
			}
		default:
			return r.answer(kind, rest)
		}
	}
}

func (r *resp3) answer(kind byte, rest []byte) (answer, error) {
	a := answer{kind: kind}
	switch kind {
	case '+', ':', ',', '(', '#':
		a.text = string(rest)
	case '-':
		a.fail = string(rest)
	case '$', '=', '!':
		body, err := r.body(rest, maxAnswer)
		if err != nil {
			return a, err
		}
		if kind == '!' {
			a.fail = string(body)
		} else {
			a.text = string(body)
		}
	case '_':
	default:
		return a, r.skipRest(kind, rest, 0)
	}
	if (kind == '-' || kind == '!') && a.fail == "" {
		a.fail = "ERR without a text"
	}
	return a, nil
}

// push reads the rest of a push message of which the count was read.
func (r *resp3) push(count []byte) error {
	n, err := parseCount(count)
	if err != nil {
		return err
	}
	if n < 1 {
		return fmt.Errorf("%w: a push of %d elements", errResp3, n)
	}
	kind, rest, err := r.head()
	if err != nil {
		return err
	}
	if kind != '$' && kind != '+' {
		return fmt.Errorf("%w: a push that begins with %q", errResp3, kind)
	}
	what := string(rest)
	if kind == '$' {
		body, err := r.body(rest, resp3Buffer)
		if err != nil {
			return err
		}
		what = string(body)
	}
	if what == "invalidate" && n == 2 {
		return r.invalidate()
	}
	return r.skipN(n-1, 1)
}

// invalidate reads the second element of an invalidation: names, or null when
// a database was emptied.
func (r *resp3) invalidate() error {
	kind, rest, err := r.head()
	if err != nil {
		return err
	}
	if kind == '_' || (kind == '*' || kind == '$') && string(rest) == "-1" {
		r.sink.invalidAll("a database was emptied (FLUSHALL, FLUSHDB or a full resynchronisation)")
		return nil
	}
	if kind != '*' && kind != '~' {
		return fmt.Errorf("%w: an invalidation of %q", errResp3, kind)
	}
	n, err := parseCount(rest)
	if err != nil {
		return err
	}
	for ; n > 0; n-- {
		if err := r.name(); err != nil {
			return err
		}
	}
	return nil
}

// name reads one name of an invalidation. One that is too long to be kept
// makes everything invalid.
func (r *resp3) name() error {
	kind, rest, err := r.head()
	if err != nil {
		return err
	}
	if kind != '$' {
		return fmt.Errorf("%w: a name of kind %q", errResp3, kind)
	}
	n, err := parseCount(rest)
	if err != nil {
		return err
	}
	if n > maxName {
		if err := r.discard(n); err != nil {
			return err
		}
		r.sink.invalidAll(fmt.Sprintf("a key was written whose name has %d bytes: names over %d are not kept", n, maxName))
		return nil
	}
	return r.take(n, r.sink.invalid)
}

// body reads a bulk of at most limit bytes, of which the length was read. The
// slice is valid until the next read.
func (r *resp3) body(length []byte, limit int) (b []byte, err error) {
	if string(length) == "-1" {
		return nil, nil
	}
	n, err := parseCount(length)
	if err != nil {
		return nil, err
	}
	if n > int64(limit) {
		return nil, fmt.Errorf("%w: an answer of %d bytes, more than %d", errResp3, n, limit)
	}
	err = r.take(n, func(got []byte) { b = got })
	return b, err
}

// take gives the n bytes of a bulk, and reads its end.
func (r *resp3) take(n int64, to func([]byte)) error {
	if n+2 <= resp3Buffer {
		b, err := r.br.Peek(int(n) + 2)
		if err != nil {
			return endOf(err)
		}
		if b[n] != '\r' || b[n+1] != '\n' {
			return fmt.Errorf("%w: a string that does not end where it should", errResp3)
		}
		to(b[:n])
		_, err = r.br.Discard(int(n) + 2)
		return endOf(err)
	}
	if int64(cap(r.long)) < n {
		r.long = make([]byte, n)
	}
	b := r.long[:n]
	if _, err := io.ReadFull(r.br, b); err != nil {
		return endOf(err)
	}
	if err := r.crlf(); err != nil {
		return err
	}
	to(b)
	return nil
}

// discard passes over the n bytes of a bulk, and its end.
func (r *resp3) discard(n int64) error {
	if _, err := io.CopyN(io.Discard, r.br, n); err != nil {
		return endOf(err)
	}
	return r.crlf()
}

func (r *resp3) crlf() error {
	var end [2]byte
	if _, err := io.ReadFull(r.br, end[:]); err != nil {
		return endOf(err)
	}
	if end != [2]byte{'\r', '\n'} {
		return fmt.Errorf("%w: a string that does not end where it should", errResp3)
	}
	return nil
}

// skip passes over one whole value.
func (r *resp3) skip(depth int) error {
	kind, rest, err := r.head()
	if err != nil {
		return err
	}
	return r.skipRest(kind, rest, depth)
}

// skipRest passes over what follows the first line of a value.
func (r *resp3) skipRest(kind byte, rest []byte, depth int) error {
	switch kind {
	case '+', '-', ':', ',', '(', '#', '_':
		return nil
	case '$', '=', '!', '*', '~', '>', '%', '|':
		if string(rest) == "-1" {
			return nil
		}
	default:
		return fmt.Errorf("%w: it begins with %q", errResp3, kind)
	}
	switch kind {
	case '$', '=', '!':
		n, err := parseCount(rest)
		if err != nil {
			return err
		}
		return r.discard(n)
	case '%':
		return r.skipAll(rest, 2, depth+1)
	case '|': // and the value that it belongs to
		if err := r.skipAll(rest, 2, depth+1); err != nil {
			return err
		}
		return r.skip(depth + 1)
	}
	return r.skipAll(rest, 1, depth+1)
}

// skipAll passes over an aggregate's elements: each entry has width values.
func (r *resp3) skipAll(count []byte, width int64, depth int) error {
	n, err := parseCount(count)
	if err != nil {
		return err
	}
	return r.skipN(n*width, depth)
}

func (r *resp3) skipN(n int64, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: aggregates within each other deeper than %d", errResp3, maxDepth)
	}
	for ; n > 0; n-- {
		if err := r.skip(depth); err != nil {
			return err
		}
	}
	return nil
}

// head reads a value's first line: its kind, and the line without it. The
// slice is valid until the next read.
func (r *resp3) head() (byte, []byte, error) {
	line, err := r.br.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return 0, nil, fmt.Errorf("%w: a line longer than %d bytes", errResp3, resp3Buffer)
	case err != nil:
		return 0, nil, endOf(err)
	case len(line) < 3 || line[len(line)-2] != '\r':
		return 0, nil, fmt.Errorf("%w: line %.40q", errResp3, line)
	}
	return line[0], line[1 : len(line)-2], nil
}

// endOf says in words that the server has closed the connection.
func endOf(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the server closed the connection: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// parseCount reads a length or count: digits, nothing else.
func parseCount(b []byte) (int64, error) {
	if len(b) == 0 || len(b) > 13 {
		return 0, fmt.Errorf("%w: length %.40q", errResp3, b)
	}
	var n int64
	for _, d := range b {
		if d < '0' || d > '9' {
			return 0, fmt.Errorf("%w: length %.40q", errResp3, b)
		}
		n = n*10 + int64(d-'0')
	}
	if n > maxCount {
		return 0, fmt.Errorf("%w: length %d", errResp3, n)
	}
	return n, nil
}
