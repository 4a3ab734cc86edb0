package redis

import (
	"errors"
	"fmt"
	"strconv"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Bounds of reading a large key page by page.
const (
	pageBytes = 1 << 20 // what a page should come to
	pageFirst = 64      // elements of the first page, before anything was measured
	// pageMost is how many elements a page has at most: about 2 ms of the
	// server, which is slower with larger ones, as they don't stay in its cache.
	pageMost = 4096
	// pagesAhead is how many pages are asked for before they are needed.
	pagesAhead = 2
	// dedupeElements is up to how many elements of a scan repetitions are
	// found and left out. Above it one fails the cut, by the count.
	dedupeElements = 1 << 20
)

// takePaged reads a large key, when no reply is outstanding.
func (r *cutReader) takePaged(k *keyInfo) error {
	if k.guessed {
		if err := r.askType(k); err != nil {
			return err
		}
		if k.typ == snapshot.TypeMissing {
			return r.vanished(k)
		}
	}
	switch k.typ {
	case snapshot.TypeString:
		return r.pagedString(k)
	case snapshot.TypeHash:
		return r.scanned(k, "HLEN", "HSCAN")
	case snapshot.TypeSet:
		return r.scanned(k, "SCARD", "SSCAN")
	case snapshot.TypeList:
		return r.ranged(k, "LLEN", "LRANGE")
	case snapshot.TypeZSet:
		if r.loose {
			// Ranks move under the writers' hands; a scan gives what stays.
			return r.scanned(k, "ZCARD", "ZSCAN")
		}
		return r.ranged(k, "ZCARD", "ZRANGE", "WITHSCORES")
	}
	if err := r.askWhole(k); err != nil {
		return err
	}
	if err := r.conn.Flush(); err != nil {
		return err
	}
	return r.takeWhole(k)
}

// count asks how many elements, or bytes, a key has.
func (s *stream) count(key []byte, command string) (int64, error) {
	if err := sendKey(s.conn, key, command); err != nil {
		return 0, err
	}
	if err := s.conn.Flush(); err != nil {
		return 0, err
	}
	return s.number()
}

// pager chooses how many elements to ask for, from what the last page came
// to: MEMORY USAGE looks at five elements only.
type pager struct{ elements int64 }

func (p *pager) measured(bytes, elements int64) {
	if elements == 0 {
		return
	}
	per := max(bytes/elements, 1)
	p.elements = max(1, min(pageBytes/per, 8*p.elements, pageMost))
}

func newPager(k *keyInfo, count int64) pager {
	per := max(k.size/max(count, 1), 1)
	return pager{elements: max(1, min(pageBytes/per, pageFirst))}
}

// scanned reads a hash or a set by its cursor. The next page is asked for as
// soon as its cursor is known, so that server and reader work side by side.
func (r *cutReader) scanned(k *keyInfo, counter, scan string) error {
	count, err := r.count(k.name, counter)
	if err != nil {
		return r.unlessChanged(k, err)
	}
	if count == 0 {
		return r.vanished(k)
	}
	if err := r.begin(k, count); err != nil {
		return err
	}
	if count <= dedupeElements || !r.loose {
		got, err := r.scanShare(k, scan, count, 0, 1)
		if err != nil {
			return err
		}
		return r.end(k, count, got)
	}
	// While writers run the count doesn't tell of repetitions. So a key whose
	// elements can't all be remembered is scanned several times, each time for
	// another share of them.
	got, shares := int64(0), uint64((count+dedupeElements-1)/dedupeElements)
	for share := range shares {
		n, err := r.scanShare(k, scan, count, share, shares)
		if err != nil {
			return err
		}
		got += n
	}
	return r.end(k, count, got)
}

// scanShare walks over a key once, for those of its elements that are of the
// share.
func (r *cutReader) scanShare(k *keyInfo, scan string, count int64, share, shares uint64) (got int64, err error) {
	var seen *nameSet
	if count <= dedupeElements || shares > 1 {
		r.seen.reset(int(count / int64(shares)))
		r.seen.share, r.seen.shares = share, shares
		seen = &r.seen
	}
	pages := newPager(k, count)
	if err := r.askScan(k.name, scan, "0", pages.elements); err != nil {
		return 0, err
	}
	for cursor := ""; ; {
		if cursor, err = r.cursor(); err != nil {
			if r.changed(err) {
				r.odd(k)
				return got, nil
			}
			return got, err
		}
		if cursor != "0" {
			if err := r.askScan(k.name, scan, cursor, pages.elements); err != nil {
				return got, err
			}
		}
		n, err := r.page(k, &pages, 0, seen)
		if err != nil {
			return got, err
		}
		if got += n; cursor == "0" || got > count && !r.loose {
			return got, nil
		}
	}
}

// page reads one page's elements and measures them.
func (r *cutReader) page(k *keyInfo, pages *pager, rank int64, seen *nameSet) (got int64, err error) {
	if err := r.check(); err != nil {
		return 0, err
	}
	n, err := r.array()
	if err != nil {
		if r.changed(err) {
			err = nil
		}
		return 0, err
	}
	r.read = 0
	got, err = r.elements(k, n, rank, seen)
	pages.measured(r.read, n/width(k.typ))
	return got, err
}

// ranged reads a list or a zset by rank: nothing moves during a pause.
func (r *cutReader) ranged(k *keyInfo, counter, command string, args ...string) error {
	count, err := r.count(k.name, counter)
	if err != nil {
		return r.unlessChanged(k, err)
	}
	if count == 0 {
		return r.vanished(k)
	}
	if err := r.begin(k, count); err != nil {
		return err
	}
	pages := newPager(k, count)
	var asked queue[int64] // the first rank of each page that was asked for
	next, got := int64(0), int64(0)
	for next < count || asked.len() > 0 {
		for ; next < count && asked.len() < pagesAhead; next += pages.elements {
			asked.push(next)
			from, to := strconv.FormatInt(next, 10), strconv.FormatInt(next+pages.elements-1, 10)
			if err := sendKey(r.conn, k.name, command, append([]string{from, to}, args...)...); err != nil {
				return err
			}
		}
		if err := r.conn.Flush(); err != nil {
			return err
		}
		n, err := r.page(k, &pages, asked.pop(), nil)
		if err != nil {
			return err
		}
		got += n
	}
	return r.end(k, count, got)
}

// stringAhead is how many parts of a string are asked for before they are
// needed.
const stringAhead = 4

// pagedString reads a string in parts. When the key expires meanwhile its
// element lacks bytes at the end, and the key is given as expired.
func (r *cutReader) pagedString(k *keyInfo) error {
	size, err := r.count(k.name, "STRLEN")
	if err != nil {
		return r.unlessChanged(k, err)
	}
	if size == 0 {
		// An empty string, or none: GET tells them apart.
		return errors.Join(r.askWhole(k), r.conn.Flush(), r.takeWhole(k))
	}
	if err := r.begin(k, 1); err != nil {
		return err
	}
	given, asked := int64(0), int64(0)
	for at := int64(0); at < size; at += snapshot.MaxPart {
		for ; asked < size && asked < at+stringAhead*snapshot.MaxPart; asked += snapshot.MaxPart {
			from, to := strconv.FormatInt(asked, 10), strconv.FormatInt(min(asked+snapshot.MaxPart, size)-1, 10)
			if err := sendKey(r.conn, k.name, "GETRANGE", from, to); err != nil {
				return err
			}
		}
		n, err := r.stringPart(at, size)
		if err != nil {
			return err
		}
		given += n
	}
	if given < size {
		return r.end(k, 1, 0)
	}
	return r.end(k, 1, 1)
}

// stringPart reads the part that begins at into the sink, and gives how many
// bytes the server gave.
func (r *cutReader) stringPart(at, size int64) (int64, error) {
	if err := errors.Join(r.conn.Flush(), r.check()); err != nil {
		return 0, err
	}
	h, err := r.bulk()
	if err != nil && !r.changed(err) {
		return 0, err
	}
	want := min(snapshot.MaxPart, size-at)
	if h.Len > want {
		return 0, fmt.Errorf("%w: %d bytes of a string from %d on, whose length was %d", statebackend.ErrChanged, h.Len, at, size)
	}
	part, err := r.nextPart()
	switch {
	case err != nil:
		return 0, err
	case at == 0:
		err = r.sink.Element(snapshot.Element{Size: uint64(size), Value: part})
	case len(part) > 0:
		err = r.sink.Part(part)
	}
	if err == nil && r.loose && h.Len < want {
		// It has become shorter, and so will be read again. What is missing
		// of the value that was begun is filled up.
		err = r.sink.Part(make([]byte, want-h.Len))
	}
	return h.Len, err
}
