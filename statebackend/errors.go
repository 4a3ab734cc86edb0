package statebackend

import "errors"

// Sentinels that the coordinator and jobs decide on. Stores wrap them with
// what happened, to what, and the remedy.
var (
	ErrWrongType    = errors.New("key holds another type")
	ErrUnreachable  = errors.New("state store can't be reached")
	ErrAuth         = errors.New("state store refused the credentials")
	ErrPermission   = errors.New("state store denied a right")
	ErrNoState      = errors.New("no state under this job's root")
	ErrStateLost    = errors.New("state is lost")
	ErrDamaged      = errors.New("bookkeeping of the job is damaged")
	ErrStateOlder   = errors.New("state is older than the newest checkpoint")
	ErrMarked       = errors.New("a restore is in progress")
	ErrFenced       = errors.New("epoch has moved on")
	ErrPauseExpired = errors.New("pause ended before the last read")
	ErrStall        = errors.New("writers write faster than the state can be read")
	ErrGrade        = errors.New("grade is not possible here")
	ErrNoRoom       = errors.New("not enough memory in the state store")
	ErrChanged      = errors.New("state changed meanwhile")
	ErrMismatch     = errors.New("staged key differs from the checkpoint")
	// ErrPayloadRefused: the store refused a key as a payload of ours, and may
	// take it in plain commands: RestoreRequest.Plain.
	ErrPayloadRefused = errors.New("state store refused a payload")
	ErrUnsupported    = errors.New("not supported by this state store")
	ErrSchema         = errors.New("schema mismatch")
	ErrClosed         = errors.New("state store is closed")
	ErrReadOnly       = errors.New("state store is a read-only replica")
	ErrAbsent         = errors.New("no value") // a state without value and without default
	ErrMode           = errors.New("operator state has another mode")
	ErrInvalidConfig  = errors.New("invalid address")
)
