package rescaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/restore"
	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// cleanTimeout bounds the cleaning up, whose context outlives the caller's.
const cleanTimeout = 30 * time.Second

// Run rescales: it makes a checkpoint of the redistributed state over the
// base's keyed chunks, and then puts the operator state and the assignment in
// place in one atomic step. The caller has taken the base just before.
//
// After an error nothing was changed and the new checkpoint is gone; when it
// is restore.ErrUnresolved (wrapped), the state store could not be asked, the
// journal's entry stays, and the job counts as marked until Resume succeeds.
// A job whose workers wrote operator state since the base gives fault.Busy.
// Cancelling ctx stops it cleanly before the flip, and not after.
func (e *Executor) Run(ctx context.Context, req Request, p Progress) (Result, error) {
	started := e.Now()
	if err := e.settleOld(ctx, req.Job); err != nil {
		return Result{}, err
	}
	r, err := e.prepare(ctx, req, p)
	if err != nil {
		return Result{}, err
	}
	defer r.release()
	if err := checkFresh(req, r); err != nil {
		return Result{}, err
	}
	entry, err := e.change(ctx, req, r, p)
	if err != nil {
		return Result{}, err
	}
	res := Result{Plan: r.plan}
	p.Tell(PhaseClean, 0, 0, 0)
	if err := e.end(ctx, entry); err != nil {
		res.Warnings = append(res.Warnings, "the rescale is done, but its journal entry stays until the next start: "+err.Error())
	}
	crashpoint.At(crashpoint.RescaleEnded)
	res.DurationMs = e.Now().Sub(started).Milliseconds()
	return res, nil
}

// change makes the checkpoint and flips. The journal's entry is written before
// the commit, so that a crash leaves no checkpoint that nobody knows.
func (e *Executor) change(ctx context.Context, req Request, r *ready, p Progress) (restore.Entry, error) {
	w, err := e.Store.Begin(ctx, snapshot.Attempt{
		Job: req.Job.Name, Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerRescale,
		Note:      fmt.Sprintf("parallelism %d to %d", r.plan.From, r.plan.To),
		StartedAt: e.Now(), Parent: r.plan.Base, After: max(r.live.Record.Attempt, r.live.Record.Checkpoint),
	})
	if err != nil {
		return restore.Entry{}, restore.Fault(err, fault.Store, "begin the rescaled checkpoint of job %q", req.Job.Name)
	}
	defer w.Abort()
	crashpoint.At(crashpoint.RescaleBegun)
	r.plan.Checkpoint = w.ID()
	s, err := e.swap(req, r, p)
	if err != nil {
		return restore.Entry{}, err
	}
	if err := s.Note(ctx, PhaseWrite); err != nil {
		return restore.Entry{}, e.undo(ctx, req.Job.Name, w.ID(), err)
	}
	crashpoint.At(crashpoint.RescaleNoted)
	if err := e.commit(ctx, w, r, s, p); err != nil {
		err = restore.Fault(err, fault.Store, "rescale of job %q to %d: nothing was changed", req.Job.Name, req.To)
		fail(ctx, w, err)
		return restore.Entry{}, e.undo(ctx, req.Job.Name, w.ID(), err)
	}
	crashpoint.At(crashpoint.RescaleCommitted)
	flip, err := s.Run(ctx)
	if err != nil {
		return restore.Entry{}, e.undo(ctx, req.Job.Name, w.ID(), err)
	}
	crashpoint.At(crashpoint.RescaleFlipped)
	r.plan.Epoch = flip.Epoch
	if flip.Warning != "" {
		r.plan.Warnings = append(r.plan.Warnings, flip.Warning)
	}
	return s.Entry, nil
}

// reasons are why an attempt failed, by the code of its error; the others are
// the state's.
var reasons = map[fault.Code]snapshot.FailureReason{
	fault.Store: snapshot.FailStore, fault.Corrupt: snapshot.FailStore, fault.Unreachable: snapshot.FailConnection,
	fault.Permission: snapshot.FailPermission, fault.Internal: snapshot.FailInternal,
}

// fail gives the attempt its reason in the history.
func fail(ctx context.Context, w snapshot.Writer, cause error) {
	f := snapshot.Failure{Reason: snapshot.FailState, Message: cause.Error()}
	if context.Cause(ctx) != nil {
		f.Reason = snapshot.FailAborted
	} else if reason, ok := reasons[fault.CodeOf(cause)]; ok {
		f.Reason = reason
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	// A commit whose answer was lost can't be failed any more: undo deletes
	// it. Anything else is found interrupted at the next start.
	_ = w.Fail(within, f)
}

// commit writes the new checkpoint and completes the request of the swap.
func (e *Executor) commit(ctx context.Context, w snapshot.Writer, r *ready, s *restore.Swap, p Progress) error {
	b, verified, err := e.build(ctx, w, r, e.Now(), p)
	if err != nil {
		return err
	}
	if err := e.Backend.Room(ctx, b.staged.exist, b.staged.elements, b.staged.bytes); err != nil {
		return restore.Fault(err, fault.Failed, "room for the operator state in %s", e.Backend.Server())
	}
	if err := w.Commit(ctx, b.manifest); err != nil {
		return err
	}
	if !verified {
		if err := verify(ctx, e.Store, b.manifest); err != nil {
			return err
		}
	}
	s.Request.Operators, s.Request.Schemas = b.states, b.schemas
	s.Feed = func(ctx context.Context, sink snapshot.Sink) error {
		return snapshot.Walk(ctx, e.Store, b.manifest, sink, snapshot.SectionOperator)
	}
	s.Entry.Keys, s.Entry.Elements = b.staged.exist, b.staged.elements
	return nil
}

func (e *Executor) swap(req Request, r *ready, p Progress) (*restore.Swap, error) {
	detail, err := json.Marshal(r.plan)
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "", "write down the plan of the rescale of job %q", req.Job.Name)
	}
	id, at := e.NewID(), e.Now().UTC()
	live := r.live.Record
	return &restore.Swap{
		Journal: e.Journal, Backend: e.Backend, Progress: p, Waits: e.waits,
		Entry: restore.Entry{ID: id, Job: req.Job.Name, Prefix: req.Job.Prefix, Kind: restore.KindRescale,
			Checkpoint: r.plan.Checkpoint, Undo: r.plan.Undo, StartedAt: at,
			Removed: r.ops.keys.exist, Epoch: r.plan.Epoch, Detail: detail},
		Request: statebackend.RestoreRequest{
			ID: id, Job: req.Job.Key(), Scope: statebackend.ScopeOperator, Checkpoint: r.plan.Checkpoint, StartedAt: at,
			Epoch: live.Epoch, NewEpoch: r.plan.Epoch, Incarnation: live.Incarnation, Attempt: r.plan.Checkpoint,
			Assignment: r.assignment(r.base.KeyGroups), AsOf: e.clock(r.live), Unchanged: r.ops.keys.keys,
		},
	}, nil
}

// undo takes the new checkpoint back after a failure, unless the end of the
// swap is unknown: then the entry and the checkpoint stay for Resume.
func (e *Executor) undo(ctx context.Context, job string, id snapshot.ID, cause error) error {
	if errors.Is(cause, restore.ErrUnresolved) {
		return cause
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	err := e.forget(within, job, id)
	if err == nil {
		err = restore.DropEntry(within, e.Journal, job)
	}
	if err == nil {
		return cause
	}
	f := fault.As(cause)
	return &fault.Error{Code: f.Code, Hint: f.Hint, Err: errors.Join(cause, err),
		Message: fmt.Sprintf("%s; and what is left of it is removed at the next start: %s", cause, err)}
}

// forget deletes the checkpoint of a rescale that didn't happen. An attempt
// that was never committed stays in the history as the failure that it is.
func (e *Executor) forget(ctx context.Context, job string, id snapshot.ID) error {
	history, err := e.Store.List(ctx, job)
	if err != nil {
		return restore.Fault(err, fault.Store, "read the history of job %q", job)
	}
	for _, c := range history {
		if c.ID == id && c.Trigger == snapshot.TriggerRescale && c.State == snapshot.StateCompleted {
			err := e.Store.Delete(ctx, job, id)
			return restore.Fault(err, fault.Store, "delete the rescaled checkpoint %d of job %q", id, job)
		}
	}
	return nil
}

// end tells of a flip, and then drops its entry.
func (e *Executor) end(ctx context.Context, entry restore.Entry) error {
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	if e.OnFlip != nil {
		if err := e.OnFlip(within, entry); err != nil {
			return err
		}
	}
	return restore.DropEntry(within, e.Journal, entry.Job)
}

// settleOld ends what an earlier crash left behind, so that there is one entry
// for a job at most. An entry of a restore is the restore's to end.
func (e *Executor) settleOld(ctx context.Context, job config.Job) error {
	old, err := restore.GetEntry(ctx, e.Journal, job.Name)
	if err != nil || old == nil {
		return err
	}
	if old.Kind != restore.KindRescale {
		return fault.New(fault.Busy, "it is resolved at the next start of the coordinator",
			"job %q: %s %s of checkpoint %d was left behind at %s", old.Job, old.Kind, old.ID, old.Checkpoint, stamp(old.StartedAt))
	}
	_, err = e.resume(ctx, job, *old)
	return err
}

// Resume ends a rescale of the job that a crash left behind; the engine calls
// it at start, before anything else touches the job, and before the restore's
// Resume. A rescale that had flipped is done: Detail holds its Plan as JSON.
// Otherwise nothing was changed and the checkpoint that it had made is deleted.
// No entry gives none.
//
// When the state store can't be reached it returns an error, the entry stays,
// and the job counts as marked: call it again later. Idempotent.
func (e *Executor) Resume(ctx context.Context, job config.Job) ([]Resumed, error) {
	entry, err := restore.GetEntry(ctx, e.Journal, job.Name)
	if err != nil || entry == nil || entry.Kind != restore.KindRescale {
		return nil, err
	}
	done, err := e.resume(ctx, job, *entry)
	if err != nil {
		return nil, err
	}
	return []Resumed{done}, nil
}

func (e *Executor) resume(ctx context.Context, job config.Job, entry restore.Entry) (Resumed, error) {
	done, err := restore.Settle(ctx, e.Backend, job, entry)
	if err != nil {
		return Resumed{}, err
	}
	if done.Flipped {
		return done, e.end(ctx, entry)
	}
	if err := e.forget(ctx, job.Name, entry.Checkpoint); err != nil {
		return Resumed{}, err
	}
	crashpoint.At(crashpoint.RescaleForgotten)
	return done, restore.DropEntry(ctx, e.Journal, job.Name)
}
