package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"

	"keyframe/snapshot"
)

// span is where a value lies in a file.
type span struct{ at, size int64 }

// tree is what can be reached in a damaged bbolt file from its meta page. What
// can't be read on the way is left out and noted, by job where that is known.
type tree struct {
	ctx  context.Context
	r    io.ReaderAt
	meta pageMeta
	used bitmap

	rows      map[place]snapshot.Checkpoint
	manifests map[place]span
	last      map[string]snapshot.ID
	journal   map[[2]string][]byte
	// met are the jobs that were come by (a job's bucket stays for ever), hurt
	// those of which something could not be read.
	hurt, met   map[string]bool
	journalMet  bool
	journalHurt bool
	problems    []string
}

func newTree(ctx context.Context, r io.ReaderAt) *tree {
	return &tree{ctx: ctx, r: r, rows: map[place]snapshot.Checkpoint{}, manifests: map[place]span{}, last: map[string]snapshot.ID{},
		journal: map[[2]string][]byte{}, hurt: map[string]bool{}, met: map[string]bool{}}
}

// read walks what it can of a file of size bytes. The error is of reading.
func (t *tree) read(size int64) error {
	m, err := readMeta(t.r, size)
	if err != nil {
		t.note(nil, err.Error())
		return nil
	}
	// A damaged high-water mark must not size anything.
	m.high = min(m.high, uint64(size/m.pageSize))
	t.meta, t.used = m, newBitmap(m.high)
	return t.page(m.root, 0, nil)
}

// note keeps what could not be read, and whom it concerns. path is the bucket.
func (t *tree) note(path []string, what string) {
	if len(t.problems) < maxProblems {
		t.problems = append(t.problems, what)
	}
	switch {
	case len(path) == 0:
		t.journalHurt = true
	case path[0] == string(bucketJobs) && len(path) > 1:
		t.hurt[path[1]] = true
	case path[0] == string(bucketJournal):
		t.journalHurt = true
	}
}

// page walks what lies below page id.
func (t *tree) page(id uint64, depth int, path []string) error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	s := scan{ctx: t.ctx, r: t.r, meta: t.meta, used: t.used}
	n, err := s.claim(id)
	if err == nil && depth > maxDepth {
		err = errors.New(n.what + " lies too deep")
	}
	if err == nil {
		err = t.node(n, depth, path)
	}
	return t.told(path, err)
}

// told notes an error that is a finding, and gives one that is not.
func (t *tree) told(path []string, err error) error {
	if err == nil || errors.As(err, new(ioError)) || t.ctx.Err() != nil {
		return err
	}
	t.note(path, err.Error())
	return nil
}

func (t *tree) node(n *node, depth int, path []string) error {
	els, odd, err := n.anyElements()
	if err != nil {
		return err
	}
	if odd {
		t.note(path, n.what+": not all of its elements can be read")
	}
	for _, el := range els {
		if n.flags == flagBranch {
			err = t.page(el.child, depth+1, path)
		} else {
			err = t.told(path, t.leaf(n, el, depth, path))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) leaf(n *node, el element, depth int, path []string) error {
	if el.flags&flagBucket == 0 {
		return t.value(n, el, path)
	}
	name := string(el.key)
	if len(path) == 0 && name != string(bucketJobs) && name != string(bucketJournal) {
		return nil // chunks are found by their own marks
	}
	below := append(append([]string(nil), path...), name)
	switch {
	case len(path) == 0:
		t.journalMet = t.journalMet || name == string(bucketJournal)
	case len(path) == 1 && path[0] == string(bucketJobs):
		t.met[name] = true
	}
	v, err := n.readValue(el, t.meta.pageSize)
	if err == nil && len(v) < pageHeader {
		err = errors.New(n.what + ": a bucket's entry is too short")
	}
	if err != nil {
		return t.told(below, err)
	}
	if root := binary.NativeEndian.Uint64(v); root != 0 {
		return t.page(root, depth+1, below)
	}
	in := &node{r: bytes.NewReader(v[pageHeader:]), base: n.base + el.at + el.ksize + pageHeader, size: int64(len(v) - pageHeader), what: "an inline page of " + n.what, inline: true}
	if err = in.header(); err == nil && depth > maxDepth {
		err = errors.New(in.what + " lies too deep")
	}
	if err == nil {
		err = t.node(in, depth+1, below)
	}
	return t.told(below, err)
}

// value keeps one entry, by its bucket.
func (t *tree) value(n *node, el element, path []string) error {
	jobs := len(path) > 0 && path[0] == string(bucketJobs)
	switch {
	case len(path) == 2 && path[0] == string(bucketJournal):
		return t.record(n, el, path[1])
	case jobs && len(path) == 2 && bytes.Equal(el.key, keyLast):
		v, err := n.readValue(el, pageHeader)
		if err != nil {
			return err
		}
		last, err := number(v)
		t.last[path[1]] = snapshot.ID(last)
		return err
	case jobs && len(path) == 3 && path[2] == string(bucketRows):
		v, err := n.readValue(el, maxRow)
		if err != nil {
			return err
		}
		row, err := decodeRow(path[1], el.key, v)
		if err != nil {
			return err
		}
		t.rows[place{path[1], row.ID}] = row
		return nil
	case jobs && len(path) == 3 && path[2] == string(bucketManifests):
		id, err := number(el.key)
		t.manifests[place{path[1], snapshot.ID(id)}] = span{n.base + el.at + el.ksize, el.vsize}
		return err
	}
	return errors.New(n.what + ": an entry where none belongs")
}

// maxRow bounds a row that is read for salvage: names and notes are bounded, and
// a row has no lists of the state's size.
const maxRow = 16 << 20

func (t *tree) record(n *node, el element, bucket string) error {
	v, err := n.readValue(el, MaxRecord)
	if err == nil {
		t.journal[[2]string{bucket, string(el.key)}] = v
	}
	return err
}

// freePages gives the pages that the free list names; nil when it can't be
// read whole: then nothing is known to be free.
func (t *tree) freePages() bitmap {
	if t.meta.pageSize == 0 || t.meta.freelist == noFreelist {
		return nil
	}
	s := &scan{ctx: t.ctx, r: t.r, meta: t.meta, used: newBitmap(t.meta.high), free: newBitmap(t.meta.high)}
	if err := s.freelist(); err != nil || len(s.problems) > 0 {
		return nil
	}
	return s.free
}

// anyElements is elements without trust: it gives those that lie in the page,
// each by itself. odd says that some don't, or that they don't lie one behind
// the other as bbolt writes them, so that there may be more of them.
func (n *node) anyElements() (all []element, odd bool, err error) {
	if n.flags != flagLeaf && (n.flags != flagBranch || n.inline) {
		return nil, false, errors.New(n.what + " is no branch and no leaf")
	}
	count := n.count
	if most := (n.size - pageHeader) / elementSize; int64(count) > most {
		count, odd = int(most), true
	}
	table := make([]byte, count*elementSize)
	if err := n.read(table, pageHeader); err != nil {
		return nil, false, err
	}
	end := int64(pageHeader + len(table))
	for i := range count {
		el := parseElement(table[i*elementSize:], int64(pageHeader+i*elementSize), n.flags)
		odd = odd || el.at != end
		end = el.at + el.ksize + el.vsize
		if el.ksize > maxKey || end > n.size {
			odd = true
			continue
		}
		el.key = make([]byte, el.ksize)
		if err := n.read(el.key, el.at); err != nil {
			return nil, false, err
		}
		all = append(all, el)
	}
	return all, odd, nil
}
