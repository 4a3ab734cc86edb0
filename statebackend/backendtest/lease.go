package backendtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// leaseTTL is long enough for what a test does under one lease.
const leaseTTL = time.Minute

func owner(id string) statebackend.Owner {
	return statebackend.Owner{ID: id, Host: "host of " + id, PID: 1000 + len(id), Address: "127.0.0.1:" + id, Store: "/store of " + id}
}

func claim(id string) statebackend.Claim { return statebackend.Claim{Owner: owner(id), TTL: leaseTTL} }

// lead acquires a lease that must be free.
func lead(t testing.TB, h Harness, j statebackend.Job, c statebackend.Claim) statebackend.Lease {
	t.Helper()
	l, err := h.Backend.Acquire(ctxOf(t), j, c)
	require.NoError(t, err)
	require.Equal(t, c.Owner, l.Owner)
	require.Equal(t, c.TTL, l.Until.Sub(l.Since))
	return statebackend.Lease{Job: j, Holder: c.Owner.ID, Token: l.Token}
}

// fencedBy asks for the refusal that names this leader.
func fencedBy(t testing.TB, err error, leader statebackend.Owner) {
	t.Helper()
	require.ErrorIs(t, err, statebackend.ErrFenced)
	require.ErrorIs(t, err, statebackend.ErrNotLeader)
	var f *statebackend.FencedError
	require.ErrorAs(t, err, &f)
	require.Equal(t, leader, f.Leader.Owner)
	require.Contains(t, err.Error(), leader.Address)
}

func testLease(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	a := lead(t, h, job, claim("aaa"))
	require.Equal(t, uint64(1), a.Token)
	_, err := h.Backend.Acquire(ctx, job, claim("b"))
	fencedBy(t, err, owner("aaa"))
	require.NoError(t, h.Backend.Renew(ctx, a, leaseTTL))

	// Another job's is another lease.
	other := statebackend.Job{Prefix: job.Prefix, Name: job.Name + "2"}
	lead(t, h, other, claim("b"))

	// The holder's own claim, whose answer was lost, begins a new term.
	again := lead(t, h, job, claim("aaa"))
	require.Greater(t, again.Token, a.Token)
	fencedBy(t, h.Backend.Renew(ctx, a, leaseTTL), owner("aaa"))
	require.NoError(t, h.Backend.Release(ctx, a), "of an earlier term: nothing")
	require.NoError(t, h.Backend.Renew(ctx, again, leaseTTL))

	require.NoError(t, h.Backend.Release(ctx, again))
	require.NoError(t, h.Backend.Release(ctx, again), "twice")
	require.ErrorIs(t, h.Backend.Renew(ctx, again, leaseTTL), statebackend.ErrNotLeader)
	b := lead(t, h, job, claim("b"))
	require.Greater(t, b.Token, again.Token)

	for _, bad := range []statebackend.Claim{{TTL: leaseTTL}, {Owner: owner("c")}, {Owner: owner("c"), TTL: -leaseTTL}, {Owner: owner("c"), TTL: leaseTTL, Floor: 1 << 60}} {
		_, err := h.Backend.Acquire(ctx, job, bad)
		require.Error(t, err)
	}
	require.Error(t, h.Backend.Renew(ctx, b, 0))
}

func testLeaseRunsOut(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	short := claim("dead")
	short.TTL = 20 * time.Millisecond
	dead, err := h.Backend.Acquire(ctx, job, short)
	require.NoError(t, err)
	h.Pass(t, dead.Until.Add(grace))
	// Nobody has taken it: its holder may still go on.
	l := statebackend.Lease{Job: job, Holder: "dead", Token: dead.Token}
	require.NoError(t, h.Backend.Renew(ctx, l, short.TTL))
	var taken statebackend.Leader
	require.Eventually(t, func() bool {
		h.Pass(t, h.Now(t).Add(short.TTL))
		taken, err = h.Backend.Acquire(ctx, job, claim("heir"))
		return err == nil
	}, 5*time.Second, time.Millisecond)
	require.Greater(t, taken.Token, dead.Token)
	fencedBy(t, h.Backend.Renew(ctx, l, leaseTTL), owner("heir"))
}

func testLeaseOfTheSameStore(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	first := lead(t, h, job, claim("first"))
	heir := claim("second")
	heir.Before = []string{"zero", "first"}
	for _, o := range []statebackend.Owner{
		{ID: "second", Host: "another host", Store: owner("first").Store},
		{ID: "second", Host: owner("first").Host, Store: "/a copy of the file"},
		{ID: "second", Host: owner("first").Host},
	} {
		heir.Owner = o
		_, err := h.Backend.Acquire(ctx, job, heir)
		fencedBy(t, err, owner("first"))
	}
	heir.Owner.Store = owner("first").Store
	second := lead(t, h, job, heir)
	require.Greater(t, second.Token, first.Token)
}

func testTokensOnlyGrow(t *testing.T, h Harness) {
	c := claim("a")
	c.Floor = 41
	l := lead(t, h, job, c)
	require.Equal(t, uint64(42), l.Token)
	h.Lose(t)
	ctx := ctxOf(t)
	require.ErrorIs(t, h.Backend.Renew(ctx, l, leaseTTL), statebackend.ErrNotLeader)
	require.ErrorIs(t, h.Backend.Note(statebackend.WithLease(ctx, l), job, "x", statebackend.Notes{Attempt: 1}), statebackend.ErrNotLeader)
	c.Floor = l.Token
	require.Equal(t, uint64(43), lead(t, h, job, c).Token, "the server came back empty and doesn't know")
}

// lateFlip is a restore that was staged and proved by a leader who was then
// deposed.
type lateFlip struct {
	led    context.Context // with the old lease
	old    statebackend.Lease
	now    statebackend.Lease
	req    statebackend.RestoreRequest
	staged statebackend.Staging
	before map[string]statebackend.KeySummary
}

func lateFlipOf(t *testing.T, h Harness) lateFlip {
	fill(t, h, job, "lease")
	_, keys := cutOf(t, h, job)
	f := lateFlip{old: lead(t, h, job, claim("old"))}
	f.led = statebackend.WithLease(ctxOf(t), f.old)
	rec, err := h.Backend.Adopt(f.led, job, "incarnation-lease", assignment())
	require.NoError(t, err)
	require.NoError(t, h.Backend.Note(f.led, job, "incarnation-lease", statebackend.Notes{Attempt: 3}))
	f.req = request(t, h, job, "late")
	f.req.Epoch, f.req.NewEpoch = rec.Epoch, rec.Epoch+1
	f.staged, err = h.Backend.Stage(f.led, f.req)
	require.NoError(t, err)
	require.NoError(t, snapshot.Replay(keys, f.staged))
	require.NoError(t, f.staged.Prove(f.led))
	require.NoError(t, h.Backend.Release(f.led, f.old))
	f.now = lead(t, h, job, claim("new"))
	f.before = f.live(t, h)
	return f
}

// live is everything but what is staged and the lease itself.
func (lateFlip) live(t *testing.T, h Harness) map[string]statebackend.KeySummary {
	return dump(t, h, job.Staging("late"), job.Lease())
}

// testFence: each write of a deposed leader, and of who has no lease at all, is
// refused and changes nothing.
func testFence(t *testing.T, h Harness) {
	f := lateFlipOf(t, h)
	for name, ctx := range map[string]context.Context{
		"deposed": f.led, "no lease": ctxOf(t),
		"another job's": statebackend.WithLease(ctxOf(t), statebackend.Lease{Job: statebackend.Job{Prefix: "p", Name: "n"}, Holder: "new", Token: f.now.Token}),
		"forged":        statebackend.WithLease(ctxOf(t), statebackend.Lease{Job: job, Holder: "old", Token: f.now.Token}),
	} {
		_, err := h.Backend.Adopt(ctx, job, "incarnation-lease", assignment())
		fencedBy(t, err, owner("new"))
		fencedBy(t, h.Backend.Note(ctx, job, "incarnation-lease", statebackend.Notes{Attempt: 9}), owner("new"))
		fencedBy(t, h.Backend.Leads(ctx, job), owner("new"))
		other := f.req
		other.ID = "other"
		_, err = h.Backend.Stage(ctx, other)
		fencedBy(t, err, owner("new"))
		require.Equal(t, f.before, f.live(t, h), name)
	}
}

// testLateFlip: it changes nothing. Who made it removes what it staged, and
// leaves the mark to the leader.
func testLateFlip(t *testing.T, h Harness) {
	f := lateFlipOf(t, h)
	_, err := f.staged.Flip(statebackend.WithLease(ctxOf(t), f.now))
	fencedBy(t, err, owner("new"))
	require.Equal(t, f.before, f.live(t, h))
	flipped, err := h.Backend.Resolve(f.led, job, "late")
	require.NoError(t, err)
	require.False(t, flipped)
	noneStaged(t, h, job)
	g, err := h.Backend.Look(f.led, job)
	require.NoError(t, err)
	require.NotNil(t, g.Record.Restore)
	require.Equal(t, f.old.Token, g.Record.Restore.Token)
	require.Equal(t, owner("new"), g.Leader.Owner)
	_, err = h.Backend.Resolve(statebackend.WithLease(f.led, f.now), job, "late")
	require.NoError(t, err)
	g, err = h.Backend.Look(f.led, job)
	require.NoError(t, err)
	require.Nil(t, g.Record.Restore)
	require.NoError(t, f.staged.Abort(f.led))
}

// testCutOfADeposed: a cut only reads, but its mark is a write.
func testCutOfADeposed(t *testing.T, h Harness) {
	fill(t, h, job, "lease")
	old := lead(t, h, job, claim("old"))
	led := statebackend.WithLease(ctxOf(t), old)
	_, err := h.Backend.Adopt(led, job, "incarnation-lease", assignment())
	require.NoError(t, err)
	require.NoError(t, h.Backend.Note(led, job, "incarnation-lease", statebackend.Notes{Attempt: 7}))
	now := lead(t, h, job, claim("old"))
	cut := func(ctx context.Context) snapshot.ID {
		var r snapshot.Recorder
		_, err := h.Backend.Cut(ctx, statebackend.CutRequest{Job: job, Grade: snapshot.GradeAuto, Incarnation: "incarnation-lease"}, &r)
		require.NoError(t, err)
		g, err := h.Backend.Look(ctx, job)
		require.NoError(t, err)
		return g.Record.Cut
	}
	require.Zero(t, cut(led), "of an earlier term")
	require.Zero(t, cut(ctxOf(t)), "without a lease")
	require.Equal(t, snapshot.ID(7), cut(statebackend.WithLease(led, now)))
	require.NoError(t, h.Backend.Leads(statebackend.WithLease(led, now), job))
	require.NoError(t, h.Backend.Leads(ctxOf(t), statebackend.Job{Prefix: job.Prefix, Name: "never led"}), "who needs no lease")
}

// testResolveWhileItCouldFlip: as long as nobody else has begun a term, who
// brings no lease can't know that a restore has ended.
func testResolveWhileItCouldFlip(t *testing.T, h Harness) {
	fill(t, h, job, "lease")
	_, keys := cutOf(t, h, job)
	l := lead(t, h, job, claim("l"))
	led := statebackend.WithLease(ctxOf(t), l)
	rec, err := h.Backend.Adopt(led, job, "incarnation-lease", assignment())
	require.NoError(t, err)
	req := request(t, h, job, "r1")
	req.Epoch, req.NewEpoch = rec.Epoch, rec.Epoch+1
	s, err := h.Backend.Stage(led, req)
	require.NoError(t, err)
	require.NoError(t, snapshot.Replay(keys, s))
	_, err = h.Backend.Resolve(ctxOf(t), job, "r1")
	fencedBy(t, err, owner("l"))
	res, err := s.Flip(led)
	require.NoError(t, err)
	require.Equal(t, rec.Epoch+1, res.Epoch)
	flipped, err := h.Backend.Resolve(ctxOf(t), job, "r1")
	require.NoError(t, err)
	require.True(t, flipped, "it only asks")
}

// event is one thing that a holder knows for certain: between from and to it
// saw that its lease was current.
type event struct {
	holder   string
	token    uint64
	from, to int64
	ended    bool
}

// recorder writes a history down. Its clock orders what one call certainly did
// before another began.
type recorder struct {
	mu      sync.Mutex
	clock   int64
	history []event
}

func (r *recorder) tick() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clock++
	return r.clock
}

// saw does one thing under a lease and keeps it when it worked.
func (r *recorder) saw(l *statebackend.Lease, ended bool, do func() error) error {
	from := r.tick()
	if err := do(); err != nil {
		return err
	}
	to := r.tick()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history = append(r.history, event{holder: l.Holder, token: l.Token, from: from, to: to, ended: ended})
	return nil
}

// term acquires, renews, writes and releases, and gives ErrNotLeader when
// somebody else leads.
func (r *recorder) term(ctx context.Context, b statebackend.Backend, id string) error {
	l := statebackend.Lease{Job: job, Holder: id}
	err := r.saw(&l, false, func() error {
		got, err := b.Acquire(ctx, job, claim(id))
		l.Token = got.Token
		return err
	})
	if err != nil {
		return err
	}
	note := func() error {
		return b.Note(statebackend.WithLease(ctx, l), job, "inc", statebackend.Notes{Attempt: snapshot.ID(l.Token)})
	}
	for _, step := range []struct {
		ended bool
		do    func() error
	}{
		{false, func() error { return b.Renew(ctx, l, leaseTTL) }},
		{false, note},
		{true, func() error { return b.Release(ctx, l) }},
	} {
		if err := r.saw(&l, step.ended, step.do); err != nil {
			return fmt.Errorf("in the term of token %d: %v", l.Token, err) // not as ErrNotLeader
		}
	}
	if err := note(); !errors.Is(err, statebackend.ErrNotLeader) {
		return fmt.Errorf("a write after the release of token %d: %v", l.Token, err)
	}
	return nil
}

// testLeaseHistory lets many claimants acquire, renew, write and release at
// once, and checks the history.
func testLeaseHistory(t *testing.T, h Harness) {
	const claimants, rounds = 8, 25
	ctx, r := ctxOf(t), &recorder{}
	first := lead(t, h, job, claim("first"))
	_, err := h.Backend.Adopt(statebackend.WithLease(ctx, first), job, "inc", assignment())
	require.NoError(t, err)
	require.NoError(t, h.Backend.Release(ctx, first))
	errs := make(chan error, claimants)
	for n := range claimants {
		go func() {
			var err error
			for round := 0; round < rounds && (err == nil || errors.Is(err, statebackend.ErrNotLeader)); round++ {
				err = r.term(ctx, h.Backend, fmt.Sprintf("claimant%d", n))
			}
			if errors.Is(err, statebackend.ErrNotLeader) {
				err = nil
			}
			errs <- err
		}()
	}
	for range claimants {
		require.NoError(t, <-errs)
	}
	require.NotEmpty(t, r.history)
	require.NoError(t, checkHistory(r.history))
	last := slices.MaxFunc(r.history, func(a, b event) int { return cmp.Compare(a.token, b.token) })
	g, err := h.Backend.Look(ctx, job)
	require.NoError(t, err)
	require.Equal(t, snapshot.ID(last.token), g.Record.Attempt, "the last write is the last term's")
	// The checker itself can say no.
	require.Error(t, checkHistory(append(r.history, event{holder: "thief", token: last.token, from: r.clock, to: r.clock + 1})))
	require.Error(t, checkHistory(append(r.history, event{holder: "first", token: 1, from: r.clock + 2, to: r.clock + 3})))
}

// checkHistory finds what no single order of the calls can explain: a token
// with two holders, or a term that was seen to be current after a later one.
func checkHistory(history []event) error {
	holders := map[uint64]string{}
	for _, e := range history {
		if was, ok := holders[e.token]; ok && was != e.holder {
			return fmt.Errorf("token %d had two holders, %s and %s", e.token, was, e.holder)
		}
		holders[e.token] = e.holder
	}
	for _, a := range history {
		for _, b := range history {
			if a.to < b.from && (a.token > b.token || a.token == b.token && a.ended) {
				return fmt.Errorf("token %d of %s was current (%d to %d) after token %d of %s (%d to %d)",
					b.token, b.holder, b.from, b.to, a.token, a.holder, a.from, a.to)
			}
		}
	}
	return nil
}
