package restore

import (
	"context"
	"errors"
	"fmt"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// ErrUnresolved says that the state store could not tell how a restore ended,
// or that what was staged could not be removed yet. The journal's entry stays
// and the job counts as marked until Resume succeeds.
var ErrUnresolved = errors.New("the end of the restore is not known yet")

// codes says what the sentinels of the seams mean to a caller. The first
// match counts.
var codes = []struct {
	err  error
	code fault.Code
	hint string
}{
	{context.Canceled, fault.Failed, "it was stopped; run it again"},
	{context.DeadlineExceeded, fault.Failed, "it took longer than it may; run it again with more time"},
	{snapshot.ErrNewerFormat, fault.Corrupt, "use the version of the coordinator that wrote it, or a newer one"},
	{snapshot.ErrCorrupt, fault.Corrupt, "restore another checkpoint; `checkpoint verify` lists every damage"},
	{snapshot.ErrNoChunk, fault.Corrupt, "restore another checkpoint; `checkpoint verify` lists every damage"},
	{snapshot.ErrNoCheckpoint, fault.NoCheckpoint, "`checkpoint list` shows what there is"},
	{snapshot.ErrInUse, fault.Busy, "wait until whatever uses it has ended"},
	{snapshot.ErrClosed, fault.Store, "start the coordinator again"},
	{statebackend.ErrMarked, fault.Refused, "wait for the restore in progress, or resolve the one that was left behind"},
	{statebackend.ErrFenced, fault.Refused, "another coordinator or operation has changed the job; look again and repeat"},
	{statebackend.ErrChanged, fault.Busy, "stop the job's workers, or try again"},
	{statebackend.ErrPermission, fault.Permission, "grant the right that is named"},
	{statebackend.ErrAuth, fault.Permission, "correct the user and the password"},
	{statebackend.ErrWrongType, fault.Failed, "something else has written under that key; check the job's prefix and name, and the key's writer; `coordinator doctor JOB` tells what it must be, and what to do"},
	{statebackend.ErrDamaged, fault.Failed, "put right what the message names; the job's state is not touched by it"},
	{statebackend.ErrUnreachable, fault.Unreachable, "start the state store or correct its address; then repeat"},
	{statebackend.ErrClosed, fault.Unreachable, "start the coordinator again"},
	{statebackend.ErrReadOnly, fault.Refused, "give the address of the primary"},
	{statebackend.ErrNoRoom, fault.Refused, "raise the server's maxmemory or free memory there"},
	{statebackend.ErrUnsupported, fault.Refused, "restore into a state store that supports these keys"},
	{statebackend.ErrStateLost, fault.StateLost, "restore the newest good checkpoint"},
	{statebackend.ErrNoState, fault.NoState, "check the prefix and the job's name"},
	{statebackend.ErrMismatch, fault.Failed, "the message names the key and what differs; repeat it, or restore another checkpoint"},
}

// Fault gives err the code and the hint of the sentinel in its chain, unless
// it has a code already. The message is "format: err". Errors that no sentinel
// explains get the code other.
func Fault(err error, other fault.Code, format string, args ...any) error {
	if err == nil {
		return nil
	}
	var have *fault.Error
	if errors.As(err, &have) {
		return &fault.Error{Code: have.Code, Hint: have.Hint, Err: err,
			Message: fmt.Sprintf(format, args...) + ": " + err.Error()}
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return fault.Wrap(err, c.code, c.hint, format, args...)
		}
	}
	return fault.Wrap(err, other, "", format, args...)
}
