package coordinator

import (
	"context"
	"errors"
	"fmt"

	"keyframe/coordinator/cut"
	"keyframe/snapshot"
)

// errYield is the cause by which a merge ends because somebody waits.
var errYield = errors.New("an operation waits")

// yieldLocked asks a merge under way to end.
func (j *job) yieldLocked(why error) {
	if j.yield != nil {
		j.yield(why)
	}
}

// merge gives the newest checkpoint fewer layers when it has come to many, so
// that neither a restore nor the next checkpoint has many to read. It runs in
// the actor when nothing else does, and ends as soon as an operation waits or
// the job is stopped: then nothing has changed, and it is tried again after the
// next checkpoint. A failure is told, and is no failure of the checkpoint.
func (j *job) merge(ctx context.Context) {
	ctx, base, end := j.beginMerge(ctx)
	if base == nil {
		return
	}
	defer end()
	spec := j.config()
	id := base.Manifest.Checkpoint.ID
	before := base.Manifest.Checkpoint.Layers
	err := cut.Merger{Store: j.c.opts.Store}.Merge(ctx, spec, base)
	switch {
	case context.Cause(ctx) != nil && err != nil:
		return // asked to
	case errors.Is(err, snapshot.ErrNoCheckpoint), errors.Is(err, snapshot.ErrInUse):
		return // deleted, or somebody else's turn: the next checkpoint sees to it
	case err != nil:
		j.c.emit(Event{Kind: EventMergeFailed, Job: spec.Name, ID: id, Message: fmt.Sprintf("merge the layers of checkpoint %d: %v", id, err)})
		return
	}
	j.merged(ctx, base, before)
}

// beginMerge gives what is to be merged, nil when nothing is or somebody waits.
func (j *job) beginMerge(ctx context.Context) (context.Context, *cut.Base, func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	base := j.footing.base
	if base == nil || j.waiting != nil || !cut.Due(base.Manifest) {
		return ctx, nil, nil
	}
	select {
	case <-j.quit:
		return ctx, nil, nil
	default:
	}
	ctx, cancel := context.WithCancelCause(ctx)
	j.yield = cancel
	return ctx, base, func() {
		j.mu.Lock()
		j.yield = nil
		j.mu.Unlock()
		cancel(nil)
	}
}

// merged tells of a merge, and learns the figures that have changed.
func (j *job) merged(ctx context.Context, base *cut.Base, before int) {
	cp := base.Manifest.Checkpoint
	j.mu.Lock()
	j.gen++
	j.mu.Unlock()
	if err := j.learn(context.WithoutCancel(ctx)); err != nil {
		j.c.emit(Event{Kind: EventRecordFailed, Job: cp.Job, ID: cp.ID, Message: "after the merge: " + err.Error()})
	}
	j.c.emit(Event{Kind: EventCheckpointMerged, Job: cp.Job, ID: cp.ID, Message: fmt.Sprintf("checkpoint %d has %d layers now, %d before", cp.ID, cp.Layers, before)})
}
