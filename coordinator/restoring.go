package coordinator

import (
	"context"
	"fmt"

	"keyframe/coordinator/cut"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/rescaler"
	"keyframe/coordinator/restore"
	"keyframe/internal/crashpoint"
	"keyframe/rescale"
	"keyframe/snapshot"
)

// RestoreRequest asks for a restore. Checkpoint is an id or a savepoint's
// name, "" for the newest restorable.
type RestoreRequest struct {
	Checkpoint   string
	As           string // the job to restore into, "" for the job itself; accepts another identity
	AcceptSchema bool
	NoUndo       bool
}

// RescaleRequest asks for a change of parallelism.
type RescaleRequest struct {
	Parallelism int
	Split       rescale.Split
	AllowIdle   bool
	Broadcast   map[string]int
}

func (j *job) restorer() *restore.Executor {
	o := j.c.opts
	return &restore.Executor{Store: o.Store, Journal: o.Journal, Backend: o.Backend, Now: o.Now,
		NewID: func() string { return randomID(8) }, OnFlip: j.flipped}
}

func (j *job) rescaler() *rescaler.Executor {
	o := j.c.opts
	return &rescaler.Executor{Store: o.Store, Journal: o.Journal, Backend: o.Backend, Now: o.Now,
		NewID: func() string { return randomID(8) }, OnFlip: j.flipped}
}

// target finds the job that a restore writes into, and the request for it.
func (c *Coordinator) target(ctx context.Context, name string, req RestoreRequest) (*job, restore.Request, error) {
	into := name
	if req.As != "" {
		into = req.As
	}
	j, err := c.find(into)
	if err != nil {
		return nil, restore.Request{}, err
	}
	if err := j.refuseStandby(ctx); err != nil {
		return nil, restore.Request{}, err
	}
	if err := j.refuseOlder(req); err != nil {
		return nil, restore.Request{}, err
	}
	cp, err := c.restorable(ctx, name, req.Checkpoint)
	if err != nil {
		return nil, restore.Request{}, err
	}
	return j, restore.Request{Job: j.config(), Checkpoint: cp.ID, From: name, As: req.As != "", SameServer: j.sameServer(), Epoch: j.knownEpoch(), AcceptSchema: req.AcceptSchema}, nil
}

// PlanRestore says what a restore would do, and changes nothing.
func (c *Coordinator) PlanRestore(ctx context.Context, name string, req RestoreRequest) (restore.Plan, error) {
	j, r, err := c.target(ctx, name, req)
	if err != nil {
		return restore.Plan{}, err
	}
	r.Recovery = j.lostNow(ctx)
	plan, err := j.restorer().Plan(ctx, r, nil)
	if err != nil {
		return restore.Plan{}, Explain(err)
	}
	plan.Warnings = append(plan.Warnings, unsaved(r, plan)...)
	if why := j.leftToOthers(j.state()); why != "" && req.As == "" {
		plan.Warnings = append(plan.Warnings, why)
	}
	if req.Checkpoint == "" {
		plan.Warnings = append(plan.Warnings, c.passedOver(ctx, name, req.Checkpoint, plan.Checkpoint)...)
	}
	return plan, nil
}

// unsaved warns when what is there will be replaced without an undo: state that
// is lost is never checkpointed (I5), whatever has been written since.
func unsaved(r restore.Request, plan restore.Plan) []string {
	if !r.Recovery || plan.Indexed == 0 {
		return nil
	}
	return []string{fmt.Sprintf("the state is lost, so no undo checkpoint is taken of the %d keys that are indexed now", plan.Indexed)}
}

// look tells the request whether the live state is lost.
func (j *job) look(ctx context.Context, r *restore.Request) {
	// An error here comes again, with its reason, when the state is needed.
	_, _ = j.lookNow(ctx)
	j.mu.Lock()
	defer j.mu.Unlock()
	r.Recovery = j.health.State.Lost() || j.health.State == HealthWaiting
}

// Restore puts a job's state back to a checkpoint, after an undo checkpoint
// of what is there.
func (c *Coordinator) Restore(ctx context.Context, name string, req RestoreRequest) (*Operation, error) {
	j, r, err := c.target(ctx, name, req)
	if err != nil {
		return nil, err
	}
	return j.submit(OpRestore, func(ctx context.Context, op *Operation) (func(*Status), error) {
		res, err := j.restore(ctx, op, r, req.NoUndo, "restore")
		return func(s *Status) { s.Restore = res }, err
	})
}

// Undo puts back what was there before the last restore or rescale.
func (c *Coordinator) Undo(ctx context.Context, name string) (*Operation, error) {
	j, err := c.find(name)
	if err != nil {
		return nil, err
	}
	if err := j.refuseStandby(ctx); err != nil {
		return nil, err
	}
	u, err := c.loadUndo(ctx, name)
	if err != nil {
		return nil, Explain(err)
	}
	if u == nil {
		return nil, fault.New(fault.NoCheckpoint, "`coordinator restore JOB --checkpoint ID` restores any checkpoint", "job %q has nothing to undo: no restore or rescale left an undo checkpoint", name)
	}
	return j.submit(OpUndo, func(ctx context.Context, op *Operation) (func(*Status), error) {
		r := restore.Request{Job: j.config(), Checkpoint: u.Checkpoint, From: name, SameServer: j.sameServer(), Epoch: j.knownEpoch()}
		res, err := j.restore(ctx, op, r, false, "undo")
		return func(s *Status) { s.Restore = res }, err
	})
}

// restore runs in the actor: plan, undo checkpoint, execution.
func (j *job) restore(ctx context.Context, op *Operation, r restore.Request, noUndo bool, what string) (*restore.Result, error) {
	name := j.config().Name
	j.c.emit(Event{Kind: EventRestoreStarted, Job: name, ID: r.Checkpoint, Operation: op.Status().ID, Message: fmt.Sprintf("%s of checkpoint %d of job %q", what, r.Checkpoint, r.From)})
	res, err := j.restoreSteps(ctx, op, r, noUndo, what)
	if err = j.endedBy(ctx, err); err != nil {
		j.keepUnresolved(err)
		f := Explain(err)
		j.c.emit(Event{Kind: EventRestoreFailed, Job: name, ID: r.Checkpoint, Operation: op.Status().ID, Message: what + " failed: " + f.Message})
		return nil, f
	}
	j.c.emit(Event{Kind: EventRestoreCompleted, Job: name, ID: r.Checkpoint, Operation: op.Status().ID, Restore: &res, Message: fmt.Sprintf(
		"%s done: checkpoint %d is live, %d keys, %d removed, epoch %d", what, r.Checkpoint, res.Keys, res.Removed, res.Epoch)})
	return &res, nil
}

func (j *job) restoreSteps(ctx context.Context, op *Operation, r restore.Request, noUndo bool, what string) (restore.Result, error) {
	j.look(ctx, &r)
	// The undo checkpoint's retention must not remove what is to be restored.
	release, err := j.c.opts.Store.Hold(ctx, r.From, r.Checkpoint)
	if err != nil {
		return restore.Result{}, err
	}
	defer release()
	plan, err := j.restorer().Plan(ctx, r, op.progress)
	if err != nil {
		return restore.Result{}, err
	}
	op.expect(plan.Keys, plan.Elements, plan.Bytes)
	if !noUndo && !r.Recovery {
		cp, err := j.take(ctx, op, cut.Request{Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerPreRestore, Note: fmt.Sprintf("before the %s of checkpoint %d", what, r.Checkpoint)})
		if err != nil {
			return restore.Result{}, fmt.Errorf("undo checkpoint (--no-undo goes without): %w", err)
		}
		r.Undo = cp.ID
		crashpoint.At(crashpoint.UndoTaken)
	}
	res, err := j.restorer().Run(ctx, r, op.progress)
	if err != nil {
		return res, err
	}
	res.Warnings = append(res.Warnings, unsaved(r, plan)...)
	// The flip has happened: what follows must not be lost to an abort.
	j.afterFlip(context.WithoutCancel(ctx), what)
	return res, nil
}

// PlanRescale says what a rescale would do, from the newest checkpoint.
func (c *Coordinator) PlanRescale(ctx context.Context, name string, req RescaleRequest) (rescaler.Plan, error) {
	j, err := c.find(name)
	if err != nil {
		return rescaler.Plan{}, err
	}
	if err := j.refuseStandby(ctx); err != nil {
		return rescaler.Plan{}, err
	}
	plan, err := j.rescaler().Plan(ctx, j.rescaleRequest(req))
	if err != nil {
		return rescaler.Plan{}, Explain(err)
	}
	return plan, nil
}

func (j *job) rescaleRequest(req RescaleRequest) rescaler.Request {
	return rescaler.Request{Job: j.config(), To: req.Parallelism, Epoch: j.knownEpoch(), Split: req.Split, AllowIdle: req.AllowIdle, Broadcast: req.Broadcast}
}

// Rescale redistributes a job's key groups and operator state over a new
// parallelism.
func (c *Coordinator) Rescale(ctx context.Context, name string, req RescaleRequest) (*Operation, error) {
	j, err := c.find(name)
	if err != nil {
		return nil, err
	}
	if err := j.refuseStandby(ctx); err != nil {
		return nil, err
	}
	return j.submit(OpRescale, func(ctx context.Context, op *Operation) (func(*Status), error) {
		res, err := j.rescale(ctx, op, req)
		return func(s *Status) { s.Rescale = res }, err
	})
}

func (j *job) rescale(ctx context.Context, op *Operation, req RescaleRequest) (*rescaler.Result, error) {
	name := j.config().Name
	j.c.emit(Event{Kind: EventRescaleStarted, Job: name, Operation: op.Status().ID, Message: fmt.Sprintf("rescale to parallelism %d", req.Parallelism)})
	res, err := j.rescaleSteps(ctx, op, req)
	if err = j.endedBy(ctx, err); err != nil {
		j.keepUnresolved(err)
		f := Explain(err)
		j.c.emit(Event{Kind: EventRescaleFailed, Job: name, Operation: op.Status().ID, Message: "rescale failed: " + f.Message})
		return nil, f
	}
	j.c.emit(Event{Kind: EventRescaleCompleted, Job: name, ID: res.Checkpoint, Operation: op.Status().ID, Rescale: &res, Message: fmt.Sprintf(
		"rescaled from %d to %d, epoch %d, checkpoint %d", res.From, res.To, res.Epoch, res.Checkpoint)})
	return &res, nil
}

func (j *job) rescaleSteps(ctx context.Context, op *Operation, req RescaleRequest) (rescaler.Result, error) {
	r := j.rescaleRequest(req)
	// What is refused is refused before anything is taken; without a
	// checkpoint there is nothing to plan from yet.
	if j.newestID() != 0 {
		if _, err := j.rescaler().Plan(ctx, r); err != nil {
			return rescaler.Result{}, err
		}
	}
	cp, err := j.take(ctx, op, cut.Request{Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerPreRescale, Note: fmt.Sprintf("before the rescale to %d", req.Parallelism)})
	if err != nil {
		return rescaler.Result{}, err
	}
	crashpoint.At(crashpoint.RescaleBased)
	r.Base, r.Undo = cp.ID, cp.ID
	res, err := j.rescaler().Run(ctx, r, op.progress)
	if err != nil {
		return res, err
	}
	ctx = context.WithoutCancel(ctx)
	j.afterFlip(ctx, "rescale")
	j.retain(ctx)
	return res, nil
}
