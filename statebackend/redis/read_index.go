package redis

import (
	"fmt"
	"strconv"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// wholeLimit is up to how many bytes a key is read by one reply: about 1 ms of
// the server. A variable for tests.
var wholeLimit int64 = 256 << 10

// Bounds of what is asked for ahead of its use.
const (
	contentBytes  = 4 << 20 // of contents that are outstanding, as the server measures them
	askedMost     = 4096    // replies outstanding
	infosMost     = 1024    // of these, about what a key is
	namesMost     = 2048    // names that wait to be asked about
	indexPage     = 1024    // names that one scan asks for
	largeMost     = 64      // names of large keys that wait for a quiet connection
	dedupeNames   = 2 << 20 // names among which repetitions are found; above, the count tells
	nameHeadroom  = 48      // guessed length of a name
	indexPageSize = 1 << 20 // what a page of names should come to
)

// queue is first in, first out.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) len() int { return len(q.items) - q.head }

func (q *queue[T]) push(item T) { q.items = append(q.items, item) }

func (q *queue[T]) front() T { return q.items[q.head] }

func (q *queue[T]) pop() T {
	var none T
	item := q.items[q.head]
	q.items[q.head] = none
	q.head++
	if q.head > 64 && q.head > len(q.items)/2 {
		q.items = q.items[:copy(q.items, q.items[q.head:])]
		q.head = 0
	}
	return item
}

// replyKind is what an outstanding reply is about.
type replyKind uint8

const (
	replyNames replyKind = iota + 1
	replyInfo
	replyContent
)

type outstanding struct {
	kind replyKind
	key  *keyInfo // nil for names
}

// indexReader reads every key of the index over one connection, with the
// scan of the index, the questions about keys and the contents of small keys
// all in one pipeline. Large keys wait until nothing is outstanding.
type indexReader struct {
	*cutReader
	asked  queue[outstanding]
	names  queue[*keyInfo] // to be asked about
	small  queue[*keyInfo] // to be read by one reply
	large  queue[*keyInfo] // to be read by pages
	infos  int             // outstanding
	bytes  int64           // of contents outstanding
	refill int             // when so few are outstanding, ask for more

	scanning bool
	cursor   string // of the next page
	total    int64  // what SCARD said
	got      int64  // distinct names so far
	pages    pager
}

// index pushes every key of the index, each name once.
func (r *cutReader) index() error {
	x := &indexReader{cutReader: r, cursor: "0", pages: pager{elements: indexPage}}
	index := &keyInfo{name: []byte(r.job.Index()), typ: snapshot.TypeSet}
	total, err := r.count(index, "SCARD")
	if err != nil {
		return r.keyFailed(index, err)
	}
	if x.total = total; total == 0 {
		return nil
	}
	r.seenNames.reset(int(min(total, dedupeNames)))
	for {
		if err := x.ask(); err != nil {
			return r.keyFailed(index, err)
		}
		switch {
		case x.asked.len() > 0:
			err = x.take(index)
		case x.large.len() > 0:
			k := x.large.pop()
			err = r.keyFailed(k, r.takePaged(k))
		default:
			return r.keyFailed(index, x.complete())
		}
		if err != nil {
			return err
		}
	}
}

// complete fails when names are missing.
func (x *indexReader) complete() error {
	if x.got != x.total {
		return fmt.Errorf("%w: the server counts %d names, and %d came", statebackend.ErrChanged, x.total, x.got)
	}
	return nil
}

// ask sends as much as the bounds allow, contents first: they free memory.
func (x *indexReader) ask() error {
	if x.asked.len() > x.refill || x.large.len() >= largeMost {
		return nil
	}
	before := x.asked.len()
	for x.small.len() > 0 && x.asked.len() < askedMost && (x.bytes == 0 || x.bytes+x.small.front().size <= contentBytes) {
		k := x.small.pop()
		x.bytes += k.size
		x.asked.push(outstanding{replyContent, k})
		if err := x.askWhole(k); err != nil {
			return err
		}
	}
	for x.names.len() > 0 && x.infos < infosMost && x.small.len() < infosMost {
		k := x.names.pop()
		x.infos++
		x.asked.push(outstanding{replyInfo, k})
		if err := x.askInfo(k); err != nil {
			return err
		}
	}
	if !x.scanning && x.cursor != "" && x.names.len() < namesMost {
		x.scanning = true
		x.asked.push(outstanding{kind: replyNames})
		if err := sendKey(x.conn, []byte(x.job.Index()), "SSCAN", x.cursor,
			"COUNT", strconv.FormatInt(x.pages.elements, 10)); err != nil {
			return err
		}
	}
	if x.asked.len() == before {
		return nil
	}
	x.refill = x.asked.len() / 2
	return x.conn.Flush()
}

// take reads the reply that is next.
func (x *indexReader) take(index *keyInfo) error {
	if err := x.check(); err != nil {
		return err
	}
	next := x.asked.pop()
	switch next.kind {
	case replyNames:
		return x.keyFailed(index, x.takeNames())
	case replyInfo:
		x.infos--
		return x.keyFailed(next.key, x.sortOut(next.key))
	default:
		x.bytes -= next.key.size
		return x.keyFailed(next.key, x.takeWhole(next.key))
	}
}

// takeNames reads a page of the index.
func (x *indexReader) takeNames() error {
	cursor, err := x.cutReader.cursor()
	if err != nil {
		return err
	}
	x.scanning, x.cursor = false, cursor
	if cursor == "0" {
		x.cursor = "" // the end
	}
	n, err := x.array()
	if err != nil {
		return err
	}
	x.read = 0
	// Grown by what arrives: the number is only announced.
	page := make([]byte, 0, min(n, indexPage)*nameHeadroom)
	for range n {
		if page, err = x.takeName(page); err != nil {
			return err
		}
	}
	if n > 0 {
		x.pages.elements = max(1, min(indexPageSize/max(x.read/n, 1), indexPage))
	}
	return nil
}

// takeName reads one name to the end of page.
func (x *indexReader) takeName(page []byte) ([]byte, error) {
	h, err := x.bulk()
	if err != nil {
		return page, err
	}
	if h.Len > snapshot.MaxName {
		return page, fmt.Errorf("a name of %d bytes: the format takes up to %d", h.Len, snapshot.MaxName)
	}
	page = append(page, make([]byte, h.Len)...)
	name := page[len(page)-int(h.Len) : len(page) : len(page)]
	if _, err := x.conn.ReadBulk(name); err != nil {
		return page, err
	}
	if x.total <= dedupeNames && !x.seenNames.add(name, uint64(len(name))) {
		return page, nil
	}
	if x.got++; x.got > x.total {
		return page, x.complete()
	}
	x.names.push(&keyInfo{name: name, section: statebackend.Classify(x.job, name)})
	return page, nil
}

// sortOut decides how a key is read.
func (x *indexReader) sortOut(k *keyInfo) error {
	if err := x.takeInfo(k); err != nil {
		return err
	}
	switch {
	case k.typ == snapshot.TypeMissing:
		return x.missing(k)
	case k.expireAt == goneAlready:
		return x.vanished(k)
	case k.size <= wholeLimit || k.typ == snapshot.TypeOpaque:
		x.small.push(k)
	default:
		x.large.push(k)
	}
	return nil
}
