package cut

import (
	"context"
	"errors"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// reasons sort the sentinels of a failed attempt into the closed list that the
// history shows; the first that matches counts.
var reasons = []struct {
	is     error
	reason snapshot.FailureReason
}{
	{context.DeadlineExceeded, snapshot.FailTimeout},
	{statebackend.ErrNotLeader, snapshot.FailLease},
	{context.Canceled, snapshot.FailAborted},
	{statebackend.ErrPermission, snapshot.FailPermission},
	{statebackend.ErrAuth, snapshot.FailPermission},
	{statebackend.ErrGrade, snapshot.FailPermission},
	{ErrTracking, snapshot.FailTracking},
	{statebackend.ErrStall, snapshot.FailStall},
	{statebackend.ErrPauseExpired, snapshot.FailPause},
	{statebackend.ErrStateLost, snapshot.FailState},
	{statebackend.ErrStateOlder, snapshot.FailState},
	{statebackend.ErrNoState, snapshot.FailState},
	{statebackend.ErrMarked, snapshot.FailState},
	{statebackend.ErrReadOnly, snapshot.FailState},
	{statebackend.ErrDamaged, snapshot.FailState},
	{statebackend.ErrNoRoom, snapshot.FailMemory},
	{statebackend.ErrUnreachable, snapshot.FailConnection},
	{statebackend.ErrClosed, snapshot.FailConnection},
}

// failureOf says why an attempt failed. ctx is the attempt's own: when it has
// ended, that is the reason, whatever error came of it.
func failureOf(ctx context.Context, err error) snapshot.Failure {
	f := snapshot.Failure{Reason: snapshot.FailInternal, Message: err.Error()}
	if cause := context.Cause(ctx); cause != nil {
		f.Reason = snapshot.FailAborted
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			f.Reason = snapshot.FailTimeout
		} else if errors.Is(cause, statebackend.ErrNotLeader) {
			f.Reason = snapshot.FailLease
		}
		return f
	}
	var se *storeError
	if errors.As(err, &se) {
		f.Reason = snapshot.FailStore
		return f
	}
	for _, r := range reasons {
		if errors.Is(err, r.is) {
			f.Reason = r.reason
			return f
		}
	}
	var ke *statebackend.KeyError
	switch {
	case errors.As(err, &ke):
		f.Reason = snapshot.FailKey
	case errors.Is(err, statebackend.ErrChanged):
		// No key is to blame: the writes of all were lost track of.
		f.Reason = snapshot.FailTracking
	}
	return f
}

// storeError marks what the checkpoint store refused, so that it isn't taken
// for a fault of the state store.
type storeError struct{ err error }

func (e *storeError) Error() string { return "checkpoint store: " + e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

// markedWriter marks the errors of the checkpoint store as its own.
type markedWriter struct{ snapshot.Writer }

// WriteChunk implements snapshot.ChunkWriter.
func (w markedWriter) WriteChunk(ctx context.Context, c snapshot.Chunk) (bool, error) {
	fresh, err := w.Writer.WriteChunk(ctx, c)
	if err != nil {
		return fresh, &storeError{err}
	}
	return fresh, nil
}
