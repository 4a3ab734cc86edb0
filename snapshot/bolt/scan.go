package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"keyframe/snapshot"
)

// scan walks every page of a bbolt file that the meta page in force reaches,
// and holds the free list against them. It needs one bit per page and twice
// that for the free list, and reads no values but those of bucket keyframe.
type scan struct {
	ctx  context.Context
	r    io.ReaderAt
	meta pageMeta
	used bitmap
	free bitmap

	top      []string          // names of top-level buckets, the first of them
	meta0    map[string][]byte // the entries of bucket keyframe
	problems []string
	leaked   int // pages neither used nor free: lost room, no lost data
}

// scanFile walks a file of size bytes. The error is errNotBolt, of reading, or
// of a meta page; what is wrong with pages is in problems.
func scanFile(ctx context.Context, r io.ReaderAt, size int64) (*scan, error) {
	m, err := readMeta(r, size)
	if err != nil {
		return nil, err
	}
	if m.high > uint64(size/m.pageSize) {
		if err := lookForOthers(ctx, r, m, size); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: it is cut short: it has %d bytes and needs %d pages of %d",
			snapshot.ErrCorrupt, size, m.high, m.pageSize)
	}
	s := &scan{ctx: ctx, r: r, meta: m, used: newBitmap(m.high), free: newBitmap(m.high), meta0: map[string][]byte{}}
	err = s.pages(m.root, 0, nil, nil, "")
	if err == nil {
		err = s.freelist()
	}
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	if err == nil {
		s.account()
	}
	return s, nil
}

// found notes a problem, or gives the error if it is one of reading.
func (s *scan) found(err error) error {
	if err == nil || errors.As(err, new(ioError)) || errors.Is(err, errEnough) {
		return err
	}
	s.problems = append(s.problems, err.Error())
	if len(s.problems) >= maxProblems {
		return errEnough
	}
	return nil
}

// claim gives page id as a node, after marking it and its overflow as used,
// each page once.
func (s *scan) claim(id uint64) (*node, error) {
	what := fmt.Sprintf("page %d", id)
	if id < 2 || id >= s.meta.high {
		return nil, fmt.Errorf("%s is outside the file's %d pages", what, s.meta.high)
	}
	n := &node{what: what, base: int64(id) * s.meta.pageSize, size: s.meta.pageSize}
	n.r = io.NewSectionReader(s.r, int64(id)*s.meta.pageSize, n.size)
	if err := n.header(); err != nil {
		return nil, err
	}
	if n.id != id {
		return nil, fmt.Errorf("%s calls itself page %d", what, n.id)
	}
	if uint64(n.overflow) >= s.meta.high-id {
		return nil, fmt.Errorf("%s and its %d pages more reach beyond the file's %d", what, n.overflow, s.meta.high)
	}
	for p := id; p <= id+uint64(n.overflow); p++ {
		if s.used.has(p) {
			return nil, fmt.Errorf("page %d is used twice", p)
		}
		s.used.set(p)
	}
	n.size *= int64(n.overflow) + 1
	n.r = io.NewSectionReader(s.r, int64(id)*s.meta.pageSize, n.size)
	return n, nil
}

// pages walks the tree below page id; its keys are at least lo and below hi.
func (s *scan) pages(id uint64, depth int, lo, hi []byte, bucket string) error {
	if err := s.ctx.Err(); err != nil {
		return ioError{err}
	}
	n, err := s.claim(id)
	if err != nil {
		return s.found(err)
	}
	return s.found(s.node(n, depth, lo, hi, bucket))
}

func (s *scan) node(n *node, depth int, lo, hi []byte, bucket string) error {
	if depth > maxDepth {
		return fmt.Errorf("%s lies deeper than %d", n.what, maxDepth)
	}
	if n.flags != flagBranch && n.flags != flagLeaf {
		return fmt.Errorf("%s has type %#x instead of branch or leaf", n.what, n.flags)
	}
	if n.flags == flagBranch && (n.inline || n.count == 0) {
		return fmt.Errorf("%s is a branch where none belongs, or without children", n.what)
	}
	els, err := n.elements()
	if err != nil {
		return err
	}
	for i, el := range els {
		if bytes.Compare(el.key, lo) < 0 || hi != nil && bytes.Compare(el.key, hi) >= 0 {
			return fmt.Errorf("%s: key %d is not in the range that its parent says", n.what, i)
		}
	}
	for i, el := range els {
		if n.flags == flagLeaf {
			err = s.found(s.leaf(n, el, depth, bucket))
		} else {
			next := hi
			if i+1 < len(els) {
				next = els[i+1].key
			}
			err = s.pages(el.child, depth+1, el.key, next, bucket)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leaf follows a bucket, and keeps what identifies the file.
func (s *scan) leaf(n *node, el element, depth int, bucket string) error {
	if el.flags&flagBucket == 0 {
		if bucket != "/"+string(bucketMeta) {
			return nil
		}
		v, err := n.readValue(el, maxCapture)
		if err == nil {
			s.meta0[string(el.key)] = v
		}
		return err
	}
	if bucket == "" && len(s.top) < maxTopNames {
		s.top = append(s.top, string(el.key))
	}
	v, err := n.readValue(el, s.meta.pageSize)
	if err != nil {
		return err
	}
	if len(v) < 16 {
		return fmt.Errorf("%s: a bucket's entry has %d bytes", n.what, len(v))
	}
	name := bucket + "/" + string(el.key)
	if root := binary.NativeEndian.Uint64(v); root != 0 {
		return s.pages(root, depth+1, nil, nil, name)
	}
	in := &node{r: bytes.NewReader(v[16:]), size: int64(len(v) - 16), what: "an inline page of " + n.what, inline: true}
	if err := in.header(); err != nil {
		return err
	}
	return s.node(in, depth+1, nil, nil, name)
}

// freelist reads the list of free pages.
func (s *scan) freelist() error {
	if s.meta.freelist == noFreelist {
		s.free = nil
		return nil
	}
	n, err := s.claim(s.meta.freelist)
	if err != nil {
		return s.found(err)
	}
	if n.flags != flagFreelist {
		return s.found(fmt.Errorf("%s has type %#x instead of free list", n.what, n.flags))
	}
	at, count := int64(pageHeader), int64(n.count)
	if n.count == 0xffff {
		var b [8]byte
		if err := n.read(b[:], at); err != nil {
			return err
		}
		// One more than there can be is as good as any greater number.
		at, count = at+8, int64(min(binary.NativeEndian.Uint64(b[:]), s.meta.high+1))
	}
	if at+count*8 > n.size || uint64(count) > s.meta.high {
		return s.found(fmt.Errorf("%s: a free list of %d pages doesn't fit", n.what, count))
	}
	buf := make([]byte, freelistWindow)
	for end := at + count*8; at < end; {
		part := buf[:min(int64(len(buf)), end-at)]
		if err := n.read(part, at); err != nil {
			return err
		}
		at += int64(len(part))
		if err := s.freePages(part); err != nil {
			return err
		}
	}
	return nil
}

func (s *scan) freePages(list []byte) error {
	for ; len(list) >= 8; list = list[8:] {
		id := binary.NativeEndian.Uint64(list)
		var err error
		switch {
		case id < 2 || id >= s.meta.high:
			err = fmt.Errorf("free page %d is outside the file's %d pages", id, s.meta.high)
		case s.free.has(id):
			err = fmt.Errorf("page %d is free twice", id)
		case s.used.has(id):
			err = fmt.Errorf("page %d is free and used", id)
		default:
			s.free.set(id)
		}
		if err := s.found(err); err != nil {
			return err
		}
	}
	return nil
}

// account counts the pages that are neither used nor free.
func (s *scan) account() {
	if s.free == nil {
		return
	}
	for id := uint64(2); id < s.meta.high; id++ {
		if !s.used.has(id) && !s.free.has(id) {
			s.leaked++
		}
	}
}
