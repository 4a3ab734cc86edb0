package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// cutPaused makes a cut of grade paused: look, CLIENT PAUSE WRITE, read
// everything, prove that nobody wrote, CLIENT UNPAUSE.
func (b *Backend) cutPaused(ctx context.Context, req statebackend.CutRequest, sink snapshot.Sink) (statebackend.Cut, error) {
	leave, err := b.enterPauseGate(ctx)
	if err != nil {
		return statebackend.Cut{}, err
	}
	defer leave()
	c := &pausedCut{b: b, req: req, sink: sink}
	defer c.hangUp()
	if err := c.prepare(ctx); err != nil {
		return statebackend.Cut{}, err
	}
	release := c.conn.Bind(ctx)
	defer release()
	cut, err := c.underPause(ctx)
	if err != nil {
		return statebackend.Cut{}, err
	}
	return cut, nil
}

// pausedCut is one cut under way.
type pausedCut struct {
	b    *Backend
	req  statebackend.CutRequest
	sink snapshot.Sink

	conn     *resp.Conn // reads the state
	pause    *pause
	exactTTL bool
	bounded  bool
	info     serverFacts
	lacks    []string // rights that a better grade needs
}

func (c *pausedCut) hangUp() {
	if c.conn != nil {
		_ = c.conn.Close() // everything was read, or the cut has failed
	}
	if c.pause != nil {
		c.pause.hangUp()
	}
}

// prepare opens the connections and finds out everything that would make the
// cut fail, before any writer is held.
func (c *pausedCut) prepare(ctx context.Context) error {
	err := c.look(ctx, &limiter{ctx: ctx})
	if err == nil {
		c.pause, err = c.b.newPause(ctx, c.req, c.info)
	}
	return err
}

// look opens the connection that reads, and finds out what would make the cut
// fail, but for somebody else's pause.
func (c *pausedCut) look(ctx context.Context, limit *limiter) error {
	var err error
	if c.conn, err = c.b.dialLimited(ctx, limit); err != nil {
		return err
	}
	release := c.conn.Bind(ctx)
	defer release()
	if c.info, err = askFacts(c.conn); err != nil {
		return c.b.mapError(err, "look at the server")
	}
	if err := c.info.cuttable(); err != nil {
		return err
	}
	if id := c.req.RunID; id != "" && c.info.runID != id {
		return fmt.Errorf("%w: the server was started anew since it was looked at (run id %s, then %s): what it came back with isn't known yet",
			statebackend.ErrStateLost, id, c.info.runID)
	}
	rights, err := c.b.checkCutRights(ctx, c.req)
	if err != nil {
		return err
	}
	c.exactTTL, c.bounded, c.lacks = rights.exactTTL, rights.bounded, rights.lacks
	_, err = c.readJob(ctx)
	return err
}

// underPause does what is done while writers are held, and frees them
// whatever happens.
func (c *pausedCut) underPause(ctx context.Context) (cut statebackend.Cut, err error) {
	defer func() {
		// After a good cut this has been done already and does nothing.
		if _, endErr := c.pause.end(); endErr != nil {
			err = errors.Join(err, endErr)
		}
	}()
	if err := c.pause.begin(c.conn); err != nil {
		return cut, err
	}
	if cut, err = c.read(ctx); err != nil {
		return cut, c.pause.explain(err)
	}
	if err := c.pause.prove(); err != nil {
		return cut, err
	}
	crashpoint.At(crashpoint.CutRead)
	if attempt := cut.Record.Attempt; attempt != cut.Record.Cut && c.req.Incarnation != "" {
		c.pause.mark = cutMark(c.pause.lease, attempt)
	}
	stall, err := c.pause.end()
	if err != nil {
		return cut, err
	}
	cut.Grade, cut.Stall = snapshot.GradePaused, stall
	cut.At, cut.Server = c.pause.first.at, c.pause.first.server()
	return cut, c.pause.proveByCanary()
}

// read pushes everything into the sink, from inside the pause.
func (c *pausedCut) read(ctx context.Context) (statebackend.Cut, error) {
	head, err := c.readJob(ctx)
	if err != nil {
		return statebackend.Cut{}, err
	}
	r := &cutReader{
		stream: stream{conn: c.conn, sink: c.sink, check: c.pause.check},
		b:      c.b, job: c.req.Job, version: c.info.version, exactTTL: c.exactTTL, bounded: c.bounded,
		dial: func() (*resp.Conn, error) { return c.b.dial(ctx) },
	}
	defer r.hangUp()
	if r.noExpiry, err = askNoExpiry(c.conn, c.b.addr.db); err != nil {
		return statebackend.Cut{}, c.b.mapError(err, "ask what expires")
	}
	names, err := r.indexSource()
	if err != nil {
		return statebackend.Cut{}, err
	}
	if err := r.keys(names); err != nil {
		return statebackend.Cut{}, err
	}
	if err := r.meta(); err != nil {
		return statebackend.Cut{}, err
	}
	positions, err := r.sources(c.req.Sources)
	if err != nil {
		return statebackend.Cut{}, err
	}
	return statebackend.Cut{
		Record: head.record, Assigned: head.assigned, Operators: head.operators, Positions: positions,
	}, nil
}

// readJob reads the job's own keys and refuses a job that must not be cut.
func (c *pausedCut) readJob(ctx context.Context) (jobHead, error) {
	head, err := c.b.readHead(c.conn, c.req.Job)
	if err != nil {
		return head, err
	}
	return head, head.cuttable(c.req, func() string { return c.b.where(ctx, c.req.Job) })
}

// cuttable refuses a job whose state is absent, lost or being restored.
func (h jobHead) cuttable(req statebackend.CutRequest, where func() string) error {
	lost := req.Incarnation != "" && h.record.Incarnation != req.Incarnation
	switch {
	case !h.hasIndex && !h.hasRecord && lost:
		return fmt.Errorf("%w: %w: incarnation %s is expected (%s)",
			statebackend.ErrStateLost, statebackend.ErrNoState, req.Incarnation, where())
	case !h.hasIndex && !h.hasRecord:
		return fmt.Errorf("%w: neither %q nor %q is there (%s): check the job's prefix and name, and the database in the URL",
			statebackend.ErrNoState, req.Job.Index(), req.Job.Record(), where())
	case h.record.Restore != nil:
		return fmt.Errorf("%w: restore %s of checkpoint %s, begun at %s", statebackend.ErrMarked,
			h.record.Restore.ID, h.record.Restore.Checkpoint, h.record.Restore.StartedAt.Format(time.RFC3339))
	case lost && h.record.Incarnation == "":
		return fmt.Errorf("%w: %q holds no incarnation, and %s is expected",
			statebackend.ErrStateLost, req.Job.Record(), req.Incarnation)
	case lost:
		return fmt.Errorf("%w: %q holds incarnation %s, and %s is expected",
			statebackend.ErrStateLost, req.Job.Record(), h.record.Incarnation, req.Incarnation)
	}
	return nil
}
