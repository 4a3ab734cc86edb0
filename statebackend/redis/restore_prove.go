package redis

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// Bounds of what is read back in one go.
const (
	proveKeys  = 256
	proveBytes = 4 << 20
	// proveGuess is taken for an element's size when the pass brings none.
	proveGuess = 64
)

// prover compares the staged keys with a second pass over the checkpoint. It
// gathers keys and reads them back together; the number that it gathers grows
// with what it has proved, so that a mistake is told early.
//
// It also is an io.Closer: closing tells what is wrong with the last keys
// before the flip does.
type prover struct {
	s      *staging
	reader stagedReader

	open   bool
	cur    snapshot.Key
	bytes  uint64 // of the elements of the current key, when the pass brings them
	window []expectation
	size   uint64 // estimated bytes of the window
	proved uint64 // keys that were compared: the number of the next
	odds   uint64 // of these, keys with an oddEntry
	err    error
}

var _ snapshot.Sink = (*prover)(nil)

// expectation is what a staged key has to be.
type expectation struct {
	key   snapshot.Key // its Name is our own copy
	end   snapshot.KeyEnd
	bytes uint64
}

// Prove begins a second pass.
func (s *staging) Prove(ctx context.Context) (snapshot.Sink, error) {
	if err := s.rebind(ctx); err != nil {
		return nil, err
	}
	s.prover = &prover{s: s, reader: stagedReader{conn: s.pipe.conn}}
	return s.prover, nil
}

// BeginKey opens a key of the pass.
func (p *prover) BeginKey(k snapshot.Key) error {
	if err := p.usable(); err != nil {
		return err
	}
	if p.open {
		return p.fail(fmt.Errorf("key %q begins before key %q has ended", k.Name, p.cur.Name))
	}
	k.Name = bytes.Clone(k.Name)
	p.open, p.cur, p.bytes = true, k, 0
	return nil
}

// Element counts bytes: what is compared comes with EndKey.
func (p *prover) Element(e snapshot.Element) error {
	p.bytes += e.Size + uint64(len(e.Field))
	return p.usable()
}

// Part needs nothing.
func (p *prover) Part([]byte) error { return p.usable() }

// EndKey queues the key for comparison.
func (p *prover) EndKey(e snapshot.KeyEnd) error {
	if err := p.usable(); err != nil {
		return err
	}
	if !p.open {
		return p.fail(fmt.Errorf("a key ends that has not begun"))
	}
	p.open = false
	if p.s.skips(p.cur) != skipNot || e.Expired {
		return nil
	}
	size := max(p.bytes, e.Count*proveGuess) + uint64(len(p.cur.Name))
	p.window = append(p.window, expectation{key: p.cur, end: e, bytes: size})
	p.size += size
	if p.size < proveBytes && uint64(len(p.window)) < min(proveKeys, 1+p.proved/16) {
		return nil
	}
	return p.compare()
}

// compare reads the window's keys and their mapping back.
func (p *prover) compare() error {
	if len(p.window) == 0 {
		return nil
	}
	if err := p.compareMapping(); err != nil {
		return p.fail(err)
	}
	for from := 0; from < len(p.window); {
		to := from
		for size := uint64(0); to < len(p.window) && p.whole(to) && (to == from || size < proveBytes); to++ {
			size += p.window[to].bytes
		}
		if to == from {
			to++ // a large key, read by itself
		}
		if err := p.compareRun(from, to); err != nil {
			return p.fail(err)
		}
		from = to
	}
	p.proved += uint64(len(p.window))
	p.window, p.size = p.window[:0], 0
	return nil
}

// whole says that key i of the window is read with one command among others.
func (p *prover) whole(i int) bool {
	w := p.window[i]
	return w.end.Count <= readWhole && w.bytes <= proveBytes
}

// compareMapping compares what the staged keys are to become.
func (p *prover) compareMapping() error {
	names, err := p.list(stageMap, p.proved, uint64(len(p.window)))
	if err != nil {
		return err
	}
	var odd []expectation
	var want []string
	for i, w := range p.window {
		n := p.proved + uint64(i)
		if got := part(names, i); got != string(w.key.Name) {
			return p.mismatch(w, fmt.Sprintf("key number %d of the staging is to become %q", n, got))
		}
		if entry := oddEntry(n, w.key); entry != nil {
			odd, want = append(odd, w), append(want, string(entry))
		}
	}
	if odd == nil {
		return nil
	}
	entries, err := p.list(stageOdd, p.odds, uint64(len(odd)))
	if err != nil {
		return err
	}
	for i, w := range odd {
		if got := part(entries, i); got != want[i] {
			return p.mismatch(w, fmt.Sprintf("its kind and expiry are staged as %q, not %q", got, want[i]))
		}
	}
	p.odds += uint64(len(odd))
	return nil
}

// list reads n items of a list of the staging.
func (p *prover) list(name string, from, n uint64) (resp.Value, error) {
	conn, r := p.s.pipe.conn, &p.reader
	err := r.send("LRANGE", []byte(p.s.prefix+name), strconv.FormatUint(from, 10), strconv.FormatUint(from+n-1, 10))
	if err == nil {
		err = conn.Flush()
	}
	var v resp.Value
	if err == nil {
		v, err = conn.Reply(int64(p.size) + smallReply)
	}
	return v, p.s.b.mapError(err, "read the mapping of staged keys")
}

// compareRun reads keys from ≤ i < to of the window in one pipeline, or one
// large key page by page.
func (p *prover) compareRun(from, to int) error {
	r := &p.reader
	if !p.whole(from) {
		got, err := r.summary(p.target(from), p.window[from].key.Type, p.window[from].end.Count)
		return p.verdict(p.window[from], got, err)
	}
	for i := from; i < to; i++ {
		if err := r.ask(p.target(i), p.window[i].key.Type); err != nil {
			return p.s.b.mapError(err, "prove")
		}
	}
	if err := r.conn.Flush(); err != nil {
		return p.s.b.mapError(err, "prove")
	}
	var first error
	var again []int
	for i := from; i < to; i++ {
		got, err := r.answer(p.window[i].key.Type)
		if err == nil && len(r.large) > 0 {
			again = append(again, i) // needs questions of its own
			continue
		}
		if err = p.verdict(p.window[i], got, err); err != nil && first == nil {
			first = err
		}
		if r.conn.Err() != nil {
			return first
		}
	}
	for _, i := range again {
		got, err := r.summary(p.target(i), p.window[i].key.Type, p.window[i].end.Count)
		if err = p.verdict(p.window[i], got, err); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (p *prover) target(i int) []byte {
	return numbered(p.s.prefix+stageKeys, p.proved+uint64(i))
}

// verdict compares one key. A payload that another server version has made
// can't be compared by its bytes: that it was accepted has to do.
func (p *prover) verdict(w expectation, got summary, err error) error {
	if err != nil {
		if resp.IsCode(err, "WRONGTYPE") {
			return p.mismatch(w, fmt.Sprintf("what is staged is no %s", w.key.Type))
		}
		return &statebackend.KeyError{Key: w.key.Name, Op: "prove", Err: p.s.b.mapError(err, "read back")}
	}
	foreign := w.key.Type == snapshot.TypeOpaque && w.key.Server != p.s.version && got.count == 1
	switch {
	case got.count != w.end.Count && !foreign:
		return p.mismatch(w, fmt.Sprintf("a %s of %d elements is staged, the checkpoint has %d", w.key.Type, got.count, w.end.Count))
	case got.digest != w.end.Digest && !foreign:
		return p.mismatch(w, fmt.Sprintf("the content of the %s differs: %d elements in both, with digest %016x as staged and %016x in the checkpoint",
			w.key.Type, got.count, got.digest, w.end.Digest))
	}
	return nil
}

func (p *prover) mismatch(w expectation, what string) error {
	return &statebackend.KeyError{Key: w.key.Name, Op: "prove", Err: fmt.Errorf("%w: %s", statebackend.ErrMismatch, what)}
}

// Close ends the pass: it compares what is still gathered. Flip does it too.
func (p *prover) Close() error { return p.finish() }

// finish compares the rest and makes sure that the pass covered everything.
func (p *prover) finish() error {
	if err := p.usable(); err != nil {
		return err
	}
	if err := p.compare(); err != nil {
		return err
	}
	if p.open || p.proved != p.s.keys {
		return p.fail(fmt.Errorf("%w: %d keys are staged and the second pass has proved %d", statebackend.ErrMismatch, p.s.keys, p.proved))
	}
	return nil
}

func (p *prover) usable() error {
	if p.err != nil {
		return p.err
	}
	return p.s.usable()
}

func (p *prover) fail(err error) error {
	p.err = err
	return err
}
