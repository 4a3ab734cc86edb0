package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"keyframe/coordinator/config"
	"keyframe/coordinator/cut"
	"keyframe/coordinator/fault"
	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
)

// CheckpointRequest asks for a checkpoint on demand. A name makes it a
// savepoint.
type CheckpointRequest struct {
	Name  string
	Note  string
	Grade snapshot.Grade // "" is the job's own
	// VerifyLive reads everything and compares it with what tracking believed
	// since the checkpoint before: a difference fails it.
	VerifyLive bool
}

// Checkpoint takes a checkpoint of a job now.
func (c *Coordinator) Checkpoint(ctx context.Context, name string, req CheckpointRequest) (*Operation, error) {
	j, err := c.find(name)
	if err != nil {
		return nil, err
	}
	if err := j.refuseStandby(ctx); err != nil {
		return nil, err
	}
	if err := c.freeName(ctx, name, req.Name); err != nil {
		return nil, err
	}
	kind := snapshot.KindCheckpoint
	if req.Name != "" {
		kind = snapshot.KindSavepoint
	}
	return j.submit(OpCheckpoint, func(ctx context.Context, op *Operation) (func(*Status), error) {
		cp, err := j.take(ctx, op, cut.Request{Kind: kind, Name: req.Name, Note: req.Note, Trigger: snapshot.TriggerManual, Grade: req.Grade, VerifyLive: req.VerifyLive})
		return func(s *Status) { s.Checkpoint = cp }, err
	})
}

// freeName refuses a savepoint name that is taken, or that would be read as
// an id or as the live state.
func (c *Coordinator) freeName(ctx context.Context, job, name string) error {
	if name == "" {
		return nil
	}
	if _, err := snapshot.ParseID(name); err == nil || name == "live" || name == "latest" {
		return fault.New(fault.Usage, "give it a name that is no number and neither `live` nor `latest`", "savepoint name %q", name)
	}
	history, err := c.opts.Store.List(ctx, job)
	if err != nil {
		return Explain(fmt.Errorf("list checkpoints of %q: %w", job, err))
	}
	for _, cp := range history {
		if cp.Name == name && cp.State != snapshot.StateFailed {
			return fault.New(fault.Refused, "choose another name, or delete that one", "savepoint %q exists already: checkpoint %d of job %q", name, cp.ID, job)
		}
	}
	return nil
}

// tick runs the schedule's checkpoint, or skips it and says why.
func (j *job) tick(ctx context.Context) {
	now := j.c.opts.Now()
	due := j.dueAt()
	if due.After(now) {
		return
	}
	defer func() { j.plan(j.c.opts.Now()) }()
	if why := j.mayTick(ctx); why != "" {
		if j.leading() != nil || j.state() != HealthStandby {
			j.skip(due, why)
		}
		return
	}
	unseen := j.unseenNow()
	op := j.c.newOperation(j.config().Name, OpCheckpoint)
	j.execute(ctx, task{op: op, do: func(ctx context.Context, op *Operation) (func(*Status), error) {
		cp, err := j.take(ctx, op, cut.Request{Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerSchedule, Unseen: unseen})
		return func(s *Status) { s.Checkpoint = cp }, err
	}})
	j.countOverlapped(due)
}

func (j *job) state() HealthState {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.health.State
}

func (j *job) dueAt() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next
}

// mayTick looks before it leaps: lost, absent or marked state is not worth an
// attempt that is bound to fail.
func (j *job) mayTick(ctx context.Context) string {
	j.watch(ctx)
	j.mu.Lock()
	defer j.mu.Unlock()
	switch j.health.State {
	case HealthOK, HealthUnreachable, HealthDenied, HealthDamaged, HealthStarting:
		return ""
	}
	return string(j.health.State) + ": " + j.health.Message
}

func (j *job) skip(due time.Time, why string) {
	j.mu.Lock()
	j.skipped++
	j.mu.Unlock()
	j.c.emit(Event{Kind: EventTickSkipped, Job: j.config().Name, Reason: why, Message: "the checkpoint due at " + due.UTC().Format(time.RFC3339) + " was skipped: " + why})
}

// countOverlapped counts the ticks that came while the one due at due ran.
func (j *job) countOverlapped(due time.Time) {
	j.mu.Lock()
	s := j.schedule
	j.mu.Unlock()
	if s == nil {
		return
	}
	now := j.c.opts.Now()
	const most = 1000 // a clock that jumped ahead must not keep us here
	for i, t := 0, s.Next(due); i < most && !t.IsZero() && !t.After(now); i, t = i+1, s.Next(t) {
		j.skip(t, "the checkpoint before was still running")
	}
}

// take makes a checkpoint and does what follows from it: the record, the
// status, retention. It runs in the actor.
func (j *job) take(ctx context.Context, op *Operation, req cut.Request) (*snapshot.Checkpoint, error) {
	spec := j.config()
	g, err := j.lookBefore(ctx, req.Unseen)
	if err == nil {
		err = j.refuseLost()
	}
	if err != nil && !isUnreachable(err) {
		return nil, err
	}
	ctx, leave := j.underLease(ctx)
	defer leave()
	// What can't be looked at may be there again a moment later, with another
	// state: the attempt is only recorded.
	req.Unseen = err
	req.Job, req.Incarnation, req.RunID, req.After = spec, g.Record.Incarnation, g.Server.RunID, g.Record.Attempt
	req.Parent, req.Indexed, req.Epoch = j.head(), j.indexed(), g.Record.Epoch
	j.place(&req)
	req.Started = func(id snapshot.ID) {
		j.c.emit(Event{Kind: EventCheckpointStarted, Job: spec.Name, ID: id, Operation: op.Status().ID, Reason: string(req.Trigger), Message: fmt.Sprintf("checkpoint %d started (%s)", id, req.Trigger)})
	}
	req.Progress = func(phase string, keys, elements, bytes uint64) { op.progress(phase, keys, elements, bytes) }
	if last := j.lastGood(); last != nil {
		op.expect(last.Keys, last.Elements, last.Bytes)
	}
	taker := cut.Taker{Store: j.c.opts.Store, Backend: j.c.opts.Backend, Now: j.c.opts.Now}
	out, err := taker.Take(ctx, req)
	if err != nil {
		j.distrust(ctx, out, err)
		return out.Checkpoint, j.takingFailed(op, out, err)
	}
	j.taken(out, op)
	j.retain(context.WithoutCancel(ctx))
	return out.Checkpoint, nil
}

func (j *job) takingFailed(op *Operation, out cut.Outcome, err error) error {
	f := Explain(err)
	e := Event{Kind: EventCheckpointFailed, Job: j.config().Name, Operation: op.Status().ID, Checkpoint: out.Checkpoint, Message: "checkpoint failed: " + f.Message}
	if out.Checkpoint != nil {
		e.ID = out.Checkpoint.ID
		if out.Checkpoint.Failure != nil {
			e.Reason = string(out.Checkpoint.Failure.Reason)
			j.failedBy(out.Checkpoint.Failure.Reason)
		}
	}
	j.mu.Lock()
	j.failures++
	j.mu.Unlock()
	j.c.emit(e)
	return f
}

// taken keeps what a completed checkpoint says.
func (j *job) taken(out cut.Outcome, op *Operation) {
	cp := *out.Checkpoint
	j.mu.Lock()
	j.last, j.good, j.failures = &cp, &cp, 0
	if !cp.InDoubt() || j.best == nil || j.best.InDoubt() && j.best.ID != j.flip.Base {
		j.best = &cp
	}
	j.newest = lineageOf(out.Manifest)
	j.footing.take(out.Base)
	j.shrink.take(cp)
	j.gen++
	j.epoch, j.parallel = cp.Epoch, cp.Parallelism
	j.mu.Unlock()
	j.c.emit(Event{Kind: EventCheckpointCompleted, Job: cp.Job, ID: cp.ID, Operation: op.Status().ID, Checkpoint: &cp, Reason: string(out.Full.Code),
		Message: fmt.Sprintf("checkpoint %d completed: %d keys, %d elements, stall %.1f ms%s", cp.ID, cp.Keys, cp.Elements, cp.StallMs, how(cp))})
	j.tellShrunk(cp)
	if !j.config().Checkpoint.Increments() {
		j.forget() // nobody will ask for what is written from here on
	}
	if out.RecordErr != nil {
		j.c.emit(Event{Kind: EventRecordFailed, Job: cp.Job, ID: cp.ID, Message: "the record in the state store could not be written: " + out.RecordErr.Error()})
	}
}

// how says what is particular about what a checkpoint read.
func how(cp snapshot.Checkpoint) string {
	switch {
	case cp.Incremental:
		return ", incremental"
	case cp.SelfChecked:
		return ", self-check passed"
	}
	return ""
}

func lineageOf(m *snapshot.Manifest) lineage {
	return lineage{id: m.Checkpoint.ID, incarnation: m.Incarnation, attempt: m.Attempt, epoch: m.Checkpoint.Epoch, runID: m.Server.RunID,
		names: m.Checkpoint.Keys + m.Checkpoint.Missing}
}

// indexed is how many names the index of what is live had, when that is known.
func (j *job) indexed() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.newest.names
}

func (j *job) newestID() snapshot.ID {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.newest.id
}

func (j *job) lastGood() *snapshot.Checkpoint {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last
}

// refuseLost refuses what must not be done to state that is lost, absent or
// being restored.
func (j *job) refuseLost() error {
	j.mu.Lock()
	h, name := j.health, j.spec.Name
	j.mu.Unlock()
	switch h.State {
	case HealthLost, HealthOlder, HealthForeign:
		return fault.New(fault.StateLost, "restore a checkpoint first: `coordinator restore "+name+"`; to go on with what is there instead: `coordinator job adopt "+name+"`", "job %q: %s", name, h.Message)
	case HealthMismatch:
		return fault.New(fault.Refused, "make the configuration fit; changing max parallelism or hash is rekeying", "job %q: %s", name, h.Message)
	case HealthMarked:
		return fault.New(fault.Refused, "it is completed or undone when its coordinator starts again; if that one is gone for good: `coordinator job unmark JOB`", "job %q: %s", name, h.Message)
	case HealthWaiting:
		return fault.New(fault.NoState, "check redis.url, its database, and the job's prefix and name", "job %q: %s", name, h.Message)
	}
	return nil
}

// retain removes what retention no longer keeps. What fails is told and tried
// again after the next checkpoint; it is no failure of this one.
func (j *job) retain(ctx context.Context) {
	spec := j.config()
	failed := func(err error) {
		j.c.emit(Event{Kind: EventRetentionFailed, Job: spec.Name, Message: "retention: " + err.Error()})
	}
	history, err := j.c.opts.Store.List(ctx, spec.Name)
	if err != nil {
		failed(err)
		return
	}
	decisions := Retain(history, spec.Retention, j.inUse(), j.c.opts.Now())
	j.tellHeld(history, decisions)
	crashpoint.At(crashpoint.RetentionDecided)
	for _, d := range decisions {
		if d.Keep {
			continue
		}
		if err := j.c.opts.Store.Delete(ctx, spec.Name, d.ID); err != nil && !errors.Is(err, snapshot.ErrInUse) {
			failed(fmt.Errorf("delete checkpoint %d: %w", d.ID, err))
			continue
		}
		crashpoint.At(crashpoint.RetentionDeleted)
		j.settled(d.ID)
		j.c.emit(Event{Kind: EventCheckpointRemoved, Job: spec.Name, ID: d.ID, Reason: d.Reason, Message: fmt.Sprintf("checkpoint %d removed: %s", d.ID, d.Reason)})
	}
}

func (j *job) inUse() map[snapshot.ID]string {
	j.mu.Lock()
	defer j.mu.Unlock()
	used := map[snapshot.ID]string{}
	if j.undo != nil {
		used[j.undo.Checkpoint] = "undoes the last " + j.undo.Of
	}
	if head := j.headLocked(); head != 0 {
		used[head] = "is what the live state descends from"
	}
	if j.best != nil && used[j.best.ID] == "" {
		used[j.best.ID] = "is what a recovery would restore"
	}
	return used
}

// Retention shows what retention would decide on a job's history now.
func (c *Coordinator) Retention(ctx context.Context, name string, p config.Retention) ([]Decision, error) {
	j, err := c.find(name)
	if err != nil {
		return nil, err
	}
	history, err := c.opts.Store.List(ctx, name)
	if err != nil {
		return nil, Explain(err)
	}
	return Retain(history, p, j.inUse(), c.opts.Now()), nil
}
