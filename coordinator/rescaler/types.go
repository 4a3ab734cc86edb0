// Package rescaler changes a job's parallelism (invariant I4): a plan as a
// value, then its execution.
//
// Keyed state stays where it is, since key groups don't move between keys:
// only their owner changes. A rescale redistributes the operator state of a
// base checkpoint (package rescale), commits the outcome as a checkpoint over
// the same keyed chunks, and puts the operator state and the assignment in
// place by a restore of just these.
package rescaler

import (
	"context"
	"time"

	"keyframe/coordinator/config"
	"keyframe/coordinator/restore"
	"keyframe/keygroups"
	"keyframe/rescale"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Executor plans and runs rescales. All fields are set once. It is safe for
// concurrent use on different jobs; the caller holds the lock of the job that
// it calls for (I7).
type Executor struct {
	Store   snapshot.Store
	Journal snapshot.Journal
	Backend statebackend.Backend
	Now     func() time.Time
	// NewID gives a new unique id of lower-case letters and digits.
	NewID func() string
	// OnFlip is told of each flip before its entry leaves the journal, also by
	// Resume: what it keeps is not lost to a crash in between. When it fails,
	// the entry stays and Resume tells it again. May be nil.
	OnFlip func(ctx context.Context, entry restore.Entry) error

	waits []time.Duration // see restore.Swap; for tests
}

// Request says what to change.
type Request struct {
	Job config.Job
	To  int // the new parallelism
	// Split cuts list state; "" is the job's own rule.
	Split rescale.Split
	// Base is the checkpoint to redistribute; 0 is the newest completed one.
	// Run wants one that was taken just before.
	Base snapshot.ID
	// AllowIdle accepts subtasks that no partition of a source is left for.
	AllowIdle bool
	// Broadcast chooses, by "operator/name", the subtask whose copy counts
	// where the copies of a broadcast state disagree.
	Broadcast map[string]int
	// Epoch is the newest one that the caller knows of; the new one is above it.
	Epoch uint64
	// Undo is the checkpoint that undoes the rescale; 0 is the base.
	Undo snapshot.ID
}

// Plan is what a rescale would do, and as part of a Result what it did.
type Plan struct {
	Job            string           `json:"job"`
	From           int              `json:"from"` // parallelism
	To             int              `json:"to"`
	MaxParallelism int              `json:"maxParallelism"`
	Epoch          uint64           `json:"epoch"` // the one after
	Ranges         []RangePlan      `json:"ranges"`
	Moved          []keygroups.Move `json:"moved"`
	OperatorState  []OperatorPlan   `json:"operatorState"`
	// Checkpoint holds the new state; 0 in a plan, which makes none.
	Checkpoint snapshot.ID `json:"checkpoint,omitempty"`
	Undo       snapshot.ID `json:"undo,omitempty"`
	Base       snapshot.ID `json:"base"`      // what the plan was made from
	BaseAgeMs  int64       `json:"baseAgeMs"` // of its cut
	// SkewBefore and SkewAfter are the elements of the fullest subtask over
	// the mean: 1 is even. 1 too when there are none.
	SkewBefore float64  `json:"skewBefore"`
	SkewAfter  float64  `json:"skewAfter"`
	Warnings   []string `json:"warnings"`
}

// RangePlan is what one subtask owns afterwards. Bytes are logical.
type RangePlan struct {
	keygroups.Range
	Keys     uint64 `json:"keys"`
	Elements uint64 `json:"elements"`
	Bytes    uint64 `json:"bytes"`
}

// OperatorPlan is one operator state: the items (fields of a broadcast) that
// each subtask has, before and after.
type OperatorPlan struct {
	Operator string                `json:"operator"`
	Name     string                `json:"name"`
	Mode     snapshot.OperatorMode `json:"mode"`
	Before   []int                 `json:"before"`
	After    []int                 `json:"after"`
}

// Result is what a rescale did.
type Result struct {
	Plan
	DurationMs int64 `json:"durationMs"`
}

// Resumed is the end of a rescale that a crash left behind; its Checkpoint is
// the one that the rescale made, removed again when nothing was flipped.
type Resumed = restore.Resumed

// The phases that a Progress is told, in their order.
const (
	PhaseCollect = "collect" // the base checkpoint is read
	PhaseWrite   = "write"   // the new checkpoint is written and verified
	PhaseStage   = restore.PhaseStage
	PhaseProve   = restore.PhaseProve
	PhaseFlip    = restore.PhaseFlip
	PhaseClean   = restore.PhaseClean
)

// Progress is told how far a phase has come.
type Progress = restore.Progress

var _ interface {
	Plan(context.Context, Request) (Plan, error)
	Run(context.Context, Request, Progress) (Result, error)
	Resume(context.Context, config.Job) ([]Resumed, error)
} = (*Executor)(nil)
