package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
)

// merger reads several layers side by side and pushes what they are together.
type merger struct {
	m      *Manifest
	from   int // the lowest layer that is read, 0 for the base
	out    Sink
	fail   func(error) error // as a walker's, for keys whose frames are sound
	lanes  []*lane           // oldest first
	chain  []*lane           // those that stand at the key in hand, newest first
	filter filter
	totals sectionTotals // of what is pushed
}

// newMerger merges the layers of m from the given one up. Over a layer that
// isn't read patches stay patches.
func newMerger(m *Manifest, from int, out Sink, fail func(error) error) *merger {
	if out == nil {
		out = nowhere{}
	}
	return &merger{m: m, from: from, out: out, fail: fail, totals: newTotals()}
}

func (g *merger) walk(ctx context.Context, src ChunkSource, wants func(Section) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for _, l := range g.lanes {
			l.feed.stop()
		}
	}()
	for i := g.from; i <= len(g.m.Layers); i++ {
		l := newLane(g.m, i, src, wants)
		l.mismatch = g.mismatch(l)
		l.feed.start(ctx)
		g.lanes = append(g.lanes, l)
	}
	for s := SectionKeyed; s <= SectionSource; s++ {
		if !wants(s) {
			continue
		}
		if err := g.section(ctx, s); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("walk checkpoint %d: %w", g.m.Checkpoint.ID, err)
			}
			return err
		}
	}
	return nil
}

// mismatch takes what is wrong with one key of a layer. Keys out of order can't
// be merged.
func (g *merger) mismatch(l *lane) func(int, error) error {
	return func(offset int, err error) error {
		if errors.Is(err, errOrder) {
			return err
		}
		return g.fail(l.at.error(l.reader, offset, err))
	}
}

func (g *merger) section(ctx context.Context, s Section) error {
	sorted := g.m.sorts(s)
	for _, l := range g.lanes {
		if err := l.enter(ctx, s, sorted); err != nil {
			return err
		}
	}
	for g.pick() {
		if err := g.key(ctx); err != nil {
			return err
		}
		for _, l := range g.chain {
			if l.tr.open { // superseded
				if err := l.drain(ctx, nil); err != nil {
					return err
				}
			}
			if err := l.advance(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// pick finds the next key and all lanes that stand at it.
func (g *merger) pick() bool {
	g.chain = g.chain[:0]
	for i := len(g.lanes) - 1; i >= 0; i-- {
		l := g.lanes[i]
		if !l.live {
			continue
		}
		c := 0
		if len(g.chain) > 0 {
			first := g.chain[0]
			c = cmp.Compare(l.order.hash, first.order.hash)
			if c == 0 {
				c = bytes.Compare(l.tr.key.Name, first.tr.key.Name)
			}
		}
		if c < 0 {
			g.chain = g.chain[:0]
		}
		if c <= 0 {
			g.chain = append(g.chain, l)
		}
	}
	return len(g.chain) > 0
}

// key pushes the key at which the lanes of the chain stand.
func (g *merger) key(ctx context.Context) error {
	newest := g.chain[0]
	switch {
	case newest.tr.key.Op == OpPatch:
		return g.patched(ctx)
	case newest.tr.key.Op == OpGone && g.from == 0:
		return nil
	}
	newest.tr.key.Loose = false // nothing is over it: its count must be true
	k := newest.tr.key
	if err := g.out.BeginKey(k); err != nil {
		return sinkError{err}
	}
	if err := newest.drain(ctx, g.out); err != nil {
		return err
	}
	g.totals[k.Section].add(&newest.tr, newest.ended)
	return nil
}

// patched pushes a key whose newest record is a patch: the newest record of
// each element wins.
func (g *merger) patched(ctx context.Context) error {
	k := g.chain[0].tr.key
	depth, whole, err := g.depth()
	if err != nil {
		return g.wrong(err)
	}
	if k.Loose = false; whole {
		k.Op = OpWhole
	}
	if err := g.out.BeginKey(k); err != nil {
		return sinkError{err}
	}
	f := &g.filter
	f.begin(g.out, !whole, g.wrong)
	for i, l := range g.chain[:depth] {
		f.record(l, i)
		if err := l.drain(ctx, f); err != nil {
			return err
		}
		if i == 0 && l.ended.Expired {
			break // what was read of it is all that is left of it
		}
		if l.ended.Expired {
			if err := g.wrong(errors.New("a patch over a key that expired while it was being read")); err != nil {
				return err
			}
		}
	}
	return g.merged(k)
}

// merged ends a key that was put together.
func (g *merger) merged(k Key) error {
	f := &g.filter
	end := KeyEnd{Count: f.count, Digest: f.sum, Expired: g.chain[0].ended.Expired}
	if k.Op == OpWhole && !end.Expired && end.Count != k.Count {
		if err := g.wrong(fmt.Errorf("%d elements with all layers, the newest says %d", end.Count, k.Count)); err != nil {
			return err
		}
	}
	if err := g.out.EndKey(end); err != nil {
		return sinkError{err}
	}
	t := &g.totals[k.Section]
	t.Keys++
	t.Elements += end.Count
	t.Bytes += uint64(len(k.Name)) + f.bytes
	if end.Expired {
		t.Expired++
	}
	return nil
}

// depth says how many records of the chain make the key, and whether the last
// of them is whole.
func (g *merger) depth() (n int, whole bool, err error) {
	k := g.chain[0].tr.key
	for i, l := range g.chain[1:] {
		under := l.tr.key
		switch {
		case under.Op == OpGone:
			return 0, false, errors.New("a patch over a key that is gone")
		case under.Type != k.Type:
			return 0, false, fmt.Errorf("a patch of a %s over a %s", k.Type, under.Type)
		case under.Op == OpWhole:
			return i + 2, true, nil
		}
	}
	if g.from == 0 {
		return 0, false, errors.New("a patch, but no older layer has the key")
	}
	return len(g.chain), false, nil
}

// wrong fails for the key in hand: what its layers say doesn't fit together.
func (g *merger) wrong(err error) error {
	l := g.chain[0]
	e := l.at.error(l.reader, -1, &inKey{name: keep(l.tr.key.Name), err: err})
	e.merging = true
	return g.fail(e)
}

// nowhere is a sink that takes everything.
type nowhere struct{}

var _ Sink = nowhere{}

// BeginKey does nothing.
func (nowhere) BeginKey(Key) error { return nil }

// Element does nothing.
func (nowhere) Element(Element) error { return nil }

// Part does nothing.
func (nowhere) Part([]byte) error { return nil }

// EndKey does nothing.
func (nowhere) EndKey(KeyEnd) error { return nil }
