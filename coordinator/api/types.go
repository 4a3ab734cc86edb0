package api

import (
	"time"

	"keyframe/coordinator"
	"keyframe/keygroups"
	"keyframe/rescale"
	"keyframe/snapshot"
)

// Version is what GET /v1/version answers.
type Version struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	Format  int    `json:"format"` // newest checkpoint format that is written
}

// CreateCheckpoint is the body of POST /v1/jobs/{job}/checkpoints.
type CreateCheckpoint struct {
	Name  string         `json:"name,omitempty" doc:"makes it a savepoint with this name" maxLength:"200"`
	Note  string         `json:"note,omitempty" maxLength:"2000"`
	Grade snapshot.Grade `json:"grade,omitempty" doc:"the job's own when empty"`
	// VerifyLive: a difference fails the checkpoint with reason tracking.
	VerifyLive bool `json:"verifyLive,omitempty" doc:"read everything and compare it with what tracking believed since the checkpoint before"`
}

// AcceptCheckpoint is the body of POST …/checkpoints/{checkpoint}/accept.
type AcceptCheckpoint struct {
	Note string `json:"note,omitempty" doc:"why it is right" maxLength:"2000"`
}

// Restore is the body of POST /v1/jobs/{job}/restore and …/restore/plan.
type Restore struct {
	Checkpoint   string `json:"checkpoint,omitempty" doc:"id or savepoint name; the newest restorable one when empty"`
	As           string `json:"as,omitempty" doc:"job to restore into; accepts another identity"`
	AcceptSchema bool   `json:"acceptSchema,omitempty"`
	NoUndo       bool   `json:"noUndo,omitempty"`
}

// Rescale is the body of POST /v1/jobs/{job}/rescale and …/rescale/plan.
type Rescale struct {
	Parallelism int            `json:"parallelism" minimum:"1" maximum:"32768"`
	Split       rescale.Split  `json:"split,omitempty" enum:"each,even"`
	AllowIdle   bool           `json:"allowIdle,omitempty"`
	Broadcast   map[string]int `json:"broadcast,omitempty" doc:"operator/name → subtask whose copy counts"`
}

// Detail is a checkpoint with what its manifest says.
type Detail struct {
	snapshot.Checkpoint
	CutAt          *time.Time               `json:"cutAt,omitempty"`
	Identity       *snapshot.Identity       `json:"identity,omitempty"`
	Server         *snapshot.ServerInfo     `json:"server,omitempty"`
	Format         int                      `json:"format,omitempty"`
	Chunks         int                      `json:"chunks,omitempty"`
	KeyGroups      *keygroups.Rule          `json:"keyGroups,omitempty"`
	Ranges         []keygroups.Range        `json:"ranges,omitempty"`
	OperatorStates []snapshot.OperatorState `json:"operatorStates,omitempty"`
	States         []snapshot.StateStats    `json:"states,omitempty"`
	Groups         []snapshot.GroupStats    `json:"groups,omitempty"`
	// Copies are one for each directory of store.copies.
	Copies []coordinator.Copy `json:"copies,omitempty"`
}

// Row is a checkpoint in a list.
type Row struct {
	snapshot.Checkpoint
	// Copied is how many directories of store.copies have its copy; absent
	// where there are none, or nothing to copy.
	Copied *coordinator.CopyTally `json:"copied,omitempty"`
}

func detail(c snapshot.Checkpoint, m *snapshot.Manifest) Detail {
	d := Detail{Checkpoint: c}
	if m == nil {
		return d
	}
	d.CutAt, d.Identity, d.Server, d.Format, d.Chunks = &m.CutAt, &m.Identity, &m.Server, m.Format, chunks(m)
	d.KeyGroups, d.Ranges, d.OperatorStates, d.States, d.Groups = &m.KeyGroups, m.Ranges, m.OperatorStates, m.States, m.Groups
	return d
}

// chunks is how many chunks a checkpoint needs, in all layers.
func chunks(m *snapshot.Manifest) int {
	n := 0
	for range m.AllChunks() {
		n++
	}
	return n
}

// KeyPlace is where a key belongs.
type KeyPlace struct {
	Key     string `json:"key"`
	Hash    int32  `json:"hash"`
	Group   int    `json:"group"`
	Subtask int    `json:"subtask"`
}

// StoreCheck is what a walk over the whole store found.
type StoreCheck struct {
	OK         bool               `json:"ok"`
	Problems   []snapshot.Problem `json:"problems"`
	DurationMs int64              `json:"durationMs"`
}

// List wraps what a listing gives, so that it can grow.
type List[T any] struct {
	Items []T `json:"items"`
}

// Operation is an operation as it stands.
type Operation = coordinator.Status

// Job is a job as it stands.
type Job = coordinator.JobStatus
