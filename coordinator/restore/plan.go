package restore

import (
	"context"
	"fmt"
	"time"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// ready is a plan with what its execution needs.
type ready struct {
	plan     Plan
	manifest *snapshot.Manifest
	live     statebackend.Glimpse
	request  statebackend.RestoreRequest
	guards   *scan    // of the sections that were read for the guards alone
	warnings []string // of the plan, those that the result repeats
	// release ends the hold on the checkpoint.
	release func()
}

// Plan says what a restore would do. It reads the whole checkpoint, the live
// record, the live index and the live schemas, and writes nothing. Its errors
// are those that Run would give before it touches anything, each a
// *fault.Error: no_checkpoint, corrupt (the caller may mark the checkpoint as
// bad when it wraps snapshot.ErrCorrupt or ErrNoChunk), refused (a guard, with its way round), unreachable, permission, store.
func (e *Executor) Plan(ctx context.Context, req Request, p Progress) (Plan, error) {
	r, err := e.prepare(ctx, req, e.plan, p)
	if err != nil {
		return Plan{}, err
	}
	r.release()
	return r.plan, nil
}

// reading is what of a checkpoint is read before anything is written.
type reading func(ctx context.Context, req Request, r *ready, p Progress) error

// prepare makes the guards that cost little, and then reads.
func (e *Executor) prepare(ctx context.Context, req Request, read reading, p Progress) (*ready, error) {
	if req.From == "" {
		req.From = req.Job.Name
	}
	r, err := e.open(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := e.fill(ctx, req, r, read, p); err != nil {
		r.release()
		return nil, Fault(err, fault.Failed, "plan the restore of checkpoint %d into job %q", req.Checkpoint, req.Job.Name)
	}
	return r, nil
}

// open finds the checkpoint and keeps it from being deleted.
func (e *Executor) open(ctx context.Context, req Request) (*ready, error) {
	history, err := e.Store.List(ctx, req.From)
	if err != nil {
		return nil, Fault(err, fault.Store, "read the history of job %q", req.From)
	}
	if _, err := Listed(history, req.From, req.Checkpoint); err != nil {
		return nil, err
	}
	release, err := e.Store.Hold(ctx, req.From, req.Checkpoint)
	if err != nil {
		return nil, Fault(err, fault.Store, "hold checkpoint %d of job %q", req.Checkpoint, req.From)
	}
	m, err := e.Store.Manifest(ctx, req.From, req.Checkpoint)
	if err != nil {
		release()
		return nil, Fault(err, fault.Store, "read the manifest of checkpoint %d of job %q", req.Checkpoint, req.From)
	}
	return &ready{manifest: m, release: release}, nil
}

func (e *Executor) fill(ctx context.Context, req Request, r *ready, read reading, p Progress) error {
	id := Identity{Checkpoint: r.manifest.Identity, Job: snapshot.Identity{
		Server: e.Backend.Server(), Prefix: req.Job.Prefix, Job: req.Job.Name}}
	asked := id
	if req.SameServer {
		asked.Checkpoint.Server = id.Job.Server
	}
	if err := checkIdentity(asked, req.As); err != nil {
		return err
	}
	if err := checkLayout(r.manifest, req.Job); err != nil {
		return err
	}
	var err error
	if r.live, err = e.Backend.Look(ctx, req.Job.Key()); err != nil {
		return Fault(err, fault.Unreachable, "look at the state of job %q in %s", req.Job.Name, e.Backend.Server())
	}
	if err := checkMark(r.live.Record, req.Job.Name); err != nil {
		return err
	}
	r.plan = e.outline(req, r, id)
	if err := e.lineage(ctx, req, r); err != nil {
		return err
	}
	return read(ctx, req, r, p)
}

// outline is what of the plan needs no look at the keys.
func (e *Executor) outline(req Request, r *ready, id Identity) Plan {
	m, now := r.manifest, e.clock(r.live)
	plan := Plan{
		Job: req.Job.Name, Checkpoint: req.Checkpoint, From: req.From, Identity: id,
		TakenAt: m.CutAt.UTC(), AgeMs: max(0, now.Sub(m.CutAt).Milliseconds()),
		Positions: positionsFor(m, req.Job), EpochFrom: r.live.Record.Epoch, Indexed: r.live.Indexed,
		Warnings: append([]string{}, r.live.Warnings...),
	}
	if a := r.live.Assigned; a != nil {
		plan.LiveParallelism = a.Parallelism
	}
	if skipped := len(m.Checkpoint.Sources) - len(plan.Positions); skipped > 0 {
		plan.Warnings = append(plan.Warnings, fmt.Sprintf(
			"%d source positions are left as they are: the job has no source of their topic and group", skipped))
	}
	if p := parallelismOf(m); plan.LiveParallelism > 0 && p > 0 && p != plan.LiveParallelism {
		plan.Warnings = append(plan.Warnings, fmt.Sprintf(
			"the job is assigned to %d subtasks now and to %d after the restore", plan.LiveParallelism, p))
	}
	return plan
}

// clock is the server's time where the store tells it, else the coordinator's.
func (e *Executor) clock(live statebackend.Glimpse) time.Time {
	if !live.At.IsZero() {
		return live.At
	}
	return e.Now()
}

// plan walks the whole checkpoint, which verifies it, and the live index, and
// asks for room.
func (e *Executor) plan(ctx context.Context, req Request, r *ready, p Progress) error {
	s := e.guard(ctx, req, r)
	s.rows = newRows(s.job, r.manifest)
	s.names = newNameSet(r.manifest.Checkpoint.Keys + r.manifest.Checkpoint.Missing)
	meter := (&Meter{Next: s, Phase: PhaseVerify, Progress: p}).Begin()
	if err := e.feed(ctx, r.manifest, req.Job, meter, s.claimed.add); err != nil {
		return Fault(err, fault.Store, "verify checkpoint %d of job %q", req.Checkpoint, req.From)
	}
	meter.End()
	if err := s.schemas.verdict(req.AcceptSchema); err != nil {
		return err
	}
	r.guards = s
	if err := e.conclude(ctx, req, r, s); err != nil {
		return err
	}
	return e.room(ctx, r.plan.Keys, r.plan.Elements, r.plan.Bytes)
}

// guard is a scan that also makes the guards that need a checkpoint's content.
func (e *Executor) guard(ctx context.Context, req Request, r *ready) *scan {
	s := &scan{job: req.Job.Key(), live: r.live.Server, asOf: r.request.AsOf}
	if !req.Recovery {
		s.schemas = &schemas{ctx: ctx, live: e.Backend, job: s.job}
	}
	if len(r.plan.Positions) > 0 {
		s.sources = newSources(ctx, e.Backend, r.plan.Positions)
	}
	return s
}

func (e *Executor) room(ctx context.Context, keys, elements, bytes uint64) error {
	return Fault(e.Backend.Room(ctx, keys, elements, bytes), fault.Failed, "room for the checkpoint in %s", e.Backend.Server())
}

// conclude completes the plan with what a pass over the whole checkpoint has
// counted, the live index, and what the guards have found.
func (e *Executor) conclude(ctx context.Context, req Request, r *ready, s *scan) error {
	if err := e.readIndex(ctx, req, r, s); err != nil {
		return err
	}
	records, pending, err := r.guards.sources.warnings()
	if err != nil {
		return err
	}
	r.plan.SchemaDiff = r.guards.schemas.differing()
	r.warnings = append(s.foreign.warnings(), s.claimed.claimedWarnings(s.job.Root())...)
	r.warnings = append(r.warnings, records...)
	r.plan.Warnings = append(append(r.plan.Warnings, r.warnings...), pending...)
	return nil
}

// readIndex walks the live index for what the checkpoint lacks.
func (e *Executor) readIndex(ctx context.Context, req Request, r *ready, s *scan) error {
	removed := uint64(0)
	err := e.Backend.Index(ctx, s.job, func(name []byte) error {
		switch {
		case s.names == nil || s.names.has(name):
		case !s.job.Owns(name): // it leaves the index, and its key stays
			s.foreign.add(name)
		default:
			removed++
			s.rows.remove(name)
		}
		return nil
	})
	if err != nil {
		return Fault(err, fault.Failed, "read the index of job %q", req.Job.Name)
	}
	s.into(&r.plan)
	r.plan.Removed, r.plan.States = removed, s.rows.list()
	return nil
}

// into takes the scan's numbers over.
func (s *scan) into(p *Plan) {
	p.Keys, p.Elements, p.Bytes, p.Expired, p.Missing = s.keys, s.elements, s.bytes, s.expired, s.missing
	p.Foreign = s.foreign.count
}

// feed pushes the checkpoint's keys, under the job's own root. claimed, which
// may be nil, is told of names that are left out: see renamer.
func (e *Executor) feed(ctx context.Context, m *snapshot.Manifest, job config.Job, sink snapshot.Sink, claimed func(name []byte), only ...snapshot.Section) error {
	from := statebackend.Job{Prefix: m.Identity.Prefix, Name: m.Identity.Job}
	if from != job.Key() {
		sink = &renamer{next: sink, from: from, to: job.Key(), keep: keepSources(m, job), claimed: claimed}
	}
	return snapshot.Walk(ctx, e.Store, m, sink, only...)
}
