package snapshot

import (
	"encoding/json"
	"time"
)

var (
	_ json.Marshaler   = Positions(nil)
	_ json.Unmarshaler = (*Positions)(nil)
)

// FailureReason is why an attempt failed, from a closed list.
type FailureReason string

// The closed list of reasons.
const (
	FailTimeout     FailureReason = "timeout"     // the job's checkpoint timeout ran out
	FailAborted     FailureReason = "aborted"     // stopped on request or at shutdown
	FailInterrupted FailureReason = "interrupted" // the coordinator died in the middle
	FailConnection  FailureReason = "connection"  // the state store couldn't be reached, or was lost
	FailPermission  FailureReason = "permission"  // the server denied a right that the cut needs
	FailPause       FailureReason = "pause"       // the pause ended before the last read
	FailStall       FailureReason = "stall"       // writers would have been held for longer than the job allows
	FailTracking    FailureReason = "tracking"    // what was believed to be unchanged had changed, or writes were lost track of during the cut
	FailKey         FailureReason = "key"         // a key could not be read whole
	FailState       FailureReason = "state"       // the state is lost, absent, marked or not ours
	FailLease       FailureReason = "lease"       // the coordinator lost the job's lease during the attempt
	FailMemory      FailureReason = "memory"      // the state store has no memory left (maxmemory) for what a cut writes
	FailStore       FailureReason = "store"       // the checkpoint store refused
	FailInternal    FailureReason = "internal"    // a bug
)

// Failure is why an attempt failed, for people and for code.
type Failure struct {
	Reason  FailureReason `json:"reason"`
	Message string        `json:"message"`
}

// Position is where one consumer group stands in one partition of a source,
// read inside the cut.
type Position struct {
	Topic     string `json:"topic"`
	Group     string `json:"group"`
	Partition int    `json:"partition"`
	Stream    string `json:"stream"`        // the stream's key
	LastID    string `json:"lastDelivered"` // "" when the group doesn't exist there
	Read      int64  `json:"entriesRead"`   // -1 when the server doesn't know
	Pending   uint64 `json:"pending"`       // entries delivered and not acknowledged
	Frontier  bool   `json:"frontier"`      // a commit frontier was carried too
}

// Positions are written as [] in JSON when there are none.
type Positions []Position

// MarshalJSON implements json.Marshaler.
func (p Positions) MarshalJSON() ([]byte, error) {
	if p == nil {
		return []byte("[]"), nil
	}
	return json.Marshal([]Position(p))
}

// UnmarshalJSON implements json.Unmarshaler: none is nil again.
func (p *Positions) UnmarshalJSON(b []byte) error {
	var all []Position
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	if *p = all; len(all) == 0 {
		*p = nil
	}
	return nil
}

// Checkpoint is one attempt at a checkpoint as the history, the API and the
// command line show it (design §8). Sizes are in bytes, durations in ms.
type Checkpoint struct {
	Job            string     `json:"job"`
	ID             ID         `json:"id"`
	Kind           Kind       `json:"kind"`
	Name           string     `json:"name,omitempty"`
	Note           string     `json:"note,omitempty"`
	Trigger        Trigger    `json:"trigger"`
	State          State      `json:"state"`
	Failure        *Failure   `json:"failure,omitempty"`
	Grade          Grade      `json:"grade,omitempty"`
	StartedAt      time.Time  `json:"startedAt"`
	CompletedAt    *time.Time `json:"completedAt,omitempty"`
	DurationMs     int64      `json:"durationMs"`
	StallMs        float64    `json:"stallMs"`
	Keys           uint64     `json:"keys"`        // indexed keys that exist
	Elements       uint64     `json:"elements"`    // of these keys
	Bytes          uint64     `json:"bytes"`       // logical: names, fields and values
	StoredBytes    uint64     `json:"storedBytes"` // new in this one
	FullBytes      uint64     `json:"fullBytes"`   // all that it needs
	Parent         ID         `json:"parent,omitempty"`
	Parallelism    int        `json:"parallelism"`
	MaxParallelism int        `json:"maxParallelism"`
	Epoch          uint64     `json:"epoch"`
	Pinned         bool       `json:"pinned"`
	Bad            string     `json:"bad,omitempty"` // why a verification found it unrestorable
	Missing        uint64     `json:"missing"`       // indexed keys that do not exist
	Sources        Positions  `json:"sources"`

	// Incremental: only what had changed since the parent was read and
	// stored. FullReason says why a checkpoint that could have been is not.
	Incremental bool   `json:"incremental"`
	FullReason  string `json:"fullReason,omitempty"`
	// Tracking is how writes were tracked ("fields", "keys"; "" for not), and
	// GradeReason why nothing better was possible.
	Tracking    string `json:"tracking,omitempty"`
	GradeReason string `json:"gradeReason,omitempty"`
	// Rounds is how often what had been written meanwhile was read again
	// before the pause, and Hot the keys that were most of it when the stall
	// was above the job's maxStall.
	Rounds int      `json:"rounds,omitempty"`
	Hot    []HotKey `json:"hotKeys,omitempty"`
	// Layers is how many layers a restore reads, 1 for a plain one.
	Layers int `json:"layers,omitempty"`
	// BytesEstimated: Bytes is near the truth, not exact, since of values that
	// were replaced the old length isn't known. Merging makes it exact.
	BytesEstimated bool `json:"bytesEstimated,omitempty"`
	// Drill is the newest drill of this checkpoint; nil when none was made.
	Drill *Drill `json:"drill,omitempty"`
	// Shrunk: it holds far less than the one before; nil when it doesn't.
	Shrunk *Shrunk `json:"shrunk,omitempty"`
	// SelfChecked: everything was read and compared with what tracking
	// believed, and was equal.
	SelfChecked bool `json:"selfChecked,omitempty"`
}

// Drill is what a restore on trial found.
type Drill struct {
	At time.Time `json:"at"`
	OK bool      `json:"ok"` // every element came back as the checkpoint has it
	// RestoreMs is how long the restore took (RTO), AgeMs how old the cut was
	// when the drill began (RPO).
	RestoreMs int64  `json:"restoreMs"`
	AgeMs     int64  `json:"ageMs"`
	Server    string `json:"server"`            // where it was restored
	Message   string `json:"message,omitempty"` // what went wrong
}

// HotKey is a key that is written faster than it can be read.
type HotKey struct {
	Key string `json:"key"`
	// Elements is how many had to be read inside the pause.
	Elements uint64 `json:"elements"`
}

// Restorable reports whether the checkpoint may be restored: completed, and
// not found bad.
func (c Checkpoint) Restorable() bool { return c.State == StateCompleted && c.Bad == "" }
