package coordinator

import (
	"fmt"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// HealthState is how a job stands, from a closed list.
type HealthState string

// The closed list.
const (
	HealthStarting    HealthState = "starting"    // not looked at yet
	HealthOK          HealthState = "ok"          // the state is there and ours
	HealthWaiting     HealthState = "waiting"     // a new job that has no state yet
	HealthUnreachable HealthState = "unreachable" // the state store doesn't answer
	HealthLost        HealthState = "lost"        // the state is gone
	HealthOlder       HealthState = "older"       // an older state came back
	HealthForeign     HealthState = "foreign"     // another state lies where this job's was
	HealthMismatch    HealthState = "mismatch"    // the configuration doesn't fit the state
	HealthMarked      HealthState = "marked"      // a restore is in progress
	HealthDenied      HealthState = "denied"      // the state store denies access or a right
	HealthDamaged     HealthState = "damaged"     // the job's own bookkeeping can't be read
	HealthStandby     HealthState = "standby"     // another coordinator leads the job
	HealthStore       HealthState = "store"       // the checkpoint store has stopped: nothing is saved until a restart
)

// Lost reports whether the state must be recovered before anything else.
func (h HealthState) Lost() bool { return h == HealthLost || h == HealthOlder || h == HealthForeign }

// lineage is what the newest completed checkpoint says of the state that it
// was taken from.
type lineage struct {
	id          snapshot.ID // 0 when there is no completed checkpoint
	incarnation string
	attempt     snapshot.ID
	epoch       uint64
	runID       string
	names       uint64 // in the index of what is live; 0 when that isn't known
}

// verdict is what a look at a job means.
type verdict struct {
	health  HealthState
	message string
	adopt   bool // state without a record: write one
	repair  bool // the record is behind, but the server never restarted
}

// assess is the guard of invariant I5, a pure function: lost state is told
// from empty state by the incarnation, and older state by a new run id together
// with the newest cut that the record remembers (it is written with each cut,
// before any write after it, so a state that holds a smaller one has not come
// through that cut), or with an epoch from before the last flip.
func assess(g statebackend.Glimpse, newest lineage, server string) verdict {
	r := g.Record
	switch {
	case r.Restore != nil:
		return verdict{health: HealthMarked, message: fmt.Sprintf("a %s of checkpoint %d (id %s) has been in progress since %s",
			r.Restore.Kind, r.Restore.Checkpoint, r.Restore.ID, r.Restore.StartedAt.UTC().Format("2006-01-02 15:04:05Z"))}
	case newest.id == 0:
		return assessNew(g, server)
	case r.Incarnation == "":
		return verdict{health: HealthLost, message: fmt.Sprintf(
			"checkpoint %d exists, but the state's record is gone from %s (%s)", newest.id, server, holds(g))}
	case r.Incarnation != newest.incarnation:
		return verdict{health: HealthForeign, message: fmt.Sprintf(
			"checkpoint %d was taken from incarnation %s, but %s holds incarnation %s", newest.id, newest.incarnation, server, r.Incarnation)}
	case g.Indexed == 0 && newest.names > 0:
		return verdict{health: HealthLost, message: fmt.Sprintf(
			"the job's index is gone from %s, and %d names were in it: nobody prunes an index", server, newest.names)}
	case r.Cut < newest.attempt && g.Server.RunID != newest.runID:
		return verdict{health: HealthOlder, message: fmt.Sprintf(
			"%s restarted with a state that knows the cut of attempt %d, but checkpoint %d was taken at attempt %d", server, r.Cut, newest.id, newest.attempt)}
	case r.Epoch < newest.epoch && g.Server.RunID != newest.runID:
		return verdict{health: HealthOlder, message: fmt.Sprintf(
			"%s restarted with a state of epoch %d, but epoch %d has been live", server, r.Epoch, newest.epoch)}
	}
	return verdict{health: HealthOK, repair: r.Attempt < newest.attempt || r.Cut < newest.attempt}
}

func assessNew(g statebackend.Glimpse, server string) verdict {
	if g.Record.Incarnation != "" {
		return verdict{health: HealthOK}
	}
	if g.Indexed > 0 {
		return verdict{health: HealthOK, adopt: true}
	}
	return verdict{health: HealthWaiting, message: fmt.Sprintf("no state at %s yet (%s)", server, holds(g))}
}

// holds says what is there instead of the state.
func holds(g statebackend.Glimpse) string {
	if g.Where == "" {
		return fmt.Sprintf("%d names in the index", g.Indexed)
	}
	return fmt.Sprintf("%d names in the index; %s", g.Indexed, g.Where)
}
