package flights

import (
	"context"
	"fmt"

	"keyframe/statebackend"
)

// identity tells the state that a run began with from another one under the
// same name: the incarnation and the epoch of the coordinator's record, ""
// without a coordinator.
type identity struct{ incarnation, epoch string }

func (j *job) identityCommands() []statebackend.Cmd {
	return []statebackend.Cmd{
		statebackend.Command(statebackend.OpHGet, j.Job.Record(), "incarnation"),
		statebackend.Command(statebackend.OpHGet, j.Job.Record(), "epoch"),
	}
}

func identityOf(replies []statebackend.Reply) identity {
	return identity{string(replies[0].Bytes), string(replies[1].Bytes)}
}

// look reads the identity and the assignment, nil where there is none.
func (j *job) look(ctx context.Context) (identity, *statebackend.Assignment, error) {
	replies, err := j.Store.Do(ctx, append(j.identityCommands(), statebackend.Command(statebackend.OpGet, j.Job.Assignment()))...)
	if err != nil {
		return identity{}, nil, fmt.Errorf("read the assignment: %w", err)
	}
	if replies[2].Nil {
		return identityOf(replies), nil, nil
	}
	a, err := statebackend.DecodeAssignment(replies[2].Bytes)
	return identityOf(replies), &a, err
}

// unreplaced makes sure that the state is still the one that the run began
// with: the record is the same, and the reader's positions are there. (What
// changes between this look and the commit that follows is not seen; a
// coordinator restores only a moment after it has found the state lost.) A
// coordinator that comes later is taken on.
func (j *job) unreplaced(ctx context.Context, began *identity, reader int) error {
	replies, err := j.Store.Do(ctx, append(j.identityCommands(), statebackend.Command(statebackend.OpLLen, j.positionsKey(reader)))...)
	if err != nil {
		return fmt.Errorf("look at the job's record: %w", err)
	}
	now := identityOf(replies)
	if *began == (identity{}) {
		*began = now
	}
	if now != *began || replies[2].Int == 0 {
		return fmt.Errorf("%w: incarnation %q epoch %q, was %q epoch %q; %d positions: start the job again when the coordinator is done",
			ErrStateReplaced, now.incarnation, now.epoch, began.incarnation, began.epoch, replies[2].Int)
	}
	return nil
}
