package coordinator

import (
	"context"
	"errors"

	"keyframe/coordinator/cut"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// explanations turn the sentinels of the layers below into codes and hints;
// the first that matches counts.
var explanations = []struct {
	is   error
	code fault.Code
	hint string
}{
	{statebackend.ErrStateLost, fault.StateLost, "restore a checkpoint: `coordinator restore JOB`"},
	{statebackend.ErrNoState, fault.NoState, "check redis.url, its database, and the job's prefix and name"},
	{statebackend.ErrMarked, fault.Refused, "it is completed or undone when its coordinator starts again; if that one is gone for good: `coordinator job unmark JOB`"},
	{statebackend.ErrNotLeader, fault.Refused, "ask the coordinator that leads the job; when it has ended, this one takes over once its lease has run out"},
	{statebackend.ErrFenced, fault.Refused, "somebody else restored or rescaled the job meanwhile; look at `coordinator job show`"},
	{statebackend.ErrPermission, fault.Permission, "grant the right to the coordinator's user; configs/redis-acl.txt lists all that it needs"},
	{statebackend.ErrAuth, fault.Permission, "check the user and the password of redis.url, passwordFile or passwordEnv"},
	{statebackend.ErrReadOnly, fault.Refused, "give the address of the master"},
	{statebackend.ErrUnreachable, fault.Unreachable, "check that the state store runs and that redis.url is right"},
	{statebackend.ErrDamaged, fault.Failed, "mend or delete the key that is named; a restore writes it anew"},
	{statebackend.ErrGrade, fault.Refused, "ask for another grade, or auto"},
	{statebackend.ErrStall, fault.Failed, "raise checkpoint.maxStall, set checkpoint.onStall to wait, or write less to the keys that are named"},
	{cut.ErrTracking, fault.Problems, "the checkpoints that rest on it are marked bad, and the next one reads everything; please report it with the server's version"},
	{statebackend.ErrPauseExpired, fault.Failed, "raise checkpoint.maxPause, or find out who ends the pause"},
	{statebackend.ErrNoRoom, fault.Refused, "give the state store more memory (maxmemory)"},
	{statebackend.ErrChanged, fault.Busy, "stop the job's workers, or try again"},
	{statebackend.ErrSchema, fault.Refused, ""},
	{statebackend.ErrWrongType, fault.Failed, "something else has written under that key; check the job's prefix and name, and the key's writer; `coordinator doctor JOB` tells what it must be, and what to do"},
	{statebackend.ErrInvalidConfig, fault.Config, ""},
	{statebackend.ErrUnsupported, fault.Refused, ""},
	{statebackend.ErrMismatch, fault.Failed, "try again; if it happens again, look at what else writes to the state store"},
	{statebackend.ErrClosed, fault.Failed, ""},
	{snapshot.ErrNoCheckpoint, fault.NoCheckpoint, "`coordinator checkpoint list JOB` shows them"},
	{snapshot.ErrInUse, fault.Busy, "try again when the operation that uses it has ended"},
	{snapshot.ErrCorrupt, fault.Corrupt, "`coordinator checkpoint verify JOB` and `coordinator store verify` tell how far the damage goes"},
	{snapshot.ErrNewerFormat, fault.Store, "use the version of coordinator that wrote it, or a newer one"},
	{snapshot.ErrClosed, fault.Store, ""},
	{errStopping, fault.Failed, "start it again"},
	{context.DeadlineExceeded, fault.Failed, "see first that the state store answers (`coordinator doctor JOB`): one that hangs or is stopped ends like this; if it does and the state needs longer, raise checkpoint.timeout"},
	{context.Canceled, fault.Failed, ""},
}

// Explain gives an error for people: one that already is, or one made from
// the first sentinel in its chain.
func Explain(err error) *fault.Error {
	var f *fault.Error
	if errors.As(err, &f) {
		return fault.As(err)
	}
	for _, x := range explanations {
		if errors.Is(err, x.is) {
			hint := x.hint
			if fenced := (*statebackend.FencedError)(nil); x.is == statebackend.ErrNotLeader && errors.As(err, &fenced) {
				hint = leaderHint(fenced)
			}
			return &fault.Error{Code: x.code, Message: err.Error(), Hint: hint, Err: err}
		}
	}
	return fault.As(err)
}
