package statebackend

import (
	"context"
	"time"

	"keyframe/keygroups"
	"keyframe/snapshot"
)

// Record is the coordinator's hash beside a job's state. Fields of the hash:
// incarnation, epoch, attempt, cut, checkpoint, checkpointAt (RFC 3339),
// restore (JSON of Mark), flipped.
type Record struct {
	Incarnation  string      // random; "" when the record is not there
	Epoch        uint64      // fencing token, grows with each restore and assignment
	Attempt      snapshot.ID // newest attempt begun
	Cut          snapshot.ID // newest attempt whose cut this state has come through
	Checkpoint   snapshot.ID // newest completed
	CheckpointAt time.Time
	Restore      *Mark  // a restore in progress
	Flipped      string // id of the restore that last went live
}

// Mark says that a restore is in progress: the job must not be checkpointed,
// rescaled or called healthy (I3).
type Mark struct {
	ID         string      `json:"id"`
	Kind       string      `json:"kind"` // restore or rescale
	Checkpoint snapshot.ID `json:"checkpoint"`
	StartedAt  time.Time   `json:"startedAt"`
	// Token is the lease's that the restore was begun under, 0 for none: once
	// another one is current it can't go live any more.
	Token uint64 `json:"token,omitempty"`
}

// Assignment is what workers read to know their key groups: the JSON of the
// job's assignment key.
type Assignment struct {
	Epoch          uint64            `json:"epoch"`
	MaxParallelism int               `json:"maxParallelism"`
	Parallelism    int               `json:"parallelism"`
	Hash           keygroups.Hash    `json:"hash"`
	Ranges         []keygroups.Range `json:"ranges"`
}

// Glimpse is a cheap look at a job.
type Glimpse struct {
	Server snapshot.ServerInfo
	// At is the moment of the look by the server's clock: what expiry times
	// are compared with. Zero when the store doesn't tell it.
	At       time.Time
	Record   Record
	Leader   Leader // of the job; zero when nobody ever was
	Assigned *Assignment
	Indexed  uint64 // names in the index
	// Where helps a person when there is no state: what the database holds
	// ("database 0 is empty; database 3 has 1204 keys").
	Where string
	// Warnings name dangers to the state: an eviction policy that may evict
	// state keys, a server that is a replica.
	Warnings []string
}

// Notes are fields of the record to write; zero ones stay as they are.
type Notes struct {
	Attempt      snapshot.ID
	Cut          snapshot.ID
	Checkpoint   snapshot.ID
	CheckpointAt time.Time
}

// Records reads and keeps the coordinator's record and looks at a job.
type Records interface {
	// Look reads and writes nothing. A job without state is no error here.
	Look(ctx context.Context, job Job) (Glimpse, error)
	// Adopt writes the incarnation, epoch 1 and the assignment (its Epoch is
	// set to the record's) where they are not there yet, in one step, and
	// gives the record as it is then. Calling it twice is harmless.
	Adopt(ctx context.Context, job Job, incarnation string, a Assignment) (Record, error)
	// Note writes fields of the record while the incarnation is still that
	// one; ErrStateLost otherwise, with nothing written.
	Note(ctx context.Context, job Job, incarnation string, n Notes) error
	// Index calls fn for every name of the job's index, each once, in no
	// order. The bytes are fn's own.
	Index(ctx context.Context, job Job, fn func(name []byte) error) error
	// Schemas gives the registry's entry for each name, "" where none.
	Schemas(ctx context.Context, job Job, names [][]byte) ([]string, error)
	// Partitions gives the partition count that a source's meta hash tells;
	// 0 when there is none.
	Partitions(ctx context.Context, topic string) (int, error)
	// Streams tells what streams hold now, one answer for each question: a
	// restore asks whether what its positions point at is still there. It
	// isn't a cut. Errors: ErrPermission, ErrUnsupported by a store without
	// streams, ErrWrongType.
	Streams(ctx context.Context, asks []StreamAsk) ([]StreamNow, error)
}

// StreamAsk is a question about one stream.
type StreamAsk struct {
	Stream string
	IDs    []string // {ms}-{seq}: how many of these entries are gone?
}

// StreamNow is what a stream holds.
type StreamNow struct {
	Exists bool
	Length uint64
	First  string // id of the first entry; "" when there is none
	Last   string // id of the newest entry that ever was; "" without a stream
	Added  int64  // entries that ever were, -1 when the store doesn't tell (Redis before 7.0)
	Gone   uint64 // of the ids asked for, how many the stream doesn't have
}
