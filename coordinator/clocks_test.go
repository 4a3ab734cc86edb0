package coordinator

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/statebackend"
)

// wall is a coordinator's wall clock, which can be put forward and back; the
// monotonic one goes on.
type wall struct{ step atomic.Int64 }

func (c *wall) set(o *Options) {
	o.Now = func() time.Time { return time.Now().Add(time.Duration(c.step.Load())).UTC() }
}

// counting counts what a coordinator changed in the state store.
type counting struct {
	statebackend.Backend
	writes atomic.Int64
}

func (c *counting) count(err error) error {
	if err == nil {
		c.writes.Add(1)
	}
	return err
}

func (c *counting) Acquire(ctx context.Context, j statebackend.Job, claim statebackend.Claim) (statebackend.Leader, error) {
	l, err := c.Backend.Acquire(ctx, j, claim)
	return l, c.count(err)
}

func (c *counting) Renew(ctx context.Context, l statebackend.Lease, ttl time.Duration) error {
	return c.count(c.Backend.Renew(ctx, l, ttl))
}

func (c *counting) Release(ctx context.Context, l statebackend.Lease) error {
	return c.count(c.Backend.Release(ctx, l))
}

func (c *counting) Note(ctx context.Context, j statebackend.Job, incarnation string, n statebackend.Notes) error {
	return c.count(c.Backend.Note(ctx, j, incarnation, n))
}

func (c *counting) Adopt(ctx context.Context, j statebackend.Job, incarnation string, a statebackend.Assignment) (statebackend.Record, error) {
	r, err := c.Backend.Adopt(ctx, j, incarnation, a)
	return r, c.count(err)
}

func (c *counting) Stage(ctx context.Context, r statebackend.RestoreRequest) (statebackend.Staging, error) {
	s, err := c.Backend.Stage(ctx, r)
	return s, c.count(err)
}

// pair is a leader and a standby, each with a clock of its own.
type pair struct {
	a, b   *world
	l      *leases // of a
	ca, cb wall
	of     counting // what b writes
}

// withPair runs f with a leader and a standby of one job.
func withPair(t *testing.T, f func(t *testing.T, p *pair)) {
	p := &pair{l: &leases{}}
	inBubble(t, func(t *testing.T, a *world) {
		p.a = a
		job := testJob("flights")
		job.Checkpoint.Schedule = "@every 10m"
		a.write(job, 130, "v")
		a.apply(job)
		p.b = a.another(owned("b", "/b", nil), p.cb.set, func(o *Options) {
			p.of.Backend = o.Backend
			o.Backend = &p.of
		})
		defer p.b.close()
		p.b.apply(job)
		require.Equal(t, HealthStandby, p.b.job("flights").Health.State)
		f(t, p)
	}, owned("a", "/a", p.l), p.ca.set)
}

// still requires that a leads in its first term, and that b has done nothing.
func (p *pair) still(t *testing.T, what string) {
	t.Helper()
	require.Equal(t, uint64(1), p.a.job("flights").Leader.Token, what)
	require.True(t, p.a.job("flights").Leader.Me, what)
	require.Equal(t, HealthOK, p.a.job("flights").Health.State, what)
	require.Empty(t, p.a.seen(EventDeposed), what)
	require.Equal(t, HealthStandby, p.b.job("flights").Health.State, what)
	require.Empty(t, p.b.history("flights"), what)
	require.Zero(t, p.of.writes.Load(), what)
}

// TestWallClocksThatJumpChangeNoLeader: an hour forward and an hour back, of the
// leader, of the standby, of both.
func TestWallClocksThatJumpChangeNoLeader(t *testing.T) {
	const hour = int64(time.Hour)
	withPair(t, func(t *testing.T, p *pair) {
		for _, step := range [][2]int64{{hour, 0}, {-hour, 0}, {0, hour}, {0, -hour}, {hour, -hour}, {-hour, hour}, {0, 0}} {
			p.ca.step.Store(step[0])
			p.cb.step.Store(step[1])
			p.a.pass(2*DefaultLeaseTTL + DefaultPoll)
			p.still(t, time.Duration(step[0]).String()+" and "+time.Duration(step[1]).String())
			_, err := p.b.c.Checkpoint(t.Context(), "flights", CheckpointRequest{})
			require.Equal(t, fault.Refused, fault.CodeOf(err))
			p.a.checkpoint("flights")
		}
		p.still(t, "at the end")
	})
}

// TestADeadLeaderIsFollowedWhateverTheClocksSay: after its TTL, neither sooner
// nor later, by a standby whose clock is an hour behind or ahead.
func TestADeadLeaderIsFollowedWhateverTheClocksSay(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		withPair(t, func(t *testing.T, p *pair) {
			p.cb.step.Store(int64(step))
			p.ca.step.Store(-int64(step))
			p.a.pass(DefaultLeaseTTL)
			p.l.killed.Store(true)
			p.a.close()
			p.b.pass(DefaultLeaseTTL*2/3 - DefaultPoll) // it was renewed a third of it ago at most
			require.Equal(t, HealthStandby, p.b.job("flights").Health.State)
			p.b.pass(DefaultLeaseTTL/3 + 2*DefaultPoll)
			require.Equal(t, HealthOK, p.b.job("flights").Health.State)
			require.Equal(t, uint64(2), p.b.job("flights").Leader.Token)
			p.a.open()
			p.a.pass(2 * DefaultPoll)
			require.Equal(t, HealthStandby, p.a.job("flights").Health.State)
		})
	}
}
