package statebackend

import (
	"context"
	"time"

	"keyframe/snapshot"
)

// SourceRef names a Redis Streams source whose positions are part of the cut.
type SourceRef struct {
	Topic string
	Group string
}

// CutRequest says what to cut.
type CutRequest struct {
	Job Job
	// Grade is what the caller asks for; GradeAuto takes the best possible.
	Grade snapshot.Grade
	// Incarnation is what the job's record must hold inside the cut;
	// ErrStateLost otherwise. "" skips the check, and then nothing at all is
	// written (a job that has none yet; whoever only measures).
	Incarnation string
	// RunID is the run of the server that the caller has looked at:
	// ErrStateLost when it was started anew since, for what it came back with
	// has not been judged. "" skips the check.
	RunID   string
	Sources []SourceRef
	// MaxPause is how long writers may be held at most: the pause's own
	// timeout, so it also frees them when we die. 0 is the store's default.
	MaxPause time.Duration

	// What follows is for stores whose writers go on while the state is read.

	// Since is the Token of an earlier cut of this job: when the store can
	// tell everything that was written since, only that is pushed, as layers
	// over that cut's checkpoint. Otherwise, and when it is "", all is.
	Since string
	// Check asks for all although Since is given, and for what was marked
	// since: Cut.Marked.
	Check bool
	// MaxStall is how long writers may be held by the last reads; 0 is
	// DefaultMaxStall. OnStall says what happens when the rounds before don't
	// come to so little.
	MaxStall time.Duration
	OnStall  StallPolicy
	// MaxReadRate bounds the reading of the state outside the pause, in bytes
	// per second of what the server sends; 0 is no bound.
	MaxReadRate int64
}

// DefaultMaxStall is how long writers may be held when the job doesn't say.
const DefaultMaxStall = 50 * time.Millisecond

// StallPolicy is what a cut does when writers write faster than it reads.
type StallPolicy string

// The policies.
const (
	StallWait StallPolicy = "wait" // hold writers longer, up to MaxPause, and say which keys were hot
	StallFail StallPolicy = "fail" // ErrStall, naming the hot keys
)

// Marked is what was written since an earlier cut, as the store believes.
type Marked struct {
	// Known is false when the store can't tell: Reason says why.
	Known  bool
	Reason string
	Keys   map[string]MarkedKey
}

// MarkedKey is what was written of one key: all of it, or these fields or
// members; no field and not Whole is at most its expiry.
type MarkedKey struct {
	Whole  bool
	Fields map[string]struct{}
}

// Cut says how a cut went. Everything in it was read inside the cut.
type Cut struct {
	Grade     snapshot.Grade
	Stall     time.Duration // how long writers were held
	At        time.Time     // the instant, by the server's clock
	Server    snapshot.ServerInfo
	Record    Record
	Assigned  *Assignment // nil when the job never had one
	Operators []snapshot.OperatorState
	Positions []snapshot.Position

	// Token names this cut for a later request's Since; "" when the store
	// can't tell what is written after it.
	Token string
	// Incremental: only layers over Since's checkpoint were pushed. FullReason
	// says why not, when Since was given.
	Incremental bool
	FullReason  string
	Tracking    string // "fields", "keys", or "" for not
	GradeReason string // why no better grade or tracking was possible
	Rounds      int
	Hot         []snapshot.HotKey
	Marked      Marked // of a request with Check
}

// Forgetter is a store that remembers something between a job's cuts.
type Forgetter interface {
	// Forget drops it: the next cut of the job is a full one.
	Forget(job Job)
}

// Cutter takes point-in-time cuts (I2).
type Cutter interface {
	// Cut pushes every key of the job into sink. A sink that is a
	// snapshot.LayerSink may get it in layers; any other gets one instant's
	// keys straight on. In the base, each name of the index comes once
	// (keyed or operator section; missing ones as TypeMissing), then the meta
	// keys, then the source keys. An incremental cut begins with NextLayer: by
	// that the sink knows that there is no base to come. The sink sees one
	// instant between start and end of the call. It writes nothing (I9) but the
	// record's Cut: it becomes the Attempt that the record held inside the cut,
	// before any write that comes after the cut. So a state that knows a smaller
	// one is no newer than the cut. Where it can't be written it stays behind.
	//
	// Errors: ErrNoState when there is neither an index nor a record,
	// ErrStateLost, ErrMarked when a restore is in progress, ErrPermission
	// naming the right, ErrGrade, ErrPauseExpired, ErrUnreachable,
	// ErrReadOnly, ErrStall, a *KeyError for a key that could not be read whole, and
	// whatever the sink gave. After any error what the sink has seen is
	// worthless.
	Cut(ctx context.Context, req CutRequest, sink snapshot.Sink) (Cut, error)
}
