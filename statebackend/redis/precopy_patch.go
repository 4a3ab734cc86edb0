package redis

import (
	"fmt"
	"time"

	"keyframe/snapshot"
	"keyframe/statebackend/redis/resp"
)

// Bounds of reading fields by their names.
const (
	patchFields = 512      // fields or members that one command asks for
	patchMost   = 4096     // that are outstanding, at most
	patchFirst  = 64       // before any was measured
	patchBytes  = 4 << 20  // what is outstanding should come to
	patchMember = 64 << 10 // bytes of a member that a patch may have (the format's limit)
)

// dirtyKey is a key of which only some fields or members are read again.
type dirtyKey struct {
	at     place
	typ    snapshot.KeyType // as which it was pushed
	fields []string
}

// patchAsk is one command and what comes behind it.
type patchAsk struct {
	key    *dirtyKey
	fields []string
	last   bool // the count and the expiry follow
}

// patchReader reads the fields of many keys in one pipeline, with the count
// and the expiry of each key behind them. Asked for in this order, a key that
// is there at the end has been there at the beginning, or was written since,
// and comes again.
type patchReader struct {
	*cutReader
	buf   *patchBuffer
	keep  func(at place, e *buffered) error // takes what was read of a key
	whole func(at place)                    // told of keys that must be read whole
	ahead int                               // fields to have outstanding
	cost  int64                             // bytes of a field, as measured

	asks  queue[patchAsk]
	open  int // fields outstanding
	patch *buffered
	found int
	bad   bool // the open key must be read whole
}

// commands are how fields and counts of a type are asked for.
var patchCommands = map[snapshot.KeyType][2]string{
	snapshot.TypeHash: {"HMGET", "HLEN"},
	snapshot.TypeSet:  {"SMISMEMBER", "SCARD"},
	snapshot.TypeZSet: {"ZMSCORE", "ZCARD"},
}

// patchable reports whether a key of that type can be read in part.
func patchable(t snapshot.KeyType) bool { return patchCommands[t][0] != "" }

// read reads all keys into the buffer. No reply is outstanding before and
// after.
func (p *patchReader) read(keys []dirtyKey) error {
	p.ahead = max(p.ahead, patchFirst)
	next, from := 0, 0
	for next < len(keys) || p.asks.len() > 0 {
		// Refilled by halves, so that the server is asked in large packets.
		sent, low := false, p.open <= p.ahead/2
		for low && next < len(keys) && (p.open < p.ahead || p.asks.len() == 0) {
			k := &keys[next]
			to := min(from+patchFields, len(k.fields))
			ask := patchAsk{key: k, fields: k.fields[from:to], last: to == len(k.fields)}
			if err := p.send(ask); err != nil {
				return p.failed(k, err)
			}
			sent = true
			if from = to; ask.last {
				next, from = next+1, 0
			}
		}
		if sent {
			if err := p.conn.Flush(); err != nil {
				return p.failed(p.asks.front().key, err)
			}
		}
		if err := p.check(); err != nil {
			return err
		}
		ask := p.asks.pop()
		if err := p.take(ask); err != nil {
			return p.failed(ask.key, err)
		}
	}
	return nil
}

func (p *patchReader) failed(k *dirtyKey, err error) error {
	return p.keyFailed(&keyInfo{name: []byte(k.at.name), typ: k.typ}, err)
}

func (p *patchReader) send(ask patchAsk) error {
	p.asks.push(ask)
	p.open += len(ask.fields) + 2
	k := ask.key
	name := []byte(k.at.name)
	if len(ask.fields) > 0 {
		if err := sendKey(p.conn, name, patchCommands[k.typ][0], ask.fields...); err != nil {
			return err
		}
	}
	if !ask.last {
		return nil
	}
	if err := sendKey(p.conn, name, patchCommands[k.typ][1]); err != nil {
		return err
	}
	return p.askExpiry(name)
}

// askExpiry asks when a key expires; takeExpiry reads the answer.
func (r *cutReader) askExpiry(name []byte) error {
	if r.noExpiry {
		return nil
	}
	if r.exactTTL {
		return sendKey(r.conn, name, "PEXPIRETIME")
	}
	if err := r.conn.Command("TIME"); err != nil {
		return err
	}
	return sendKey(r.conn, name, "PTTL")
}

// take reads the replies to one ask.
func (p *patchReader) take(ask patchAsk) error {
	p.open -= len(ask.fields) + 2
	if p.patch == nil {
		p.patch = &buffered{
			key: snapshot.Key{Section: ask.key.at.section, Op: snapshot.OpPatch, Type: ask.key.typ},
		}
		p.found, p.bad = 0, false
	}
	if len(ask.fields) > 0 {
		p.stream.read = 0
		if err := p.fields(ask); err != nil && !p.wrongType(err) {
			return err
		}
		p.measure(int64(len(ask.fields)))
	}
	if !ask.last {
		return nil
	}
	n, err := p.number()
	if err != nil && !p.wrongType(err) {
		return err
	}
	info := keyInfo{typ: ask.key.typ}
	if err := p.takeExpiry(&info); err != nil {
		return err
	}
	err = p.decide(ask.key, n, info.expireAt)
	p.patch = nil
	return err
}

// wrongType takes a reply that says that the key has another type by now.
func (p *patchReader) wrongType(err error) bool {
	wrong := isReplyCode(err, "WRONGTYPE")
	p.bad = p.bad || wrong
	return wrong
}

// measure learns how much may be asked for at once.
func (p *patchReader) measure(fields int64) {
	cost := max(p.stream.read/fields, 16)
	p.cost = max(cost, p.cost-p.cost/8)
	p.ahead = int(max(1, min(patchBytes/p.cost, int64(2*p.ahead), patchMost)))
}

// fields reads what one command answers.
func (p *patchReader) fields(ask patchAsk) error {
	n, err := p.array()
	if err != nil {
		return err
	}
	if n != int64(len(ask.fields)) {
		return fmt.Errorf("%w: %d answers for %d fields", resp.ErrProtocol, n, len(ask.fields))
	}
	for _, f := range ask.fields {
		el, err := p.field(ask.key.typ, f)
		if err != nil {
			return err
		}
		if !el.removed {
			p.found++
		}
		p.patch.parts.set(f, el)
	}
	return nil
}

// field reads one answer: a value, a score, or whether it is a member.
func (p *patchReader) field(t snapshot.KeyType, name string) (cell, error) {
	h, err := p.conn.Next()
	switch {
	case err != nil:
		return cell{}, err
	case h.Err != nil:
		return cell{}, h.Err
	case t == snapshot.TypeSet && h.Kind == resp.Integer:
		p.bad = p.bad || len(name) > patchMember
		return cell{removed: h.Int == 0}, nil
	case t == snapshot.TypeSet || h.Kind != resp.Bulk:
		return cell{}, fmt.Errorf("%w: %s where a field is due", resp.ErrProtocol, h.Kind)
	case h.Nil():
		p.bad = p.bad || (t == snapshot.TypeZSet && len(name) > patchMember)
		return cell{removed: true}, nil
	}
	p.stream.read += h.Len
	if t == snapshot.TypeZSet {
		p.bad = p.bad || len(name) > patchMember
		return p.scoreBody(h)
	}
	if h.Len > hugeValue {
		p.bad = true
		return cell{}, p.conn.Skip()
	}
	value := make([]byte, h.Len)
	_, err = p.conn.ReadBulk(value)
	return cell{value: value}, err
}

func (p *patchReader) scoreBody(h resp.Header) (cell, error) {
	var digits [64]byte
	if h.Len > int64(len(digits)) {
		return cell{}, fmt.Errorf("%w: score of %d bytes", resp.ErrProtocol, h.Len)
	}
	n, err := p.conn.ReadBulk(digits[:h.Len])
	if err != nil {
		return cell{}, err
	}
	score, err := parseScore(string(digits[:n]))
	return cell{score: score}, err
}

// decide gives on what was read of a key, or has it read whole.
func (p *patchReader) decide(k *dirtyKey, count, expireAt int64) error {
	old := p.buf.keys[k.at]
	e := p.patch
	e.key.Count, e.key.ExpireAt = uint64(count), expireAt
	switch {
	case p.bad:
		p.whole(k.at)
		return nil
	case count == 0 || expireAt == goneAlready:
		return p.keep(k.at, &buffered{key: snapshot.Key{Section: k.at.section}})
	case p.found == int(count) && !p.loose:
		// All that it has was asked for. While writers run this would prove
		// nothing: the count is of another moment.
		e.key.Op = snapshot.OpWhole
		e.parts.purge()
	case p.loose && 2*len(k.fields) > int(count) && (old == nil || !old.whole()):
		p.whole(k.at)
		return nil
	}
	return p.keep(k.at, e)
}

// speed is how long the reading of one field took, or of one key; zero when
// nothing was measured yet.
type speed struct {
	took time.Duration
	n    int64
}

func (s *speed) add(took time.Duration, n int) {
	if n > 0 {
		s.took, s.n = s.took+took, s.n+int64(n)
	}
}

// of estimates how long n more take.
func (s *speed) of(n int, guess time.Duration) time.Duration {
	each := guess
	if s.n > 0 {
		each = s.took / time.Duration(s.n)
	}
	return each * time.Duration(n)
}
