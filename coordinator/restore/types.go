// Package restore puts a job's state back to a checkpoint (invariant I3): a
// plan as a value, then its execution.
//
// [Executor.Plan] reads everything and writes nothing. [Executor.Run] checks
// the same again, writes down in the journal what it is about to do, stages
// the checkpoint's keys beside the live ones, proves them, and flips them into
// place in one atomic step of the state store: the commit point. Until then
// any failure leaves the live state as it was. [Executor.Resume] ends what a
// crash left behind.
package restore

import (
	"context"
	"encoding/json"
	"time"

	"keyframe/coordinator/config"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Executor plans and runs restores. The zero value of no field is useful; all
// are set once. It is safe for concurrent use on different jobs; the caller
// holds the lock of the job that it calls for (I7).
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
	OnFlip func(ctx context.Context, entry Entry) error

	waits []time.Duration // see Swap; for tests
}

// Request says what to restore.
type Request struct {
	Job        config.Job
	Checkpoint snapshot.ID
	// From is the name of the job whose history holds the checkpoint; "" is
	// the job's own.
	From string
	// As accepts a checkpoint of another identity: another job name, prefix
	// or server. The keys get the job's own root.
	As bool
	// Epoch is the newest one that the caller knows of; the new one is above
	// it. The live record may be lost, and the checkpoint from before it.
	Epoch uint64
	// SameServer says that the state store was seen to hold this job's state,
	// by its incarnation: then another address in the checkpoint is another
	// name of the same server, or of the one that the state has moved from.
	SameServer bool
	// AcceptSchema accepts registry entries that differ from the live ones.
	AcceptSchema bool
	// Undo is the checkpoint taken before; it goes into the result and the
	// journal.
	Undo snapshot.ID
	// Recovery says that the state is lost: there is no live schema to
	// compare with, and the record may be absent.
	Recovery bool
}

// The phases that a Progress is told, in their order.
const (
	PhaseVerify = "verify" // the checkpoint is read whole, nothing is written
	PhaseStage  = "stage"  // keys are written beside the live ones
	PhaseProve  = "prove"  // what was staged is compared with the checkpoint
	PhaseFlip   = "flip"   // one atomic step puts everything in place
	PhaseClean  = "clean"  // the journal's entry goes
)

// Progress is told how far a phase has come: keys, elements and logical bytes
// since the phase began. It is called from the goroutine that does the work,
// at the beginning of each phase and every few thousand elements. May be nil.
type Progress func(phase string, keys, elements, bytes uint64)

// Plan is what a restore would do. Bytes are logical: names, fields, values.
type Plan struct {
	Job             string      `json:"job"`
	Checkpoint      snapshot.ID `json:"checkpoint"`
	From            string      `json:"from"`            // the job whose history holds it
	TakenAt         time.Time   `json:"takenAt"`         // the cut, by the server's clock
	AgeMs           int64       `json:"ageMs"`           // of the cut
	Identity        Identity    `json:"identity"`        // the checkpoint's and the job's
	Keys            uint64      `json:"keys"`            // to write
	Elements        uint64      `json:"elements"`        // of these keys
	Bytes           uint64      `json:"bytes"`           // of these keys
	Expired         uint64      `json:"expired"`         // keys whose expiry has passed: not written
	Removed         uint64      `json:"removed"`         // live keys that the checkpoint lacks
	Indexed         uint64      `json:"indexed"`         // names in the live index
	Missing         uint64      `json:"missing"`         // names in the index without a key
	Foreign         uint64      `json:"foreign"`         // names in an index that are no state of the job: keys under them stay as they are
	States          []StatePlan `json:"states"`          // by operator, state and type
	Positions       []Position  `json:"positions"`       // of the sources, set at the flip
	EpochFrom       uint64      `json:"epochFrom"`       // the live one
	Epoch           uint64      `json:"epoch"`           // the one after
	Assignment      *Ownership  `json:"assignment"`      // published at the flip
	LiveParallelism int         `json:"liveParallelism"` // 0 when nothing is assigned
	SchemaDiff      uint64      `json:"schemaDiff"`      // keys whose live schema differs, accepted
	Warnings        []string    `json:"warnings"`
}

// Identity shows whose state the checkpoint holds and whose it is to become.
type Identity struct {
	Checkpoint snapshot.Identity `json:"checkpoint"`
	Job        snapshot.Identity `json:"job"`
}

// StatePlan is the part of a plan about one operator's state. Operator and
// State are empty for keys that could not be parsed, Type is the Redis type.
type StatePlan struct {
	Operator string `json:"operator"`
	State    string `json:"state"`
	Type     string `json:"type"`
	Keys     uint64 `json:"keys"` // to write
	Elements uint64 `json:"elements"`
	Bytes    uint64 `json:"bytes"`
	Remove   uint64 `json:"remove"`  // live keys that the checkpoint lacks
	Expired  uint64 `json:"expired"` // not written
}

// Position is a source position as the checkpoint has it.
type Position = snapshot.Position

// Ownership is the assignment that the flip publishes.
type Ownership = statebackend.Assignment

// Result is what a restore did (design §8).
type Result struct {
	Job        string      `json:"job"`
	Checkpoint snapshot.ID `json:"checkpoint"`
	Keys       uint64      `json:"keys"`     // put in place
	Elements   uint64      `json:"elements"` // of these keys
	Expired    uint64      `json:"expired"`  // keys dropped because their expiry had passed
	Removed    uint64      `json:"removed"`  // keys that the checkpoint doesn't have
	Epoch      uint64      `json:"epoch"`    // the new one
	Undo       snapshot.ID `json:"undo,omitempty"`
	DurationMs int64       `json:"durationMs"`
	// Foreign is how many names in an index are no state of the job: keys
	// under them stay as they are.
	Foreign uint64 `json:"foreign,omitempty"`
	// Warnings are about what could not be put back, and about what came
	// after the flip; the restore is done.
	Warnings []string `json:"warnings,omitempty"`
}

// Resumed is the end of a restore that a crash left behind.
type Resumed struct {
	ID         string      `json:"id"`
	Job        string      `json:"job"`
	Kind       string      `json:"kind"` // restore or rescale
	Checkpoint snapshot.ID `json:"checkpoint"`
	// From is the job whose history holds the checkpoint, "" for Job's own.
	From      string      `json:"from,omitempty"`
	Undo      snapshot.ID `json:"undo,omitempty"`
	StartedAt time.Time   `json:"startedAt"`
	// Flipped says that the flip had happened: the restore is done, Result
	// tells what is known of it. Otherwise nothing was changed.
	Flipped bool    `json:"flipped"`
	Result  *Result `json:"result,omitempty"`
	// Foreign says that the mark in the job's record is not in this journal:
	// another coordinator's, or this one's before its store file was lost.
	// It was left as it is; Force ends it.
	Foreign bool   `json:"foreign,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	// Detail is the plan of a rescale that had flipped.
	Detail json.RawMessage `json:"detail,omitempty"`
}

var _ interface {
	Plan(context.Context, Request, Progress) (Plan, error)
	Run(context.Context, Request, Progress) (Result, error)
	Resume(context.Context, config.Job) ([]Resumed, error)
	Force(context.Context, config.Job) (Resumed, error)
} = (*Executor)(nil)
