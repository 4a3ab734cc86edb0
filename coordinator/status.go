package coordinator

import (
	"slices"
	"time"

	"keyframe/coordinator/config"
	"keyframe/keygroups"
	"keyframe/snapshot"
)

// JobStatus is a job as it stands. Times are UTC.
type JobStatus struct {
	Name           string               `json:"name"`
	Root           string               `json:"root"`   // beginning of the job's keys
	Server         string               `json:"server"` // where the state is
	Config         config.Job           `json:"config"`
	Paused         bool                 `json:"paused"`
	Health         Health               `json:"health"`
	Parallelism    int                  `json:"parallelism"` // as assigned, not as configured
	MaxParallelism int                  `json:"maxParallelism"`
	Epoch          uint64               `json:"epoch"`
	Leader         *Leader              `json:"leader,omitempty"` // nil while nobody is known to lead
	Ranges         []keygroups.Range    `json:"ranges"`
	NextCheckpoint *time.Time           `json:"nextCheckpoint,omitempty"`
	SkippedTicks   uint64               `json:"skippedTicks"`
	Failures       uint64               `json:"failuresInARow"`
	Last           *snapshot.Checkpoint `json:"lastCheckpoint,omitempty"`     // newest completed
	Good           *snapshot.Checkpoint `json:"lastGoodCheckpoint,omitempty"` // newest restorable
	LastGoodAt     *time.Time           `json:"lastGoodAt,omitempty"`         // when that was completed
	DueAt          *time.Time           `json:"dueAt,omitempty"`              // when, by the schedule and the tolerable misses, the next good one must be there
	Overdue        bool                 `json:"overdue"`                      // that time has passed
	NotDue         string               `json:"notDue,omitempty"`             // why no time is: paused, on demand only, another coordinator leads
	Operation      *Status              `json:"operation,omitempty"`
	Recovery       *RecoveryStatus      `json:"recovery,omitempty"`
	InDoubt        []snapshot.ID        `json:"inDoubt,omitempty"`  // far smaller than the one before, and not accepted: nothing older than the first is removed
	Undo           snapshot.ID          `json:"undo,omitempty"`     // what `undo` would restore
	Head           snapshot.ID          `json:"head,omitempty"`     // what the live state descends from
	Recovers       snapshot.ID          `json:"recovers,omitempty"` // what a recovery of lost state, and a restore that names none, begin with: the newest one that is not in doubt. 0 while another coordinator leads, or has a newer one
}

// RecoveryStatus is a recovery under way.
type RecoveryStatus struct {
	Since     time.Time   `json:"since"`
	Attempts  int         `json:"attempts"`
	LastError string      `json:"lastError,omitempty"`
	NextTry   *time.Time  `json:"nextTry,omitempty"`
	Candidate snapshot.ID `json:"candidate,omitempty"`
}

func (j *job) view() JobStatus {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := JobStatus{
		Name: j.spec.Name, Root: j.spec.Key().Root(), Server: j.c.opts.Backend.Server(),
		Config: j.spec, Paused: j.paused, Health: j.health,
		Parallelism: j.parallel, MaxParallelism: j.spec.MaxParallelism, Epoch: j.epoch, Leader: j.leaderLocked(),
		SkippedTicks: j.skipped, Failures: j.failures, Last: j.last, Good: j.good,
		Recovery: j.recovery.status(), Head: j.headLocked(), InDoubt: j.shrink.inDoubt(),
	}
	if text := j.c.storeSays.Load(); text != nil && s.Health.State != HealthStore {
		s.Health.Warnings = append(slices.Clip(s.Health.Warnings), *text)
	}
	// Who stands by recovers nothing, nor who knows of a newer one elsewhere.
	if j.best != nil && s.Health.State != HealthStandby && !j.newerLocked() {
		s.Recovers = j.best.ID
	}
	s.Health.Warnings = append(slices.Clip(s.Health.Warnings), j.shrinkWarningsLocked()...)
	j.silenceLocked(&s)
	// A parallelism that the rule refuses was refused before it got here.
	if ranges, err := j.spec.Rule().Assign(j.parallel); err == nil {
		s.Ranges = ranges
	}
	if !j.next.IsZero() && !j.paused {
		next := j.next.UTC()
		s.NextCheckpoint = &next
	}
	if op := j.running; op != nil {
		st := op.Status()
		s.Operation = &st
	}
	if j.undo != nil {
		s.Undo = j.undo.Checkpoint
	}
	return s
}
