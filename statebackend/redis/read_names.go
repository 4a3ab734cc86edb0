package redis

import (
	"fmt"
	"strconv"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// nameSource says which keys are to be read. It must not use the connection
// on which they are read: replies are outstanding there.
type nameSource interface {
	// next gives up to limit keys, none at the end, in the order in which they
	// are to be pushed. Of each only the name and the section are set. What it
	// gives is the caller's.
	next(limit int) ([]keyInfo, error)
}

// reusingSource is a nameSource that takes the memory of its keys back.
type reusingSource interface {
	nameSource
	// read says that of all keys that were given the first n have been pushed:
	// they are the source's again. Sinks keep nothing of them.
	read(n int)
}

// listNames are names that the caller has.
type listNames struct {
	job  statebackend.Job
	left [][]byte
}

var _ nameSource = (*listNames)(nil)

func (l *listNames) next(limit int) ([]keyInfo, error) {
	n := min(limit, len(l.left))
	batch := make([]keyInfo, n)
	for i, name := range l.left[:n] {
		batch[i] = keyInfo{name: name, section: statebackend.Classify(l.job, name)}
	}
	l.left = l.left[n:]
	return batch, nil
}

// Bounds of reading the index.
const (
	indexPage     = 1024     // names that one scan asks for
	dedupeNames   = 2 << 20  // names among which repetitions are found; above, the count tells
	namesRoom     = 64 << 10 // bytes of names that lie together in memory
	indexPageSize = 1 << 20  // what a page of names should come to
)

// indexNames reads the names of a job's index over a connection of its own,
// each once, one page ahead of its use.
type indexNames struct {
	stream
	job    statebackend.Job
	failed func(k *keyInfo, err error) error
	key    *keyInfo // the index
	seen   nameSet
	total  int64 // what SCARD said
	got    int64 // distinct names so far
	pages  pager
	asked  bool // a page is outstanding
	ended  bool
	batch  []keyInfo // that came and wasn't asked for yet
	room   []byte    // for the bytes of names
}

var _ nameSource = (*indexNames)(nil)

// indexSource opens the index. Its errors, and those of next, name it.
func (r *cutReader) indexSource() (*indexNames, error) {
	x := &indexNames{job: r.job, failed: r.keyFailed, key: &keyInfo{name: []byte(r.job.Index()), typ: snapshot.TypeSet}, pages: pager{elements: indexPage}}
	conn, err := r.open()
	if err == nil {
		x.stream = stream{conn: conn, check: r.check}
		x.total, err = x.count(x.key.name, "SCARD")
	}
	if err == nil && x.total > 0 {
		snapshot.Expect(r.sink, uint64(x.total))
		x.seen.reset(int(min(x.total, dedupeNames)))
		err = x.ask("0")
	}
	x.ended = x.total == 0
	return x, r.keyFailed(x.key, err)
}

func (x *indexNames) ask(cursor string) error {
	x.asked = true
	if err := sendKey(x.conn, x.key.name, "SSCAN", cursor, "COUNT", strconv.FormatInt(x.pages.elements, 10)); err != nil {
		return err
	}
	return x.conn.Flush()
}

// next gives what has come, or else reads a page.
func (x *indexNames) next(limit int) ([]keyInfo, error) {
	for len(x.batch) == 0 && !x.ended {
		if err := x.page(); err != nil {
			return nil, x.failed(x.key, err)
		}
	}
	batch := x.batch[:min(limit, len(x.batch))]
	x.batch = x.batch[len(batch):]
	return batch, nil
}

// page reads a page of the index, and asks for the one after it.
func (x *indexNames) page() error {
	if err := x.check(); err != nil {
		return err
	}
	cursor, err := x.cursor()
	if err != nil {
		return err
	}
	if x.ended = cursor == "0"; !x.ended {
		if err := x.ask(cursor); err != nil {
			return err
		}
	}
	n, err := x.array()
	if err != nil {
		return err
	}
	x.read = 0
	x.batch = make([]keyInfo, 0, min(n, indexPage))
	if err := x.names(n, x.takeName); err != nil {
		return err
	}
	if n > 0 {
		x.pages.elements = max(1, min(indexPageSize/max(x.read/n, 1), indexPage))
	}
	if x.ended {
		return x.complete()
	}
	return nil
}

// takeName keeps a name that is new. Those that were given keep their memory.
func (x *indexNames) takeName(name []byte) error {
	if x.total <= dedupeNames && !x.seen.add(name, uint64(len(name))) {
		return nil
	}
	if x.got++; x.got > x.total {
		return x.complete()
	}
	if len(x.room)+len(name) > cap(x.room) {
		x.room = make([]byte, 0, max(len(name), namesRoom))
	}
	x.room = append(x.room, name...)
	name = x.room[len(x.room)-len(name) : len(x.room) : len(x.room)]
	x.batch = append(x.batch, keyInfo{name: name, section: statebackend.Classify(x.job, name)})
	return nil
}

// complete fails when names are missing, or too many.
func (x *indexNames) complete() error {
	if x.got != x.total {
		return fmt.Errorf("%w: the server counts %d names, and %d came", statebackend.ErrChanged, x.total, x.got)
	}
	return nil
}
