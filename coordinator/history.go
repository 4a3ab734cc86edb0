package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

// Checkpoints is a job's whole history, oldest first. A job that was deleted
// without --purge still has one.
func (c *Coordinator) Checkpoints(ctx context.Context, name string) ([]snapshot.Checkpoint, error) {
	history, err := c.opts.Store.List(ctx, name)
	if err != nil {
		return nil, Explain(fmt.Errorf("list checkpoints of %q: %w", name, err))
	}
	if len(history) == 0 {
		if _, err := c.find(name); err != nil {
			return nil, err
		}
	}
	return history, nil
}

// Resolve finds a checkpoint by id or by savepoint name; "" is the newest
// restorable one that the live state descends from.
func (c *Coordinator) Resolve(ctx context.Context, name, which string) (snapshot.Checkpoint, error) {
	history, err := c.Checkpoints(ctx, name)
	if err != nil {
		return snapshot.Checkpoint{}, err
	}
	if which == "" {
		return c.newest(ctx, name, history)
	}
	id, idErr := snapshot.ParseID(which)
	for i := len(history) - 1; i >= 0; i-- {
		cp := history[i]
		switch {
		case idErr == nil && cp.ID == id:
			return cp, nil
		case idErr != nil && cp.Name == which && cp.State == snapshot.StateCompleted:
			return cp, nil
		}
	}
	return snapshot.Checkpoint{}, c.orElsewhere(ctx, name, fault.New(fault.NoCheckpoint, "`coordinator checkpoint list "+name+"` shows them", "job %q has no checkpoint %q", name, which))
}

func (c *Coordinator) newest(ctx context.Context, name string, history []snapshot.Checkpoint) (snapshot.Checkpoint, error) {
	_, flip, err := c.lineage(ctx, name, nil)
	if err != nil {
		return snapshot.Checkpoint{}, Explain(err)
	}
	if all := candidates(history, flip); len(all) > 0 {
		return all[0], nil
	}
	// Of a job that has nothing of its own yet.
	cp, _, err := c.newestImport(ctx, name, history)
	if err != nil {
		return snapshot.Checkpoint{}, Explain(err)
	}
	if cp != nil {
		return *cp, nil
	}
	return snapshot.Checkpoint{}, c.orElsewhere(ctx, name, fault.New(fault.NoCheckpoint, "take one: `coordinator checkpoint create "+name+"`, or name one with --checkpoint", "job %q has no restorable checkpoint", name))
}

// Manifest is the manifest of a completed checkpoint.
func (c *Coordinator) Manifest(ctx context.Context, name string, id snapshot.ID) (*snapshot.Manifest, error) {
	m, err := c.opts.Store.Manifest(ctx, name, id)
	if err != nil {
		return nil, Explain(fmt.Errorf("checkpoint %d of job %q: %w", id, name, err))
	}
	return m, nil
}

// Pin keeps a checkpoint from retention, or gives it back to it.
func (c *Coordinator) Pin(ctx context.Context, name string, id snapshot.ID, pinned bool) (snapshot.Checkpoint, error) {
	cp, err := c.opts.Store.Edit(ctx, name, id, snapshot.Change{Pinned: &pinned})
	if err != nil {
		return cp, c.orElsewhere(ctx, name, Explain(fmt.Errorf("checkpoint %d of job %q: %w", id, name, err)))
	}
	return cp, nil
}

// DeleteCheckpoint removes a checkpoint, a savepoint or a failed attempt. The
// newest restorable checkpoint and the undo checkpoint are refused without
// force (I6), and so are pinned ones.
func (c *Coordinator) DeleteCheckpoint(ctx context.Context, name string, id snapshot.ID, force bool) error {
	history, err := c.Checkpoints(ctx, name)
	if err != nil {
		return err
	}
	if why := c.needed(name, history, id); why != "" && !force {
		return fault.New(fault.Refused, "--force deletes it all the same", "checkpoint %d of job %q is needed: %s", id, name, why)
	}
	if err := c.opts.Store.Delete(ctx, name, id); err != nil {
		return c.orElsewhere(ctx, name, Explain(fmt.Errorf("delete checkpoint %d of job %q: %w", id, name, err)))
	}
	if err := c.forgotten(ctx, name, id); err != nil {
		return Explain(err)
	}
	c.emit(Event{Kind: EventCheckpointRemoved, Job: name, ID: id, Reason: "on request", Message: fmt.Sprintf("checkpoint %d deleted on request", id)})
	return nil
}

// forgotten makes a job forget a checkpoint that was deleted.
func (c *Coordinator) forgotten(ctx context.Context, name string, id snapshot.ID) error {
	u, err := c.loadUndo(ctx, name)
	if err == nil && u != nil && u.Checkpoint == id {
		err = c.dropUndo(ctx, name)
	}
	if err != nil {
		return err
	}
	j, err := c.find(name)
	if err != nil {
		return nil // a history without a job
	}
	return j.learn(ctx)
}

func (c *Coordinator) needed(name string, history []snapshot.Checkpoint, id snapshot.ID) string {
	if j, err := c.find(name); err == nil {
		if why, used := j.inUse()[id]; used {
			return "it " + why
		}
	}
	newest := true
	for i := len(history) - 1; i >= 0; i-- {
		cp := history[i]
		if cp.ID == id && cp.Pinned {
			return "it is pinned"
		}
		if cp.ID == id && newest && cp.Restorable() {
			return "it is the newest restorable one"
		}
		if cp.Restorable() {
			newest = false
		}
	}
	return ""
}

// Verify reads a whole checkpoint and reports every problem; one that has
// problems is marked bad, one that has none any more is not.
func (c *Coordinator) Verify(ctx context.Context, name, which string) (*Operation, error) {
	cp, err := c.Resolve(ctx, name, which)
	if err != nil {
		return nil, err
	}
	if cp.State != snapshot.StateCompleted {
		return nil, fault.New(fault.Refused, "only completed checkpoints have content", "checkpoint %d of job %q is %s", cp.ID, name, cp.State)
	}
	op := c.newOperation(name, OpVerify)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, fault.New(fault.Busy, "", "%v", errStopping)
	}
	c.wg.Add(1)
	// It only reads the store, so it needs no turn of the job's actor.
	go func() {
		defer c.wg.Done()
		ctx, cancel := context.WithCancelCause(c.ctx)
		defer cancel(nil)
		op.begin(c.opts.Now(), cancel)
		res, err := c.verify(ctx, op, cp)
		op.finish(c.opts.Now(), err, func(s *Status) { s.Verify = res })
	}()
	return op, nil
}

func (c *Coordinator) verify(ctx context.Context, op *Operation, cp snapshot.Checkpoint) (*VerifyResult, error) {
	began := c.opts.Now()
	release, err := c.opts.Store.Hold(ctx, cp.Job, cp.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	op.progress("verify", 0, 0, 0)
	problems, err := c.problems(ctx, cp)
	if err != nil {
		return nil, err
	}
	bad := ""
	if len(problems) > 0 {
		bad = problems[0].String()
	}
	if bad != cp.Bad {
		if _, err := c.opts.Store.Edit(ctx, cp.Job, cp.ID, snapshot.Change{Bad: &bad}); err != nil {
			return nil, fmt.Errorf("mark checkpoint %d: %w", cp.ID, err)
		}
		if bad != "" {
			c.emit(Event{Kind: EventCheckpointBad, Job: cp.Job, ID: cp.ID, Message: fmt.Sprintf("checkpoint %d can't be restored: %s", cp.ID, bad)})
		}
		if j, err := c.find(cp.Job); err == nil { // its last good one may be another now
			if err := j.learn(ctx); err != nil {
				return nil, err
			}
		}
	}
	op.progress("verify", cp.Keys, cp.Elements, cp.Bytes)
	return &VerifyResult{
		Job: cp.Job, Checkpoint: cp.ID, OK: len(problems) == 0, Keys: cp.Keys, Elements: cp.Elements, Bytes: cp.Bytes,
		Problems: append([]snapshot.Problem{}, problems...), DurationMs: c.opts.Now().Sub(began).Milliseconds(),
	}, nil
}

// problems are those of a checkpoint's manifest and chunks. A manifest that
// can't be read is the problem, not an error.
func (c *Coordinator) problems(ctx context.Context, cp snapshot.Checkpoint) ([]snapshot.Problem, error) {
	m, err := c.opts.Store.Manifest(ctx, cp.Job, cp.ID)
	if err != nil {
		if isCorruptOrNewer(err) {
			return []snapshot.Problem{{Job: cp.Job, Checkpoint: cp.ID, What: "manifest", Detail: err.Error()}}, nil
		}
		return nil, err
	}
	return snapshot.Verify(ctx, c.opts.Store, m)
}

func isCorruptOrNewer(err error) bool {
	return isCorrupt(err) || errors.Is(err, snapshot.ErrNewerFormat)
}

// StoreStats counts what the checkpoint store holds.
func (c *Coordinator) StoreStats(ctx context.Context) (snapshot.StoreStats, error) {
	s, err := c.opts.Store.Stats(ctx)
	if err != nil {
		return s, Explain(err)
	}
	return s, nil
}

// CheckStore walks the whole store and gives every problem.
func (c *Coordinator) CheckStore(ctx context.Context) ([]snapshot.Problem, time.Duration, error) {
	began := c.opts.Now()
	problems, err := c.opts.Store.Check(ctx)
	if err != nil {
		return nil, 0, Explain(err)
	}
	return problems, c.opts.Now().Sub(began), nil
}
