package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"keyframe/coordinator/fault"
	"keyframe/coordinator/restore"
	"keyframe/snapshot"
	"keyframe/snapshot/archive"
)

// PlanArchive says what the restore of an archive would do: what Import into the
// job name followed by Restore would. It reads the archive and the live state,
// and changes nothing, not even the history. The checkpoint of the plan is the
// archive's own id; the import gives it one of the job's. Errors are those of
// Import and PlanRestore. The archive stays open.
func (c *Coordinator) PlanArchive(ctx context.Context, name string, a *archive.Archive, req RestoreRequest) (restore.Plan, error) {
	if req.Checkpoint != "" {
		return restore.Plan{}, fault.New(fault.Usage, "give one of them", "an archive and checkpoint %q both say what to restore", req.Checkpoint)
	}
	if name == "" {
		name = a.Manifest().Checkpoint.Job
	}
	if err := c.couldImport(ctx, name, a); err != nil {
		return restore.Plan{}, err
	}
	return c.planSound(ctx, name, a, req)
}

// planSound plans from an archive that was verified. Who doesn't lead the job
// that is to be written refuses.
func (c *Coordinator) planSound(ctx context.Context, name string, a *archive.Archive, req RestoreRequest) (restore.Plan, error) {
	into, err := c.find(cmp.Or(req.As, name))
	if err != nil {
		return restore.Plan{}, err
	}
	if err := into.refuseStandby(ctx); err != nil {
		return restore.Plan{}, err
	}
	m := a.Manifest()
	same, err := c.sameCut(ctx, name, m)
	switch {
	case err != nil:
		return restore.Plan{}, Explain(err)
	case same.ID != 0: // the import would change nothing, and the store's is restored
		req.Checkpoint = same.ID.String()
		return c.PlanRestore(ctx, name, req)
	}
	plan, err := c.planWith(ctx, name, a, req)
	if err != nil {
		return restore.Plan{}, Explain(err)
	}
	return plan, nil
}

// couldImport refuses what Import would.
func (c *Coordinator) couldImport(ctx context.Context, name string, a *archive.Archive) error {
	j, err := c.find(name)
	if err != nil {
		return err
	}
	if err := mayImport(a.Manifest(), j.config()); err != nil {
		return err
	}
	return soundArchive(ctx, name, a)
}

// soundArchive refuses an archive that is not whole.
func soundArchive(ctx context.Context, name string, a *archive.Archive) error {
	problems, err := a.Verify(ctx)
	switch {
	case err != nil:
		return fault.Wrap(err, fault.Failed, "nothing was changed; try again", "import into job %q", name)
	case len(problems) > 0:
		return fault.New(fault.Corrupt, "nothing was changed; `coordinator checkpoint verify --from FILE` lists all", "the archive has %d problems, the first: %s", len(problems), problems[0])
	}
	return nil
}

// planWith plans with the archive's checkpoint in the history, where the import
// would put it.
func (c *Coordinator) planWith(ctx context.Context, name string, a *archive.Archive, req RestoreRequest) (restore.Plan, error) {
	into := name
	if req.As != "" {
		into = req.As
	}
	j, err := c.find(into)
	if err != nil {
		return restore.Plan{}, err
	}
	with, err := withArchive(ctx, c.opts.Store, name, a)
	if err != nil {
		return restore.Plan{}, err
	}
	r := restore.Request{Job: j.config(), Checkpoint: with.m.Checkpoint.ID, From: name, As: req.As != "", SameServer: j.sameServer(),
		Epoch: j.knownEpoch(), AcceptSchema: req.AcceptSchema, Recovery: j.lostNow(ctx)}
	e := j.restorer()
	e.Store = with
	plan, err := e.Plan(ctx, r, nil)
	if err != nil {
		return restore.Plan{}, err
	}
	from := a.Manifest().Checkpoint
	plan.Checkpoint, plan.From = from.ID, from.Job
	plan.Warnings = append(plan.Warnings, unsaved(r, plan)...)
	plan.Warnings = append(plan.Warnings, fmt.Sprintf("checkpoint %d was read from the archive: a restore imports it into job %q first, under an id of its own", from.ID, name))
	return plan, nil
}

// archived is a store with an archive's checkpoint at the end of a job's
// history. What is read of that comes from the archive, and nothing is written:
// only what a plan asks for may be asked.
type archived struct {
	snapshot.Store
	job string
	a   *archive.Archive
	m   *snapshot.Manifest // as the import's
}

var _ snapshot.Store = (*archived)(nil)

func withArchive(ctx context.Context, store snapshot.Store, job string, a *archive.Archive) (*archived, error) {
	history, err := store.List(ctx, job)
	if err != nil {
		return nil, fmt.Errorf("list checkpoints of %q: %w", job, err)
	}
	m := *a.Manifest()
	id := m.Attempt
	if n := len(history); n > 0 {
		id = max(id, history[n-1].ID)
	}
	m.Checkpoint.Job, m.Checkpoint.ID, m.Checkpoint.Parent, m.Checkpoint.Bad = job, id+1, 0, ""
	return &archived{Store: store, job: job, a: a, m: &m}, nil
}

func (s *archived) is(job string, id snapshot.ID) bool {
	return job == s.job && id == s.m.Checkpoint.ID
}

// List implements [snapshot.Store].
func (s *archived) List(ctx context.Context, job string) ([]snapshot.Checkpoint, error) {
	history, err := s.Store.List(ctx, job)
	if err == nil && job == s.job {
		history = append(history, s.m.Checkpoint)
	}
	return history, err
}

// Manifest implements [snapshot.Store].
func (s *archived) Manifest(ctx context.Context, job string, id snapshot.ID) (*snapshot.Manifest, error) {
	if s.is(job, id) {
		return s.m, nil
	}
	return s.Store.Manifest(ctx, job, id)
}

// Hold implements [snapshot.Store]. An open file needs none.
func (s *archived) Hold(ctx context.Context, job string, id snapshot.ID) (func(), error) {
	if s.is(job, id) {
		return func() {}, nil
	}
	return s.Store.Hold(ctx, job, id)
}

// Chunk implements [snapshot.Store].
func (s *archived) Chunk(ctx context.Context, id snapshot.ChunkID) ([]byte, error) {
	data, err := s.a.Chunk(ctx, id)
	if errors.Is(err, snapshot.ErrNoChunk) {
		return s.Store.Chunk(ctx, id)
	}
	return data, err
}
