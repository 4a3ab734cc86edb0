package snapshot

import (
	"fmt"
	"time"
)

// Shrunk is the flag of a checkpoint that holds far less than the one it was
// compared with. It stands in the history only: manifests and archives don't
// carry it.
type Shrunk struct {
	Base           ID     `json:"base"` // the checkpoint that it was compared with
	KeysBefore     uint64 `json:"keysBefore"`
	KeysAfter      uint64 `json:"keysAfter"`
	ElementsBefore uint64 `json:"elementsBefore"`
	ElementsAfter  uint64 `json:"elementsAfter"`
	// Accepted: a person has said that it is right.
	Accepted   bool       `json:"accepted"`
	AcceptedAt *time.Time `json:"acceptedAt,omitempty"`
	Note       string     `json:"note,omitempty"` // theirs
}

// String says what was lost.
func (s Shrunk) String() string {
	return fmt.Sprintf("%d keys and %d elements, checkpoint %s had %d and %d", s.KeysAfter, s.ElementsAfter, s.Base, s.KeysBefore, s.ElementsBefore)
}

// InDoubt reports whether the checkpoint is completed and flagged as shrunk, and
// nobody has accepted it.
func (c Checkpoint) InDoubt() bool {
	return c.State == StateCompleted && c.Shrunk != nil && !c.Shrunk.Accepted
}
