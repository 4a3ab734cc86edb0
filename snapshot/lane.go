package snapshot

import (
	"context"
	"errors"
	"fmt"
)

// lane reads the keys of one layer one after the other, as a merger asks for
// them. It stands at a key: its head is read, its elements aren't.
type lane struct {
	*reader
	feed feed
	at   placed // the chunk that is being read
	live bool   // it stands at a key; otherwise its section has ended
}

func newLane(m *Manifest, layer int, src ChunkSource, wants func(Section) bool) *lane {
	return &lane{reader: newReader(m, layer, nil), feed: feed{src: src, all: placedOf(m, layer, wants)}}
}

// enter goes to the first key of a section.
func (l *lane) enter(ctx context.Context, s Section, sorted bool) error {
	l.begin(sorted)
	l.section, l.c, l.at = s, cursor{}, placed{}
	return l.advance(ctx)
}

// advance goes to the next key of the section; the one before has ended.
func (l *lane) advance(ctx context.Context) error {
	l.live = false
	if ok, err := l.ready(ctx); err != nil || !ok {
		return err
	}
	if err := l.next(); err != nil {
		return l.failed(err)
	}
	l.live = true // any other frame but a key's is an error here
	return nil
}

// ready makes sure that there is a frame to read, and says when the section
// has ended instead.
func (l *lane) ready(ctx context.Context) (bool, error) {
	if l.c.more() {
		return true, nil
	}
	p, ok := l.feed.peek()
	if !ok || p.ref.Section != l.section {
		if err := l.finish(); err != nil {
			return false, l.at.error(l.reader, -1, err)
		}
		return false, nil
	}
	var got fetched
	l.at, got = l.feed.next(ctx)
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if got.err != nil {
		return false, l.at.unread(got.err)
	}
	if err := l.load(l.section, got.opened); err != nil {
		return false, l.failed(err)
	}
	return true, nil
}

// drain reads the elements and the end of the key at which it stands. They go
// to sink, nil for nowhere.
func (l *lane) drain(ctx context.Context, sink Sink) error {
	l.sink = sink
	defer func() { l.sink = nil }()
	for l.tr.open {
		if !l.c.more() {
			if ok, err := l.ready(ctx); err != nil {
				return err
			} else if !ok {
				return fmt.Errorf("section %s ended inside a key and nobody noticed", l.section)
			}
		}
		if err := l.next(); err != nil {
			return l.failed(err)
		}
	}
	return nil
}

// failed says which chunk an error is about, unless it says so itself.
func (l *lane) failed(err error) error {
	var s sinkError
	var c *ChunkError
	if errors.As(err, &s) || errors.As(err, &c) {
		return err
	}
	return l.at.error(l.reader, l.frame, err)
}
