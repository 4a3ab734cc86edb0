package redis

import (
	"fmt"
	"strconv"

	"keyframe/snapshot"
	"keyframe/statebackend/redis/resp"
)

// How staged keys are read back.
const (
	readWhole = 2000      // elements: keys with more are read in pages
	readPage  = 1000      // elements of a page
	readHold  = 256 << 10 // a zset member up to this is held until its score comes
)

// summary is what a key on the server holds.
type summary struct {
	count  uint64
	digest uint64
}

// stagedReader reads keys that nobody else writes and computes their digests.
// No value is held in memory; a hash field is.
type stagedReader struct {
	conn  *resp.Conn
	d     snapshot.Digester
	field []byte
	buf   [32 << 10]byte
	large []int64 // ranks of zset members that were passed over
	page  int64   // bytes of bulks since a reader of pages set it to 0
}

// summary reads one key when nothing else is outstanding on the connection.
func (r *stagedReader) summary(key []byte, t snapshot.KeyType, expect uint64) (summary, error) {
	if expect > readWhole && t != snapshot.TypeString && t != snapshot.TypeOpaque {
		got, err := r.paged(key, t)
		if err != nil || got.count == expect {
			return got, err
		}
		// A scan may repeat elements; one reply can't.
	}
	if err := r.ask(key, t); err != nil {
		return summary{}, err
	}
	if err := r.conn.Flush(); err != nil {
		return summary{}, err
	}
	got, err := r.answer(t)
	if err != nil {
		return got, err
	}
	return r.finish(key, got)
}

// question is a command that reads a whole key: its verb, and its arguments
// behind the key.
type question struct {
	verb string
	rest [][]byte
}

var (
	allOfList = [][]byte{[]byte("0"), []byte("-1")}
	questions = map[snapshot.KeyType]question{
		snapshot.TypeString: {"GET", nil}, snapshot.TypeHash: {"HGETALL", nil}, snapshot.TypeList: {"LRANGE", allOfList},
		snapshot.TypeSet: {"SMEMBERS", nil}, snapshot.TypeZSet: {"ZRANGE", append(allOfList, []byte("WITHSCORES"))},
		snapshot.TypeOpaque: {"DUMP", nil},
	}
)

func wholeKey(t snapshot.KeyType) (question, bool) {
	q, ok := questions[t]
	return q, ok
}

// ask sends the command that reads a whole key.
func (r *stagedReader) ask(key []byte, t snapshot.KeyType) error {
	q, ok := wholeKey(t)
	if !ok {
		return fmt.Errorf("read a key of %s", t)
	}
	words := make([]string, len(q.rest))
	for i, w := range q.rest {
		words[i] = string(w)
	}
	return r.send(q.verb, key, words...)
}

func (r *stagedReader) send(verb string, key []byte, more ...string) error {
	if err := r.conn.BeginCommand(2 + len(more)); err != nil {
		return err
	}
	if err := r.conn.ArgString(verb); err != nil {
		return err
	}
	if err := r.conn.Arg(key); err != nil {
		return err
	}
	for _, m := range more {
		if err := r.conn.ArgString(m); err != nil {
			return err
		}
	}
	return nil
}

// answer reads the reply to ask. An error reply comes back as it is.
func (r *stagedReader) answer(t snapshot.KeyType) (summary, error) {
	r.d.Reset(t)
	r.large = r.large[:0]
	var err error
	if t == snapshot.TypeString || t == snapshot.TypeOpaque {
		var h resp.Header
		if h, err = r.header(resp.Bulk); err == nil && !h.Nil() {
			err = r.value(snapshot.Element{Size: uint64(h.Len)})
		}
	} else {
		err = r.elements(t, 0)
	}
	return summary{count: r.d.Count(), digest: r.d.Sum()}, err
}

// header reads the next header and wants it to be of that kind.
func (r *stagedReader) header(want resp.Kind) (resp.Header, error) {
	h, err := r.conn.Next()
	switch {
	case err != nil:
		return h, err
	case h.Err != nil:
		return h, h.Err
	case h.Kind != want:
		return h, fmt.Errorf("%w: %s where %s was to come", resp.ErrProtocol, h.Kind, want)
	case want == resp.Bulk:
		r.page += h.Len
	}
	return h, nil
}

// elements reads one array of elements; base is the rank of the first.
func (r *stagedReader) elements(t snapshot.KeyType, base int64) error {
	h, err := r.header(resp.Array)
	if err != nil {
		return err
	}
	width := int64(1)
	if t == snapshot.TypeHash || t == snapshot.TypeZSet {
		width = 2
	}
	for i := int64(0); i < h.Len; i += width {
		switch t {
		case snapshot.TypeHash:
			err = r.hashElement()
		case snapshot.TypeZSet:
			err = r.zsetElement(base + i/width)
		default:
			err = r.plainElement()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *stagedReader) plainElement() error {
	h, err := r.header(resp.Bulk)
	if err != nil {
		return err
	}
	return r.value(snapshot.Element{Size: uint64(h.Len)})
}

func (r *stagedReader) hashElement() error {
	h, err := r.header(resp.Bulk)
	if err != nil {
		return err
	}
	if err := r.hold(h.Len); err != nil {
		return err
	}
	if h, err = r.header(resp.Bulk); err != nil {
		return err
	}
	return r.value(snapshot.Element{Field: r.field, Size: uint64(h.Len)})
}

// zsetElement reads a member and its score. The digest wants the score first:
// a long member is passed over and read again once its score is known.
func (r *stagedReader) zsetElement(rank int64) error {
	h, err := r.header(resp.Bulk)
	if err != nil {
		return err
	}
	if h.Len > readHold {
		r.large = append(r.large, rank)
		if err := r.conn.Skip(); err != nil {
			return err
		}
		_, err := r.score()
		return err
	}
	if err := r.hold(h.Len); err != nil {
		return err
	}
	score, err := r.score()
	if err != nil {
		return err
	}
	r.d.Element(snapshot.Element{Score: score, Size: uint64(len(r.field)), Value: r.field})
	return nil
}

func (r *stagedReader) score() (float64, error) {
	h, err := r.header(resp.Bulk)
	if err != nil {
		return 0, err
	}
	if h.Len > 64 {
		return 0, fmt.Errorf("%w: score of %d bytes", resp.ErrProtocol, h.Len)
	}
	var text [64]byte
	n, err := r.conn.ReadBulk(text[:])
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(string(text[:n]), 64)
}

// hold reads the open bulk into r.field.
func (r *stagedReader) hold(size int64) error {
	if size < 0 || size > snapshot.MaxName {
		return fmt.Errorf("field of %d bytes: at most %d are supported", size, snapshot.MaxName)
	}
	if int64(cap(r.field)) < size {
		r.field = make([]byte, size)
	}
	r.field = r.field[:size]
	_, err := r.conn.ReadBulk(r.field)
	return err
}

// value passes the open bulk on to the digest, in pieces.
func (r *stagedReader) value(e snapshot.Element) error {
	left := e.Size
	first := true
	for first || left > 0 {
		n, err := r.conn.ReadBulk(r.buf[:min(left, uint64(len(r.buf)))])
		if err != nil {
			return err
		}
		left -= uint64(n)
		if first {
			e.Value = r.buf[:n]
			r.d.Element(e)
			first = false
			continue
		}
		r.d.Part(r.buf[:n])
	}
	return nil
}

// finish reads the zset members that were passed over.
func (r *stagedReader) finish(key []byte, got summary) (summary, error) {
	if len(r.large) == 0 {
		return got, nil
	}
	for _, rank := range r.large {
		if err := r.largeMember(key, strconv.FormatInt(rank, 10)); err != nil {
			return got, err
		}
	}
	r.large = r.large[:0]
	return summary{count: r.d.Count(), digest: r.d.Sum()}, nil
}

func (r *stagedReader) largeMember(key []byte, rank string) error {
	for _, more := range [][]string{{rank, rank, "WITHSCORES"}, {rank, rank}} {
		if err := r.send("ZRANGE", key, more...); err != nil {
			return err
		}
	}
	if err := r.conn.Flush(); err != nil {
		return err
	}
	if _, err := r.header(resp.Array); err != nil {
		return err
	}
	if _, err := r.header(resp.Bulk); err != nil {
		return err
	}
	if err := r.conn.Skip(); err != nil {
		return err
	}
	score, err := r.score()
	if err != nil {
		return err
	}
	if _, err := r.header(resp.Array); err != nil {
		return err
	}
	h, err := r.header(resp.Bulk)
	if err != nil {
		return err
	}
	return r.value(snapshot.Element{Score: score, Size: uint64(h.Len)})
}
