package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// frozen is a state store that answers nothing while it is on, as a stopped
// process.
type frozen struct {
	statebackend.Backend
	on atomic.Bool
}

func (f *frozen) wait(ctx context.Context) error {
	if !f.on.Load() {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (f *frozen) Look(ctx context.Context, j statebackend.Job) (statebackend.Glimpse, error) {
	if err := f.wait(ctx); err != nil {
		return statebackend.Glimpse{}, err
	}
	return f.Backend.Look(ctx, j)
}

func (f *frozen) Renew(ctx context.Context, l statebackend.Lease, ttl time.Duration) error {
	if err := f.wait(ctx); err != nil {
		return err
	}
	return f.Backend.Renew(ctx, l, ttl)
}

func (f *frozen) Acquire(ctx context.Context, j statebackend.Job, c statebackend.Claim) (statebackend.Leader, error) {
	if err := f.wait(ctx); err != nil {
		return statebackend.Leader{}, err
	}
	return f.Backend.Acquire(ctx, j, c)
}

// TestAnAttemptOnAStoreThatHangsFailsAtItsTimeout: and is told as failed, again
// and again, not as ticks that were skipped.
func TestAnAttemptOnAStoreThatHangsFailsAtItsTimeout(t *testing.T) {
	f := &frozen{}
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		job.Checkpoint.Schedule = "@every 1s"
		job.Checkpoint.Timeout = config.Duration(time.Second)
		w.write(job, 130, "v")
		w.apply(job)
		w.pass(3 * time.Second)
		require.NotEmpty(t, w.seen(EventCheckpointCompleted))
		f.on.Store(true)
		w.pass(4 * time.Second)
		require.NotEmpty(t, w.seen(EventCheckpointFailed))
		w.pass(10 * time.Second)
		require.GreaterOrEqual(t, len(w.seen(EventCheckpointFailed)), 3)
		failed := w.seen(EventCheckpointFailed)[0]
		require.Equal(t, snapshot.FailTimeout, failed.Checkpoint.Failure.Reason, failed.Message)
		require.Contains(t, failed.Message, "deadline")
		f.on.Store(false)
		w.pass(10 * time.Second)
		require.Equal(t, HealthOK, w.job("flights").Health.State)
		require.Zero(t, w.job("flights").Failures)
	}, func(o *Options) {
		f.Backend = o.Backend
		o.Backend = f
		o.Lease.TTL = 3 * time.Second
	})
}

// cutShort never stages, until its caller has enough.
type cutShort struct {
	*leases
	inside chan struct{}
}

func (s *cutShort) Stage(ctx context.Context, _ statebackend.RestoreRequest) (statebackend.Staging, error) {
	close(s.inside)
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestARestoreOfADeposedLeaderSaysSo: and who leads now, where its call under
// way only says that its context was cancelled.
func TestARestoreOfADeposedLeaderSaysSo(t *testing.T) {
	l := &leases{}
	s := &cutShort{leases: l}
	inBubble(t, func(t *testing.T, a *world) {
		s.inside = make(chan struct{})
		job := testJob("flights")
		a.write(job, 130, "v")
		a.apply(job)
		a.checkpoint("flights")
		b := a.another(owned("b", "/b", nil))
		defer b.close()
		b.apply(job)
		op, err := a.c.Restore(t.Context(), "flights", RestoreRequest{NoUndo: true})
		require.NoError(t, err)
		<-s.inside
		l.fail(errors.New("the network is slow"))
		a.pass(DefaultLeaseTTL + 2*DefaultPoll)
		got := a.failed(op, nil)
		require.Equal(t, fault.Refused, got.Error.Code)
		for _, part := range []string{"was deposed while it was at work", "was not renewed for", "the network is slow"} {
			require.Contains(t, got.Error.Message, part)
		}
		require.Contains(t, last(a.seen(EventRestoreFailed)).Message, "was deposed while it was at work")
		l.fail(nil)
		a.pass(DefaultLeaseTTL)
	}, owned("a", "/a", l), func(o *Options) { o.Backend = s })
}

// unreadable is a store whose chunks are damaged while it is on.
type unreadable struct {
	snapshot.Store
	on atomic.Bool
}

func (u *unreadable) Chunk(ctx context.Context, id snapshot.ChunkID) ([]byte, error) {
	if u.on.Load() {
		return nil, fmt.Errorf("chunk %s: %w", id, snapshot.ErrCorrupt)
	}
	return u.Store.Chunk(ctx, id)
}

// TestNothingIsPromisedWhenAllCheckpointsAreBad: a recovery has tried them.
func TestNothingIsPromisedWhenAllCheckpointsAreBad(t *testing.T) {
	var chunks unreadable
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 130, "v")
		w.apply(job)
		w.checkpoint("flights")
		w.write(job, 130, "newer")
		w.checkpoint("flights")
		require.Equal(t, snapshot.ID(2), w.job("flights").Recovers)
		chunks.on.Store(true)
		w.store.Lose()
		w.pass(2 * DefaultPoll)
		require.Len(t, w.seen(EventCheckpointBad), 2)
		s := w.job("flights")
		require.Zero(t, s.Recovers)
		require.Nil(t, s.Good)
		require.Contains(t, s.Recovery.LastError, "no restorable checkpoint left")
	}, func(o *Options) {
		chunks.Store = o.Store
		o.Store = &chunks
	})
}
