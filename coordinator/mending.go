package coordinator

import (
	"context"
	"errors"

	"keyframe/coordinator/fault"
)

// Unmark ends a restore that is marked in the job's record but that this
// coordinator's journal doesn't know: one of a store file that was lost. The
// live state is whole either way; what was staged is removed.
func (c *Coordinator) Unmark(ctx context.Context, name string) (*Operation, error) {
	j, err := c.find(name)
	if err != nil {
		return nil, err
	}
	if err := j.refuseStandby(ctx); err != nil {
		return nil, err
	}
	return j.submit(OpUnmark, func(ctx context.Context, _ *Operation) (func(*Status), error) {
		r, err := j.restorer().Force(ctx, j.config())
		if err != nil {
			return nil, Explain(err)
		}
		j.c.emit(Event{Kind: EventResumed, Job: name, ID: r.Checkpoint, Reason: r.Kind, Message: r.Message})
		if r.Flipped {
			// Whose history its checkpoint is in is not known.
			if err := j.keepLineage(ctx, 0, 0); err != nil {
				return nil, Explain(err)
			}
		}
		j.afterFlip(ctx, "unmark")
		return nil, nil
	})
}

// Adopt declares what is live to be the job's state from now on: for state that
// the guard takes for lost, foreign or older, and that somebody wants to go on
// with. Nothing of it changes but the record; the history stays, and a
// recovery will not use what is older than this.
func (c *Coordinator) Adopt(ctx context.Context, name string) (*Operation, error) {
	j, err := c.find(name)
	if err != nil {
		return nil, err
	}
	if err := j.refuseStandby(ctx); err != nil {
		return nil, err
	}
	return j.submit(OpAdopt, func(ctx context.Context, _ *Operation) (func(*Status), error) {
		return nil, j.adoptLive(ctx)
	})
}

func (j *job) adoptLive(ctx context.Context) error {
	g, err := j.lookNow(ctx)
	if err != nil {
		return Explain(err)
	}
	j.mu.Lock()
	h, name := j.health, j.spec.Name
	j.mu.Unlock()
	if !h.State.Lost() {
		return fault.New(fault.Refused, "only state that is lost, foreign or older needs it", "job %q is %s", name, h.State)
	}
	if g.Indexed == 0 {
		return fault.New(fault.NoState, "restore a checkpoint, or start the job's workers first", "job %q: there is nothing to adopt (%s)", name, holds(g))
	}
	if _, err := j.adopt(ctx, g); err != nil {
		return Explain(err)
	}
	if err := errors.Join(j.c.dropUndo(ctx, name), j.keepLineage(ctx, 0, 0)); err != nil {
		return Explain(err)
	}
	j.afterFlip(ctx, "adopt")
	return nil
}
