package resp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// Kind is the first byte of a reply.
type Kind byte

// The kinds of RESP2.
const (
	Simple  Kind = '+'
	Failed  Kind = '-'
	Integer Kind = ':'
	Bulk    Kind = '$'
	Array   Kind = '*'
)

// String is the kind's name.
func (k Kind) String() string {
	switch k {
	case Simple:
		return "status"
	case Failed:
		return "error"
	case Integer:
		return "integer"
	case Bulk:
		return "bulk"
	case Array:
		return "array"
	}
	return fmt.Sprintf("kind %q", byte(k))
}

// Header is the first line of a reply.
type Header struct {
	Kind Kind
	Len  int64  // bytes of a bulk, elements of an array; -1 for nil
	Int  int64  // of an integer
	Text string // of a status
	Err  *Error // of an error reply
}

// Nil reports whether the reply is a nil bulk or a nil array.
func (h Header) Nil() bool { return h.Len < 0 }

// Error is an error reply. The connection goes on after it.
type Error struct {
	Code    string // the first word: ERR, WRONGTYPE, NOPERM, MOVED…
	Message string // the whole text, its code too
}

// Error is the server's text.
func (e *Error) Error() string { return e.Message }

// IsCode reports whether err is or wraps an error reply with that code word.
func IsCode(err error, code string) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// Lengths that are refused as not plausible. Nothing is allocated by them.
const (
	maxBulk  = 1 << 40
	maxArray = 1 << 40
)

// Next reads the header of the next reply or of the next element of an array.
// After a bulk header with Len ≥ 0 the body has to be read to its end (Chunk,
// ReadBulk, Skip) before the next call; after an array header its Len
// elements follow, each with a header of its own. An error reply is no error
// of Next: it comes in Header.Err.
func (c *Conn) Next() (Header, error) {
	if err := c.settled(); err != nil {
		return Header{}, err
	}
	line, err := c.line()
	if err != nil {
		return Header{}, c.fail(err)
	}
	h, err := parseHeader(line)
	if err != nil {
		return Header{}, c.fail(err)
	}
	if h.Kind == Bulk && h.Len >= 0 {
		c.bodyOpen, c.bodyLeft = true, h.Len
		if h.Len == 0 {
			return h, c.endBody()
		}
	}
	return h, nil
}

// settled demands that the last bulk was read to its end, and reads what
// stands behind it: Chunk leaves that when it has lent the last byte.
func (c *Conn) settled() error {
	switch {
	case c.err != nil:
		return c.err
	case c.bodyOpen && c.bodyLeft > 0:
		return c.misuse(fmt.Sprintf("%d bytes of a bulk reply are unread", c.bodyLeft))
	case c.bodyOpen:
		return c.endBody()
	}
	return nil
}

// line reads up to and without CR LF. The slice is valid until the next read.
func (c *Conn) line() ([]byte, error) {
	seen := 0
	for {
		b := c.buffered()
		if i := bytes.IndexByte(b[seen:], '\n'); i >= 0 {
			line := b[:seen+i+1]
			c.at += len(line)
			if len(line) < 3 || line[len(line)-2] != '\r' {
				return nil, fmt.Errorf("%w: line %.40q", ErrProtocol, line)
			}
			return line[:len(line)-2], nil
		}
		seen = len(b)
		if err := c.fill(); errors.Is(err, errFull) {
			return nil, fmt.Errorf("%w: a line longer than %d bytes", ErrProtocol, readBuffer)
		} else if err != nil {
			return nil, fmt.Errorf("read reply: %w", eof(err))
		}
	}
}

// eof tells an end in the middle of a conversation from an orderly one.
func eof(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the server closed the connection: %w", io.ErrUnexpectedEOF)
	}
	return err
}

func parseHeader(line []byte) (Header, error) {
	h := Header{Kind: Kind(line[0])}
	rest := line[1:]
	var err error
	switch h.Kind {
	case Simple:
		h.Text = status(rest)
	case Failed:
		text := string(rest)
		code, _, _ := strings.Cut(text, " ")
		h.Err = &Error{Code: code, Message: text}
	case Integer:
		h.Int, err = parseInt(rest)
	case Bulk:
		h.Len, err = parseLen(rest, maxBulk)
	case Array:
		h.Len, err = parseLen(rest, maxArray)
	default:
		err = fmt.Errorf("%w: line %.40q", ErrProtocol, line)
	}
	return h, err
}

// status gives the frequent ones without an allocation: TYPE is asked for each
// key.
func status(b []byte) string {
	switch string(b) {
	case "OK":
		return "OK"
	case "QUEUED":
		return "QUEUED"
	case "none":
		return "none"
	case "string":
		return "string"
	case "hash":
		return "hash"
	case "list":
		return "list"
	case "set":
		return "set"
	case "zset":
		return "zset"
	}
	return string(b)
}

func parseLen(b []byte, limit int64) (int64, error) {
	n, err := parseInt(b)
	if err != nil {
		return 0, err
	}
	if n < -1 || n > limit {
		return 0, fmt.Errorf("%w: length %d", ErrProtocol, n)
	}
	return n, nil
}

// parseInt reads a decimal number without going through a string.
func parseInt(b []byte) (int64, error) {
	digits := b
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		digits = b[1:]
	}
	if len(digits) == 0 || len(digits) > 19 {
		return 0, fmt.Errorf("%w: number %.40q", ErrProtocol, b)
	}
	var n uint64
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, fmt.Errorf("%w: number %.40q", ErrProtocol, b)
		}
		n = n*10 + uint64(d-'0')
	}
	if negative && n <= 1<<63 {
		return -int64(n), nil
	}
	if !negative && n <= math.MaxInt64 {
		return int64(n), nil
	}
	return 0, fmt.Errorf("%w: number %.40q", ErrProtocol, b)
}
