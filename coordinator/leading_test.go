package coordinator

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// leases is a state store whose leases a test can disturb.
type leases struct {
	statebackend.Backend
	renewal  atomic.Pointer[error] // what a renewal gives instead
	killed   atomic.Bool           // nobody gives a lease back
	beforeIt func()                // called before a flip
}

func (l *leases) Renew(ctx context.Context, lease statebackend.Lease, ttl time.Duration) error {
	if err := l.renewal.Load(); err != nil {
		return *err
	}
	return l.Backend.Renew(ctx, lease, ttl)
}

func (l *leases) Release(ctx context.Context, lease statebackend.Lease) error {
	if l.killed.Load() {
		return nil
	}
	return l.Backend.Release(ctx, lease)
}

func (l *leases) Stage(ctx context.Context, r statebackend.RestoreRequest) (statebackend.Staging, error) {
	s, err := l.Backend.Stage(ctx, r)
	if err != nil || l.beforeIt == nil {
		return s, err
	}
	return &heldFlip{s, l.beforeIt}, nil
}

type heldFlip struct {
	statebackend.Staging
	before func()
}

func (h *heldFlip) Flip(ctx context.Context) (statebackend.FlipResult, error) {
	h.before()
	return h.Staging.Flip(ctx)
}

// fail lets renewals fail from now on; nil lets them through again.
func (l *leases) fail(err error) {
	if err == nil {
		l.renewal.Store(nil)
		return
	}
	l.renewal.Store(&err)
}

// owned gives a coordinator a name, and its leases to the test.
func owned(name, store string, l *leases) func(*Options) {
	return func(o *Options) {
		o.Lease.Owner = statebackend.Owner{Host: "host-" + name, Address: "127.0.0.1:" + name, Store: store}
		if l != nil {
			l.Backend = o.Backend
			o.Backend = l
		}
	}
}

// another is a second coordinator with a store file of its own on the same
// state store.
func (w *world) another(opts ...func(*Options)) *world {
	w.t.Helper()
	o := &world{t: w.t, path: filepath.Join(w.t.TempDir(), "another.db"), store: w.store, opts: opts}
	o.open()
	return o
}

func (w *world) job(name string) JobStatus {
	w.t.Helper()
	s, err := w.c.Job(name)
	require.NoError(w.t, err)
	return s
}

func TestOneCoordinatorLeadsAndTheOtherStandsBy(t *testing.T) {
	inBubble(t, func(t *testing.T, a *world) {
		job := testJob("flights")
		job.Checkpoint.Schedule = "@every 10s"
		a.write(job, 130, "v")
		a.apply(job)
		first := a.job("flights")
		require.Equal(t, HealthOK, first.Health.State)
		require.Equal(t, Leader{ID: first.Leader.ID, Host: "host-a", Address: "127.0.0.1:a", Since: first.Leader.Since, Token: 1, Me: true}, *first.Leader)
		b := a.another(owned("b", "/b", nil))
		defer b.close()
		b.apply(job)
		a.pass(35 * time.Second)
		require.NotEmpty(t, a.history("flights"))
		require.Empty(t, b.history("flights"), "who stands by takes no checkpoint")
		got := b.job("flights")
		require.Equal(t, HealthStandby, got.Health.State)
		require.Contains(t, got.Health.Message, "127.0.0.1:a")
		require.Empty(t, got.Health.Warnings, "that the leader's store has checkpoints which this one lacks is no loss")
		require.False(t, got.Leader.Me)
		require.Equal(t, first.Leader.ID, got.Leader.ID)
		require.Zero(t, got.SkippedTicks)
		require.Empty(t, b.seen(EventTickSkipped))
		require.Equal(t, a.job("flights").Epoch, got.Epoch)
		require.Equal(t, HealthOK, a.job("flights").Health.State)
	}, owned("a", "/a", nil))
}

func TestAStoppedCoordinatorIsFollowedAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, a *world) {
		job := testJob("flights")
		a.write(job, 130, "v")
		a.apply(job)
		b := a.another()
		b.apply(job)
		require.Equal(t, HealthStandby, b.job("flights").Health.State)
		a.close()
		b.pass(DefaultPoll)
		require.Equal(t, HealthOK, b.job("flights").Health.State)
		require.Equal(t, uint64(2), b.job("flights").Leader.Token)
		require.Len(t, b.seen(EventLeading), 1)
		b.checkpoint("flights")
		b.close()
		a.open()
	})
}

func TestALeaseOfADeadProcessIsTakenOver(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 130, "v")
		dead := statebackend.Owner{ID: "dead", Host: "gone", Store: "/elsewhere"}
		_, err := w.store.Acquire(t.Context(), job.Key(), statebackend.Claim{Owner: dead, TTL: DefaultLeaseTTL, Floor: 6})
		require.NoError(t, err)
		w.apply(job)
		w.pass(DefaultLeaseTTL - 2*DefaultPoll)
		require.Equal(t, HealthStandby, w.job("flights").Health.State)
		require.Equal(t, "dead", w.job("flights").Leader.ID)
		w.pass(3 * DefaultPoll)
		require.Equal(t, HealthOK, w.job("flights").Health.State)
		require.Equal(t, uint64(8), w.job("flights").Leader.Token)
		w.checkpoint("flights")
	})
}

func TestARestartedCoordinatorTakesItsOwnLeaseAtOnce(t *testing.T) {
	for _, store := range []string{"/var/lib/keyframe.db", ""} {
		l := &leases{}
		inBubble(t, func(t *testing.T, w *world) {
			job := testJob("flights")
			w.write(job, 130, "v")
			w.apply(job)
			w.checkpoint("flights")
			l.killed.Store(true)
			w.close()
			w.open()
			w.pass(DefaultPoll)
			if store == "" { // it can't prove that the file is its own
				require.Equal(t, HealthStandby, w.job("flights").Health.State)
				w.pass(DefaultLeaseTTL)
			}
			require.Equal(t, HealthOK, w.job("flights").Health.State)
			require.Equal(t, uint64(2), w.job("flights").Leader.Token)
			w.checkpoint("flights")
		}, owned("a", store, l))
	}
}

func TestATokenDoesNotGoBackWhenTheStateIsLost(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 130, "v")
		w.apply(job)
		w.checkpoint("flights")
		for n := range uint64(3) {
			require.Equal(t, n+1, w.job("flights").Leader.Token)
			w.store.Lose()
			w.pass(2 * DefaultPoll)
			require.Equal(t, HealthOK, w.job("flights").Health.State)
			require.Equal(t, `"v-7"`, w.read(job, 3, 7))
		}
		require.Empty(t, w.seen(EventDeposed), "nobody else led")
		w.close()
		w.store.Lose()
		w.open()
		w.pass(2 * DefaultPoll)
		require.Equal(t, uint64(5), w.job("flights").Leader.Token)
	})
}

// TestALeaseThatCantBeRenewedEndsTheTerm: by its own clock, before anybody
// else can begin one, and what runs ends with it.
func TestALeaseThatCantBeRenewedEndsTheTerm(t *testing.T) {
	l := &leases{}
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 130, "v")
		w.apply(job)
		w.checkpoint("flights")
		var held context.Context
		j, err := w.c.find("flights")
		require.NoError(t, err)
		op, err := j.submit(OpCheckpoint, func(ctx context.Context, _ *Operation) (func(*Status), error) {
			held = ctx
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		require.NoError(t, err)
		began := time.Now()
		l.fail(fmt.Errorf("renew: %w", statebackend.ErrPermission))
		synctest.Wait()
		s := w.failed(op, nil)
		require.Equal(t, fault.Refused, s.Error.Code)
		require.ErrorIs(t, context.Cause(held), statebackend.ErrFenced)
		require.Less(t, time.Since(began), DefaultLeaseTTL)
		require.Greater(t, time.Since(began), DefaultLeaseTTL/2)
		require.Len(t, w.seen(EventDeposed), 1)
		require.Contains(t, w.seen(EventDeposed)[0].Message, "not renewed")
		var health []HealthState
		for _, e := range w.seen(EventHealthChanged) {
			health = append(health, e.Health)
		}
		require.Contains(t, health, HealthDenied)
		l.fail(nil)
		w.pass(DefaultPoll)
		require.Equal(t, HealthOK, w.job("flights").Health.State)
		require.Equal(t, uint64(2), w.job("flights").Leader.Token, "its own lease is free for itself")
	}, owned("a", "/a", l))
}

// TestALateFlipOfADeposedLeaderChangesNothing: the leader stands still before
// its flip, loses the lease, and goes on.
func TestALateFlipOfADeposedLeaderChangesNothing(t *testing.T) {
	l := &leases{}
	reached, goOn := make(chan struct{}, 1), make(chan struct{})
	inBubble(t, func(t *testing.T, a *world) {
		reached, goOn = make(chan struct{}, 1), make(chan struct{})
		l.beforeIt = func() {
			reached <- struct{}{}
			<-goOn
		}
		job := testJob("flights")
		a.write(job, 130, "old")
		a.apply(job)
		old := a.checkpoint("flights")
		a.write(job, 130, "new")
		b := a.another()
		defer b.close()
		b.apply(job)
		op, err := a.c.Restore(t.Context(), "flights", RestoreRequest{Checkpoint: old.ID.String(), NoUndo: true})
		require.NoError(t, err)
		<-reached
		l.fail(errors.New("stands still"))
		a.pass(DefaultLeaseTTL + 2*DefaultPoll)
		now := b.job("flights")
		require.Equal(t, HealthOK, now.Health.State, "the mark of the deposed leader is ended: %s", now.Health.Message)
		require.True(t, now.Leader.Me)
		require.Contains(t, b.seen(EventResumed)[0].Message, "another coordinator")
		l.fail(nil)
		close(goOn)
		s := a.failed(op, nil)
		require.Equal(t, fault.Refused, s.Error.Code, s.Error.Message)
		require.Contains(t, s.Error.Message, "nothing was changed")
		require.Equal(t, `"new-7"`, a.read(job, 3, 7))
		a.pass(2 * DefaultPoll)
		require.Equal(t, HealthStandby, a.job("flights").Health.State)
		require.Equal(t, now.Epoch, b.job("flights").Epoch)
		b.checkpoint("flights")
		require.Equal(t, HealthOK, b.job("flights").Health.State)
	}, owned("a", "/a", l))
}

// TestAfterAnothersRestoreTheHistoryIsOfAnotherBranch: who leads again must not
// take its own checkpoints for what is live.
func TestAfterAnothersRestoreTheHistoryIsOfAnotherBranch(t *testing.T) {
	inBubble(t, func(t *testing.T, a *world) {
		job := testJob("flights")
		a.write(job, 130, "v1")
		a.apply(job)
		a.checkpoint("flights")
		a.done(a.c.Restore(t.Context(), "flights", RestoreRequest{}))
		require.NotZero(t, a.job("flights").Undo)
		mine := a.checkpoint("flights")
		b := a.another()
		b.apply(job)
		a.close()
		b.pass(DefaultPoll)
		theirs := b.checkpoint("flights")
		require.Greater(t, theirs.ID, mine.ID, "ids grow over both stores")
		a.write(job, 130, "v2")
		b.done(b.c.Restore(t.Context(), "flights", RestoreRequest{Checkpoint: theirs.ID.String()}))
		b.close()
		a.open()
		a.pass(DefaultPoll)
		got := a.job("flights")
		require.Equal(t, HealthOK, got.Health.State, got.Health.Message)
		require.Equal(t, uint64(3), got.Epoch)
		require.Equal(t, snapshot.ID(0), got.Undo, "it would go too far back")
		require.Equal(t, snapshot.ID(0), got.Head)
		require.Equal(t, snapshot.ID(0), a.checkpoint("flights").Parent)
		require.NotZero(t, a.job("flights").Head)
	})
}
