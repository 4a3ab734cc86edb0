package snapshot

import (
	"context"
	"errors"
	"time"
)

// Sentinels that code decides on; they come wrapped with the thing's name.
var (
	ErrNoCheckpoint = errors.New("no such checkpoint")
	ErrNoChunk      = errors.New("no such chunk")
	ErrCorrupt      = errors.New("corrupt")           // bytes that are not what was written
	ErrNewerFormat  = errors.New("newer format")      // written by a newer version
	ErrClosed       = errors.New("store is closed")   // a call after Close
	ErrInUse        = errors.New("checkpoint in use") // deletion or rewriting refused
	ErrUpkeep       = errors.New("the store is being compacted or backed up")
	ErrNoSpace      = errors.New("not enough room on the disk")
)

// Attempt is what is known of a checkpoint when it begins.
type Attempt struct {
	Job       string
	Kind      Kind
	Name      string
	Note      string
	Trigger   Trigger
	StartedAt time.Time
	Parent    ID
	// After is an id that the new one must be greater than: what the job's
	// record in the state store remembers (adopt before you count, I10).
	After ID
}

// Writer makes one checkpoint. Not safe for concurrent use.
type Writer interface {
	ChunkWriter
	// ID is the id that Begin gave the attempt.
	ID() ID
	// StoredBytes is how many bytes of chunks were new so far.
	StoredBytes() uint64
	// Commit makes the checkpoint durable and listed: the one commit point.
	// The manifest's checkpoint must be completed and carry the writer's id.
	// Its flag Shrunk goes to the history and not into the manifest.
	// After an error nothing is listed, and Fail or Abort is still due.
	Commit(ctx context.Context, m *Manifest) error
	// Fail records the attempt as failed in the history and drops its chunks.
	Fail(ctx context.Context, f Failure) error
	// Abort is Fail with FailAborted unless Commit or Fail came first, when
	// it does nothing: `defer w.Abort()` is always right.
	Abort()
}

// Rewriter puts other chunks under a completed checkpoint: the same content in
// fewer layers. Not safe for concurrent use. While it is open the checkpoint
// can't be deleted, nor rewritten by another.
type Rewriter interface {
	ChunkWriter
	// StoredBytes is how many bytes of chunks were new so far.
	StoredBytes() uint64
	// Commit replaces the checkpoint's manifest, in one step: m has the same
	// job, id, keys, elements, missing, identity and cut, and names other
	// chunks. The history follows in FullBytes, Layers, and, where it was
	// estimated, Bytes; StoredBytes stays what the attempt stored (or what is
	// now all, when that is less). Whoever holds the checkpoint may go on
	// reading by the manifest that it had. After an error the old manifest
	// stands, and Abort is still due.
	Commit(ctx context.Context, m *Manifest) error
	// Abort drops what was written unless Commit came first, when it does
	// nothing: `defer r.Abort()` is always right.
	Abort()
}

// Change is an edit of a listed checkpoint that leaves its content alone. Nil
// fields stay.
type Change struct {
	Pinned *bool
	Bad    *string // "" takes the mark back
	Drill  *Drill  // the newest
	Shrunk *Shrunk
}

// Store keeps the checkpoints of all jobs. Safe for concurrent use.
type Store interface {
	ChunkSource
	// Begin allocates the next id of the job and records the attempt as in
	// progress, durably.
	Begin(ctx context.Context, a Attempt) (Writer, error)
	// List gives the whole history of a job, oldest first, failed attempts
	// and those in progress too. A record that can't be read is an error,
	// never left out. An unknown job has an empty history.
	List(ctx context.Context, job string) ([]Checkpoint, error)
	// Manifest gives the manifest of a completed checkpoint (ErrNoCheckpoint
	// otherwise).
	Manifest(ctx context.Context, job string, id ID) (*Manifest, error)
	// Edit changes a checkpoint's marks and gives it as it is then.
	Edit(ctx context.Context, job string, id ID, c Change) (Checkpoint, error)
	// Delete removes a checkpoint or a failed attempt from the history: when
	// it returns nobody sees it any more. The chunks that no other checkpoint
	// needs go in the background, also after a restart; Stats tells how much
	// waits. ErrInUse while the attempt is in progress, a Hold is open or the
	// checkpoint is being rewritten.
	Delete(ctx context.Context, job string, id ID) error
	// Rewrite begins to replace the manifest of a completed checkpoint
	// (ErrNoCheckpoint otherwise, ErrInUse while another rewrites it).
	Rewrite(ctx context.Context, job string, id ID) (Rewriter, error)
	// Hold keeps a checkpoint from being deleted, and every chunk that its
	// manifest names from being removed, until release is called (which may
	// be called twice).
	Hold(ctx context.Context, job string, id ID) (release func(), err error)
	// Jobs lists the names that have a history.
	Jobs(ctx context.Context) ([]string, error)
	// Stats counts what the store holds.
	Stats(ctx context.Context) (StoreStats, error)
	// Check walks everything and gives every problem it finds; an error only
	// when it could not walk.
	Check(ctx context.Context) ([]Problem, error)
}

// StoreStats counts what a store holds, in bytes.
type StoreStats struct {
	Path      string  `json:"path"`
	FileBytes int64   `json:"fileBytes"`
	LiveBytes int64   `json:"liveBytes"` // of chunks and manifests that are kept
	FreeBytes int64   `json:"freeBytes"` // of pages that the next writes reuse
	Ratio     float64 `json:"ratio"`     // file to live bytes, 0 when nothing is live
	// Waiting is what deleted checkpoints have left and is being removed in
	// the background; it is neither live nor free yet.
	WaitingBytes  int64 `json:"waitingBytes"`
	WaitingChunks int   `json:"waitingChunks"`
	Jobs          int   `json:"jobs"`
	Checkpoints   int   `json:"checkpoints"` // completed
	Attempts      int   `json:"attempts"`    // all
	Chunks        int   `json:"chunks"`      // that are kept
	// Stopped says why nothing more is written, as after a failed sync, until
	// the coordinator is started anew; empty while the store works.
	Stopped string `json:"stopped,omitempty"`
	// Damaged are damaged files of this store that were salvaged and kept aside,
	// until somebody moves them away.
	Damaged []string `json:"damaged,omitempty"`
}

// Problem is one thing that a check found wrong.
type Problem struct {
	Job        string `json:"job,omitempty"`
	Checkpoint ID     `json:"checkpoint,omitempty"`
	What       string `json:"what"`   // the thing: a chunk id, a key, a field of the manifest
	Detail     string `json:"detail"` // what is wrong with it
}

// String is one line.
func (p Problem) String() string {
	s := p.What + ": " + p.Detail
	if p.Checkpoint != 0 {
		s = "checkpoint " + p.Checkpoint.String() + ": " + s
	}
	if p.Job != "" {
		s = "job " + p.Job + ": " + s
	}
	return s
}

// Journal keeps small records of the coordinator (jobs that were applied, the
// plan of a restore under way) beside the checkpoints. Safe for concurrent
// use; what a call changed is durable when it returns.
type Journal interface {
	Put(ctx context.Context, bucket, key string, value []byte) error
	// Get gives the caller's own copy; ok is false when there is none.
	Get(ctx context.Context, bucket, key string) (value []byte, ok bool, err error)
	// Delete of what isn't there is no error.
	Delete(ctx context.Context, bucket, key string) error
	// Each calls fn for every record of a bucket in the order of keys, over
	// a copy: fn may call the journal.
	Each(ctx context.Context, bucket string, fn func(key string, value []byte) error) error
}
