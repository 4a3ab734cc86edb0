package cut

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// asked is a state store that says who leads when a checkpoint is about to be
// committed.
type asked struct {
	script
	leads func(context.Context) error
}

func (a asked) Leads(ctx context.Context, _ statebackend.Job) error { return a.leads(ctx) }

// commitWhen takes one checkpoint with a lease of token 5, while the state store
// answers so when it is asked before the commit.
func commitWhen(t *testing.T, leads func(context.Context) error) (Outcome, []snapshot.Checkpoint, error) {
	t.Helper()
	d := newDesk(t)
	taker := Taker{Store: d.db, Now: time.Now, Backend: asked{script{memory.New(memory.Options{}), all("t1", large(140).records())}, leads}}
	ctx := statebackend.WithLease(t.Context(), statebackend.Lease{Job: d.job.Key(), Holder: "me", Token: 5})
	out, err := taker.Take(ctx, Request{Job: d.job, Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerManual, Incarnation: "inc", RunID: "run", Epoch: 3})
	history, listErr := d.db.List(t.Context(), d.job.Name)
	require.NoError(t, listErr)
	require.Len(t, history, 1)
	return out, history, err
}

// fencedBy is the state store's answer to token 5 when this leader is known.
func fencedBy(l statebackend.Leader) func(context.Context) error {
	return func(context.Context) error {
		return fmt.Errorf("ask: %w", &statebackend.FencedError{Job: statebackend.Job{Prefix: "p", Name: "flights"}, Token: 5, Leader: l})
	}
}

// TestTheLeaseIsAskedForRightBeforeTheCommit: who was deposed commits nothing.
func TestTheLeaseIsAskedForRightBeforeTheCommit(t *testing.T) {
	for what, leader := range map[string]statebackend.Leader{
		"led by another":                     {Owner: statebackend.Owner{ID: "other", Address: "127.0.0.1:9"}, Token: 6},
		"led by another, and free":           {Token: 7},
		"led by one that never heard of 5":   {Owner: statebackend.Owner{ID: "new"}, Token: 1},
		"led by a later term of this holder": {Owner: statebackend.Owner{ID: "me"}, Token: 6},
	} {
		_, history, err := commitWhen(t, fencedBy(leader))
		require.ErrorIs(t, err, statebackend.ErrNotLeader, what)
		for _, part := range []string{"not committed", `job "flights"`, "token is 5", fmt.Sprintf("token %d", leader.Token), leader.Address} {
			if leader.ID == "" && part == fmt.Sprintf("token %d", leader.Token) {
				part = fmt.Sprintf("token was %d", leader.Token)
			}
			require.ErrorContains(t, err, part, what)
		}
		require.Equal(t, snapshot.StateFailed, history[0].State, what)
		require.Equal(t, snapshot.FailLease, history[0].Failure.Reason, what)
	}
}

// TestACommitWithoutAnAnswerIsTheTermsToDecide: the newest checkpoint of a state
// that is just going is not thrown away.
func TestACommitWithoutAnAnswerIsTheTermsToDecide(t *testing.T) {
	for what, leads := range map[string]func(context.Context) error{
		"unreachable":                func(context.Context) error { return fmt.Errorf("ask: %w", statebackend.ErrUnreachable) },
		"silent":                     func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
		"came back empty":            fencedBy(statebackend.Leader{}),
		"came back from an old file": fencedBy(statebackend.Leader{Token: 4}),
	} {
		out, history, err := commitWhen(t, leads)
		require.NoError(t, err, what)
		require.Equal(t, snapshot.StateCompleted, history[0].State, what)
		require.Equal(t, uint64(140), out.Checkpoint.Keys, what)
	}
}

// TestACommitAfterTheTermIsNone: the term ends while the answer is awaited.
func TestACommitAfterTheTermIsNone(t *testing.T) {
	d := newDesk(t)
	ctx, end := context.WithCancelCause(t.Context())
	over := fencedBy(statebackend.Leader{Owner: statebackend.Owner{ID: "other"}, Token: 6})(nil)
	taker := Taker{Store: d.db, Now: time.Now, Backend: asked{script{memory.New(memory.Options{}), all("t1", large(140).records())}, func(context.Context) error {
		end(over)
		return statebackend.ErrUnreachable
	}}}
	_, err := taker.Take(ctx, Request{Job: d.job, Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerManual, Incarnation: "inc", RunID: "run", Epoch: 3})
	require.ErrorIs(t, err, statebackend.ErrNotLeader)
	history, listErr := d.db.List(t.Context(), d.job.Name)
	require.NoError(t, listErr)
	require.Equal(t, snapshot.FailLease, history[0].Failure.Reason)
}
