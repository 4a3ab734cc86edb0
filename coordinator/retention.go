package coordinator

import (
	"fmt"
	"time"

	"keyframe/coordinator/config"
	"keyframe/snapshot"
)

// keptFailures is how many failed attempts the history of a job keeps.
const keptFailures = 50

// Decision is what retention does with one checkpoint, and why.
type Decision struct {
	ID     snapshot.ID `json:"id"`
	Keep   bool        `json:"keep"`
	Reason string      `json:"reason"`
}

// Retain decides on a whole history (oldest first), a pure function: one
// decision for each entry, in the same order (I6). The newest restorable
// checkpoint, savepoints, pinned ones and those in inUse (with the reason)
// always stay; savepoints don't count against keep. Nor do imports, which stay
// until a person deletes them: they are of another time, or another job, and push
// nothing of the job's own out. So does the oldest that is in
// doubt (snapshot.Checkpoint.InDoubt), and everything older than it: if it shows
// a loss, what is older is the only copy of what was lost. Ids give the order,
// so that a clock that jumps can't make the newest look old.
func Retain(history []snapshot.Checkpoint, p config.Retention, inUse map[snapshot.ID]string, now time.Time) []Decision {
	decisions := make([]Decision, len(history))
	good, failed, doubt := 0, 0, oldestInDoubt(history)
	for i := len(history) - 1; i >= 0; i-- {
		c := history[i]
		d := Decision{ID: c.ID, Keep: true}
		why, used := inUse[c.ID]
		switch {
		case c.State == snapshot.StateInProgress:
			d.Reason = "in progress"
		case used:
			d.Reason = why
		case c.Pinned:
			d.Reason = "pinned"
		case doubt == c.ID:
			d.Reason = "far smaller than the one before, and not accepted"
		case c.ID < doubt:
			d.Reason = heldReason(doubt)
		case c.State == snapshot.StateFailed:
			failed++
			d.Keep, d.Reason = failed <= keptFailures, fmt.Sprintf("failed attempt %d of %d kept", failed, keptFailures)
		case c.Kind == snapshot.KindSavepoint:
			d.Reason = "savepoint"
		case c.Trigger == snapshot.TriggerImport:
			d.Reason = "imported: kept until it is deleted"
		default:
			d.Keep, d.Reason = retainGood(c, p, good, now)
		}
		if c.State == snapshot.StateCompleted && c.Kind == snapshot.KindCheckpoint && c.Trigger != snapshot.TriggerImport && c.Restorable() {
			good++
		}
		decisions[i] = d
	}
	return decisions
}

// retainGood decides on a completed checkpoint with newer good ones after it.
func retainGood(c snapshot.Checkpoint, p config.Retention, newer int, now time.Time) (keep bool, reason string) {
	switch {
	case newer == 0 && c.Restorable():
		return true, "newest restorable"
	case newer >= p.Keep:
		return false, fmt.Sprintf("%d newer ones, keep is %d", newer, p.Keep)
	case !c.Restorable():
		return true, "bad, kept to be looked at: " + c.Bad
	}
	if age := now.Sub(c.StartedAt); p.MaxAge > 0 && age > time.Duration(p.MaxAge) {
		return false, fmt.Sprintf("%s old, maxAge is %s", age.Round(time.Second), p.MaxAge)
	}
	return true, fmt.Sprintf("one of the newest %d", p.Keep)
}
