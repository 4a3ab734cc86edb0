package api

import (
	"time"

	"keyframe/coordinator"
	"keyframe/coordinator/audit"
	"keyframe/coordinator/rescaler"
	"keyframe/coordinator/restore"
)

// planKey is a job with what is planned for it.
type planKey struct{ action, job string }

// seenPlan is a plan that somebody was shown.
type seenPlan struct {
	at   time.Time
	plan map[string]any
}

// planned says what action a plan is for, "" for none.
var planned = map[string]string{"plan-restore": "restore", "plan-rescale": "rescale"}

// remember keeps the plan that was shown last for a job, so that the line of
// the change can tell it: to plan again would read the whole checkpoint.
func (a *Auditor) remember(c *caller, out any) {
	if a == nil || c == nil || planned[c.action] == "" {
		return
	}
	plan := planSummary(out)
	if plan == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.plans) >= maxPlans {
		clear(a.plans) // lines without a plan are better than no bound
	}
	a.plans[planKey{planned[c.action], c.job}] = seenPlan{at: a.now(), plan: plan}
}

func (a *Auditor) planOf(c *caller) map[string]any {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := planKey{c.action, c.job}
	seen, ok := a.plans[key]
	delete(a.plans, key)
	if !ok || a.now().Sub(seen.at) > planFresh {
		return nil
	}
	return seen.plan
}

func planSummary(out any) map[string]any {
	switch p := out.(type) {
	case restore.Plan:
		return map[string]any{"job": p.Job, "from": p.From, "checkpoint": p.Checkpoint, "keys": p.Keys, "elements": p.Elements, "bytes": p.Bytes,
			"removed": p.Removed, "expired": p.Expired, "epoch": p.Epoch, "warnings": len(p.Warnings)}
	case rescaler.Plan:
		return map[string]any{"job": p.Job, "from": p.From, "to": p.To, "moved": len(p.Moved), "base": p.Base, "epoch": p.Epoch, "warnings": len(p.Warnings)}
	}
	return nil
}

// resultOf is what an operation has done, nil when it says nothing.
func resultOf(s Operation) map[string]any {
	out := map[string]any{}
	if r := s.Restore; r != nil {
		out["restored"] = map[string]any{"job": r.Job, "checkpoint": r.Checkpoint, "keys": r.Keys, "elements": r.Elements, "removed": r.Removed,
			"expired": r.Expired, "epoch": r.Epoch, "undo": r.Undo}
	}
	if r := s.Rescale; r != nil {
		out["rescaled"] = map[string]any{"job": r.Job, "from": r.From, "to": r.To, "checkpoint": r.Checkpoint, "undo": r.Undo, "epoch": r.Epoch}
	}
	if c := s.Checkpoint; c != nil {
		out["checkpoint"] = c.ID
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// byItselfKinds are the events of what the coordinator does to a job's state or
// history without being asked.
var byItselfKinds = map[coordinator.EventKind]audit.Outcome{
	coordinator.EventStateLost:         audit.OutcomeFailed,
	coordinator.EventRecoveryAttempt:   audit.OutcomeAccepted,
	coordinator.EventRecoveryFailed:    audit.OutcomeFailed,
	coordinator.EventRecoveryFellBack:  audit.OutcomeFailed,
	coordinator.EventRecovered:         audit.OutcomeDone,
	coordinator.EventResumed:           audit.OutcomeDone,
	coordinator.EventCheckpointRemoved: audit.OutcomeDone,
	coordinator.EventStoreCompacted:    audit.OutcomeDone,
}

var _ coordinator.Listener = (*Auditor)(nil)

// OnEvent implements coordinator.Listener: it notes what the coordinator does
// by itself. It doesn't wait for the disk.
func (a *Auditor) OnEvent(e coordinator.Event) {
	outcome, ok := byItselfKinds[e.Kind]
	if !ok || a == nil || e.Reason == "on request" {
		return
	}
	n := audit.Entry{Phase: audit.PhaseNote, Principal: byItself, By: byItself, Action: string(e.Kind), Job: e.Job, Operation: e.Operation, Outcome: outcome,
		Params: map[string]any{"message": e.Message}}
	if e.ID != 0 {
		n.Params["checkpoint"] = e.ID
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.notes) >= maxNotes {
		a.lost++
		return
	}
	a.notes = append(a.notes, n)
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// writeNotes writes what OnEvent noted, until Close.
func (a *Auditor) writeNotes() {
	for last := false; ; {
		a.mu.Lock()
		notes, lost := a.notes, a.lost
		a.notes, a.lost = nil, 0
		a.mu.Unlock()
		for _, n := range notes {
			a.append(n)
		}
		if lost > 0 {
			a.append(audit.Entry{Phase: audit.PhaseNote, Principal: byItself, By: byItself, Action: "notes-lost", Outcome: audit.OutcomeFailed, Params: map[string]any{"count": lost}})
		}
		if last {
			return
		}
		select {
		case <-a.wake:
		case <-a.quit:
			last = true
		}
	}
}
