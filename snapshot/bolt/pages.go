package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"

	"keyframe/snapshot"
)

// This file reads bbolt's own page format with plain reads and without trust:
// bbolt maps the file and takes it for sound.
//
//	page     id u64, flags u16, count u16, overflow u32, then by flags:
//	meta     magic, version, page size, flags u32; root, sequence, free list,
//	         high-water mark, transaction, FNV-1a checksum u64
//	branch   count x (pos, ksize u32, page u64), keys
//	leaf     count x (flags, pos, ksize, vsize u32), keys and values
//	freelist count x u64; a count of 0xffff: the first u64 is the count
//	bucket   (a leaf's value, flag 1) root page u64, sequence u64; root 0: the
//	         page itself follows
//
// Numbers have the machine's byte order, pos counts from its own element.
const (
	pageHeader  = 16
	elementSize = 16
	metaSize    = 64

	flagBranch   = 1
	flagLeaf     = 2
	flagFreelist = 0x10
	flagBucket   = 1

	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	noFreelist     = ^uint64(0)
	maxKey         = 32768
	minPage        = 512
	maxPage        = 16 << 20
	maxDepth       = 64 // of pages below a bucket and of buckets in buckets
	maxProblems    = 50
	maxCapture     = 1024 // bytes of a value of bucket keyframe
	maxTopNames    = 64
	freelistWindow = 64 << 10
)

var (
	errNotBolt = errors.New("it is no bbolt file")
	errEnough  = errors.New("too many problems")
)

// pageMeta is a meta page.
type pageMeta struct {
	pageSize                   int64
	root, freelist, high, txid uint64
}

func parseMeta(b []byte) (m pageMeta, err error) {
	e := binary.NativeEndian
	if len(b) < metaSize || e.Uint32(b) != boltMagic {
		return m, errNotBolt
	}
	if v := e.Uint32(b[4:]); v != boltVersion {
		return m, fmt.Errorf("%w: bbolt file of version %d instead of %d", snapshot.ErrNewerFormat, v, boltVersion)
	}
	h := fnv.New64a()
	_, _ = h.Write(b[:metaSize-8]) // never fails
	if h.Sum64() != e.Uint64(b[metaSize-8:]) {
		return m, fmt.Errorf("%w: a meta page's checksum is wrong", snapshot.ErrCorrupt)
	}
	m = pageMeta{
		pageSize: int64(e.Uint32(b[8:])),
		root:     e.Uint64(b[16:]), freelist: e.Uint64(b[32:]), high: e.Uint64(b[40:]), txid: e.Uint64(b[48:]),
	}
	if m.pageSize < minPage || m.pageSize > maxPage || m.pageSize&(m.pageSize-1) != 0 {
		return m, fmt.Errorf("%w: page size %d", snapshot.ErrCorrupt, m.pageSize)
	}
	return m, nil
}

// readMeta gives the meta page in force: the valid one with the greater
// transaction, as bbolt takes it.
func readMeta(r io.ReaderAt, size int64) (pageMeta, error) {
	first, err := metaAt(r, size, 0)
	if err == nil {
		second, err2 := metaAt(r, size, first.pageSize)
		if err2 == nil && second.txid > first.txid {
			return second, nil
		}
		return first, nil
	}
	// The second one's place depends on the page size, which only a meta page
	// knows: try them all.
	for at := int64(minPage); at <= maxPage; at *= 2 {
		if m, err2 := metaAt(r, size, at); err2 == nil && m.pageSize == at {
			return m, nil
		}
	}
	return pageMeta{}, err
}

func metaAt(r io.ReaderAt, size, at int64) (pageMeta, error) {
	if at+pageHeader+metaSize > size {
		return pageMeta{}, errNotBolt
	}
	var b [metaSize]byte
	if n, err := r.ReadAt(b[:], at+pageHeader); n < len(b) {
		return pageMeta{}, fmt.Errorf("read at %d: %w", at, err)
	}
	return parseMeta(b[:])
}

// bitmap is one bit per page.
type bitmap []uint64

func newBitmap(n uint64) bitmap { return make(bitmap, n/64+1) }

func (b bitmap) has(i uint64) bool { return b[i/64]&(1<<(i%64)) != 0 }

func (b bitmap) set(i uint64) { b[i/64] |= 1 << (i % 64) }

// node is a page to parse: in the file, or inline in a bucket's value.
type node struct {
	r      io.ReaderAt
	base   int64 // where it lies in the file
	size   int64 // with its overflow
	what   string
	inline bool

	id       uint64
	flags    uint16
	count    int
	overflow uint32
}

// read fills b from offset at of the node.
func (n *node) read(b []byte, at int64) error {
	if len(b) == 0 {
		return nil
	}
	if got, err := n.r.ReadAt(b, at); got < len(b) {
		return ioError{fmt.Errorf("%s: read %d bytes at %d of it: %w", n.what, len(b), at, err)}
	}
	return nil
}

func (n *node) header() error {
	var b [pageHeader]byte
	if n.size < pageHeader {
		return fmt.Errorf("%s: %d bytes are no page", n.what, n.size)
	}
	if err := n.read(b[:], 0); err != nil {
		return err
	}
	e := binary.NativeEndian
	n.id, n.flags = e.Uint64(b[:]), e.Uint16(b[8:])
	n.count, n.overflow = int(e.Uint16(b[10:])), e.Uint32(b[12:])
	return nil
}

// ioError is a read that failed: that is no finding, it ends the walk.
type ioError struct{ error }

func (e ioError) Unwrap() error { return e.error }

// element is one entry of a branch or a leaf.
type element struct {
	flags uint32
	child uint64
	at    int64 // of the key, in the node
	ksize int64
	vsize int64
	key   []byte
}

// elements reads the table of a branch or a leaf and its keys, which must lie
// in the page and grow.
func (n *node) elements() ([]element, error) {
	table := make([]byte, n.count*elementSize) // at most 1 MiB
	if pageHeader+int64(len(table)) > n.size {
		return nil, fmt.Errorf("%s: %d elements don't fit", n.what, n.count)
	}
	if err := n.read(table, pageHeader); err != nil {
		return nil, err
	}
	all := make([]element, n.count)
	room := n.size - pageHeader - int64(len(table)) // for keys and values, which share no byte
	for i := range all {
		base := int64(pageHeader + i*elementSize)
		all[i] = parseElement(table[i*elementSize:], base, n.flags)
		el := &all[i]
		room -= el.ksize + el.vsize
		if el.ksize > maxKey || el.at+el.ksize+el.vsize > n.size || room < 0 {
			return nil, fmt.Errorf("%s: element %d of %d lies outside the page", n.what, i, n.count)
		}
		el.key = make([]byte, el.ksize)
		if err := n.read(el.key, el.at); err != nil {
			return nil, err
		}
		if i > 0 && bytes.Compare(all[i-1].key, el.key) >= 0 {
			return nil, fmt.Errorf("%s: key %d of %d is not greater than the one before", n.what, i, n.count)
		}
	}
	return all, nil
}

func parseElement(b []byte, base int64, flags uint16) element {
	e := binary.NativeEndian
	if flags == flagBranch {
		return element{at: base + int64(e.Uint32(b)), ksize: int64(e.Uint32(b[4:])), child: e.Uint64(b[8:])}
	}
	return element{
		flags: e.Uint32(b), at: base + int64(e.Uint32(b[4:])),
		ksize: int64(e.Uint32(b[8:])), vsize: int64(e.Uint32(b[12:])),
	}
}

// readValue reads an element's value of at most limit bytes.
func (n *node) readValue(el element, limit int64) ([]byte, error) {
	if el.vsize > limit {
		return nil, fmt.Errorf("%s: a value has %d bytes, at most %d belong there", n.what, el.vsize, limit)
	}
	b := make([]byte, el.vsize)
	return b, n.read(b, el.at+el.ksize)
}
