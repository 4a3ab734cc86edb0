package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/track"
)

// lookedAt lets tests look at the server when the last read is done and
// writers are still held. nil in the product.
var lookedAt func(job statebackend.Job)

// underPause holds the writers, reads by fn, and frees them whatever happens.
// What was read lies in the buffers, or in layers if it was much.
func (c *precopyCut) underPause(ctx context.Context, fn func(context.Context) error) (cut statebackend.Cut, sources *patchBuffer, err error) {
	defer func() {
		// After a good cut this has been done already and does nothing.
		if _, endErr := c.pause.end(); endErr != nil {
			err = errors.Join(err, endErr)
		}
	}()
	c.limit.open()
	if err := c.pause.begin(c.conn, c.side); err != nil {
		return cut, nil, err
	}
	c.strict, c.reader.loose, c.reader.check = true, false, c.pause.check
	wait := c.readOwn(ctx)
	if err := fn(ctx); err != nil {
		_ = c.side.Close() // ends readOwn, whose answers nobody wants
		wait()
		return cut, nil, c.pause.explain(err)
	}
	own := wait()
	if own.err != nil {
		return cut, nil, c.pause.explain(own.err)
	}
	if !c.roster.blind && int(own.head.indexed) != c.roster.count {
		return cut, nil, &statebackend.KeyError{Key: []byte(c.req.Job.Index()), Op: "read", Err: fmt.Errorf(
			"%w: it has %d names, and %d are known from tracking: the next cut must be a full one", statebackend.ErrChanged, own.head.indexed, c.roster.count)}
	}
	if lookedAt != nil {
		lookedAt(c.req.Job)
	}
	if err := c.pause.prove(); err != nil {
		return cut, nil, err
	}
	crashpoint.At(crashpoint.CutRead)
	cut, err = c.release(own)
	return cut, own.sources, err
}

// release marks the cut in the job's record and frees the writers.
func (c *precopyCut) release(own ownKeys) (statebackend.Cut, error) {
	cut := statebackend.Cut{
		Record: own.head.record, Assigned: own.head.assigned, Operators: own.head.operators, Positions: own.positions,
		Grade: snapshot.GradePrecopy, At: c.pause.first.at, Server: c.pause.first.server(),
	}
	if attempt := cut.Record.Attempt; attempt != cut.Record.Cut && c.req.Incarnation != "" {
		c.pause.mark = cutMark(c.pause.lease, attempt)
	}
	stall, err := c.pause.end()
	if err != nil {
		return cut, err
	}
	cut.Stall = stall
	return cut, c.pause.proveByCanary()
}

// lastReads waits until all that was written is marked, and reads it.
func (c *precopyCut) lastReads(ctx context.Context, left track.Marks) error {
	if err := c.barrier(ctx); err != nil {
		return err
	}
	m, err := c.take()
	if err != nil {
		return err
	}
	left = mergeMarks(left, m)
	c.last = left
	if c.f.level == track.LevelKeys {
		left.Merge(streamMarks(c.roster))
	}
	if err := c.unexplained(); err != nil {
		return err
	}
	if err := c.decide(left, time.Since(c.pause.held)); err != nil {
		return err
	}
	c.reader.noExpiry = c.pause.first.noExpiry(c.b.addr.db)
	return c.redo(left)
}

// barrier waits inside a pause until every write before it is marked.
func (c *precopyCut) barrier(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, min(barrierPatience, time.Until(c.pause.safe)))
	defer cancel()
	err := c.f.watch.Barrier(short, c.pause.first.position)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("wait for the tracker: %w", context.Cause(ctx))
	}
	return &trackingError{fmt.Sprintf("tracking by %s was lost during the cut: %v", c.f.level, err)}
}

// streamMarks marks the streams among the state: the server tells of the
// entries of a stream, but not of its groups, to whom only keys are told.
func streamMarks(r *roster) track.Marks {
	m := track.Marks{Keys: map[string]*track.Key{}}
	for name := range r.streams {
		m.Keys[name] = &track.Key{Whole: true}
	}
	return m
}

// ownKeys is what is read of the job's own keys and its sources.
type ownKeys struct {
	head      jobHead
	positions []snapshot.Position
	sources   *patchBuffer
	err       error
}

// readOwn reads them over a connection of their own, beside the last reads.
// wait gives what came; it must be called.
func (c *precopyCut) readOwn(ctx context.Context) (wait func() ownKeys) {
	done := make(chan ownKeys, 1)
	go func() {
		var own ownKeys
		own.sources = &patchBuffer{}
		own.sources.reset()
		own.head, own.err = c.b.readHead(c.side, c.req.Job)
		if own.err == nil {
			own.err = own.head.cuttable(c.req, func() string { return c.b.where(ctx, c.req.Job) })
		}
		if own.err == nil {
			r := &cutReader{
				stream: stream{conn: c.side, sink: &collector{keep: keepIn(own.sources)}, check: func() error { return nil }},
				b:      c.b, job: c.req.Job, version: c.info.version, exactTTL: c.exactTTL, dial: c.reader.dial,
			}
			own.positions, own.err = r.sortedSources(c.req.Sources)
			r.hangUp()
		}
		done <- own
	}()
	return func() ownKeys { return <-done }
}

// finish pushes what lies in the buffers as the last layer, and makes the cut
// known to later ones.
func (c *precopyCut) finish(cut statebackend.Cut, sources *patchBuffer) (statebackend.Cut, error) {
	maps.Copy(c.buf.keys, sources.keys)
	c.out.loose = false
	if err := c.buf.flush(c.out, false); err != nil {
		return cut, err
	}
	cut.Incremental, cut.Rounds = c.at >= 0, c.rounds
	cut.FullReason, cut.Tracking = c.full, string(c.f.level)
	if cut.Stall > c.maxStall() {
		cut.Hot = c.hottest(c.last)
	}
	c.remember(&cut)
	return cut, nil
}

// remember makes a cut known, so that later ones can stand on it, and says
// what was marked when that was asked for.
func (c *precopyCut) remember(cut *statebackend.Cut) {
	if c.req.Check && c.req.Since != "" {
		if since, why := c.f.find(c.req.Since, c.pause.first); since >= 0 {
			marks := c.f.since(since)
			if c.f.level == track.LevelKeys {
				marks.Merge(streamMarks(c.roster)) // nobody tells of their groups
			}
			cut.Marked = statebackendMarks(marks)
		} else {
			cut.Marked = statebackend.Marked{Reason: why}
		}
	}
	cut.Token = newToken()
	first := c.pause.first
	c.f.add(link{
		token: cut.Token, runID: first.runID, replID: first.position.ReplID, roster: c.roster, elements: c.elements,
	}, c.at)
}
