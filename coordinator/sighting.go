package coordinator

import (
	"fmt"
	"time"

	"keyframe/statebackend"
)

// sighting is what was last seen of a job's record while the state was there,
// and of its leader. Of two coordinators each has a store of its own: what is
// only in the other one's shows here alone.
type sighting struct {
	record statebackend.Record
	runID  string              // of the server then
	leader statebackend.Leader // another coordinator; zero when there was none
	at     time.Time           // when that one was seen

	// others: the record's checkpoint, or its epoch, is in another store; taker
	// led when it was last seen, kept is what the journal says of that.
	others   bool
	taker    statebackend.Leader
	kept     seenRecord
	keepTold bool
}

// sight remembers a look at state that isn't lost.
func (j *job) sight(g statebackend.Glimpse, v verdict) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if v.health.Lost() || g.Record.Incarnation == "" {
		return
	}
	j.saw.record, j.saw.runID = g.Record, g.Server.RunID
	j.claimedByLocked(g)
	switch {
	case g.Leader.ID == j.c.opts.Lease.Owner.ID:
		j.saw.leader = statebackend.Leader{}
	case g.Leader.ID != "":
		j.saw.leader, j.saw.at = g.Leader, time.Now()
	}
}

// givesWay tells that a lease has gone with the state, or has come back with an
// older one, rather than run out or been given back: who led has the checkpoints
// that the state is recovered from, and gets as long to come first as if its
// lease still lasted.
func (j *job) givesWay(g statebackend.Glimpse) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	lost := g.Leader.Token == 0 || g.Server.RunID != j.saw.runID
	if j.term != nil || !lost || j.saw.leader.ID == "" || time.Since(j.saw.at) >= j.c.opts.Lease.TTL {
		return nil
	}
	return &statebackend.FencedError{Job: j.spec.Key(), Leader: j.saw.leader}
}

// missed makes lost state of what looks well, or like a new job, to a store
// without checkpoints, when the record that was seen before named one and is
// gone, or is behind on a server that was restarted (I5): nobody may take what
// lies there now for the job's state.
func (j *job) missed(g statebackend.Glimpse, v verdict, newest lineage) verdict {
	j.mu.Lock()
	saw := j.saw
	j.mu.Unlock()
	r, server := g.Record, j.c.opts.Backend.Server()
	if saw.record.Checkpoint == 0 || r.Restore != nil || v.health.Lost() || newest.id != 0 && !saw.others {
		return v
	}
	const then = "this store doesn't have it: restore it with the coordinator that does, or go on with what is there by `coordinator job adopt`"
	behind := r.Incarnation == saw.record.Incarnation && r.Epoch <= saw.record.Epoch && r.Cut < saw.record.Cut && g.Server.RunID != saw.runID
	switch {
	case r.Incarnation == "":
		return verdict{health: HealthLost, message: fmt.Sprintf("the state's record is gone from %s (%s); it named checkpoint %d, and %s",
			server, holds(g), saw.record.Checkpoint, then)}
	case behind:
		return verdict{health: HealthOlder, message: fmt.Sprintf("%s restarted with a state that knows the cut of attempt %d, and attempt %d has been live; checkpoint %d was its newest, and %s",
			server, r.Cut, saw.record.Cut, saw.record.Checkpoint, then)}
	}
	return v
}
