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

// Bounds of what is staged and not yet compared.
const (
	proveKeys  = 256
	proveBytes = 1 << 20
	// proveSample: of so many small keys that went as payloads one is read
	// back.
	proveSample = 64
	// proveCount is from how many elements on a key that went as a payload is
	// asked for its number.
	proveCount = 64
)

// proof says how a staged key is compared.
type proof uint8

const (
	// proofSent asks nothing more: the key went as a payload, which held what
	// the checkpoint has and whose checksum the server has compared before it
	// made the key. The flip looks whether it is still there.
	proofSent proof = iota
	// proofCount asks for type and number of elements of such a key.
	proofCount
	// proofWhole reads the key back with one command among others.
	proofWhole
	// proofPages reads it back page by page.
	proofPages
)

// expectation is what a staged key has to be.
type expectation struct {
	name []byte
	n    uint64 // its number
	typ  snapshot.KeyType
	how  proof
	// foreign says that another server version made the payload of an opaque
	// key: its bytes can't be compared, that it was accepted has to do.
	foreign bool
	end     snapshot.KeyEnd
	bytes   uint64
	odd     []byte // its oddEntry
}

// expect is what the open key, with the next number, has to be.
func (s *staging) expect(end snapshot.KeyEnd, byPayload bool, odd []byte) expectation {
	c := &s.cur
	e := expectation{name: c.key.Name, n: s.keys, typ: c.key.Type, end: end, bytes: c.bytes, odd: odd, how: proofPages,
		foreign: c.key.Type == snapshot.TypeOpaque && c.key.Server != s.version}
	short := end.Count <= readWhole && c.bytes <= proveBytes || single(c.key.Type)
	switch {
	case byPayload && short && e.n%proveSample != 0 && end.Count < proveCount:
		e.how = proofSent
	case byPayload && !(short && e.n%proveSample == 0):
		e.how = proofCount
	case short:
		e.how = proofWhole
	}
	return e
}

// proofs are keys that are staged and not yet compared, with numbers one after
// the other.
type proofs struct {
	window []expectation
	bytes  uint64 // of replies
	odds   uint64 // odd entries that were compared
}

func (p *proofs) add(e expectation) {
	if p.window == nil {
		p.window = make([]expectation, 0, proveKeys)
	}
	p.window = append(p.window, e)
	p.bytes += uint64(len(e.name))
	if e.how >= proofWhole {
		p.bytes += e.bytes
	}
}

func (p *proofs) full() bool { return len(p.window) == proveKeys || p.bytes >= proveBytes }

// take empties the window. The keys stay where commands that ask for them
// point at.
func (p *proofs) take() []expectation {
	w := p.window
	p.window, p.bytes = nil, 0
	return w
}

// Prove compares what is staged and not yet compared, and waits for the
// outcome of everything.
func (s *staging) Prove(ctx context.Context) error { return s.rebind(ctx) }

// prove sends the mapping of the keys in the window and asks for both, behind
// the commands that staged them. The answers come with those of later ones.
func (s *staging) prove() error {
	if err := s.sendMapped(); err != nil {
		return err
	}
	all := s.unproved.take()
	if len(all) == 0 {
		return nil
	}
	if err := s.proveMapping(all); err != nil {
		return err
	}
	for i := range all {
		if err := s.proveKey(&all[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *staging) proveMapping(all []expectation) error {
	size, odds := int64(0), []expectation(nil)
	for _, e := range all {
		size += int64(len(e.name))
		if e.odd != nil {
			odds = append(odds, e)
		}
	}
	if s.names.off { // else they go as a payload later
		if err := s.askList(stageMap, all[0].n, len(all), sentCommand{names: all, size: size}); err != nil {
			return err
		}
	}
	if odds == nil {
		return nil
	}
	from := s.unproved.odds
	s.unproved.odds += uint64(len(odds))
	return s.askList(stageOdd, from, len(odds), sentCommand{odds: odds, size: 40 * int64(len(odds))})
}

// askList asks for n items of a list of the staging.
func (s *staging) askList(name string, from uint64, n int, c sentCommand) error {
	c.verb = "LRANGE"
	return s.pipe.question(c, []byte(s.prefix+name), strconv.AppendUint(nil, from, 10), strconv.AppendUint(nil, from+uint64(n)-1, 10))
}

var countVerbs = map[snapshot.KeyType]string{
	snapshot.TypeHash: "HLEN", snapshot.TypeList: "LLEN", snapshot.TypeSet: "SCARD", snapshot.TypeZSet: "ZCARD",
}

func (s *staging) proveKey(e *expectation) error {
	if e.how == proofSent {
		return nil
	}
	target := numbered(s.prefix+stageKeys, e.n)
	switch e.how {
	case proofCount:
		return s.pipe.question(sentCommand{proof: e, verb: countVerbs[e.typ], size: 16}, target)
	case proofWhole:
		q, ok := wholeKey(e.typ)
		if !ok {
			return s.fail(fmt.Errorf("prove a key of %s", e.typ))
		}
		return s.pipe.question(sentCommand{proof: e, verb: q.verb, size: int64(e.bytes) + 16*int64(e.end.Count)}, append([][]byte{target}, q.rest...)...)
	}
	// A question alone, when nothing else is outstanding.
	if err := s.pipe.finish(); err != nil {
		return err
	}
	return s.pipe.proveAlone(e)
}

// proveAlone reads a key back when nothing is outstanding.
func (p *stagePipe) proveAlone(e *expectation) error {
	got, err := p.reader.summary(numbered(p.prefix+stageKeys, e.n), e.typ, e.end.Count)
	if err != nil && !isReply(err) {
		return p.lost(err)
	}
	if err := p.verdict(e, got, err); err != nil {
		return p.fail(err)
	}
	return nil
}

// readProof reads the reply to a question. What it gives ends the connection;
// a difference is a refusal.
func (p *stagePipe) readProof(c sentCommand) error {
	switch {
	case c.names != nil:
		return p.readMapping(c.names, func(e *expectation) []byte { return e.name }, func(e *expectation, got []byte) string {
			return fmt.Sprintf("key number %d of the staging is to become %.200q", e.n, got)
		})
	case c.odds != nil:
		return p.readMapping(c.odds, func(e *expectation) []byte { return e.odd }, func(e *expectation, got []byte) string {
			return fmt.Sprintf("its kind and expiry are staged as %.200q, not %q", got, e.odd)
		})
	}
	e := c.proof
	got, err := p.readSummary(e)
	switch {
	case err != nil && !isReply(err):
		return err
	case err == nil && len(p.reader.large) > 0:
		p.again = append(p.again, *e)
	case !p.short:
		if err := p.verdict(e, got, err); err != nil {
			p.refusedWith(err)
		}
	}
	return nil
}

func (p *stagePipe) readSummary(e *expectation) (summary, error) {
	if e.how != proofCount {
		return p.reader.answer(e.typ)
	}
	p.reader.large = p.reader.large[:0]
	h, err := p.reader.header(resp.Integer)
	return summary{count: uint64(h.Int)}, err
}

// readMapping reads a list and compares each item with what it has to be.
func (p *stagePipe) readMapping(all []expectation, want func(*expectation) []byte, differs func(*expectation, []byte) string) error {
	h, err := p.reader.header(resp.Array)
	if err != nil {
		if isReply(err) {
			p.refusedWith(p.b.mapError(err, "read the mapping of staged keys"))
			return nil
		}
		return err
	}
	if h.Len != int64(len(all)) {
		p.refusedWith(fmt.Errorf("%w: %d of %d keys are in the mapping of staged keys", statebackend.ErrMismatch, max(0, h.Len), len(all)))
	}
	for i := range max(0, h.Len) {
		h, err := p.reader.header(resp.Bulk)
		if err == nil {
			err = p.reader.hold(h.Len)
		}
		if err != nil {
			return err
		}
		if i < int64(len(all)) && !bytes.Equal(p.reader.field, want(&all[i])) {
			p.refusedWith(mismatch(&all[i], differs(&all[i], p.reader.field)))
		}
	}
	return nil
}

// verdict compares one key.
func (p *stagePipe) verdict(e *expectation, got summary, err error) error {
	switch {
	case resp.IsCode(err, "WRONGTYPE"):
		return mismatch(e, fmt.Sprintf("what is staged is no %s", e.typ))
	case err != nil:
		return &statebackend.KeyError{Key: e.name, Op: "prove", Err: p.b.mapError(err, "read back")}
	case e.foreign && got.count == 1:
		return nil
	case got.count != e.end.Count:
		return mismatch(e, fmt.Sprintf("a %s of %d elements is staged, the checkpoint has %d", e.typ, got.count, e.end.Count))
	case e.how != proofCount && got.digest != e.end.Digest:
		return mismatch(e, fmt.Sprintf("the content of the %s differs: %d elements in both, with digest %016x as staged and %016x in the checkpoint",
			e.typ, got.count, got.digest, e.end.Digest))
	}
	return nil
}

func mismatch(e *expectation, what string) error {
	return &statebackend.KeyError{Key: e.name, Op: "prove", Err: fmt.Errorf("%w: %s", statebackend.ErrMismatch, what)}
}
