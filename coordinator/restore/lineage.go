package restore

import (
	"context"
	"errors"
	"fmt"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// lineage decides what the record and the assignment hold afterwards, and
// makes the request for the state store, all but its id and its start.
func (e *Executor) lineage(ctx context.Context, req Request, r *ready) error {
	history, err := e.Store.List(ctx, req.Job.Name)
	if err != nil {
		return Fault(err, fault.Store, "read the history of job %q", req.Job.Name)
	}
	incarnation, err := e.incarnation(ctx, req, r, history)
	if err != nil {
		return err
	}
	live := r.live.Record
	epoch, attempt := max(req.Epoch, live.Epoch, r.manifest.Checkpoint.Epoch), live.Attempt
	if a := r.live.Assigned; a != nil {
		epoch = max(epoch, a.Epoch)
	}
	for _, c := range history {
		epoch, attempt = max(epoch, c.Epoch), max(attempt, c.ID)
	}
	epoch++
	assigned, err := Assign(r.manifest, req.Job, epoch)
	if err != nil {
		return err
	}
	r.plan.Epoch, r.plan.Assignment = epoch, assigned
	r.request = statebackend.RestoreRequest{
		Job: req.Job.Key(), Scope: statebackend.ScopeAll, Checkpoint: req.Checkpoint,
		Epoch: live.Epoch, NewEpoch: epoch, Incarnation: incarnation, Attempt: attempt,
		Assignment: assigned, AsOf: e.clock(r.live), Positions: r.plan.Positions,
	}
	return nil
}

// incarnation is the live one while the state is there. Lost state gets the
// one that the job's newest checkpoint was taken from, by which the guard of
// I5 knows the state as this job's again; without any, the checkpoint's own
// when it is this job's, or a new one.
func (e *Executor) incarnation(ctx context.Context, req Request, r *ready, history []snapshot.Checkpoint) (string, error) {
	if live := r.live.Record.Incarnation; live != "" && !req.Recovery {
		return live, nil
	}
	for i := len(history) - 1; i >= 0; i-- {
		if history[i].State != snapshot.StateCompleted {
			continue
		}
		m, err := e.Store.Manifest(ctx, req.Job.Name, history[i].ID)
		switch {
		case err == nil && m.Incarnation != "":
			return m.Incarnation, nil
		case errors.Is(err, snapshot.ErrCorrupt), errors.Is(err, snapshot.ErrNoCheckpoint):
			// A damaged newest one is why an older one is restored.
		case err != nil:
			return "", Fault(err, fault.Store, "read the manifest of checkpoint %d of job %q", history[i].ID, req.Job.Name)
		}
	}
	if own := r.manifest.Incarnation; own != "" && req.From == req.Job.Name && !req.As {
		return own, nil
	}
	return e.NewID(), nil
}

// Assign is the assignment that a checkpoint's state goes with, in a new
// epoch: the checkpoint's ranges, or the job's own when it never had any.
func Assign(m *snapshot.Manifest, job config.Job, epoch uint64) (*statebackend.Assignment, error) {
	a := &statebackend.Assignment{Epoch: epoch, MaxParallelism: m.KeyGroups.MaxParallelism,
		Parallelism: len(m.Ranges), Hash: m.KeyGroups.Hash, Ranges: m.Ranges}
	if len(m.Ranges) > 0 {
		return a, nil
	}
	rule := job.Rule()
	a.MaxParallelism, a.Parallelism, a.Hash = rule.MaxParallelism, job.Parallelism, rule.Hash
	if m.Checkpoint.Parallelism > 0 {
		a.Parallelism = m.Checkpoint.Parallelism
	}
	var err error
	if a.Ranges, err = rule.Assign(a.Parallelism); err != nil {
		return nil, fault.Wrap(err, fault.Config, "correct the job's definition", "assign the key groups of job %q", job.Name)
	}
	return a, nil
}

// positionsFor are the source positions that a restore sets: all of them for
// the job's own checkpoint, and for another job's only those of sources that
// this job reads too, since a consumer group may be the other job's.
func positionsFor(m *snapshot.Manifest, job config.Job) []Position {
	all := append([]Position{}, m.Checkpoint.Sources...)
	if m.Identity.Prefix == job.Prefix && m.Identity.Job == job.Name {
		return all
	}
	kept := all[:0]
	for _, p := range all {
		if reads(job, p) {
			kept = append(kept, p)
		}
	}
	return kept
}

func reads(job config.Job, p Position) bool {
	for _, s := range job.Sources {
		if s.Topic == p.Topic && s.Group == p.Group {
			return true
		}
	}
	return false
}

// errOutside is about a key that another job's root doesn't cover.
func errOutside(name []byte, from, to statebackend.Job) error {
	return fault.New(fault.Refused, fmt.Sprintf("restore it as job %q with prefix %q", from.Name, from.Prefix),
		"key %.200q lies outside %q: it can't be given the root %q", name, from.Root(), to.Root())
}

// keepSources says which source keys of another job's checkpoint are restored:
// those of the positions that are. The names are the format's: the commit
// frontier under its own, the pending entries under the stream and the group.
func keepSources(m *snapshot.Manifest, job config.Job) func(name []byte) bool {
	kept := map[string]bool{}
	for _, p := range positionsFor(m, job) {
		kept[fmt.Sprintf("streaming:mq:commit:%s:p:%d", p.Topic, p.Partition)] = true
		kept[pendingName(p)] = true
	}
	return func(name []byte) bool { return kept[string(name)] }
}
