package redis

import (
	"fmt"
	"strconv"

	"keyframe/snapshot"
	"keyframe/statebackend/redis/resp"
)

// stream reads the elements of replies on one connection into a sink, with a
// buffer of one part and one field name, however large the values are.
type stream struct {
	conn  *resp.Conn
	sink  snapshot.Sink
	check func() error // called between the parts of large values
	part  []byte
	name  []byte
	read  int64 // bytes of bulks so far; reset by whoever measures
	parts [][]byte
	elems []snapshot.Element
}

// bulk reads the header of a bulk that has to be there.
func (s *stream) bulk() (resp.Header, error) {
	h, err := s.conn.Next()
	if err != nil {
		return h, err
	}
	if h.Err != nil {
		return h, h.Err
	}
	if h.Kind != resp.Bulk || h.Nil() {
		return h, fmt.Errorf("%w: %s where a bulk is due", resp.ErrProtocol, h.Kind)
	}
	s.read += h.Len
	return h, nil
}

// array reads the header of an array that has to be there.
func (s *stream) array() (int64, error) {
	h, err := s.conn.Next()
	if err != nil {
		return 0, err
	}
	if h.Err != nil {
		return 0, h.Err
	}
	if h.Kind != resp.Array || h.Nil() {
		return 0, fmt.Errorf("%w: %s where an array is due", resp.ErrProtocol, h.Kind)
	}
	return h.Len, nil
}

// number reads an integer reply that has to be there.
func (s *stream) number() (int64, error) {
	h, err := s.conn.Next()
	if err != nil {
		return 0, err
	}
	if h.Err != nil {
		return 0, h.Err
	}
	if h.Kind != resp.Integer || h.Int < 0 {
		return 0, fmt.Errorf("%w: %s %d where a count is due", resp.ErrProtocol, h.Kind, h.Int)
	}
	return h.Int, nil
}

func (s *stream) askScan(key []byte, scan, cursor string, count int64) error {
	if err := sendKey(s.conn, key, scan, cursor, "COUNT", strconv.FormatInt(count, 10)); err != nil {
		return err
	}
	return s.conn.Flush()
}

// cursor reads the beginning of a scan's reply: two parts, of which the first
// is the next cursor.
func (s *stream) cursor() (string, error) {
	n, err := s.array()
	if err != nil {
		return "", err
	}
	if n != 2 {
		return "", fmt.Errorf("%w: a scan was answered with %d parts", resp.ErrProtocol, n)
	}
	h, err := s.bulk()
	if err != nil {
		return "", err
	}
	var digits [20]byte
	if h.Len > int64(len(digits)) {
		return "", fmt.Errorf("%w: a cursor of %d bytes", resp.ErrProtocol, h.Len)
	}
	if _, err := s.conn.ReadBulk(digits[:h.Len]); err != nil {
		return "", err
	}
	if _, ok := parseDigits(digits[:h.Len]); !ok {
		return "", fmt.Errorf("%w: cursor %q", resp.ErrProtocol, digits[:h.Len])
	}
	return string(digits[:h.Len]), nil
}

// field reads a bulk whole; it is valid until the next call of field.
func (s *stream) field() ([]byte, error) {
	h, err := s.bulk()
	if err != nil {
		return nil, err
	}
	if h.Len > snapshot.MaxName {
		return nil, fmt.Errorf("a name of %d bytes: the format takes up to %d", h.Len, snapshot.MaxName)
	}
	s.name = sized(s.name, int(h.Len))
	_, err = s.conn.ReadBulk(s.name)
	return s.name, err
}

// names calls fn for each of the n bulks that come, whole; they are valid
// during the call.
func (s *stream) names(n int64, fn func(name []byte) error) error {
	for n > 0 {
		var err error
		if s.parts, err = s.conn.Bulks(s.parts[:0], 1, int(min(n, runMost))); err != nil {
			return err
		}
		if len(s.parts) == 0 {
			name, err := s.field()
			if err != nil {
				return err
			}
			n--
			if err := fn(name); err != nil {
				return err
			}
		}
		n -= int64(len(s.parts))
		for _, name := range s.parts {
			s.read += int64(len(name))
			if err := fn(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// sized gives a slice of n bytes in buf's memory where that is enough.
func sized(buf []byte, n int) []byte {
	if n <= cap(buf) {
		return buf[:n]
	}
	return make([]byte, n, max(n, min(2*cap(buf), snapshot.MaxName)))
}

// nextPart gives the next bytes of the open bulk: all of it, or MaxPart. The
// parts of a value are so the same however the network cuts them. Valid until
// the next call on the connection.
func (s *stream) nextPart() ([]byte, error) {
	want := int(min(s.conn.BodyLeft(), snapshot.MaxPart))
	b, err := s.conn.Chunk(want)
	if err != nil || len(b) == want {
		return b, err
	}
	s.part = sized(s.part, want)
	n := copy(s.part, b)
	_, err = s.conn.ReadBulk(s.part[n:])
	return s.part, err
}

// value gives the open bulk of h to the sink as the value of one element.
func (s *stream) value(field []byte, score float64, h resp.Header) error {
	first, err := s.nextPart()
	if err != nil {
		return err
	}
	return s.valueFrom(snapshot.Element{Field: field, Score: score, Size: uint64(h.Len), Value: first})
}

// valueFrom gives an element whose first part was read, and the rest of it.
func (s *stream) valueFrom(e snapshot.Element) error {
	if err := s.sink.Element(e); err != nil {
		return err
	}
	for s.conn.BodyLeft() > 0 {
		if err := s.check(); err != nil {
			return err
		}
		b, err := s.nextPart()
		if err != nil {
			return err
		}
		if err := s.sink.Part(b); err != nil {
			return err
		}
	}
	return nil
}

// maxScore is the length of the longest score that is read, in bytes.
const maxScore = 64

// score reads a bulk that is the score of a zset member.
func (s *stream) score() (float64, error) {
	h, err := s.bulk()
	if err != nil {
		return 0, err
	}
	// A zset's member is read into part; scores are short.
	var digits [maxScore]byte
	if h.Len > int64(len(digits)) {
		return 0, fmt.Errorf("%w: score of %d bytes", resp.ErrProtocol, h.Len)
	}
	n, err := s.conn.ReadBulk(digits[:h.Len])
	if err != nil {
		return 0, err
	}
	return parseScore(string(digits[:n]))
}

// parseScore reads what the server writes with 17 significant digits, which
// names one float64.
func parseScore(text string) (float64, error) {
	score, err := strconv.ParseFloat(text, 64)
	if err != nil || score != score {
		return 0, fmt.Errorf("%w: score %.64q", resp.ErrProtocol, text)
	}
	return score, nil
}
