// Package cut takes one checkpoint: cut → records → chunks → commit.
package cut

import (
	"context"
	"errors"
	"fmt"
	"time"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Taker takes checkpoints of jobs from one state store into one checkpoint
// store. Safe for concurrent use on different jobs.
type Taker struct {
	Store   snapshot.Store
	Backend statebackend.Backend
	Now     func() time.Time
}

// Request says what to take.
type Request struct {
	Job         config.Job
	Kind        snapshot.Kind
	Name        string
	Note        string
	Trigger     snapshot.Trigger
	Parent      snapshot.ID
	Grade       snapshot.Grade // "" is the job's own
	Incarnation string         // that the state must have; "" skips the check
	RunID       string         // of the server that was looked at; "" skips the check
	Epoch       uint64         // of the state that was looked at
	Unseen      error          // why the state could not be looked at: the attempt fails with it
	After       snapshot.ID    // the id must be greater
	Indexed     uint64         // names that the index had before; an index that is empty now is lost
	// Base is what the last completed checkpoint left, nil when it left
	// nothing: NoBase says why (Restarted when it doesn't).
	Base   *Base
	NoBase Full
	// Before is the checkpoint that this one is compared with, to tell a sudden
	// shrink; nil for none.
	Before *snapshot.Checkpoint
	// VerifyLive asks for a self-check: everything is read and compared with
	// what tracking believed.
	VerifyLive bool
	// Started is told the id once the attempt is recorded; may be nil.
	Started func(snapshot.ID)
	// Progress is told how far the cut is; may be nil.
	Progress func(phase string, keys, elements, bytes uint64)
}

// Outcome is what became of an attempt.
type Outcome struct {
	// Checkpoint is the attempt as the history has it, nil when it could not
	// even be recorded.
	Checkpoint *snapshot.Checkpoint
	Manifest   *snapshot.Manifest // of a completed one
	// Base is what a completed one leaves for the next; the request's is used
	// up. After a failure the request's can be used again.
	Base *Base
	// Full says why it is a full one.
	Full Full
	// RecordErr says that the job's record could not be told of the completed
	// checkpoint: no failure of the checkpoint.
	RecordErr error
}

// failTime bounds the recording of a failure, whose own context may have ended.
const failTime = 30 * time.Second

// Take makes one attempt. On an error the attempt is recorded as failed with
// its reason, and nothing of it is kept.
func (t Taker) Take(ctx context.Context, req Request) (Outcome, error) {
	if limit := time.Duration(req.Job.Checkpoint.Timeout); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("checkpoint timeout of %s: %w", limit, context.DeadlineExceeded))
		defer cancel()
	}
	w, err := t.Store.Begin(ctx, snapshot.Attempt{
		Job: req.Job.Name, Kind: req.Kind, Name: req.Name, Note: req.Note, Trigger: req.Trigger,
		StartedAt: t.Now(), Parent: req.Parent, After: req.After,
	})
	if err != nil {
		return Outcome{}, fault.Wrap(err, fault.Store, "see `coordinator store stats`", "begin a checkpoint of job %q", req.Job.Name)
	}
	defer w.Abort()
	if req.Started != nil {
		req.Started(w.ID())
	}
	crashpoint.At(crashpoint.AttemptBegun)
	if req.Unseen != nil {
		return t.failed(ctx, w, req, req.Unseen)
	}
	base, release, why, err := t.stand(ctx, req)
	defer release()
	if err != nil {
		return t.failed(ctx, w, req, err)
	}
	a := &attempt{t: t, req: req, w: w, began: t.Now(), base: base, full: why}
	if err = a.fill(ctx); err == nil {
		err = a.commit(ctx)
	}
	if err != nil {
		return t.failed(ctx, w, req, err)
	}
	out := Outcome{Checkpoint: &a.m.Checkpoint, Manifest: a.m, Full: a.full, Base: a.leave()}
	out.RecordErr = t.note(context.WithoutCancel(ctx), req, statebackend.Notes{Checkpoint: w.ID(), CheckpointAt: *a.m.Checkpoint.CompletedAt}, a.m.Incarnation)
	crashpoint.At(crashpoint.AttemptRecorded)
	return out, nil
}

// failed records the failure. A record that fails too is told with it: at the
// next start the attempt is found interrupted.
func (t Taker) failed(ctx context.Context, w snapshot.Writer, req Request, err error) (Outcome, error) {
	f := failureOf(ctx, err)
	// What ended the attempt says more than what it was waiting for.
	if cause := context.Cause(ctx); cause != nil && (f.Reason == snapshot.FailTimeout || !errors.Is(err, cause)) {
		err = fmt.Errorf("%w: %w", cause, err)
		f.Message = err.Error()
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), failTime)
	defer cancel()
	failErr := w.Fail(late, f)
	ended := t.Now()
	history, listErr := t.Store.List(late, req.Job.Name)
	err = fmt.Errorf("checkpoint %d of job %q: %w", w.ID(), req.Job.Name, errors.Join(err, failErr, listErr))
	for i := range history {
		if history[i].ID == w.ID() {
			return Outcome{Checkpoint: &history[i]}, err
		}
	}
	return Outcome{Checkpoint: &snapshot.Checkpoint{
		Job: req.Job.Name, ID: w.ID(), Kind: req.Kind, Trigger: req.Trigger, State: snapshot.StateFailed, Failure: &f, CompletedAt: &ended,
	}}, err
}

func tolerable(err error) bool {
	return errors.Is(err, statebackend.ErrNoRoom) || errors.Is(err, statebackend.ErrPermission)
}

func (t Taker) note(ctx context.Context, req Request, n statebackend.Notes, incarnation string) error {
	if incarnation == "" {
		return nil
	}
	if err := t.Backend.Note(ctx, req.Job.Key(), incarnation, n); err != nil {
		return fmt.Errorf("record of job %q: %w", req.Job.Name, err)
	}
	return nil
}

// fits refuses state that is laid out by another rule than the job's.
func fits(job config.Job, c statebackend.Cut) error {
	if c.Assigned == nil {
		return nil
	}
	live := job.Rule()
	live.MaxParallelism, live.Hash = c.Assigned.MaxParallelism, c.Assigned.Hash
	if err := job.Rule().SameLayout(live); err != nil {
		return fault.Wrap(err, fault.Refused, "make the configuration fit; changing max parallelism or hash is rekeying", "state of job %q", job.Name)
	}
	return nil
}
