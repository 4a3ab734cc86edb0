package coordinator

import (
	"context"
	"fmt"

	"keyframe/coordinator/fault"
	"keyframe/statebackend"
)

// refuseStandby refuses what only the leader of a job does, ahead of anything
// that the own store may lack: the leader's checkpoints are in its own. It looks
// once, beside the actor, since a leader may have gone a moment ago; where the
// state store can't be asked, the last look decides. What it lets through is
// fenced all the same.
func (j *job) refuseStandby(ctx context.Context) error {
	f := j.otherLeader(ctx)
	if f == nil {
		return nil
	}
	return Explain(fmt.Errorf("this coordinator stands by: %w", f))
}

// otherLeader tells who leads the job instead of this coordinator, nil when
// nobody does or it isn't known.
func (j *job) otherLeader(ctx context.Context) *statebackend.FencedError {
	if j.leading() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	job := j.key()
	g, err := j.c.opts.Backend.Look(ctx, job)
	if err != nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.leader == nil || j.health.State != HealthStandby {
			return nil
		}
		return &statebackend.FencedError{Job: job, Leader: *j.leader}
	}
	free := g.Leader.ID == "" || g.Leader.ID == j.c.opts.Lease.Owner.ID
	// Both are the state store's times: no clock of ours has a part in it.
	if free || !g.At.IsZero() && !g.At.Before(g.Leader.Until) {
		return nil
	}
	return &statebackend.FencedError{Job: job, Leader: g.Leader}
}

// orElsewhere makes of "no such checkpoint" a refusal that names the leader,
// where another coordinator leads the job: it has checkpoints of its own.
func (c *Coordinator) orElsewhere(ctx context.Context, name string, err error) error {
	if fault.CodeOf(err) != fault.NoCheckpoint {
		return err
	}
	j, findErr := c.find(name)
	if findErr != nil {
		return err // a history without a job
	}
	f := j.otherLeader(ctx)
	if f == nil {
		return err
	}
	return &fault.Error{Code: fault.Refused, Hint: leaderHint(f), Err: f,
		Message: fmt.Sprintf("%v; this coordinator stands by, and the leader's checkpoints are in its own store: %v", err, f)}
}

// leaderHint says what to do about a refusal by a leader.
func leaderHint(f *statebackend.FencedError) string {
	at := ""
	if f.Leader.Address != "" {
		at = ", with --addr " + f.Leader.Address
	}
	return "ask the coordinator that leads the job" + at + "; when it has ended, this one takes over once its lease has run out"
}
