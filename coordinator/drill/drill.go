// Package drill proves that a checkpoint restores, by restoring it: under a
// scratch job that is read back, compared with the checkpoint element by
// element, and removed again. Live keys are never touched.
package drill

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/restore"
	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Runner runs drills. All fields are needed.
type Runner struct {
	Store snapshot.Store
	// Target is the state store in which the scratch job is made. It must
	// also be a [statebackend.Scratch].
	Target statebackend.Backend
	Now    func() time.Time
	// NewID gives a new unique id of lower-case letters and digits.
	NewID func() string
}

// Request says what to try.
type Request struct {
	Job        config.Job
	Checkpoint snapshot.ID
	// Scratch is the job to restore under: see [ScratchJob].
	Scratch statebackend.Job
}

// Result is what a drill found. RestoreMs is the time that a restore takes
// (RTO), AgeMs how old the cut was when the drill began (RPO).
type Result struct {
	Job        string      `json:"job"`
	Checkpoint snapshot.ID `json:"checkpoint"`
	Server     string      `json:"server"` // where the scratch job was made
	StartedAt  time.Time   `json:"startedAt"`
	DurationMs int64       `json:"durationMs"`
	RestoreMs  int64       `json:"restoreMs"`
	AgeMs      int64       `json:"ageMs"`
	Keys       uint64      `json:"keys"`
	Elements   uint64      `json:"elements"`
	Expired    uint64      `json:"expired"` // keys whose expiry had passed, so that they weren't restored
	// Equal: every element was read back and was what the checkpoint has.
	Equal       bool         `json:"equal"`
	Differences []Difference `json:"differences,omitempty"` // the first of them
	Differing   uint64       `json:"differing,omitempty"`   // keys that differ
	Warnings    []string     `json:"warnings,omitempty"`
	// Sources are findings about the streams that a job would go on reading: see
	// restore.SourceFindings. They are no differences of the restore.
	Sources []string `json:"sources,omitempty"`
}

// Difference is a key that came back as something else.
type Difference struct {
	Key  string `json:"key"` // as the checkpoint has it
	Want string `json:"want"`
	Got  string `json:"got"`
}

// The phases beside a restore's own.
const (
	PhaseCompare = "compare" // what was restored is read back
	PhaseRemove  = "remove"  // the scratch job goes
)

// ScratchJob is the job under which a drill with that id restores: a name of
// its own under the job's prefix, which rights to that prefix cover, and below
// which nothing else lies.
func ScratchJob(job statebackend.Job, id string) statebackend.Job {
	return statebackend.Job{Prefix: job.Prefix + ":keyframe-drill-" + id, Name: job.Name}
}

// removeTimeout bounds the removal of scratch keys after a drill that was
// stopped.
const removeTimeout = time.Minute

// Run restores the checkpoint under the scratch job, compares, and removes what
// it made, also when it fails or ctx ends. A difference is no error: the result
// has it. Errors are those of a restore; where the scratch keys could not be
// removed the error says so, and [Runner.Remove] does it again.
func (r *Runner) Run(ctx context.Context, req Request, p restore.Progress) (res Result, err error) {
	scratch, ok := r.Target.(statebackend.Scratch)
	if !ok {
		return res, fault.New(fault.Refused, "give the job a scratch server: drill.redis.url", "the state store %s has no room for scratch jobs", r.Target.Server())
	}
	began := r.Now()
	res = Result{Job: req.Job.Name, Checkpoint: req.Checkpoint, Server: r.Target.Server(), StartedAt: began.UTC()}
	m, err := r.Store.Manifest(ctx, req.Job.Name, req.Checkpoint)
	if err != nil {
		return res, restore.Fault(err, fault.NoCheckpoint, "drill of checkpoint %d of job %q", req.Checkpoint, req.Job.Name)
	}
	res.AgeMs = max(0, began.Sub(m.CutAt).Milliseconds())
	// A right that the removal lacks is found before there is anything to remove.
	if _, err := scratch.Purge(ctx, req.Scratch); err != nil {
		return res, restore.Fault(err, fault.Failed, "drill of checkpoint %d of job %q: nothing was made", req.Checkpoint, req.Job.Name)
	}
	defer func() {
		p.Tell(PhaseRemove, 0, 0, 0)
		crashpoint.At(crashpoint.DrillCompared)
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
		defer cancel()
		if _, removeErr := scratch.Purge(within, req.Scratch); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("remove the scratch keys %s:*: %w", req.Scratch.Root(), removeErr))
		}
		crashpoint.At(crashpoint.DrillCleaned)
		res.DurationMs = r.Now().Sub(began).Milliseconds()
	}()
	asked, err := r.restore(ctx, req, &res, p)
	if err != nil {
		return res, err
	}
	crashpoint.At(crashpoint.DrillRestored)
	p.Tell(PhaseCompare, 0, 0, 0)
	return res, r.compare(ctx, asked, scratch, &res)
}

// Remove removes what a drill that died may have left.
func (r *Runner) Remove(ctx context.Context, job statebackend.Job) error {
	scratch, ok := r.Target.(statebackend.Scratch)
	if !ok {
		return nil // it can't have made anything
	}
	_, err := scratch.Purge(ctx, job)
	return err
}

// restoring is a restore into the scratch job.
type restoring struct {
	*restore.Executor
	restore.Request
	root string // of the job that is drilled
}

func (r *Runner) restore(ctx context.Context, req Request, res *Result, p restore.Progress) (restoring, error) {
	spec := req.Job
	spec.Prefix, spec.Name, spec.Sources = req.Scratch.Prefix, req.Scratch.Name, nil
	asked := restoring{
		&restore.Executor{Store: r.Store, Journal: &notes{}, Backend: r.Target, Now: r.Now, NewID: r.NewID},
		restore.Request{Job: spec, Checkpoint: req.Checkpoint, From: req.Job.Name, As: true, Recovery: true},
		req.Job.Key().Root(),
	}
	done, err := asked.Run(ctx, asked.Request, p)
	if err != nil {
		return asked, fmt.Errorf("drill of checkpoint %d of job %q: %w", req.Checkpoint, req.Job.Name, err)
	}
	res.RestoreMs, res.Expired, res.Warnings = done.DurationMs, done.Expired, done.Warnings
	return asked, nil
}

// compare reads the scratch job back.
func (r *Runner) compare(ctx context.Context, asked restoring, scratch statebackend.Scratch, res *Result) error {
	job, seed := asked.Job.Key(), maphash.MakeSeed()
	want := newContent(job, seed)
	if err := asked.Content(ctx, asked.Request, want); err != nil {
		return err
	}
	got := newContent(job, seed)
	got.like = want.special
	version, err := scratch.ReadAll(ctx, job, got)
	if err != nil {
		return fmt.Errorf("read the scratch job %s back: %w", job.Root(), err)
	}
	res.Keys, res.Elements = got.keys, got.all
	now := r.Now()
	if look, err := asked.Backend.Look(ctx, job); err == nil && !look.At.IsZero() {
		now = look.At // expiries are by the server's clock
	}
	v := verdict{res: res, from: job.Root(), to: asked.root, now: now, version: version}
	v.apart(want, got)
	if which, n := want.differing(got); n > 0 {
		if err := r.name(ctx, asked, scratch, which, want, &v); err != nil {
			return err
		}
	}
	if want.names != got.names && res.Differing == 0 {
		v.differ(asked.Job.Key().Index(), fmt.Sprintf("%d names", want.names), fmt.Sprintf("%d names", got.names))
	}
	res.Equal = res.Differing == 0
	return nil
}

// name finds out which keys differ, by reading both sides once more.
func (r *Runner) name(ctx context.Context, asked restoring, scratch statebackend.Scratch, which *[buckets]bool, first *content, v *verdict) error {
	want, got := newContent(first.job, first.seed), newContent(first.job, first.seed)
	want.wanted, got.wanted, want.like, got.like = which, which, first.special, first.special
	if err := asked.Content(ctx, asked.Request, want); err != nil {
		return err
	}
	if _, err := scratch.ReadAll(ctx, got.job, got); err != nil {
		return err
	}
	names := maps.Clone(want.listed)
	maps.Copy(names, got.listed)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		w, g := listed(want.listed, name), listed(got.listed, name)
		if w != g {
			v.differ(name, w.say(), g.say())
		}
	}
	return nil
}

// listed gives an entry, or that there is no such key.
func listed(all map[string]entry, name string) entry {
	if e, ok := all[name]; ok {
		return e
	}
	return entry{typ: snapshot.TypeMissing}
}
