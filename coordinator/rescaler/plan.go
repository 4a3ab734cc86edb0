package rescaler

import (
	"context"
	"errors"
	"time"

	"keyframe/coordinator/fault"
	"keyframe/coordinator/restore"
	"keyframe/keygroups"
	"keyframe/rescale"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// ready is a plan with what its execution needs.
type ready struct {
	plan    Plan
	base    *snapshot.Manifest
	live    statebackend.Glimpse
	ops     *operators
	compute rescale.Plan
	release func()
}

// Plan says what a rescale would do, from the base checkpoint. It changes
// nothing. Its errors are those that Run would give before it touches
// anything, each a *fault.Error: usage, refused (a guard, with its way round),
// no_checkpoint, corrupt, unreachable, permission, store.
func (e *Executor) Plan(ctx context.Context, req Request) (Plan, error) {
	r, err := e.prepare(ctx, req, nil)
	if err != nil {
		return Plan{}, err
	}
	r.release()
	return r.plan, nil
}

func (e *Executor) prepare(ctx context.Context, req Request, p Progress) (*ready, error) {
	if req.Split == "" {
		req.Split = req.Job.OperatorState.Split
	}
	live, err := e.Backend.Look(ctx, req.Job.Key())
	if err != nil {
		return nil, restore.Fault(err, fault.Unreachable, "look at the state of job %q in %s", req.Job.Name, e.Backend.Server())
	}
	if m := live.Record.Restore; m != nil {
		return nil, fault.Wrap(statebackend.ErrMarked, fault.Refused,
			"wait for it; when nothing runs any more, it was left behind: the coordinator that began it resolves it at its next start",
			"job %q: a %s of checkpoint %d (id %s) began at %s", req.Job.Name, m.Kind, m.Checkpoint, m.ID, stamp(m.StartedAt))
	}
	r := &ready{live: live}
	history, err := e.open(ctx, &req, r)
	if err != nil {
		return nil, err
	}
	if err := e.fill(ctx, req, r, history, p); err != nil {
		r.release()
		return nil, restore.Fault(err, fault.Failed, "rescale job %q to %d", req.Job.Name, req.To)
	}
	return r, nil
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// open finds the base checkpoint and keeps it from being deleted.
func (e *Executor) open(ctx context.Context, req *Request, r *ready) ([]snapshot.Checkpoint, error) {
	job := req.Job.Name
	history, err := e.Store.List(ctx, job)
	if err != nil {
		return nil, restore.Fault(err, fault.Store, "read the history of job %q", job)
	}
	if req.Base == 0 {
		own := false // what was imported is of another time or place
		for _, c := range history {
			if imported := c.Trigger == snapshot.TriggerImport; c.Restorable() && !(imported && own) {
				req.Base, own = c.ID, !imported
			}
		}
	}
	if req.Base == 0 {
		return nil, fault.New(fault.NoCheckpoint, "take a checkpoint of the job first", "job %q has no checkpoint to plan from", job)
	}
	if _, err := restore.Listed(history, job, req.Base); err != nil {
		return nil, err
	}
	if r.release, err = e.Store.Hold(ctx, job, req.Base); err != nil {
		return nil, restore.Fault(err, fault.Store, "hold checkpoint %d of job %q", req.Base, job)
	}
	if r.base, err = e.Store.Manifest(ctx, job, req.Base); err != nil {
		r.release()
		return nil, restore.Fault(err, fault.Store, "read the manifest of checkpoint %d of job %q", req.Base, job)
	}
	return history, nil
}

func (e *Executor) fill(ctx context.Context, req Request, r *ready, history []snapshot.Checkpoint, p Progress) error {
	from := parallelismOf(r.base, req)
	if err := checkBase(r.base, req, r.live, e.Backend.Server()); err != nil {
		return err
	}
	if err := checkTarget(req.Job.Name, from, req.To, req.Job.MaxParallelism); err != nil {
		return err
	}
	warnings, err := e.checkSources(ctx, req)
	if err != nil {
		return err
	}
	if r.ops, err = readOperators(ctx, e.Store, r.base, p); err != nil {
		return err
	}
	chosen, err := choices(req.Broadcast, r.ops.states)
	if err != nil {
		return err
	}
	r.compute, err = rescale.Compute(rescale.Request{Rule: req.Job.Rule(), From: from, To: req.To,
		Split: req.Split, States: r.ops.states, Broadcast: chosen})
	if err != nil {
		return explainCompute(err)
	}
	return e.describe(req, r, history, warnings)
}

func explainCompute(err error) error {
	if errors.Is(err, keygroups.ErrRule) {
		return fault.Wrap(err, fault.Refused, "give a parallelism that fits", "compute the new assignment")
	}
	return explain(err, "redistribute the operator state")
}

// describe fills in the plan.
func (e *Executor) describe(req Request, r *ready, history []snapshot.Checkpoint, warnings []string) error {
	m, groups := r.base, req.Job.MaxParallelism
	before := m.Ranges
	if len(before) == 0 {
		var err error
		if before, err = req.Job.Rule().Assign(r.compute.From); err != nil {
			return explainCompute(err)
		}
	}
	after := load(r.compute.Ranges, m.Groups, groups)
	r.plan = Plan{
		Job: req.Job.Name, From: r.compute.From, To: r.compute.To, MaxParallelism: groups,
		Epoch: nextEpoch(r, req.Epoch, history), Ranges: after, Moved: moved(before, r.compute.Ranges, groups),
		OperatorState: []OperatorPlan{}, Undo: req.Undo, Base: m.Checkpoint.ID,
		BaseAgeMs:  max(0, e.clock(r.live).Sub(m.CutAt).Milliseconds()),
		SkewBefore: skew(load(before, m.Groups, groups)), SkewAfter: skew(after),
		Warnings: append(append([]string{}, r.live.Warnings...), warnings...),
	}
	if r.plan.Undo == 0 {
		r.plan.Undo = r.plan.Base
	}
	if why := stale(m, r.live); why != "" {
		r.plan.Warnings = append(r.plan.Warnings, why+": the rescale itself works on a new checkpoint")
	}
	for i, s := range r.compute.States {
		r.plan.OperatorState = append(r.plan.OperatorState, OperatorPlan{
			Operator: s.Operator, Name: s.Name, Mode: s.Mode,
			Before: r.ops.states[i].Lengths(r.compute.From), After: s.Lengths(),
		})
	}
	return nil
}

// nextEpoch is above every epoch that is known of the job.
func nextEpoch(r *ready, known uint64, history []snapshot.Checkpoint) uint64 {
	epoch := max(known, r.live.Record.Epoch, r.base.Checkpoint.Epoch)
	if a := r.live.Assigned; a != nil {
		epoch = max(epoch, a.Epoch)
	}
	for _, c := range history {
		epoch = max(epoch, c.Epoch)
	}
	return epoch + 1
}

// clock is the server's time where the store tells it, else the coordinator's.
func (e *Executor) clock(live statebackend.Glimpse) time.Time {
	if !live.At.IsZero() {
		return live.At
	}
	return e.Now()
}

// checkFresh is for an execution, which can't do with an old base.
func checkFresh(req Request, r *ready) error {
	if r.live.Record.Incarnation == "" {
		return fault.New(fault.NoState, "take a checkpoint of the job first", "job %q has no record in its state store", req.Job.Name)
	}
	if why := stale(r.base, r.live); why != "" {
		return fault.New(fault.Refused, "take a checkpoint of the job first", "job %q: %s", req.Job.Name, why)
	}
	return nil
}

// assignment is what the flip publishes.
func (r *ready) assignment(rule keygroups.Rule) *statebackend.Assignment {
	return &statebackend.Assignment{Epoch: r.plan.Epoch, MaxParallelism: rule.MaxParallelism,
		Parallelism: r.plan.To, Hash: rule.Hash, Ranges: r.compute.Ranges}
}
