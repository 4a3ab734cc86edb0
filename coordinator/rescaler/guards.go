package rescaler

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"keyframe/coordinator/fault"
	"keyframe/coordinator/restore"
	"keyframe/rescale"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// checkTarget refuses a parallelism that can't be or that is there already.
func checkTarget(job string, from, to, groups int) error {
	switch {
	case to < 1:
		return fault.New(fault.Usage, "give a parallelism of at least 1", "job %q: parallelism %d", job, to)
	case to > groups:
		return fault.New(fault.Refused,
			fmt.Sprintf("give at most %d; a larger max parallelism needs a rekey", groups),
			"job %q: parallelism %d is above its max parallelism %d", job, to, groups)
	case to == from:
		return fault.New(fault.Refused, "give another parallelism", "job %q has parallelism %d already: nothing to do", job, to)
	}
	return nil
}

// checkSources holds the rule that each subtask has a partition of each source
// to read.
func (e *Executor) checkSources(ctx context.Context, req Request) (warnings []string, err error) {
	for _, s := range req.Job.Sources {
		n, err := e.Backend.Partitions(ctx, s.Topic)
		if err != nil {
			return nil, restore.Fault(err, fault.Failed, "read the partition count of source %q", s.Topic)
		}
		switch {
		case n == 0:
			warnings = append(warnings, fmt.Sprintf("source %q doesn't tell how many partitions it has", s.Topic))
		case n >= req.To:
		case req.AllowIdle:
			warnings = append(warnings, fmt.Sprintf("source %q has %d partitions: %d subtasks will be idle", s.Topic, n, req.To-n))
		default:
			return nil, fault.New(fault.Refused, "--allow-idle accepts subtasks without a partition",
				"source %q has %d partitions, which is below the new parallelism %d", s.Topic, n, req.To)
		}
	}
	return warnings, nil
}

// checkBase refuses a base checkpoint that isn't of this job's state as it is
// assigned now.
func checkBase(m *snapshot.Manifest, req Request, live statebackend.Glimpse, server string) error {
	const hint = "take a checkpoint of the job first"
	id := m.Identity
	if id.Job != req.Job.Name || id.Prefix != req.Job.Prefix || id.Server != server {
		return fault.New(fault.Refused, hint, "checkpoint %d holds job %q, prefix %q, server %q; the target is job %q, prefix %q, server %q",
			m.Checkpoint.ID, id.Job, id.Prefix, id.Server, req.Job.Name, req.Job.Prefix, server)
	}
	if err := m.KeyGroups.SameLayout(req.Job.Rule()); err != nil {
		return fault.Wrap(err, fault.Refused, "give the job the values that the checkpoint has",
			"checkpoint %d does not fit job %q", m.Checkpoint.ID, req.Job.Name)
	}
	if a := live.Assigned; a != nil && a.Parallelism != parallelismOf(m, req) {
		return fault.New(fault.Refused, hint, "checkpoint %d has parallelism %d, job %q is assigned to %d subtasks now",
			m.Checkpoint.ID, parallelismOf(m, req), req.Job.Name, a.Parallelism)
	}
	return nil
}

// parallelismOf is how many subtasks the base checkpoint was taken from.
func parallelismOf(m *snapshot.Manifest, req Request) int {
	switch {
	case len(m.Ranges) > 0:
		return len(m.Ranges)
	case m.Checkpoint.Parallelism > 0:
		return m.Checkpoint.Parallelism
	}
	return req.Job.Parallelism
}

// stale says why a base is not of the state as it is now, "" when it may be.
func stale(m *snapshot.Manifest, live statebackend.Glimpse) string {
	if r := live.Record; m.Checkpoint.Epoch != r.Epoch || m.Incarnation != r.Incarnation {
		return fmt.Sprintf("checkpoint %d was taken in epoch %d of incarnation %s, the state is in epoch %d of incarnation %s",
			m.Checkpoint.ID, m.Checkpoint.Epoch, m.Incarnation, r.Epoch, r.Incarnation)
	}
	return ""
}

// choices turns "operator/name" of the request into what package rescale
// takes, and refuses a name that no broadcast state has.
func choices(broadcast map[string]int, states []rescale.State) (map[string]int, error) {
	chosen := make(map[string]int, len(broadcast))
	names := []string{}
	used := map[string]bool{}
	for _, s := range states {
		if s.Mode != snapshot.ModeBroadcast {
			continue
		}
		name := s.Operator + "/" + s.Name
		names = append(names, name)
		if subtask, ok := broadcast[name]; ok {
			chosen[statebackend.OperatorField(s.Operator, s.Name)] = subtask
			used[name] = true
		}
	}
	for name := range broadcast {
		if !used[name] {
			slices.Sort(names)
			return nil, fault.New(fault.Usage, "give --broadcast operator/name=subtask",
				"no broadcast state %q; the job has: %s", name, strings.Join(names, ", "))
		}
	}
	return chosen, nil
}
