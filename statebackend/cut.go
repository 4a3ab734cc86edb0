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
	// ErrStateLost otherwise. "" skips the check (a job that has none yet).
	Incarnation string
	// RunID is the run of the server that the caller has looked at:
	// ErrStateLost when it was started anew since, for what it came back with
	// has not been judged. "" skips the check.
	RunID   string
	Sources []SourceRef
	// MaxPause is how long writers may be held at most: the pause's own
	// timeout, so it also frees them when we die. 0 is the store's default.
	MaxPause time.Duration
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
}

// Cutter takes point-in-time cuts (I2).
type Cutter interface {
	// Cut pushes every key of the job into sink: each name of the index once
	// (keyed or operator section; missing ones as TypeMissing), then the meta
	// keys, then the source keys. The sink sees one instant between start
	// and end of the call. It writes nothing (I9) but the
	// record's Cut: it becomes the Attempt that the record held inside the cut,
	// before any write that comes after the cut. So a state that knows a smaller
	// one is no newer than the cut. Where it can't be written it stays behind.
	//
	// Errors: ErrNoState when there is neither an index nor a record,
	// ErrStateLost, ErrMarked when a restore is in progress, ErrPermission
	// naming the right, ErrGrade, ErrPauseExpired, ErrUnreachable,
	// ErrReadOnly, a *KeyError for a key that could not be read whole, and
	// whatever the sink gave. After any error what the sink has seen is
	// worthless.
	Cut(ctx context.Context, req CutRequest, sink snapshot.Sink) (Cut, error)
}
