package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
	"keyframe/statebackend/redis/track"
)

// When rounds end.
const (
	roundsMost = 12  // rounds at most
	marksFew   = 32  // marks that no further round would make fewer
	marksGood  = 500 // marks that are few when a round no longer halves them
	hotMost    = 10  // keys that are named
	layersMost = 24  // layers that rounds make: a checkpoint has a bounded number
)

// converge reads what was written again and again, until what is left is
// little, or no longer becomes less. It enters the pause's gate, and gives the
// marks that are left. leave is never nil then.
func (c *precopyCut) converge(ctx context.Context) (leave func(), left track.Marks, err error) {
	// The first round is the longest: others may have the gate meanwhile.
	if left, err = c.take(); err != nil {
		return nil, left, err
	}
	if weight(left) > marksGood || c.estimate(left) > c.maxStall()/4 {
		if err := c.round(left); err != nil {
			return nil, left, err
		}
		left = track.Marks{}
	}
	if leave, err = c.b.enterPauseGate(ctx); err != nil {
		return nil, left, err
	}
	if err := c.preparePause(ctx); err != nil {
		return leave, left, err
	}
	for last := time.Duration(0); ; {
		m, err := c.take()
		if err != nil {
			return leave, m, err
		}
		left = mergeMarks(left, m)
		need := c.estimate(left)
		if c.rounds >= roundsMost || c.out.layers >= layersMost || c.enough(weight(left), need, last) && !c.unknown(left) {
			return leave, left, c.decide(left, 0)
		}
		last = need
		if err := c.round(left); err != nil {
			return leave, left, err
		}
		left = track.Marks{}
	}
}

// preparePause opens what the pause needs, so that nothing is dialled inside
// it.
func (c *precopyCut) preparePause(ctx context.Context) (err error) {
	// A link that broke and is taken up again costs nobody a stall.
	short, cancel := context.WithTimeout(ctx, barrierPatience)
	defer cancel()
	if err := c.f.tracker.Attached(short); err != nil && ctx.Err() == nil {
		return &trackingError{whyNot(c.f.level, err)}
	}
	if c.side, err = c.b.dial(ctx); err != nil {
		return err
	}
	c.pause, err = c.b.newPause(ctx, c.req, c.info)
	return err
}

// indexConn is a connection for walks over the index beside other reads.
func (c *precopyCut) indexConn() (*resp.Conn, error) {
	if c.walk == nil {
		conn, err := c.reader.open()
		if err != nil {
			return nil, err
		}
		c.walk = conn
	}
	return c.walk, nil
}

// enough reports whether n marks, which need that long to read, may be left to
// the pause. last is what was left before; 0 for nothing.
func (c *precopyCut) enough(n int, need, last time.Duration) bool {
	short := need <= c.maxStall()/4
	switch {
	case n <= marksFew && short:
		return true
	case last == 0 || need <= last/2:
		return false // a round makes it less
	}
	return n <= marksGood && short || need >= last-last/8
}

func (c *precopyCut) maxStall() time.Duration {
	if c.req.MaxStall > 0 {
		return c.req.MaxStall
	}
	return statebackend.DefaultMaxStall
}

// round reads marks again while writers run.
func (c *precopyCut) round(m track.Marks) error {
	c.rounds++
	var err error
	if c.reader.noExpiry, err = askNoExpiry(c.conn, c.b.addr.db); err != nil {
		return c.b.mapError(err, "ask what expires")
	}
	return c.redo(m)
}

// redo reads what the marks name, into the buffer, and what is too large for
// it into layers of its own.
func (c *precopyCut) redo(m track.Marks) error {
	c.large = nil
	p := &planner{job: c.req.Job, roster: c.roster}
	p.plan(m)
	if p.work.rescan {
		if err := c.rescan(p); err != nil {
			return err
		}
	}
	if err := c.reader.askIndex(p.ask, p.listed); err != nil {
		return err
	}
	return c.do(&p.work)
}

// do reads planned work.
func (c *precopyCut) do(w *rework) error {
	for _, name := range w.gone {
		section := statebackend.Classify(c.req.Job, []byte(name))
		k := snapshot.Key{Section: section, Op: snapshot.OpGone}
		c.buf.put(place{section, name}, &buffered{key: k})
		c.roster.note(k, []byte(name))
	}
	began := time.Now()
	c.givenUp = nil
	short, n := c.shortPatches(w.patches)
	c.streaming = false
	if err := c.patches.read(short); err != nil {
		return err
	}
	c.costs.fields.add(time.Since(began), n)
	// Patches that had to be given up are read whole with the others.
	for _, at := range c.givenUp {
		w.wholes = append(w.wholes, keyInfo{name: []byte(at.name), section: at.section})
	}
	c.streaming = false
	if err := c.wholes(w.wholes); err != nil {
		return err
	}
	return c.larges()
}

// patchPiece is up to how many fields of one key are kept together. A variable
// for tests.
var patchPiece = 8192

// shortPatches sorts the patches, leaves those with very many fields to larges,
// and gives the others with the number of their fields.
func (c *precopyCut) shortPatches(all []dirtyKey) (short []dirtyKey, n int) {
	sortNames(all, func(k dirtyKey) []byte { return []byte(k.at.name) })
	for i := range all {
		k := &all[i]
		if len(k.fields) > patchPiece {
			c.large = append(c.large, largeKey{place: k.at, patch: k})
			continue
		}
		short, n = append(short, *k), n+len(k.fields)+2
	}
	return short, n
}

// comparePlaces is the order of a layer; names of two sections go side by side.
func comparePlaces(a, b place) int {
	return cmp.Or(snapshot.CompareNames([]byte(a.name), []byte(b.name)), cmp.Compare(a.section, b.section))
}

// wholes reads keys whole into the buffer. The large ones are left.
func (c *precopyCut) wholes(keys []keyInfo) error {
	if len(keys) == 0 {
		return nil
	}
	at := func(k keyInfo) place { return place{k.section, string(k.name)} }
	slices.SortFunc(keys, func(a, b keyInfo) int { return comparePlaces(at(a), at(b)) })
	keys = slices.CompactFunc(keys, func(a, b keyInfo) bool { return at(a) == at(b) })
	for i := range keys {
		if name := string(keys[i].name); keys[i].section != snapshot.SectionMeta && !strings.HasPrefix(name, c.req.Job.Root()+":") {
			c.foreign(name)
		}
	}
	if err := c.watchForeign(); err != nil {
		return err
	}
	c.costs.known = make(map[string]bool, len(keys))
	for i := range keys {
		c.costs.known[string(keys[i].name)] = true
	}
	began := time.Now()
	c.into(&collector{keep: c.keep, large: func(at place) { c.addLarge(at, 0) }})
	c.reader.large = func(k *keyInfo) { c.addLarge(at(*k), k.size) }
	err := c.reader.keys(&keyList{left: keys})
	c.reader.large = nil
	c.costs.wholes.add(time.Since(began), len(keys))
	return err
}

func (c *precopyCut) addLarge(at place, size int64) {
	c.large = append(c.large, largeKey{place: at, size: size})
}

// larges reads the keys that are too large for the buffer into a layer.
func (c *precopyCut) larges() error {
	if len(c.large) == 0 {
		return nil
	}
	slices.SortFunc(c.large, func(a, b largeKey) int { return comparePlaces(a.place, b.place) })
	c.large = slices.CompactFunc(c.large, func(a, b largeKey) bool { return a.place == b.place })
	if err := c.decideLarge(); err != nil {
		return err
	}
	for _, k := range c.large {
		if k.patch == nil {
			c.buf.drop(k.place) // it is older
		} else if c.buf.keys[k.place] != nil {
			if err := c.flush(); err != nil { // it goes below the patch
				return err
			}
		}
	}
	if err := c.out.NextLayer(); err != nil {
		return err
	}
	c.out.loose = !c.strict
	c.into(c.out)
	for _, k := range c.large {
		began, before := time.Now(), c.out.elements
		if err := c.readLarge(k); err != nil {
			return err
		}
		c.costs.slowly(k.name, slowKey{time.Since(began), c.out.elements - before})
	}
	c.large = nil
	return nil
}

func (c *precopyCut) readLarge(k largeKey) error {
	if k.patch != nil {
		return c.patches.long(k.patch, c.out)
	}
	return c.reader.keys(&keyList{left: []keyInfo{{name: []byte(k.name), section: k.section}}})
}

// rescan walks over the whole index, for the names that came and went: the
// marks don't tell them.
func (c *precopyCut) rescan(p *planner) error {
	c.streaming = false // from one range to the next the order goes on
	gone, err := c.walkIndex(func(fresh []keyInfo) error { return c.wholes(fresh) })
	if err != nil {
		return err
	}
	p.forget(gone)
	return nil
}

// walkIndex tells names that are new, range by range (nil for nobody), and gives
// those that are gone.
func (c *precopyCut) walkIndex(fn func(fresh []keyInfo) error) (gone []string, err error) {
	if c.roster.blind {
		return nil, &trackingError{fmt.Sprintf("the index changed, and it has more than %d names: only tracking by fields tells which", rosterMost)}
	}
	conn, err := c.indexConn()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	var seen []uint64
	err = c.eachRange(&stream{conn: conn, check: c.reader.check}, func(arena *nameArena) error {
		var fresh []keyInfo
		for i := range arena.names {
			name := arena.name(i)
			seen = append(seen, arena.names[i].hash)
			if _, ok := c.roster.get(name); !ok {
				fresh = append(fresh, keyInfo{name: slices.Clone(name), section: statebackend.Classify(c.req.Job, name)})
			}
		}
		if fn == nil {
			return nil
		}
		return fn(fresh)
	})
	c.costs.scan = time.Since(began)
	if err != nil {
		return nil, err
	}
	gone, known := c.roster.missingFrom(seen)
	if !known {
		return nil, &trackingError{fmt.Sprintf("%d names have left the index, and which they were is not known: the names take more than %d bytes, or are not kept", len(gone), rosterNames)}
	}
	return gone, nil
}

// keyList are keys that are to be read, in that order.
type keyList struct{ left []keyInfo }

var _ nameSource = (*keyList)(nil)

func (l *keyList) next(limit int) ([]keyInfo, error) {
	batch := l.left[:min(limit, len(l.left))]
	l.left = l.left[len(batch):]
	return batch, nil
}

// unexplained is the error of keys that changed without being marked.
func (c *precopyCut) unexplained() error {
	for at := range c.odd {
		return &statebackend.KeyError{Key: []byte(at.name), Op: "read", Err: errors.Join(
			fmt.Errorf("%w while it was read, and no write of it was told of: tracking missed one (%d such keys)", statebackend.ErrChanged, len(c.odd)))}
	}
	return nil
}

// into makes the reader push into a sink.
func (c *precopyCut) into(sink snapshot.Sink) {
	c.reader.sink = sink
	c.reader.second = nil // it pushes into the one before
}
