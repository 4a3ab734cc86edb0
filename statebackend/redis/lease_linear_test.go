package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

func timeoutFor(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// leaseJob is a job that has a record and was never led.
func leaseJob(t *testing.T, srv *redistest.Server, name string) (statebackend.Job, func() *Backend) {
	t.Helper()
	job := statebackend.Job{Prefix: testJob.Prefix, Name: name}
	open := func() *Backend {
		b, err := Open(t.Context(), Config{URL: srv.URL(), Tracking: TrackOff})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b
	}
	require.NoError(t, srv.Client().HSet(t.Context(), job.Record(), "incarnation", "inc", "epoch", "1").Err())
	return job, open
}

// together lets n callers wander at once, each by connections of its own, and
// something else happen meanwhile.
func together(t *testing.T, book *book, n int, open func() *Backend, job statebackend.Job, ttl time.Duration, calls func(*rand.Rand) []string, meanwhile func()) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ended := make(chan error)
	for i := range n {
		c := newCaller(book, open(), job, fmt.Sprintf("caller%d", i), ttl)
		go func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			ended <- c.wander(rng, calls(rng))
		}()
	}
	meanwhile()
	for range n {
		require.NoError(t, <-ended)
	}
}

// TestLeasesAndWhatTheyFenceAreLinearizable: whatever several contenders do at
// once, with leases that hold and leases from before, that run out in between,
// there is one order of it in which there is one holder, tokens only grow, and
// no write with an older token comes after a newer one.
func TestLeasesAndWhatTheyFenceAreLinearizable(t *testing.T) {
	srv := redistest.Start(t)
	for round := range 4 {
		job, open := leaseJob(t, srv, fmt.Sprintf("round%d", round))
		book := newBook()
		together(t, book, 6, open, job, time.Hour, func(rng *rand.Rand) []string {
			return some(rng, 150, callAcquire, callAcquire, callRenew, callRenew, callNote, callNote, callMark, callMark, callLeads, callRelease, callRead, callRunOut)
		}, func() {})
		require.Equal(t, porcupine.Ok, book.check())
		for _, what := range []string{callAcquire, callRenew, callNote, callMark, callLeads} {
			require.Positive(t, book.counts[what+" "+gotOK], what)
			require.Positive(t, book.counts[what+" "+gotFenced], what)
		}
	}
}

// TestLeasesThatRunOutByTimeAreLinearizable: nobody helps. A lease is taken
// from who let it run out, and from nobody else.
func TestLeasesThatRunOutByTimeAreLinearizable(t *testing.T) {
	srv := redistest.Start(t)
	job, open := leaseJob(t, srv, "time")
	book := newBook()
	together(t, book, 5, open, job, 20*time.Millisecond, func(rng *rand.Rand) []string {
		var calls []string
		for range 5 {
			calls = append(calls, some(rng, 30, callAcquire, callAcquire, callLeads, callNote, callMark, callRenew)...)
			calls = append(calls, callIdle)
		}
		return calls
	}, func() {})
	heir := newCaller(book, open(), job, "heir", 20*time.Millisecond)
	require.Eventually(t, func() bool {
		out, err := heir.do(callAcquire, heir.held, "")
		return err == nil && out.got == gotOK
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, porcupine.Ok, book.check())
	require.Positive(t, book.counts[callAcquire+" "+gotFenced])
	holders := map[string]bool{}
	for _, c := range book.calls {
		if in := c.Input.(leaseIn); in.what == callAcquire && c.Output.(leaseOut).got == gotOK {
			holders[in.id] = true
		}
	}
	require.Greater(t, len(holders), 1, "somebody's lease ran out")
}

// TestALeaseOfAKilledContenderIsLinearizable: processes that are killed in the
// middle of a call, while others contend; the next one with the same store takes
// over at once.
func TestALeaseOfAKilledContenderIsLinearizable(t *testing.T) {
	srv := redistest.Start(t)
	job, open := leaseJob(t, srv, "killed")
	book := newBook()
	const victims = 5
	together(t, book, 3, open, job, victimTTL, func(rng *rand.Rand) []string {
		return some(rng, 200, callAcquire, callNote, callNote, callMark, callRead, callRenew, callRunOut, callRunOut)
	}, func() {
		for i := range victims {
			v := newCaller(book, nil, job, fmt.Sprintf("victim%d", i), victimTTL)
			v.raise(t, srv.URL(), 2+i, time.Duration(i)*100*time.Microsecond)
		}
	})
	v := newCaller(book, nil, job, "last", victimTTL)
	judge := newCaller(book, open(), job, "judge", victimTTL)
	_, err := judge.do(callRunOut, judge.held, "")
	require.NoError(t, err)
	v.raise(t, srv.URL(), 3, 0) // it leads, and dies in its second call after
	heir := newCaller(book, open(), job, "heir", victimTTL)
	for before, want := range map[string]string{"": gotFenced, "another": gotFenced} {
		out, err := heir.do(callAcquire, heir.held, before)
		require.NoError(t, err)
		require.Equal(t, want, out.got)
	}
	heir.store = v.store
	out, err := heir.do(callAcquire, heir.held, v.id)
	require.NoError(t, err)
	require.Equal(t, gotOK, out.got, "its store file is free: it has ended")
	require.Equal(t, porcupine.Ok, book.check())
}

// plants are defects of the kinds that fencing is there against. Each must make
// the history of the same calls one that no order explains.
var plants = map[string]struct {
	script   *string // that is changed, by old and new
	old, new string
	note     func(c *caller) // changes how the attempt is written
}{
	"nothing":                        {},
	"a note without a check":         {note: func(c *caller) { c.note = c.unfenced }},
	"a mark without a check":         {script: &cutMarkScript, old: "local no = fenced(KEYS[2], ARGV[1], ARGV[2])", new: "local no"},
	"a mark by the holder only":      {script: &cutMarkScript, old: "l[1] == token and l[2] == holder", new: "l[2] == holder"},
	"a mark by the token only":       {script: &cutMarkScript, old: "l[1] == token and l[2] == holder", new: "l[1] == token"},
	"a mark without any token":       {script: &cutMarkScript, old: "if not l[1] and token == '0'", new: "if token == '0'"},
	"a renewal without a check":      {script: &keepScript, old: "local no = fenced(KEYS[1], ARGV[1], ARGV[2])", new: "local no"},
	"a token that doesn't grow":      {script: &acquireScript, old: "tonumber(ARGV[7])) + 1", new: "tonumber(ARGV[7]), 1)"},
	"a lease that isn't waited for":  {script: &acquireScript, old: "if not ours and ends > now", new: "if false and ends > now"},
	"a lease that never runs out":    {script: &acquireScript, old: "ends > now and ends - now <= ttl", new: "true"},
	"a refusal of one's own claim":   {script: &acquireScript, old: "l[2] == '' or l[2] == id", new: "l[2] == ''"},
	"a release that keeps the lease": {script: &keepScript, old: "redis.call('HDEL', KEYS[1], 'holder', 'until')", new: ""},
	"a refusal that names nobody":    {script: &cutMarkScript, old: "return {'deposed', unpack(l)}", new: "return {'deposed', '', '', '', '', '', '', '', ''}"},
}

// unfenced writes without looking at the lease.
func (c *caller) unfenced(ctx context.Context, _ statebackend.Lease, value snapshot.ID) error {
	return c.b.client.HSet(ctx, c.job.Record(), statebackend.FieldAttempt, value.String()).Err()
}

// story is one after the other what two contenders may come to do.
func story(t *testing.T, a, b *caller) {
	t.Helper()
	do := func(c *caller, l statebackend.Lease, calls ...string) {
		for _, what := range calls {
			_, err := c.do(what, l, "")
			require.NoError(t, err)
		}
	}
	do(a, a.held, callMark, callAcquire)
	do(b, b.held, callAcquire, callMark)
	do(a, a.held, callNote, callRead, callRunOut)
	do(b, b.held, callAcquire)
	do(a, a.held, callNote, callMark, callRenew, callRead)
	do(b, b.held, callNote, callRenew, callRelease, callNote, callMark, callRead)
	do(a, a.held, callAcquire)
	first := a.held
	do(a, first, callAcquire, callNote, callMark)
	do(a, first, callNote, callMark, callRenew)
	do(a, a.held, callRenew, callRunOut, callRenew)
	do(b, b.held, callAcquire, callRead)
}

// TestEachDefectOfALeaseIsFound: the check that finds nothing above can find.
func TestEachDefectOfALeaseIsFound(t *testing.T) {
	srv := redistest.Start(t)
	for name, p := range plants {
		t.Run(name, func(t *testing.T) {
			job, open := leaseJob(t, srv, name)
			if p.script != nil {
				was := *p.script
				require.Contains(t, was, p.old)
				*p.script = strings.Replace(was, p.old, p.new, 1)
				defer func() { *p.script = was }()
			}
			book := newBook()
			a, b := newCaller(book, open(), job, "a", time.Hour), newCaller(book, open(), job, "b", time.Hour)
			if p.note != nil {
				p.note(a)
				p.note(b)
			}
			story(t, a, b)
			want := porcupine.Illegal
			if name == "nothing" {
				want = porcupine.Ok
			}
			require.Equal(t, want, book.check())
		})
	}
}

// TestACheckThatIsNoPartOfTheWriteIsFound: looking first and writing then, with
// time for another term in between.
func TestACheckThatIsNoPartOfTheWriteIsFound(t *testing.T) {
	srv := redistest.Start(t)
	for fenced, want := range map[bool]porcupine.CheckResult{true: porcupine.Ok, false: porcupine.Illegal} {
		job, open := leaseJob(t, srv, fmt.Sprint(fenced))
		book := newBook()
		a, b := newCaller(book, open(), job, "a", time.Hour), newCaller(book, open(), job, "b", time.Hour)
		between := func() {
			for _, what := range []string{callRunOut, callAcquire, callNote} {
				_, err := b.do(what, b.held, "")
				require.NoError(t, err)
			}
		}
		note := a.note
		a.note = func(ctx context.Context, l statebackend.Lease, value snapshot.ID) error {
			if err := a.b.Leads(statebackend.WithLease(ctx, l), job); err != nil {
				return err
			}
			between()
			if fenced {
				return note(ctx, l, value)
			}
			return a.unfenced(ctx, l, value)
		}
		for _, what := range []string{callAcquire, callNote, callRead} {
			_, err := a.do(what, a.held, "")
			require.NoError(t, err)
		}
		require.Equal(t, want, book.check())
	}
}
