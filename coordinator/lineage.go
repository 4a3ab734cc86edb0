package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"keyframe/coordinator/restore"
	"keyframe/snapshot"
)

// bucketLineage: job name → JSON of lineageRecord.
const bucketLineage = "lineage"

// undoRecord says what `undo` restores.
type undoRecord struct {
	Checkpoint snapshot.ID `json:"checkpoint"`
	Of         string      `json:"of"` // restore, rescale, undo
}

// lineageRecord says which incarnation a flip left live while Newest was the
// newest completed checkpoint: a restore from another job's history brings an
// incarnation that this history doesn't know.
type lineageRecord struct {
	Newest      snapshot.ID `json:"newest"`
	Incarnation string      `json:"incarnation"`
	Attempt     snapshot.ID `json:"attempt"`
	RunID       string      `json:"runId"`
}

func (c *Coordinator) loadUndo(ctx context.Context, job string) (*undoRecord, error) {
	value, ok, err := c.opts.Journal.Get(ctx, bucketUndo, job)
	if err != nil || !ok {
		return nil, err
	}
	var u undoRecord
	if err := json.Unmarshal(value, &u); err != nil {
		return nil, fmt.Errorf("undo record of job %q: %w", job, err)
	}
	return &u, nil
}

// keepUndo remembers what undoes the flip that just happened.
func (j *job) keepUndo(ctx context.Context, u undoRecord) error {
	name := j.config().Name
	value, err := json.Marshal(u)
	if err != nil {
		return fmt.Errorf("encode undo record: %w", err)
	}
	if err := j.c.opts.Journal.Put(ctx, bucketUndo, name, value); err != nil {
		return fmt.Errorf("undo of job %q can't be remembered (restore checkpoint %d by hand instead): %w", name, u.Checkpoint, err)
	}
	j.mu.Lock()
	j.undo = &u
	j.mu.Unlock()
	return nil
}

// lineage is what the guard must know: the newest completed checkpoint, or
// what a later flip left live.
func (c *Coordinator) lineage(ctx context.Context, last *snapshot.Checkpoint) (lineage, error) {
	if last == nil {
		return lineage{}, nil
	}
	m, err := c.opts.Store.Manifest(ctx, last.Job, last.ID)
	if err != nil {
		return lineage{}, fmt.Errorf("manifest of checkpoint %d of %q: %w", last.ID, last.Job, err)
	}
	l := lineageOf(m)
	value, ok, err := c.opts.Journal.Get(ctx, bucketLineage, last.Job)
	if err != nil || !ok {
		return l, err
	}
	var r lineageRecord
	if err := json.Unmarshal(value, &r); err != nil {
		return l, fmt.Errorf("lineage record of job %q: %w", last.Job, err)
	}
	if r.Newest == l.id {
		l.incarnation, l.attempt, l.runID = r.Incarnation, r.Attempt, r.RunID
	}
	return l, nil
}

// afterFlip learns what a flip left live. A failure here is no failure of the
// restore: the next look at the state tells the same, at worst as an alarm.
func (j *job) afterFlip(ctx context.Context) {
	warn := func(err error) {
		j.c.emit(Event{Kind: EventRecordFailed, Job: j.config().Name, Message: "after the flip: " + err.Error()})
	}
	if err := j.learn(ctx); err != nil {
		warn(err)
		return
	}
	g, err := j.c.opts.Backend.Look(ctx, j.key())
	if err != nil {
		warn(err)
		return
	}
	r := lineageRecord{Newest: j.newestID(), Incarnation: g.Record.Incarnation, Attempt: g.Record.Attempt, RunID: g.Server.RunID}
	value, err := json.Marshal(r)
	if err == nil {
		err = j.c.opts.Journal.Put(ctx, bucketLineage, j.config().Name, value)
	}
	if err != nil {
		warn(err)
	}
	j.mu.Lock()
	j.newest.incarnation, j.newest.attempt, j.newest.runID = r.Incarnation, r.Attempt, r.RunID
	j.gen++
	j.recovery = recoveryState{}
	j.mu.Unlock()
	// An error shows in the job's health.
	_, _ = j.lookNow(ctx)
}

// resume ends restores and rescales that a crash left behind: rolled forward
// when the flip had happened, cleaned away otherwise.
func (j *job) resume(ctx context.Context) error {
	spec := j.config()
	fromRescale, err := j.rescaler().Resume(ctx, spec)
	if err != nil {
		return fmt.Errorf("resume a rescale of job %q: %w", spec.Name, err)
	}
	fromRestore, err := j.restorer().Resume(ctx, spec)
	if err != nil {
		return fmt.Errorf("resume a restore of job %q: %w", spec.Name, err)
	}
	flipped := false
	for _, r := range append(fromRescale, fromRestore...) {
		j.c.emit(Event{Kind: EventResumed, Job: spec.Name, ID: r.Checkpoint, Reason: r.Kind, Message: r.Message})
		if err := j.resumed(ctx, r); err != nil {
			return err
		}
		flipped = flipped || r.Flipped
	}
	if flipped {
		j.afterFlip(ctx)
	}
	return nil
}

func (j *job) resumed(ctx context.Context, r restore.Resumed) error {
	if !r.Flipped || r.Undo == 0 {
		return nil
	}
	return j.keepUndo(ctx, undoRecord{Checkpoint: r.Undo, Of: r.Kind})
}

// keepUnresolved remembers that a restore or rescale ended in the dark.
func (j *job) keepUnresolved(err error) {
	if !errors.Is(err, restore.ErrUnresolved) {
		return
	}
	j.mu.Lock()
	j.unresolved = true
	j.mu.Unlock()
}

// resolve ends what keepUnresolved remembered; false while it can't be.
func (j *job) resolve(ctx context.Context) bool {
	j.mu.Lock()
	open := j.unresolved
	j.mu.Unlock()
	if !open {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	err := j.resume(ctx)
	if err == nil {
		err = j.learn(ctx)
	}
	if err != nil {
		j.setHealth(HealthMarked, err.Error(), nil)
		return false
	}
	j.mu.Lock()
	j.unresolved = false
	j.mu.Unlock()
	return true
}

// Unmark ends a restore that is marked in the job's record but that this
// coordinator's journal doesn't know: one of a store file that was lost. The
// live state is whole either way; what was staged is removed.
func (c *Coordinator) Unmark(_ context.Context, name string) (*Operation, error) {
	j, err := c.find(name)
	if err != nil {
		return nil, err
	}
	return j.submit(OpUnmark, func(ctx context.Context, _ *Operation) (func(*Status), error) {
		r, err := j.restorer().Force(ctx, j.config())
		if err != nil {
			return nil, Explain(err)
		}
		j.c.emit(Event{Kind: EventResumed, Job: name, ID: r.Checkpoint, Reason: r.Kind, Message: r.Message})
		j.afterFlip(ctx)
		return nil, nil
	})
}
