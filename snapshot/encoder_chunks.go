package snapshot

import (
	"encoding/binary"
	"fmt"
)

// sealed is a chunk in flight: compressed in the background, not yet written.
type sealed struct {
	raw []byte
	ref ChunkRef
	out []byte
	err error
}

// full reports whether a chunk has reached its target. What a salt and a resume
// frame need doesn't count, so that each chunk brings the stream forward.
func (e *Encoder) full(b *builder) bool { return len(b.buf)-b.base >= e.target }

func (e *Encoder) partLen(b *builder) int { return len(b.buf) - e.part - partHeader }

// closePart writes the length of the open part frame into it.
func (e *Encoder) closePart(b *builder) {
	binary.LittleEndian.PutUint32(b.buf[e.part+1:], uint32(e.partLen(b)))
	e.part = -1
}

// room gives the builder of the open key's section, ready for a frame: a full
// chunk is sealed, and a new one begins with its section, in a layer its salt,
// and, when it goes on with a key, a resume frame.
func (e *Encoder) room(resume bool) (*builder, error) {
	b := &e.builders[e.tr.key.Section]
	if e.full(b) {
		if err := e.seal(b); err != nil {
			return b, err
		}
	}
	if len(b.buf) == 0 {
		if n := len(e.free); b.buf == nil && n > 0 {
			b.buf, e.free = e.free[n-1], e.free[:n-1]
		}
		b.buf = append(b.buf[:0], byte(e.tr.key.Section))
		if e.layers.salted() {
			b.buf = e.layers.salt.append(b.buf)
		}
		if resume {
			b.buf = appendResume(b.buf, &e.tr)
		}
		b.base = len(b.buf)
	}
	e.widen(b)
	return b, nil
}

// fewBytes is the size from which on an open chunk is taken for one that will
// be full.
const fewBytes = 64 << 10

// widen gives the open chunk all the room that a full one needs, with a short
// value that it ends with, once it is larger than a small checkpoint's: to
// double up to there leaves as much again behind. What needs more, a huge
// name, grows as ever.
func (e *Encoder) widen(b *builder) {
	room := b.base + e.target + maxWhole
	if len(b.buf) < fewBytes || cap(b.buf) >= room {
		return
	}
	// The next chunk, whose resume frame may be longer, shall fit too.
	b.buf = append(make([]byte, 0, room+room/16), b.buf...)
}

// flightsMost is how many chunks are in the background: one that is being
// compressed, and one that waits for it, so that the caller need not.
const flightsMost = 2

// flight is one chunk in the background.
type flight struct {
	sealed chan sealed
	done   chan struct{}
}

// seal hands the open chunk of a section, if there is one, to the background,
// which compresses one after the other.
func (e *Encoder) seal(b *builder) error {
	if len(b.buf) == 0 {
		return nil
	}
	if err := e.land(flightsMost - 1); err != nil {
		return err
	}
	if err := e.ctx.Err(); err != nil {
		return e.fail(fmt.Errorf("write a chunk of %s: %w", b.totals.Section, err))
	}
	raw, out := b.buf, []byte(nil)
	b.buf, b.base = nil, 0
	if n := len(e.outs); n > 0 {
		out, e.outs = e.outs[n-1], e.outs[:n-1]
	}
	f := flight{sealed: make(chan sealed, 1), done: make(chan struct{})}
	var before chan struct{}
	if n := len(e.flights); n > 0 {
		before = e.flights[n-1].done
	}
	e.flights = append(e.flights, f)
	go func() {
		defer close(f.done)
		if before != nil {
			<-before
		}
		ref, out, err := sealChunk(raw, out)
		f.sealed <- sealed{raw: raw, ref: ref, out: out, err: err}
	}()
	return nil
}

// land writes the chunks that have been compressed, in their order, and waits
// until no more than left are in the background.
func (e *Encoder) land(left int) error {
	for len(e.flights) > 0 {
		var s sealed
		select {
		case s = <-e.flights[0].sealed:
		default:
			if len(e.flights) <= left {
				return nil
			}
			s = <-e.flights[0].sealed
		}
		e.flights = append(e.flights[:0], e.flights[1:]...)
		if err := e.write(s); err != nil {
			return err
		}
	}
	return nil
}

// write writes a chunk that has come back.
func (e *Encoder) write(s sealed) error {
	if s.err != nil {
		return e.fail(fmt.Errorf("seal a chunk: %w", s.err))
	}
	fresh, err := e.w.WriteChunk(e.ctx, Chunk{Ref: s.ref, Data: s.out})
	if err != nil {
		return e.fail(fmt.Errorf("write chunk %s of %s: %w", s.ref.ID, s.ref.Section, err))
	}
	b := &e.builders[s.ref.Section]
	b.refs = append(b.refs, s.ref)
	b.totals.Chunks++
	b.totals.Stored += s.ref.Stored
	if fresh {
		b.totals.Fresh += s.ref.Stored
	}
	if out := e.reusable(s.out); out != nil {
		e.outs = append(e.outs, out)
	}
	if raw := e.reusable(s.raw); raw != nil {
		e.free = append(e.free, raw)
	}
	return nil
}

// reusable drops a buffer that a huge name made grow.
func (e *Encoder) reusable(buf []byte) []byte {
	if cap(buf) > 4*e.target+4*maxWhole {
		return nil
	}
	return buf[:0]
}
