package redis

import (
	"strconv"

	"keyframe/snapshot"
)

// Keys of a state whose keys have all been small are read without asking for
// their size: by commands that give a bounded number of elements, and all that
// there are when there are fewer. So the server works for a bounded time,
// whatever a key turns out to be. How long the elements are is not bounded by
// the command, but by what those of the state have been.
const (
	directElements = 512      // elements up to which a key is read so
	directSize     = 64 << 10 // bytes up to which all keys of a state must have been
	directKeys     = 64       // keys of a state whose size is asked for at first
	directMost     = 1024     // keys that are outstanding
	directOver     = 64       // one key in so many may be larger
)

// measured learns the size of a key, in bytes.
func (g *guess) measured(size int64) {
	if g == nil {
		return
	}
	g.sized++
	g.bytes += size
	g.largest = max(g.largest, size)
}

// small tells that the keys of the state have been small so far.
func (g *guess) small() bool {
	return g != nil && g.sized >= directKeys && g.largest <= directSize && g.over*directOver <= g.sized
}

// readsDirectly decides that a key is read without asking what it is.
func (r *cutReader) readsDirectly(k *keyInfo) bool {
	g := r.types.of(k.name)
	if !g.small() {
		return false
	}
	switch g.typ {
	case snapshot.TypeHash:
		if !r.bounded {
			return false
		}
	case snapshot.TypeList, snapshot.TypeZSet:
	default:
		return false // no command for it is bounded, and fast
	}
	k.state, k.typ, k.guessed = g, g.typ, true
	k.size = g.bytes / g.sized
	return true
}

// askDirect asks for the content of a key and, where keys expire, before that
// when it does. One element more than is taken tells that there are more.
func (r *cutReader) askDirect(k *keyInfo) error {
	if err := r.askExpiry(k.name); err != nil {
		return err
	}
	switch k.typ {
	case snapshot.TypeList:
		return sendKey(r.conn, k.name, "LRANGE", "0", directLast)
	case snapshot.TypeZSet:
		return sendKey(r.conn, k.name, "ZRANGE", "0", directLast, "WITHSCORES")
	}
	// With a positive count it gives each field once, and all in their order
	// when there are not more.
	return sendKey(r.conn, k.name, "HRANDFIELD", directCount, "WITHVALUES")
}

var (
	directCount = strconv.Itoa(directElements + 1)
	directLast  = strconv.Itoa(directElements)
)

// takeDirect reads the reply to askDirect into the sink.
func (r *cutReader) takeDirect(k *keyInfo) error {
	if err := r.takeExpiry(k); err != nil {
		return err
	}
	n, err := r.array()
	if err != nil {
		return r.unlessChanged(k, err)
	}
	w := width(k.typ)
	switch {
	case n == 0 && (r.noExpiry || k.expireAt == goneAlready):
		k.expireAt = 0
		return r.missing(k) // it was not there at all
	case n == 0 || k.expireAt == goneAlready:
		return r.takeGone(k, n)
	case n/w > directElements:
		return r.takeOver(k, n)
	}
	if err := r.begin(k, n/w); err != nil {
		return err
	}
	r.stream.read = 0
	got, err := r.elements(k, n, 0, nil)
	if err != nil {
		return err
	}
	k.state.measured(r.stream.read)
	return r.end(k, n/w, got)
}

// takeGone is for a key of which expiry and content tell different things: it
// expired in between, or it came in between.
func (r *cutReader) takeGone(k *keyInfo, n int64) error {
	if err := r.skip(n); err != nil {
		return err
	}
	return r.vanished(k)
}

// takeOver reads a key that is larger than its state's keys have been: page by
// page, over a connection of its own, or as the reader's user reads large ones.
func (r *cutReader) takeOver(k *keyInfo, n int64) error {
	if err := r.skip(n); err != nil {
		return err
	}
	k.state.over++
	k.guessed = false // its type, at least, is certain
	if r.large != nil {
		k.plan = planPaged
		r.large(k)
		return nil
	}
	x, err := r.beside()
	if err != nil {
		return err
	}
	return x.takePaged(k)
}

// skip reads n bulks and drops them.
func (s *stream) skip(n int64) error {
	for range n {
		if _, err := s.bulk(); err != nil {
			return err
		}
		if err := s.conn.Skip(); err != nil {
			return err
		}
	}
	return nil
}
