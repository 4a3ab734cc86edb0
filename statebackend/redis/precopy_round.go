package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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
)

// guesses of what reading costs, before any was measured.
const (
	guessField = 4 * time.Microsecond
	guessWhole = 60 * time.Microsecond
	guessPause = 500 * time.Microsecond // the pause itself, with nothing to read
)

// costs are measured in the rounds, to know what the last reads will take.
type costs struct {
	fields speed
	wholes speed
	scan   time.Duration // the last walk over the index
	slow   map[string]slowKey
}

// slowKey is a key that took a read of its own.
type slowKey struct {
	took     time.Duration
	elements int64
}

// slowMost bounds how many are remembered.
const slowMost = 4096

// estimate is how long the marks would take inside the pause.
func (c *precopyCut) estimate(m track.Marks) time.Duration {
	all, fields, wholes := time.Duration(0), 0, 0
	for name, k := range m.Keys {
		slow, isSlow := c.costs.slow[name]
		t, listed := c.roster.get([]byte(name))
		_, isMeta := c.roster.meta[name]
		switch {
		case name == c.req.Job.Index() && k.Whole:
			all += c.costs.scan
		case name == c.req.Job.Index():
			wholes += len(k.Fields)
		case !listed && !isMeta && !c.roster.blind:
		case !k.Whole && (isMeta || patchable(t)):
			fields += len(k.Fields) + 2
		case isSlow:
			all += slow.took
		default:
			wholes++
		}
	}
	return all + c.costs.fields.of(fields, guessField) + c.costs.wholes.of(wholes, guessWhole)
}

// weight is how many marks there are: keys, and fields among them.
func weight(m track.Marks) (n int) {
	for _, k := range m.Keys {
		n += 1 + len(k.Fields)
	}
	return n
}

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
		left.Merge(m)
		need := c.estimate(left)
		if c.rounds >= roundsMost || c.enough(weight(left), need, last) {
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

// decide holds what the last reads will take against what is allowed. held is
// how long writers have been held already.
func (c *precopyCut) decide(left track.Marks, held time.Duration) error {
	need := held + guessPause + c.estimate(left)
	if need <= c.maxStall() {
		return nil
	}
	c.hot = c.hottest(left)
	if c.req.OnStall != statebackend.StallFail {
		return nil
	}
	var names []string
	for _, h := range c.hot {
		names = append(names, fmt.Sprintf("%s (%d elements)", strconv.Quote(h.Key), h.Elements))
	}
	return fmt.Errorf("%w: after %d rounds what was written meanwhile still takes about %v to read, and writers may be held for %v: "+
		"allow more (maxStall), let the checkpoint wait (onStall), or write less to %s", statebackend.ErrStall,
		c.rounds, need.Round(100*time.Microsecond), c.maxStall(), strings.Join(names, ", "))
}

// hottest names the keys that are most of what is left to read.
func (c *precopyCut) hottest(left track.Marks) []snapshot.HotKey {
	var all []snapshot.HotKey
	for name, k := range left.Keys {
		_, listed := c.roster.get([]byte(name))
		if _, isMeta := c.roster.meta[name]; !listed && !isMeta && !c.roster.blind && name != c.req.Job.Index() {
			continue
		}
		n := uint64(len(k.Fields))
		if k.Whole {
			n = max(1, uint64(c.costs.slow[name].elements))
			for _, s := range []snapshot.Section{snapshot.SectionKeyed, snapshot.SectionOperator, snapshot.SectionMeta} {
				if e := c.buf.keys[place{s, name}]; e != nil {
					n = max(n, uint64(len(e.list)+len(e.parts)))
				}
			}
		}
		all = append(all, snapshot.HotKey{Key: name, Elements: n})
	}
	slices.SortFunc(all, func(a, b snapshot.HotKey) int {
		return cmp.Or(cmp.Compare(b.Elements, a.Elements), cmp.Compare(a.Key, b.Key))
	})
	return all[:min(len(all), hotMost)]
}

// round reads marks again while writers run.
func (c *precopyCut) round(m track.Marks) error {
	c.rounds++
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
	if err := c.patches.read(split(w.patches)); err != nil {
		return err
	}
	n := 0
	for i := range w.patches {
		n += len(w.patches[i].fields) + 2
	}
	c.costs.fields.add(time.Since(began), n)
	// Patches that had to be given up are read whole with the others.
	for _, at := range c.givenUp {
		w.wholes = append(w.wholes, keyInfo{name: []byte(at.name), section: at.section})
	}
	if err := c.wholes(w.wholes); err != nil {
		return err
	}
	return c.larges()
}

// patchPiece is up to how many fields of one key are read and kept together.
const patchPiece = 8192

// split cuts keys with very many fields into pieces.
func split(keys []dirtyKey) []dirtyKey {
	var out []dirtyKey
	for _, k := range keys {
		k.total = len(k.fields)
		for len(k.fields) > patchPiece {
			piece := k
			piece.fields, k.fields = k.fields[:patchPiece], k.fields[patchPiece:]
			out = append(out, piece)
		}
		out = append(out, k)
	}
	return out
}

// wholes reads keys whole into the buffer. The large ones are left.
func (c *precopyCut) wholes(keys []keyInfo) error {
	if len(keys) == 0 {
		return nil
	}
	for i := range keys {
		if name := string(keys[i].name); keys[i].section != snapshot.SectionMeta && !strings.HasPrefix(name, c.req.Job.Root()+":") {
			c.foreign(name)
		}
	}
	if err := c.watchForeign(); err != nil {
		return err
	}
	began := time.Now()
	c.into(&collector{buf: &c.buf, roster: c.roster, large: c.addLarge, room: c.room})
	c.reader.large = func(k *keyInfo) { c.addLarge(place{k.section, string(k.name)}) }
	err := c.reader.keys(&keyList{left: keys})
	c.reader.large = nil
	c.costs.wholes.add(time.Since(began), len(keys))
	return err
}

func (c *precopyCut) addLarge(at place) { c.large = append(c.large, at) }

// room pushes the buffer as a layer when it is full. Keys of it may have been
// written since: it is loose, and they come again.
func (c *precopyCut) room() error {
	if c.buf.size <= bufferBytes {
		return nil
	}
	c.out.loose = true
	return c.buf.flush(c.out, true)
}

// larges reads the keys that are too large for the buffer into a layer.
func (c *precopyCut) larges() error {
	if len(c.large) == 0 {
		return nil
	}
	slices.SortFunc(c.large, func(a, b place) int {
		return cmp.Or(snapshot.CompareNames([]byte(a.name), []byte(b.name)), cmp.Compare(a.section, b.section))
	})
	c.large = slices.Compact(c.large)
	if err := c.out.NextLayer(); err != nil {
		return err
	}
	c.out.loose = !c.strict
	c.into(c.out)
	for _, at := range c.large {
		// What lies in the buffer is older.
		c.buf.drop(at)
		began, before := time.Now(), c.out.elements
		if err := c.reader.keys(&keyList{left: []keyInfo{{name: []byte(at.name), section: at.section}}}); err != nil {
			return err
		}
		if len(c.costs.slow) < slowMost {
			if c.costs.slow == nil {
				c.costs.slow = map[string]slowKey{}
			}
			c.costs.slow[at.name] = slowKey{time.Since(began), c.out.elements - before}
		}
	}
	c.large = nil
	return nil
}

// rescan walks over the whole index, for the names that came and went: the
// marks don't tell them.
func (c *precopyCut) rescan(p *planner) error {
	if c.roster.blind {
		return &trackingError{fmt.Sprintf("the index changed, and it has more than %d names: only tracking by fields tells which", rosterMost)}
	}
	conn, err := c.indexConn()
	if err != nil {
		return err
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
		return c.wholes(fresh)
	})
	c.costs.scan = time.Since(began)
	if err != nil {
		return err
	}
	gone, known := c.roster.missingFrom(seen)
	if !known {
		return &trackingError{fmt.Sprintf("%d names have left the index, and which they were is not known: the names take more than %d bytes, or are not kept", len(gone), rosterNames)}
	}
	p.forget(gone)
	return nil
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
}
