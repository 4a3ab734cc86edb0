package redis

import (
	"context"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// cutPausedTracked makes a cut of grade paused on which later ones can stand:
// the marks are taken inside the pause, and the keys read in the order of a
// layer.
func (b *Backend) cutPausedTracked(ctx context.Context, req statebackend.CutRequest, f *follow, sink snapshot.LayerSink) (statebackend.Cut, error) {
	c := newPrecopy(b, req, f, sink)
	defer c.hangUp()
	cut, err := c.runPaused(ctx)
	return cut, c.judge(err)
}

func (c *precopyCut) runPaused(ctx context.Context) (statebackend.Cut, error) {
	leave, err := c.b.enterPauseGate(ctx)
	if err != nil {
		return statebackend.Cut{}, err
	}
	defer leave()
	if err := c.prepare(ctx); err != nil {
		return statebackend.Cut{}, err
	}
	if c.req.Since != "" {
		c.full = "a cut of grade paused reads everything"
	}
	release := c.conn.Bind(ctx)
	defer release()
	c.f.take()
	if err := c.proveWatch(ctx); err != nil {
		return statebackend.Cut{}, err
	}
	c.begins()
	if err := c.preparePause(ctx); err != nil {
		return statebackend.Cut{}, err
	}
	releaseSide := c.side.Bind(ctx)
	defer releaseSide()
	cut, sources, err := c.underPause(ctx, c.readAll)
	if err != nil {
		return statebackend.Cut{}, err
	}
	cut.Grade = snapshot.GradePaused
	// They end the layer that was read: it is the only one.
	if err := sources.push(c.out, false); err != nil {
		return statebackend.Cut{}, err
	}
	sources.reset()
	return c.finish(cut, sources)
}

// readAll reads the base while nobody writes.
func (c *precopyCut) readAll(ctx context.Context) error {
	if err := c.barrier(ctx); err != nil {
		return err
	}
	if _, err := c.take(); err != nil {
		return err
	}
	return c.base()
}
