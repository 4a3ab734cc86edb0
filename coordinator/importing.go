package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/snapshot/archive"
)

// ImportRequest asks for the import of a checkpoint from an archive.
type ImportRequest struct {
	Archive *archive.Archive // closed at the end, whatever happens
	Job     string           // "" is the job that the archive names
	Name    string           // makes it a savepoint
	Note    string           // "" is the checkpoint's own
	Branch  Branch           // as far as is known where the archive comes from
	// Restore is what the import is for, nil for nothing: one that would be
	// refused is refused before anything is imported.
	Restore *RestoreRequest
}

// Origin is where an imported checkpoint comes from.
type Origin struct {
	Job    string      `json:"job"`
	ID     snapshot.ID `json:"id"`
	Server string      `json:"server"` // whose state it is
}

// ImportResult is what an import did.
type ImportResult struct {
	Job        string      `json:"job"`
	Checkpoint snapshot.ID `json:"checkpoint"`
	// Already: this very cut was there, and nothing was changed.
	Already bool `json:"already"`
	// Name is what the checkpoint is called, "" for nothing: its own name where
	// it was there, whatever the import asked for.
	Name     string `json:"name"`
	From     Origin `json:"from"`
	Keys     uint64 `json:"keys"`
	Elements uint64 `json:"elements"`
	Bytes    uint64 `json:"bytes"`
}

// Export writes a completed checkpoint as an archive, which holds all that it
// needs. The checkpoint can't be deleted meanwhile. what (may be nil) is told
// of which checkpoint, before the first byte.
func (c *Coordinator) Export(ctx context.Context, name, which string, w io.Writer, what func(*snapshot.Manifest)) error {
	cp, err := c.Resolve(ctx, name, which)
	if err != nil {
		return err
	}
	if cp.State != snapshot.StateCompleted {
		return fault.New(fault.Refused, "only completed checkpoints have content", "checkpoint %d of job %q is %s", cp.ID, name, cp.State)
	}
	release, err := c.opts.Store.Hold(ctx, name, cp.ID)
	if err != nil {
		return Explain(fmt.Errorf("checkpoint %d of job %q: %w", cp.ID, name, err))
	}
	defer release()
	m, err := c.Manifest(ctx, name, cp.ID)
	if err != nil {
		return err
	}
	if what != nil {
		what(m)
	}
	if _, err := archive.Write(ctx, w, c.opts.Store, m); err != nil {
		return Explain(fmt.Errorf("export checkpoint %d of job %q: %w", cp.ID, name, err))
	}
	return nil
}

// Import brings a checkpoint into a job's history. Everything is verified first:
// each byte, chunk, count and total. It is then what it was, a checkpoint or a
// savepoint, pinned or not, with trigger import and a note of where it comes
// from; the same cut is not imported twice. Its id is new and above all others,
// or its old one (see copies.Keeper.BeginImport). The live state has nothing to
// do with it until somebody restores it: neither the guard nor a recovery takes
// it for the job's own.
func (c *Coordinator) Import(ctx context.Context, req ImportRequest) (*Operation, error) {
	op, err := c.beginImport(ctx, req)
	if err != nil {
		return nil, errors.Join(err, req.Archive.Close())
	}
	return op, nil
}

func (c *Coordinator) beginImport(ctx context.Context, req ImportRequest) (*Operation, error) {
	m := req.Archive.Manifest()
	if req.Job == "" {
		req.Job = m.Checkpoint.Job
	}
	j, err := c.find(req.Job)
	if err != nil {
		return nil, err
	}
	if err := mayImport(m, j.config()); err != nil {
		return nil, err
	}
	if err := c.freeName(ctx, req.Job, req.Name); err != nil {
		return nil, err
	}
	if err := soundArchive(ctx, req.Job, req.Archive); err != nil {
		return nil, err
	}
	if req.Restore != nil {
		if _, err := c.planSound(ctx, req.Job, req.Archive, *req.Restore); err != nil {
			return nil, err
		}
	}
	return j.submit(OpImport, func(ctx context.Context, op *Operation) (func(*Status), error) {
		res, err := j.bringIn(ctx, op, req)
		if closeErr := req.Archive.Close(); err == nil && closeErr != nil {
			j.c.emit(Event{Kind: EventRecordFailed, Job: req.Job, Message: closeErr.Error()})
		}
		return func(s *Status) { s.Import = res }, err
	})
}

// mayImport refuses what could never be restored into the job.
func mayImport(m *snapshot.Manifest, spec config.Job) error {
	if err := m.KeyGroups.SameLayout(spec.Rule()); err != nil {
		return fault.Wrap(err, fault.Refused, "import it into a job of the same layout, with --job; changing the layout is rekeying",
			"checkpoint %d of job %q doesn't fit job %q", m.Checkpoint.ID, m.Checkpoint.Job, spec.Name)
	}
	return nil
}

// bringIn runs in the actor.
func (j *job) bringIn(ctx context.Context, op *Operation, req ImportRequest) (*ImportResult, error) {
	m := req.Archive.Manifest()
	cp := m.Checkpoint
	res := &ImportResult{Job: req.Job, From: Origin{Job: cp.Job, ID: cp.ID, Server: m.Identity.Server},
		Keys: cp.Keys, Elements: cp.Elements, Bytes: cp.Bytes}
	same, err := j.c.sameCut(ctx, req.Job, m)
	if err != nil {
		return nil, Explain(err)
	}
	if same.ID != 0 {
		res.Checkpoint, res.Already, res.Name = same.ID, true, same.Name
		return res, nil
	}
	op.expect(cp.Keys, cp.Elements, cp.FullBytes)
	if res.Checkpoint, res.Name, err = j.commitImport(ctx, op, req); err != nil {
		return nil, Explain(fmt.Errorf("import checkpoint %d of job %q into job %q: %w", cp.ID, cp.Job, req.Job, err))
	}
	crashpoint.At(crashpoint.ImportDone)
	j.mu.Lock()
	j.gen++ // who reads the history just now must read it again
	j.mu.Unlock()
	if err := j.learn(context.WithoutCancel(ctx)); err != nil {
		j.c.emit(Event{Kind: EventRecordFailed, Job: req.Job, ID: res.Checkpoint, Message: "after the import: " + err.Error()})
	}
	j.c.emit(Event{Kind: EventCheckpointImported, Job: req.Job, ID: res.Checkpoint, Operation: op.Status().ID,
		Message: fmt.Sprintf("checkpoint %d of job %q (%s) imported as checkpoint %d", cp.ID, cp.Job, m.Identity.Server, res.Checkpoint)})
	return res, nil
}

// sameCut finds the checkpoint of a job that shows the same cut, the zero one for none.
func (c *Coordinator) sameCut(ctx context.Context, job string, m *snapshot.Manifest) (none snapshot.Checkpoint, err error) {
	history, err := c.opts.Store.List(ctx, job)
	if err != nil {
		return none, fmt.Errorf("list checkpoints of %q: %w", job, err)
	}
	want := archive.Fingerprint(m)
	for _, cp := range history {
		// Manifests may be large: only those that may be it are read. One that
		// is bad or can't be read is no reason to refuse a sound one.
		if !cp.Restorable() || cp.Keys != m.Checkpoint.Keys || cp.Elements != m.Checkpoint.Elements || !cp.StartedAt.Equal(m.Checkpoint.StartedAt) {
			continue
		}
		got, err := c.opts.Store.Manifest(ctx, job, cp.ID)
		if err != nil && !isCorruptOrNewer(err) {
			return none, fmt.Errorf("checkpoint %d of job %q: %w", cp.ID, job, err)
		}
		if err == nil && archive.Fingerprint(got) == want {
			return cp, nil
		}
	}
	return none, nil
}

// commitImport writes the chunks and the manifest; the commit is the import's.
// It gives the id and the name.
func (j *job) commitImport(ctx context.Context, op *Operation, req ImportRequest) (snapshot.ID, string, error) {
	m := req.Archive.Manifest()
	a := snapshot.Attempt{Job: req.Job, Kind: m.Checkpoint.Kind, Trigger: snapshot.TriggerImport, StartedAt: m.Checkpoint.StartedAt, After: m.Attempt}
	a.Name, a.Note = req.Name, importNote(m, req.Note)
	if req.Name != "" {
		a.Kind = snapshot.KindSavepoint
	} else if m.Checkpoint.Name != "" && j.c.freeName(ctx, req.Job, m.Checkpoint.Name) == nil {
		a.Name = m.Checkpoint.Name
	}
	w, err := j.c.beginImported(ctx, a, m)
	if err != nil {
		return 0, "", err
	}
	defer w.Abort()
	crashpoint.At(crashpoint.ImportBegun)
	err = j.c.setAside(ctx, req.Job, w.ID(), whyAside(req.Branch, m.Checkpoint.Trigger))
	if err == nil {
		err = j.writeImport(ctx, op, w, a, req.Archive)
	}
	if err != nil {
		return 0, "", errors.Join(err, w.Fail(context.WithoutCancel(ctx), snapshot.Failure{Reason: snapshot.FailStore, Message: "import: " + err.Error()}))
	}
	return w.ID(), a.Name, nil
}

func (c *Coordinator) beginImported(ctx context.Context, a snapshot.Attempt, m *snapshot.Manifest) (snapshot.Writer, error) {
	if c.copies == nil {
		return c.opts.Store.Begin(ctx, a)
	}
	return c.copies.BeginImport(ctx, a, m)
}

// importNote says where a checkpoint comes from, after what its own note says.
func importNote(m *snapshot.Manifest, note string) string {
	from := fmt.Sprintf("imported from checkpoint %d of job %q, %s", m.Checkpoint.ID, m.Checkpoint.Job, m.Identity.Server)
	if note == "" {
		note = m.Checkpoint.Note
	}
	if note == "" {
		return from
	}
	return note + "; " + from
}

func (j *job) writeImport(ctx context.Context, op *Operation, w snapshot.Writer, a snapshot.Attempt, from *archive.Archive) error {
	m, done := from.Manifest(), uint64(0)
	var buf []byte
	for ref := range m.AllChunks() {
		data, err := from.Chunk(ctx, ref.ID)
		if err != nil {
			return err
		}
		// Again, though all was verified: the file may have been changed since.
		got, raw, err := snapshot.OpenChunk(data, buf)
		if err != nil {
			return fmt.Errorf("chunk %s: %w", ref.ID, err)
		}
		if buf = raw; got.ID != ref.ID {
			return fmt.Errorf("chunk %s is chunk %s by now: %w", ref.ID, got.ID, snapshot.ErrCorrupt)
		}
		if _, err := w.WriteChunk(ctx, snapshot.Chunk{Ref: got, Data: data}); err != nil {
			return err
		}
		done += uint64(len(data))
		op.progress("import", 0, 0, done)
	}
	// Before the commit: at no moment is the import taken for what is live.
	if err := j.keepImport(ctx, w.ID()); err != nil {
		return err
	}
	return w.Commit(ctx, imported(m, w, a))
}

// imported is an archive's manifest as the import's.
func imported(m *snapshot.Manifest, w snapshot.Writer, a snapshot.Attempt) *snapshot.Manifest {
	out := *m
	c := &out.Checkpoint
	same := c.Job == a.Job && c.ID == w.ID()
	c.Job, c.ID, c.Kind, c.Name, c.Note, c.Trigger = a.Job, w.ID(), a.Kind, a.Name, a.Note, a.Trigger
	if !same {
		c.Parent = 0 // an id of another history
	}
	c.StoredBytes = min(w.StoredBytes(), c.FullBytes)
	c.Bad, c.Drill = "", nil
	return &out
}

// keepImport remembers that the live state stays what it is when an import
// becomes the newest checkpoint.
func (j *job) keepImport(ctx context.Context, id snapshot.ID) error {
	j.mu.Lock()
	name, n := j.spec.Name, j.newest
	r := lineageRecord{Newest: id, Base: j.headLocked(), Incarnation: n.incarnation, Attempt: n.attempt, Epoch: n.epoch, RunID: n.runID, Names: n.names}
	if n.id == 0 {
		r = lineageRecord{Newest: id, Unknown: true}
	}
	j.mu.Unlock()
	return j.c.put(ctx, bucketLineage, name, r)
}
