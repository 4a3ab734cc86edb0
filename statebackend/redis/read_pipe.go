package redis

import (
	"errors"

	"keyframe/snapshot"
	"keyframe/statebackend/redis/resp"
)

// wholeLimit is up to how many bytes a key is read by one reply: about 1 ms of
// the server. A variable for tests.
var wholeLimit int64 = 256 << 10

// Bounds of what is asked for ahead of its use.
const (
	contentBytes = 4 << 20 // of contents that are outstanding, as the server measures them
	askedMost    = 4096    // replies outstanding
	infosMost    = 1024    // of these, about what a key is; and keys that wait to be read
	namesMost    = 1024    // names that wait to be asked about
)

// queue is first in, first out.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) len() int { return len(q.items) - q.head }

func (q *queue[T]) push(item T) { q.items = append(q.items, item) }

func (q *queue[T]) front() T { return q.items[q.head] }

func (q *queue[T]) pop() T {
	var none T
	item := q.items[q.head]
	q.items[q.head] = none
	q.head++
	if q.head > 64 && q.head > len(q.items)/2 {
		q.items = q.items[:copy(q.items, q.items[q.head:])]
		q.head = 0
	}
	return item
}

// plan says how a key is read.
type plan uint8

const (
	planAsk    plan = iota // first ask what it is
	planNone               // there is no key: nothing is read
	planGone               // its expiry has passed since it was listed
	planWhole              // by one reply
	planReady              // will be planDirect when the keys before it are known
	planDirect             // by one reply, of which the command bounds the elements
	planPaged              // page by page, when no reply is outstanding
)

// keyPipe reads keys over one connection, with the questions what keys are and
// the contents of small ones all in one pipeline. The keys are pushed in the
// order in which the source gave them: a large one, which is read page by page,
// waits until what was asked before it has come.
type keyPipe struct {
	*cutReader
	names  nameSource
	reuses reusingSource   // names, if it is one
	done   int             // keys that were pushed, in the order of the source
	ended  bool            // the source has no more
	asked  queue[*keyInfo] // outstanding, by plan; planNone and planGone need no reply
	known  queue[*keyInfo] // to be read
	batch  []keyInfo       // to be asked about
	infos  int             // outstanding, and keys behind them that wait for them
	direct int             // outstanding contents whose size was not asked for
	bytes  int64           // of contents outstanding
	refill int             // when so few are outstanding, ask for more
	taken  int             // replies, for looking at the clock now and then
}

// keys pushes all keys that names gives, in that order. No reply may be
// outstanding on the reader's connection, and none is afterwards, unless there
// is an error.
func (r *cutReader) keys(names nameSource) error {
	if r.types == nil {
		r.types = guesses{}
	}
	p := &keyPipe{cutReader: r, names: names}
	if r.large == nil { // large keys would leave the order
		p.reuses, _ = names.(reusingSource)
	}
	for {
		if err := p.fetch(); err != nil {
			return err
		}
		if err := p.ask(); err != nil {
			return err
		}
		switch {
		case p.asked.len() > 0:
			if err := p.take(); err != nil {
				return err
			}
		case p.known.len() > 0: // a large one, or ask would have asked for it
			k := p.known.pop()
			if err := r.keyFailed(k, r.takePaged(k)); err != nil {
				return err
			}
			p.done++
		case p.ended && len(p.batch) == 0:
			return nil
		}
	}
}

// fetch gets names when they run out.
func (p *keyPipe) fetch() error {
	if p.ended || len(p.batch) > 0 || p.known.len() >= infosMost {
		return nil
	}
	if p.reuses != nil {
		p.reuses.read(p.done)
	}
	batch, err := p.names.next(namesMost)
	p.batch, p.ended = batch, len(batch) == 0
	return err
}

// ask sends as much as the bounds allow, contents first: they free memory.
func (p *keyPipe) ask() error {
	if p.asked.len() > p.refill {
		return nil
	}
	before := p.asked.len()
	if err := p.askContents(); err != nil {
		return err
	}
	if err := p.askInfos(); err != nil {
		return err
	}
	if err := p.askContents(); err != nil {
		return err
	}
	if p.asked.len() == before {
		return nil
	}
	p.refill = p.asked.len() / 2
	return p.keyFailed(p.asked.front(), p.conn.Flush())
}

// askInfos asks what the next keys are, as far as that has to be known.
func (p *keyPipe) askInfos() error {
	for len(p.batch) > 0 && p.infos < infosMost && p.known.len() < infosMost {
		if p.known.len() > 0 && p.known.front().plan == planPaged {
			return nil
		}
		k := &p.batch[0]
		p.batch = p.batch[1:]
		if p.readsDirectly(k) {
			// Keys stay in their order: it waits for those whose kind is asked for.
			if p.infos == 0 {
				k.plan = planDirect
				p.known.push(k)
				continue
			}
			k.plan = planReady
		} else if err := p.askInfo(k); err != nil {
			return p.keyFailed(k, err)
		}
		p.infos++
		p.asked.push(k)
	}
	return nil
}

// askContents asks for the contents of the keys that are known, up to the first
// large one.
func (p *keyPipe) askContents() error {
	for p.known.len() > 0 && p.asked.len() < askedMost {
		k := p.known.front()
		content := k.plan == planWhole || k.plan == planDirect
		switch {
		case k.plan == planPaged,
			content && p.bytes > 0 && p.bytes+k.size > contentBytes,
			k.plan == planDirect && p.direct >= directMost:
			return nil
		}
		p.asked.push(p.known.pop())
		if !content {
			continue
		}
		p.bytes += k.size
		var err error
		if k.plan == planDirect {
			p.direct++
			err = p.askDirect(k)
		} else {
			err = p.askWhole(k)
		}
		if err != nil {
			return p.keyFailed(k, err)
		}
	}
	return nil
}

// takesPerCheck is how many replies are taken between looks at the clock; those
// with many elements look by themselves.
const takesPerCheck = 32

// take reads the reply that is next.
func (p *keyPipe) take() error {
	if p.taken++; p.taken%takesPerCheck == 0 {
		if err := p.check(); err != nil {
			return err
		}
	}
	k := p.asked.pop()
	switch k.plan {
	case planAsk:
		p.infos--
		if err := p.sortOut(k); err != nil {
			return p.keyFailed(k, err)
		}
		if k.plan == planPaged && p.large != nil {
			p.large(k)
			return nil
		}
		p.known.push(k)
		return nil
	case planReady:
		p.infos--
		k.plan = planDirect
		p.known.push(k)
		return nil
	}
	p.done++ // or it is the last one, with an error
	switch k.plan {
	case planNone:
		return p.keyFailed(k, p.missing(k))
	case planGone:
		return p.keyFailed(k, p.vanished(k))
	case planDirect:
		p.bytes -= k.size
		p.direct--
		return p.keyFailed(k, p.takeDirect(k))
	}
	p.bytes -= k.size
	return p.keyFailed(k, p.takeWhole(k))
}

// sortOut reads what a key is, and decides how it is read.
func (r *cutReader) sortOut(k *keyInfo) error {
	if err := r.takeInfo(k); err != nil {
		return err
	}
	switch {
	case k.typ == snapshot.TypeMissing:
		k.plan = planNone
	case k.expireAt == goneAlready:
		k.plan = planGone
	case k.size <= wholeLimit || k.typ == snapshot.TypeOpaque:
		k.plan = planWhole
	default:
		k.plan = planPaged
	}
	return nil
}

// isReplyCode is for errors of one key's reply, after which the connection
// goes on.
func isReplyCode(err error, code string) bool {
	var e *resp.Error
	return errors.As(err, &e) && e.Code == code
}
