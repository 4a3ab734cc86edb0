package cut

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// TestReasonsOfFailures: a cut that lost track of the writes is no bug, a key
// that changed is told as that key, and what nobody knows is a bug.
func TestReasonsOfFailures(t *testing.T) {
	ctx := t.Context()
	lost := fmt.Errorf("cut: %w: the link broke", statebackend.ErrChanged)
	key := &statebackend.KeyError{Key: []byte("a:key"), Op: "read", Err: statebackend.ErrChanged}
	for want, err := range map[snapshot.FailureReason]error{
		snapshot.FailTracking:   lost,
		snapshot.FailKey:        fmt.Errorf("cut: %w", key),
		snapshot.FailConnection: fmt.Errorf("%w (%w)", statebackend.ErrUnreachable, lost),
		snapshot.FailPause:      errors.Join(lost, statebackend.ErrPauseExpired),
		snapshot.FailStore:      &storeError{lost},
		snapshot.FailMemory:     fmt.Errorf("cut: CLIENT PAUSE: %w", statebackend.ErrNoRoom),
		snapshot.FailInternal:   errors.New("never heard of"),
	} {
		require.Equal(t, snapshot.Failure{Reason: want, Message: err.Error()}, failureOf(ctx, err))
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.Equal(t, snapshot.FailAborted, failureOf(ended, lost).Reason)
}
