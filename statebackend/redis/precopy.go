package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
	"keyframe/statebackend/redis/track"
)

// # Why the cut is a cut
//
// A cut of grade precopy is pushed as layers. The first, the base, is read
// while writers run, and so is wrong in itself: each key in it is of another
// moment. What makes the whole right is this.
//
//  1. The watch is active before the first read. From then on each write that
//     the server executes is marked, sooner or later, by its key and where the
//     tracker can tell by its field or member.
//  2. Take gives the marks and begins anew. What a round reads, it reads after
//     the Take that named it. So a write that is executed after an element was
//     read is marked after that Take, and is in a later one.
//  3. In the pause no write is executed. The server says there how far its
//     stream of writes has come, and Barrier waits until all of that is marked.
//     The Take after it is the last one, and with what it names read inside the
//     pause there is no write that isn't followed by a read of its element.
//  4. Each read gives its element as it was at a moment. So the newest read of
//     each element shows every write to it up to the pause: the layers, newest
//     first, are the state inside the pause.
//
// It holds for what is absent as well. A field that was removed is marked, and
// read as removed. A scan of a large key gives each element that was there all
// the time; one that came or went meanwhile was written after the Take before
// the scan. Lists and strings have no elements of their own: a write of them
// marks the whole key. A name that came into the index or left it is a mark of
// the index, by its name; where only whole keys are tracked the index is walked
// over anew.
//
// A patch changes a key of the layers below, so it has to be of their type. The
// roster knows as what each name was pushed last; a key that isn't known as a
// hash, set or zset is read whole. When a known key changes its type it is
// written as a whole, or emptied first, and then all that it has is marked: a
// command of the old type fails with WRONGTYPE, and the key is read whole.
//
// What makes a patch right also when its key was emptied and filled again, or
// expired in between: all the elements that the layers below have of it were
// removed then, and either the whole key is marked (DEL, expiry, RENAME), or
// each by its name.
//
// That nobody writes inside the pause is proved as for every cut (see pause).
// That the marks are complete is the trackers' to prove, and what can be checked
// here is checked: a key that seemed to change while it was read must be marked
// in the end; a key that was read whole must have as many elements as the server
// counted; the index must have as many names inside the pause as are known.
// What a patch leaves is counted where layers are merged.
//
// A later cut over this one reads the marks since this one's last Take, which
// is inside its pause: nothing lies between the two.

// precopyCut is one cut of grade precopy under way.
type precopyCut struct {
	pausedCut
	f       *follow
	out     *layerOut
	roster  *roster
	at      int // the cut in the chain that this one stands on; -1 for none
	full    string
	buf     patchBuffer
	patches patchReader
	reader  *cutReader
	side    *resp.Conn // for the job's own keys and the sources, inside the pause
	walk    *resp.Conn // for the index; of the reader
	limit   *limiter
	odd     map[place]bool // keys that must be marked in the end
	large   []largeKey     // of the round under way: read into a layer
	givenUp []place        // patches of it that are to be read whole
	strict  bool           // inside the pause
	// streaming: the buffer was full in this round, and keys go straight on.
	streaming bool
	costs     costs
	rounds    int
	last      track.Marks // what was read inside the pause
	elements  int64

	// settle waits for a watch that had to attach anew for the sake of foreign
	// names; called while nothing was read yet.
	settle      func() error
	foreignNew  bool
	foreignSize int
}

// cutPrecopy makes a cut of grade precopy: full, or over an earlier one.
func (b *Backend) cutPrecopy(ctx context.Context, req statebackend.CutRequest, f *follow, sink snapshot.LayerSink) (statebackend.Cut, error) {
	c := newPrecopy(b, req, f, sink)
	defer c.hangUp()
	cut, err := c.run(ctx)
	return cut, c.judge(err)
}

// judge says what an error that only means that tracking failed leads to.
func (c *precopyCut) judge(err error) error {
	if err != nil && errors.Is(err, statebackend.ErrChanged) {
		// What is known may be wrong: the next cut is a full one.
		c.f.drop(err.Error())
	}
	if err == nil || !isTracking(err) {
		return err
	}
	if c.out.pushed {
		return fmt.Errorf("%w: the next attempt begins from the start", err)
	}
	return errors.Join(errFallBack, err)
}

func newPrecopy(b *Backend, req statebackend.CutRequest, f *follow, sink snapshot.LayerSink) *precopyCut {
	c := &precopyCut{pausedCut: pausedCut{b: b, req: req}, f: f, at: -1, odd: map[place]bool{}}
	c.out = &layerOut{LayerSink: sink}
	c.buf.reset()
	return c
}

// errFallBack says that another grade is possible: nothing was pushed yet.
var errFallBack = errors.New("grade precopy is not possible now")

func (c *precopyCut) hangUp() {
	if c.reader != nil {
		c.reader.hangUp()
	}
	if c.side != nil {
		_ = c.side.Close() // everything was read, or the cut has failed
	}
	c.pausedCut.hangUp()
}

func (c *precopyCut) run(ctx context.Context) (statebackend.Cut, error) {
	if err := c.prepare(ctx); err != nil {
		return statebackend.Cut{}, err
	}
	if len(c.lacks) > 0 {
		return statebackend.Cut{}, &trackingError{"reading by fields needs " + strings.Join(c.lacks, " ") + ": grant it with ACL SETUSER"}
	}
	release := c.conn.Bind(ctx)
	defer release()
	if err := c.fewPending(); err != nil {
		return statebackend.Cut{}, err
	}
	if err := c.begin(ctx); err != nil {
		return statebackend.Cut{}, err
	}
	leave, pending, err := c.converge(ctx)
	if leave != nil {
		defer leave()
	}
	if err != nil {
		return statebackend.Cut{}, err
	}
	releaseSide := c.side.Bind(ctx)
	defer releaseSide()
	cut, sources, err := c.underPause(ctx, func(ctx context.Context) error { return c.lastReads(ctx, pending) })
	if err != nil {
		return statebackend.Cut{}, err
	}
	return c.finish(cut, sources)
}

// prepare opens the connections and finds out what would make the cut fail.
func (c *precopyCut) prepare(ctx context.Context) error {
	c.limit = &limiter{ctx: ctx, rate: c.req.MaxReadRate}
	if err := c.look(ctx, c.limit); err != nil {
		return err
	}
	c.reader = &cutReader{
		stream: stream{conn: c.conn, check: func() error { return context.Cause(ctx) }},
		b:      c.b, job: c.req.Job, version: c.info.version, exactTTL: c.exactTTL, bounded: c.bounded,
		loose: true, odd: c.noteOdd,
		dial: func() (*resp.Conn, error) { return c.b.dialLimited(ctx, c.limit) },
	}
	return nil
}

// begin decides whether the cut stands on an earlier one, and reads the base
// when it doesn't.
func (c *precopyCut) begin(ctx context.Context) error {
	// All is no matter here, if the watch follows from now on: then the cut is
	// a full one. What it marked was remembered with the earlier cuts.
	c.f.take()
	if err := c.proveWatch(ctx); err != nil {
		return err
	}
	c.f.take() // what only a question tells, such as a SWAPDB some time ago
	if err := c.choose(); err != nil {
		return err
	}
	c.begins()
	if c.at < 0 {
		c.out.loose = true
		c.settle = func() error { return c.resettle(ctx) }
		return c.base()
	}
	if err := c.out.NextLayer(); err != nil {
		return err
	}
	return c.round(c.f.since(c.at))
}

// begins readies what reads for a full cut, unless an earlier one is stood on.
func (c *precopyCut) begins() {
	if c.at < 0 {
		c.roster = newRoster(c.f.level == track.LevelKeys)
	}
	c.out.roster = c.roster
	c.patches = patchReader{cutReader: c.reader, buf: &c.buf, keep: c.keep,
		whole: func(at place) { c.givenUp = append(c.givenUp, at) }}
}

// proveWatch makes sure that the watch marks writes now.
func (c *precopyCut) proveWatch(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, barrierPatience)
	defer cancel()
	f, err := askFacts(c.conn)
	if err != nil {
		return c.b.mapError(err, "look at the server")
	}
	c.info = f
	if err := c.f.watch.Barrier(short, f.position); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("wait for the tracker: %w", context.Cause(ctx))
		}
		c.f.drop(err.Error())
		return &trackingError{fmt.Sprintf("tracking by %s does not follow: %v", c.f.level, err)}
	}
	return nil
}

// resettle begins the marks anew.
func (c *precopyCut) resettle(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, barrierPatience)
	defer cancel()
	if err := c.f.tracker.Attached(short); err != nil {
		return &trackingError{whyNot(c.f.level, err)}
	}
	c.f.take()
	return c.proveWatch(ctx)
}

// barrierPatience is how long a tracker may take to come up with the server.
// A variable for tests.
var barrierPatience = 2 * time.Second

// choose decides between an incremental cut and a full one.
func (c *precopyCut) choose() error {
	c.at = -1
	if c.req.Since != "" && !c.req.Check {
		c.at, c.full = c.f.find(c.req.Since, c.info)
	}
	if c.req.Since != "" && c.req.Check {
		c.full = "everything is read to check what tracking believes"
	}
	if c.at >= 0 {
		l := c.f.chain[c.at]
		if share := l.share(c.f.since(c.at)); share > fullShare {
			c.at, c.full = -1, "more than half of the state was written since the earlier checkpoint"
		}
	}
	if c.at < 0 {
		return nil
	}
	c.roster = c.f.chain[c.at].roster.clone()
	c.elements = c.f.chain[c.at].elements
	if index := c.f.since(c.at).Keys[c.req.Job.Index()]; index == nil || !index.Whole {
		return nil
	}
	_, err := c.walkIndex(nil)
	if isTracking(err) {
		c.at, c.full = -1, err.Error()
		return nil
	}
	return err
}

// fullShare is from which share of the state a full cut costs less.
const fullShare = 0.5

// share estimates how much of the job the marks name, from 0 to 1.
func (l *link) share(m track.Marks) float64 {
	names := max(l.roster.count, 1)
	each := max(float64(l.elements)/float64(names), 1)
	all := each * float64(names)
	marked := 0.0
	for _, k := range m.Keys {
		marked += elementsOf(k, each)
	}
	if marked <= fullShare*all {
		return marked / all // or less: not all of them are state
	}
	for name, k := range m.Keys {
		if _, ok := l.roster.get([]byte(name)); !ok && !l.roster.blind {
			marked -= elementsOf(k, each)
		}
	}
	return marked / all
}

// elementsOf is how many elements of a key are marked, when a key has each.
func elementsOf(k *track.Key, each float64) float64 {
	if k.Whole {
		return each
	}
	return float64(len(k.Fields))
}

// base reads everything, as it comes, into the first layer.
func (c *precopyCut) base() error {
	c.out.base = true
	if c.strict {
		c.reader.noExpiry = c.pause.first.noExpiry(c.b.addr.db)
	} else {
		// Whatever is given an expiry from now on is marked.
		c.reader.noExpiry = c.info.noExpiry(c.b.addr.db)
	}
	c.into(c.out)
	conn, err := c.indexConn()
	if err != nil {
		return err
	}
	names := &stream{conn: conn, check: c.reader.check}
	err = c.eachRange(names, func(arena *nameArena) error {
		if !c.out.pushed {
			c.roster.expect(arena.expected)
			snapshot.Expect(c.out.LayerSink, uint64(arena.expected))
		}
		return c.reader.keys(&arenaSource{job: c.req.Job, arena: arena})
	})
	if err != nil {
		return err
	}
	c.out.base = false
	meta := metaNames(c.req.Job)
	sortNames(meta, func(n string) []byte { return []byte(n) })
	for _, name := range meta {
		if _, err := c.reader.single(snapshot.SectionMeta, name); err != nil {
			return err
		}
	}
	c.elements = c.out.elements
	return nil
}

// noteOdd remembers a key that seemed to be written while it was read.
func (c *precopyCut) noteOdd(k *keyInfo) {
	if len(c.odd) < oddMost {
		c.odd[place{k.section, string(k.name)}] = true
	}
}

// oddMost bounds how many such keys are remembered.
const oddMost = 1 << 16

// take takes the marks. Those of odd keys explain them.
func (c *precopyCut) take() (track.Marks, error) {
	m := c.f.take()
	if m.All {
		c.f.drop(m.Reason)
		return m, &trackingError{"tracking was lost during the cut: " + m.Reason}
	}
	for at := range c.odd {
		if m.Keys[at.name] != nil {
			delete(c.odd, at)
		}
	}
	return m, nil
}
