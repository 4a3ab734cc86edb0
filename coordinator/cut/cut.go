// Package cut takes one checkpoint: cut → records → chunks → commit.
package cut

import (
	"context"
	"errors"
	"fmt"
	"time"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/keygroups"
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
	Unseen      error          // why the state could not be looked at: the attempt fails with it
	After       snapshot.ID    // the id must be greater
	Indexed     uint64         // names that the index had before; an index that is empty now is lost
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
	if req.Unseen != nil {
		return t.failed(ctx, w, req, req.Unseen)
	}
	m, err := t.fill(ctx, w, req)
	if err == nil {
		if err = w.Commit(ctx, m); err != nil {
			err = &storeError{err}
		}
	}
	if err != nil {
		return t.failed(ctx, w, req, err)
	}
	out := Outcome{Checkpoint: &m.Checkpoint, Manifest: m}
	out.RecordErr = t.note(context.WithoutCancel(ctx), req, statebackend.Notes{Checkpoint: w.ID(), CheckpointAt: *m.Checkpoint.CompletedAt}, m.Incarnation)
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

// fill cuts and encodes, and gives the manifest to commit.
func (t Taker) fill(ctx context.Context, w snapshot.Writer, req Request) (*snapshot.Manifest, error) {
	began := t.Now()
	// Written before the cut, so that a state which knows it is no older than
	// this cut (I5). Where it can't be written (a server that is out of memory)
	// the checkpoint is worth more than the note: the cut reads what is there.
	if err := t.note(ctx, req, statebackend.Notes{Attempt: w.ID()}, req.Incarnation); err != nil && !tolerable(err) {
		return nil, err
	}
	enc := snapshot.NewEncoder(ctx, markedWriter{w}, snapshot.EncoderOptions{})
	progress := func(keys, elements, bytes uint64) {
		if req.Progress != nil {
			req.Progress("cut", keys, elements, bytes)
		}
	}
	progress(0, 0, 0)
	count := newCounter(enc, req.Job.Key(), req.Job.MaxParallelism, progress)
	c, err := t.Backend.Cut(ctx, t.cutRequest(req), count)
	if err != nil {
		return nil, err
	}
	if err := fits(req.Job, c); err != nil {
		return nil, err
	}
	sum, err := enc.Close()
	if err != nil {
		return nil, err
	}
	if req.Indexed > 0 && sum.Keys+sum.Missing == 0 {
		return nil, fmt.Errorf("%w: the index %q is gone, and %d names were in it", statebackend.ErrStateLost, req.Job.Key().Index(), req.Indexed)
	}
	progress(sum.Keys, sum.Elements, sum.Bytes)
	return t.manifest(w, req, began, c, sum, count), nil
}

func (t Taker) cutRequest(req Request) statebackend.CutRequest {
	r := statebackend.CutRequest{
		Job: req.Job.Key(), Grade: req.Grade, Incarnation: req.Incarnation, RunID: req.RunID,
		MaxPause: time.Duration(req.Job.Checkpoint.MaxPause),
	}
	if r.Grade == "" {
		r.Grade = req.Job.Checkpoint.Grade
	}
	for _, s := range req.Job.Sources {
		r.Sources = append(r.Sources, statebackend.SourceRef{Topic: s.Topic, Group: s.Group})
	}
	return r
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

func (t Taker) manifest(w snapshot.Writer, req Request, began time.Time, c statebackend.Cut, sum snapshot.Summary, count *counter) *snapshot.Manifest {
	ended := t.Now()
	parallelism, ranges := req.Job.Parallelism, []keygroups.Range(nil)
	if c.Assigned != nil {
		parallelism, ranges = c.Assigned.Parallelism, c.Assigned.Ranges
	}
	return &snapshot.Manifest{
		Format: snapshot.FormatVersion,
		Checkpoint: snapshot.Checkpoint{
			Job: req.Job.Name, ID: w.ID(), Kind: req.Kind, Name: req.Name, Note: req.Note, Trigger: req.Trigger,
			State: snapshot.StateCompleted, Grade: c.Grade, StartedAt: began, CompletedAt: &ended,
			DurationMs: ended.Sub(began).Milliseconds(), StallMs: float64(c.Stall.Microseconds()) / 1000,
			Keys: sum.Keys, Elements: sum.Elements, Bytes: sum.Bytes, Missing: sum.Missing,
			StoredBytes: w.StoredBytes(), FullBytes: sum.Stored, Parent: req.Parent,
			Parallelism: parallelism, MaxParallelism: req.Job.MaxParallelism, Epoch: c.Record.Epoch, Sources: c.Positions,
		},
		Identity:    snapshot.Identity{Server: t.Backend.Server(), Prefix: req.Job.Prefix, Job: req.Job.Name},
		Incarnation: c.Record.Incarnation, Attempt: c.Record.Attempt,
		Server: c.Server, CutAt: c.At, KeyGroups: req.Job.Rule(), Ranges: ranges,
		OperatorStates: c.Operators, States: count.stateStats(), Groups: count.groupStats(), Chunks: sum.Chunks,
	}
}
