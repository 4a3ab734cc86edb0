package cut

import (
	"context"
	"errors"
	"fmt"
	"time"

	"keyframe/internal/crashpoint"
	"keyframe/keygroups"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// attempt is one attempt at a checkpoint under way.
type attempt struct {
	t     Taker
	req   Request
	w     snapshot.Writer
	began time.Time
	base  *Base // that it stands on, or is compared with; nil for none
	full  Full  // why it is a full one

	sink *sink
	cut  statebackend.Cut
	sum  snapshot.Summary
	m    *snapshot.Manifest
}

// fill cuts, encodes and, where it is due, compares; it makes the manifest to
// commit.
func (a *attempt) fill(ctx context.Context) error {
	// Written before the cut, so that a state which knows it is no older than
	// this cut (I5). Where it can't be written (a server that is out of memory)
	// the checkpoint is worth more than the note: the cut reads what is there.
	err := a.t.note(ctx, a.req, statebackend.Notes{Attempt: a.w.ID()}, a.req.Incarnation)
	if err != nil && !tolerable(err) {
		return err
	}
	crashpoint.At(crashpoint.AttemptNoted)
	check := a.checks()
	if err := a.take(ctx, check); err != nil {
		return err
	}
	if err := a.describe(ctx); err != nil {
		return err
	}
	if check {
		return a.compare(ctx)
	}
	return nil
}

// checks reports whether the attempt reads everything and compares it: when
// that was asked for, or when the ids pass a multiple of the job's number.
// Without a checkpoint to compare with there is nothing to do.
func (a *attempt) checks() bool {
	if a.base == nil {
		return false
	}
	n := snapshot.ID(a.req.Job.Checkpoint.SelfCheck())
	return a.req.VerifyLive || n > 0 && a.w.ID()/n > a.base.Manifest.Checkpoint.ID/n
}

// take lets the state store cut, and ends the encoding.
func (a *attempt) take(ctx context.Context, check bool) error {
	a.sink = &sink{ctx: ctx, w: markedWriter{a.w}, base: a.base, names: a.req.Indexed, progress: a.tell, tally: func() tally {
		return newTally(a.req.Job.Key(), a.req.Job.MaxParallelism)
	}}
	if check {
		a.sink.base = nil
	}
	a.tell(PhaseCopy, 0, 0, 0)
	var err error
	if a.cut, err = a.t.Backend.Cut(ctx, a.request(check), a.sink); err != nil {
		return err
	}
	if err := fits(a.req.Job, a.cut); err != nil {
		return err
	}
	if a.sum, err = a.sink.close(); err != nil {
		return err
	}
	if a.cut.Incremental != a.sink.over {
		return fmt.Errorf("the cut says that it is incremental: %t, but what it brought begins with a base: %t", a.cut.Incremental, !a.sink.over)
	}
	switch {
	case check:
		a.full = full(FullSelfCheck, "everything was read to compare it with checkpoint %d", a.base.Manifest.Checkpoint.ID)
	case !a.cut.Incremental && a.base != nil:
		a.full = full(FullTracking, "%s", a.cut.FullReason)
	}
	return nil
}

// tell passes the progress on.
func (a *attempt) tell(phase string, keys, elements, bytes uint64) {
	if a.req.Progress != nil {
		a.req.Progress(phase, keys, elements, bytes)
	}
}

func (a *attempt) request(check bool) statebackend.CutRequest {
	c := a.req.Job.Checkpoint
	r := statebackend.CutRequest{
		Job: a.req.Job.Key(), Grade: a.req.grade(), Incarnation: a.req.Incarnation, RunID: a.req.RunID,
		MaxPause: time.Duration(c.MaxPause), MaxStall: time.Duration(maxStall(c)), OnStall: c.OnStall, MaxReadRate: int64(c.MaxReadRate),
	}
	for _, s := range a.req.Job.Sources {
		r.Sources = append(r.Sources, statebackend.SourceRef{Topic: s.Topic, Group: s.Group})
	}
	if a.base != nil {
		r.Since, r.Check = a.base.Token, check
	}
	return r
}

// describe makes the manifest.
func (a *attempt) describe(ctx context.Context) error {
	m, err := a.manifest()
	if err != nil {
		return err
	}
	layered := len(m.Layers) > 0
	d := a.sink.count.draft
	switch {
	case !layered && !a.sink.over:
		m.Checkpoint.Keys, m.Checkpoint.Elements = a.sum.Keys, a.sum.Elements
		m.Checkpoint.Bytes, m.Checkpoint.Missing = a.sum.Bytes, a.sum.Missing
	case d.lost:
		if err := a.recount(ctx, m); err != nil {
			return err
		}
		d = a.sink.count.draft
		fallthrough
	default:
		m.Checkpoint.Keys, m.Checkpoint.Elements = d.keys, d.elements
		m.Checkpoint.Bytes, m.Checkpoint.Missing = d.bytes, d.missing
		m.Checkpoint.BytesEstimated = d.estimated > 0
	}
	m.States, m.Groups = d.stateStats(), d.groupStats()
	c := &m.Checkpoint
	if a.req.Indexed > 0 && c.Keys+c.Missing == 0 {
		return fmt.Errorf("%w: the index %q is gone, and %d names were in it", statebackend.ErrStateLost, a.req.Job.Key().Index(), a.req.Indexed)
	}
	if a.req.Before != nil {
		c.Shrunk = a.req.Job.Checkpoint.Shrink.Flag(*a.req.Before, *c)
	}
	a.m = m
	a.tell(PhaseStore, c.Keys, c.Elements, c.Bytes)
	return nil
}

// manifest says all but the counts.
func (a *attempt) manifest() (*snapshot.Manifest, error) {
	ended, c, req := a.t.Now(), a.cut, a.req
	parallelism, ranges := req.Job.Parallelism, []keygroups.Range(nil)
	if c.Assigned != nil {
		parallelism, ranges = c.Assigned.Parallelism, c.Assigned.Ranges
	}
	m := &snapshot.Manifest{
		Format: snapshot.FormatVersion,
		Checkpoint: snapshot.Checkpoint{
			Job: req.Job.Name, ID: a.w.ID(), Kind: req.Kind, Name: req.Name, Note: req.Note, Trigger: req.Trigger,
			State: snapshot.StateCompleted, Grade: c.Grade, StartedAt: a.began, CompletedAt: &ended,
			DurationMs: ended.Sub(a.began).Milliseconds(), StallMs: float64(c.Stall.Microseconds()) / 1000,
			StoredBytes: a.w.StoredBytes(), Parent: req.Parent,
			Parallelism: parallelism, MaxParallelism: req.Job.MaxParallelism, Epoch: c.Record.Epoch, Sources: c.Positions,
			Incremental: c.Incremental, FullReason: a.full.Text, Tracking: c.Tracking, GradeReason: c.GradeReason,
			Rounds: c.Rounds, Hot: c.Hot,
		},
		Identity:    snapshot.Identity{Server: a.t.Backend.Server(), Prefix: req.Job.Prefix, Job: req.Job.Name},
		Incarnation: c.Record.Incarnation, Attempt: c.Record.Attempt,
		Server: c.Server, CutAt: c.At, KeyGroups: req.Job.Rule(), Ranges: ranges, OperatorStates: c.Operators,
	}
	return m, a.place(m)
}

// place says which chunks there are, in which layers.
func (a *attempt) place(m *snapshot.Manifest) error {
	var parent *snapshot.Manifest
	m.Sorted = a.sum.Sorted
	if a.sink.over {
		parent, m.Sorted = a.base.Manifest, true
	}
	var err error
	if m.Chunks, m.Layers, err = snapshot.Stack(parent, a.sum.Layers); err != nil {
		return fmt.Errorf("layers of checkpoint %d: %w", a.w.ID(), err)
	}
	settleBytes(m)
	return nil
}

// flusher is a writer that can make what it took readable before the commit.
type flusher interface {
	Flush(ctx context.Context) error
}

// flush makes what was written readable, as it must be to be walked.
func (a *attempt) flush(ctx context.Context) error {
	f, ok := a.w.(flusher)
	if !ok {
		return errors.New("the checkpoint store can't be read before the commit")
	}
	if err := f.Flush(ctx); err != nil {
		return &storeError{err}
	}
	return nil
}

// recount counts what a checkpoint in layers holds, when it has too many names
// to be counted while it is made, by reading it.
func (a *attempt) recount(ctx context.Context, m *snapshot.Manifest) error {
	if err := a.flush(ctx); err != nil {
		return err
	}
	d := newDraft(newTally(a.req.Job.Key(), a.req.Job.MaxParallelism))
	d.blind = true
	count := newCounter(snapshot.LayerSink(discard{}), d, func(string, uint64, uint64, uint64) {})
	// One section at a time: what the manifest says of both isn't known yet.
	for _, s := range []snapshot.Section{snapshot.SectionKeyed, snapshot.SectionOperator} {
		if err := snapshot.Walk(ctx, a.t.Store, m, count, s); err != nil {
			return fmt.Errorf("count what was written: %w", err)
		}
	}
	a.sink.count.draft = d
	return nil
}

// leave gives what the completed checkpoint leaves for the next one. The
// request's base is used up.
func (a *attempt) leave() *Base {
	return newBase(a.m, a.cut.Token, a.untracked(), a.sink.count.draft)
}

// untracked says why it isn't known what is written after the cut.
func (a *attempt) untracked() string {
	switch {
	case a.cut.GradeReason != "":
		return a.cut.GradeReason
	case a.cut.Grade == snapshot.GradeSnapshot:
		return "this state store doesn't track writes"
	}
	return "writes are not tracked"
}

// discard is a sink that keeps nothing.
type discard struct{}

func (discard) BeginKey(snapshot.Key) error    { return nil }
func (discard) Element(snapshot.Element) error { return nil }
func (discard) Part([]byte) error              { return nil }
func (discard) EndKey(snapshot.KeyEnd) error   { return nil }
func (discard) NextLayer() error               { return nil }
