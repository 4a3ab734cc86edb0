package restore

import (
	"context"
	"errors"

	"keyframe/coordinator/fault"
	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Run restores. It first ends a restore that an earlier crash left in the
// journal, makes the checks of Plan that need no pass over all of the
// checkpoint, writes down what it is about to do, and then stages, proves and
// flips. The pass that stages is the one that verifies: damage that it finds,
// as whatever else fails before the flip, costs the staged keys and nothing
// that lives.
//
// After an error nothing was changed; when it is ErrUnresolved (wrapped), the
// state store could not be asked, the journal's entry stays, and the job
// counts as marked until Resume succeeds. Cancelling ctx stops it cleanly
// before the flip; after the flip it finishes. What fails after the flip is a
// warning in the result.
func (e *Executor) Run(ctx context.Context, req Request, p Progress) (Result, error) {
	started := e.Now()
	if err := e.settleOld(ctx, req); err != nil {
		return Result{}, err
	}
	r, err := e.prepare(ctx, req, e.readGuards, p)
	if err != nil {
		return Result{}, err
	}
	defer r.release()
	s := e.swap(req, r, p)
	if err := s.Note(ctx, PhaseStage); err != nil {
		// The entry may have been written although the answer says no.
		return Result{}, e.dropAfter(ctx, req.Job.Name, err)
	}
	crashpoint.At(crashpoint.RestoreNoted)
	flip, err := s.Run(ctx)
	if err != nil {
		return Result{}, e.dropAfter(ctx, req.Job.Name, err)
	}
	res := Result{
		Job: req.Job.Name, Checkpoint: req.Checkpoint, Keys: flip.Keys, Elements: r.plan.Elements,
		Expired: flip.Expired, Removed: flip.Removed, Epoch: flip.Epoch, Undo: req.Undo,
		Foreign: r.plan.Foreign, Warnings: r.warnings,
	}
	if flip.Warning != "" {
		res.Warnings = append(res.Warnings, flip.Warning)
	}
	for _, u := range flip.Unclaimed {
		res.Warnings = append(res.Warnings, lostPending(u.Stream, u.Group, u.Entries))
	}
	p.Tell(PhaseClean, res.Keys, res.Elements, r.plan.Bytes)
	if err := e.end(ctx, s.Entry); err != nil {
		res.Warnings = append(res.Warnings, "the restore is done, but its journal entry stays until the next start: "+err.Error())
	}
	crashpoint.At(crashpoint.RestoreEnded)
	res.DurationMs = e.Now().Sub(started).Milliseconds()
	return res, nil
}

// settleOld ends what an earlier crash left behind, so that there is one entry
// for a job at most. An entry of a rescale is the rescaler's to end.
func (e *Executor) settleOld(ctx context.Context, req Request) error {
	old, err := GetEntry(ctx, e.Journal, req.Job.Name)
	if err != nil || old == nil {
		return err
	}
	if old.Kind != KindRestore {
		return fault.New(fault.Busy, "it is resolved at the next start of the coordinator",
			"job %q: %s %s of checkpoint %d was left behind at %s", old.Job, old.Kind, old.ID, old.Checkpoint,
			old.StartedAt.UTC().Format("2006-01-02 15:04:05Z"))
	}
	_, err = e.resume(ctx, req.Job, *old)
	return err
}

func (e *Executor) swap(req Request, r *ready, p Progress) *Swap {
	rq := r.request
	rq.ID, rq.StartedAt = e.NewID(), e.Now().UTC()
	from := req.From
	if from == req.Job.Name {
		from = ""
	}
	swap := &Swap{
		Journal: e.Journal, Backend: e.Backend, Request: rq, Progress: p, Waits: e.waits,
		Entry: Entry{
			ID: rq.ID, Job: req.Job.Name, Prefix: req.Job.Prefix, Kind: KindRestore,
			Checkpoint: req.Checkpoint, From: from, Undo: req.Undo, StartedAt: rq.StartedAt, Epoch: r.plan.Epoch,
		},
	}
	var s *scan
	swap.Feed = func(ctx context.Context, sink snapshot.Sink) error {
		s = &scan{job: req.Job.Key(), live: r.live.Server, asOf: rq.AsOf}
		if r.live.Indexed > 0 {
			s.names = newNameSet(r.manifest.Checkpoint.Keys + r.manifest.Checkpoint.Missing)
		}
		err := e.feed(ctx, r.manifest, req.Job, snapshot.Tee(s, sink), s.claimed.add)
		var chunk *snapshot.ChunkError
		if errors.As(err, &chunk) {
			return Fault(err, fault.Store, "read checkpoint %d of job %q", req.Checkpoint, req.From)
		}
		return err
	}
	swap.Staged = func(ctx context.Context) error {
		if err := e.conclude(ctx, req, r, s); err != nil {
			return err
		}
		swap.Entry.Keys, swap.Entry.Elements = r.plan.Keys, r.plan.Elements
		swap.Entry.Expired, swap.Entry.Removed = r.plan.Expired, r.plan.Removed
		return nil
	}
	return swap
}

// readGuards reads what may refuse the restore whatever its keys hold: room
// for what the manifest tells, the schemas, the sources.
func (e *Executor) readGuards(ctx context.Context, req Request, r *ready, p Progress) error {
	c := r.manifest.Checkpoint
	err := e.room(ctx, c.Keys, c.Elements, c.Bytes)
	if errors.Is(err, statebackend.ErrNoRoom) && c.Keys > 0 {
		// Keys may have expired since: only a whole pass can tell.
		counted := *r
		if err := e.plan(ctx, req, &counted, p); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	r.guards = e.guard(ctx, req, r)
	var sections []snapshot.Section
	if r.guards.schemas != nil {
		sections = append(sections, snapshot.SectionMeta)
	}
	if r.guards.sources != nil {
		sections = append(sections, snapshot.SectionSource)
	}
	if sections == nil {
		return nil
	}
	meter := (&Meter{Next: r.guards, Phase: PhaseVerify, Progress: p}).Begin()
	if err := e.feed(ctx, r.manifest, req.Job, meter, nil, sections...); err != nil {
		return Fault(err, fault.Store, "verify checkpoint %d of job %q", req.Checkpoint, req.From)
	}
	meter.End()
	return r.guards.schemas.verdict(req.AcceptSchema)
}

// end tells of a flip, and then drops its entry.
func (e *Executor) end(ctx context.Context, entry Entry) error {
	if e.OnFlip != nil {
		within, cancel := detached(ctx, cleanTimeout)
		defer cancel()
		if err := e.OnFlip(within, entry); err != nil {
			return err
		}
	}
	return e.drop(ctx, entry.Job)
}

func (e *Executor) drop(ctx context.Context, job string) error {
	within, cancel := detached(ctx, cleanTimeout)
	defer cancel()
	return DropEntry(within, e.Journal, job)
}
