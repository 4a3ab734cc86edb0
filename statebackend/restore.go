package statebackend

import (
	"context"
	"time"

	"keyframe/snapshot"
)

// RestoreScope is how much of a job a restore replaces.
type RestoreScope string

// The scopes. A rescale replaces the operator state, the registered operator
// states and the assignment, and leaves keyed state as it is.
const (
	ScopeAll      RestoreScope = "all"
	ScopeOperator RestoreScope = "operator"
)

// RestoreRequest says what the flip must do besides the keys that are staged.
type RestoreRequest struct {
	ID         string // unique; lower-case letters and digits
	Job        Job
	Scope      RestoreScope
	Checkpoint snapshot.ID
	StartedAt  time.Time
	// Epoch is what the live record must hold at the flip (0 also matches a
	// record that isn't there); NewEpoch is what it holds afterwards, in the
	// record and in the assignment. ErrFenced otherwise.
	Epoch    uint64
	NewEpoch uint64
	// Incarnation and Attempt are written into the record at the flip.
	Incarnation string
	Attempt     snapshot.ID
	// Assignment is published at the flip (with NewEpoch); nil removes it.
	Assignment *Assignment
	// Operators replaces the job's registered operator states when Scope is
	// ScopeOperator; with ScopeAll the staged meta key does.
	Operators []snapshot.OperatorState
	// AsOf decides which keys have expired: those with an expiry at or
	// before it are not staged. By the server's clock.
	AsOf time.Time
	// Positions are set at the flip: the group's last delivered id, and the
	// pending entries as the staged source keys have them.
	Positions []snapshot.Position
	// Unchanged (ScopeOperator) are the operator keys as they were read:
	// when a live one differs at the flip, nothing is done and ErrChanged
	// names it. They are the keys that the flip removes.
	Unchanged []KeySummary
	// Schemas (ScopeOperator) are the registry entries of the new operator
	// keys, by key.
	Schemas map[string]string
	// Plain stages in the store's plain commands only. For the attempt after
	// one that ended with ErrPayloadRefused.
	Plain bool
}

// KeySummary is what a key holds, without its elements.
type KeySummary struct {
	Name   []byte
	Type   snapshot.KeyType
	Count  uint64
	Digest uint64 // as snapshot.Digester computes it
}

// FlipResult is what a flip did.
type FlipResult struct {
	Keys    uint64 // keys put in place
	Expired uint64 // keys dropped because their expiry had passed
	Removed uint64 // keys that the checkpoint doesn't have
	Epoch   uint64
	// Unclaimed tells which pending entries could not be put back, since the
	// stream doesn't have them any more; nil when all could.
	Unclaimed []Unclaimed
	// Warning says what went slower than it could have, and the remedy; ""
	// for nothing.
	Warning string
}

// Unclaimed are pending entries of one group that a flip could not put back.
type Unclaimed struct {
	Stream  string
	Group   string
	Entries uint64
}

// Staging is one restore under way. Not safe for concurrent use. Stage all
// keys, prove them, flip.
type Staging interface {
	// Sink stages keys beside the live ones; live keys aren't touched. Of a
	// name that isn't the job's (Job.Owns), only the index learns: no key
	// under it is written, given an expiry or deleted, at the flip neither.
	// EndKey brings the count and the digest of what came, by which the key
	// is proved. A store may stage and prove behind the calls: their errors
	// may be of an earlier key, which they name. With
	// ScopeAll it takes all sections of a checkpoint in the order in which
	// Walk gives them, with ScopeOperator the new operator keys.
	snapshot.Sink
	// Expired is how many keys were dropped at staging, as of AsOf.
	Expired() uint64
	// Prove waits until every staged key is compared with what its EndKey
	// brought, and fails with ErrMismatch, naming the key. The comparison is
	// of type, count and digest of what is read back; where the store itself
	// has checked a checksum over the key's content, which was compared with
	// the digest before it was sent, type and count are enough. It may be
	// called again. Flip does it too where it was not called.
	Prove(ctx context.Context) error
	// Flip puts everything in place in one atomic step: the staged keys, the
	// index, the registry, the operator states, the assignment, the
	// positions and the record, whose mark goes and whose Flipped becomes
	// the restore's id. Before its first write it has checked the epoch, the
	// mark, each staged key, each right and Unchanged. When the answer is
	// lost it returns ErrUnreachable, and Resolve tells what happened.
	Flip(ctx context.Context) (FlipResult, error)
	// Abort removes what was staged and the mark; after Flip it does
	// nothing. Safe to call twice.
	Abort(ctx context.Context) error
}

// Restorer puts state back (I3).
type Restorer interface {
	// Room checks that the server has memory for a second copy of that many
	// logical bytes in that many keys and elements: ErrNoRoom with the
	// numbers otherwise.
	Room(ctx context.Context, keys, elements, bytes uint64) error
	// Stage writes the mark into the job's record (ErrMarked when another
	// one is there, ErrFenced when the epoch differs) and begins.
	Stage(ctx context.Context, req RestoreRequest) (Staging, error)
	// Resolve ends a restore that a crash left behind: it tells whether the
	// flip happened, removes what was staged and, when the mark is this
	// restore's, the mark. Idempotent. Somebody who doesn't lead the job (see
	// WithLease) is told the same and removes what was staged, but leaves the
	// mark to the leader: the flip can't happen any more. Where it still could,
	// since nobody has begun a new term, that is a *FencedError.
	Resolve(ctx context.Context, job Job, restore string) (flipped bool, err error)
}

// Backend is everything that the coordinator needs of a state store.
type Backend interface {
	Store
	Cutter
	Records
	Restorer
	Leases
	// Server is the address for a checkpoint's identity: never with a user
	// or a password.
	Server() string
}
