package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// book is the history of one job's lease. Safe for concurrent use.
type book struct {
	began  time.Time
	mu     sync.Mutex
	value  snapshot.ID // the last that was given out
	calls  []porcupine.Operation
	counts map[string]int // of the answers, by call
}

func newBook() *book { return &book{began: time.Now(), counts: map[string]int{}} }

func (b *book) now() int64 { return int64(time.Since(b.began)) }

// next gives a value that nobody else writes.
func (b *book) next() snapshot.ID {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.value++
	return b.value
}

func (b *book) add(in leaseIn, out leaseOut) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, porcupine.Operation{Input: in, Call: in.call, Output: out, Return: out.ret})
	b.counts[in.what+" "+out.got]++
}

// check looks for an order of the calls, each within its interval, in which the
// model gives every answer.
func (b *book) check() porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(leaseModel, b.calls, 60*time.Second)
}

// caller is one who wants to lead, with the package's own lease code.
type caller struct {
	*book
	b     *Backend
	job   statebackend.Job
	id    string
	store string
	ttl   time.Duration
	held  statebackend.Lease   // the last that was granted
	old   []statebackend.Lease // earlier ones, that it may still write with
	// note writes the attempt; tests plant others.
	note func(ctx context.Context, l statebackend.Lease, value snapshot.ID) error
}

func newCaller(book *book, b *Backend, job statebackend.Job, id string, ttl time.Duration) *caller {
	c := &caller{book: book, b: b, job: job, id: id, store: "/store of " + id, ttl: ttl, held: statebackend.Lease{Job: job, Holder: id}}
	c.note = func(ctx context.Context, l statebackend.Lease, value snapshot.ID) error {
		return b.Note(statebackend.WithLease(ctx, l), job, "inc", statebackend.Notes{Attempt: value})
	}
	return c
}

// do makes one call with a lease and writes it down. An error is one that no
// caller should see.
func (c *caller) do(what string, l statebackend.Lease, before string) (leaseOut, error) {
	in := leaseIn{what: what, id: c.id, token: l.Token, ttl: int64(c.ttl), store: c.store, before: before, call: c.now()}
	if what == callNote || what == callMark {
		in.value = c.next()
	}
	out, err := c.run(in, l)
	out.ret = c.now()
	var f *statebackend.FencedError
	switch {
	case err == nil:
		out.got = gotOK
	case errors.As(err, &f):
		out.got, out.token, out.leader = gotFenced, f.Leader.Token, f.Leader.ID
	case errors.Is(err, statebackend.ErrChanged):
		out.got = gotCrowded
	default:
		return out, fmt.Errorf("%s by %s: %w", what, c.id, err)
	}
	c.add(in, out)
	return out, nil
}

// run calls the code under test.
func (c *caller) run(in leaseIn, l statebackend.Lease) (out leaseOut, err error) {
	// A deadline far away: a renewal then waits for its script.
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	switch in.what {
	case callAcquire:
		claim := statebackend.Claim{Owner: statebackend.Owner{ID: c.id, Host: "host", Store: c.store}, TTL: c.ttl}
		if in.before != "" {
			claim.Before = []string{in.before}
		}
		got, err := c.b.Acquire(ctx, c.job, claim)
		if err == nil {
			c.old = append(c.old, c.held)
			c.held.Token, out.token = got.Token, got.Token
		}
		return out, err
	case callRenew:
		return out, c.b.Renew(ctx, l, c.ttl)
	case callRelease:
		return out, c.b.Release(ctx, l)
	case callLeads:
		return out, c.b.Leads(statebackend.WithLease(ctx, l), c.job)
	case callNote:
		return out, c.note(ctx, l, in.value)
	case callMark:
		return out, c.mark(ctx, l, in.value)
	case callRead:
		return c.read(ctx)
	case callRunOut:
		return out, c.runOut(ctx, in.call)
	}
	return out, fmt.Errorf("no call %q", in.what)
}

// mark runs the script that marks a cut.
func (c *caller) mark(ctx context.Context, l statebackend.Lease, value snapshot.ID) error {
	var args []any
	for _, w := range cutMark(l, value) {
		args = append(args, w)
	}
	words, err := c.b.client.Do(ctx, args...).StringSlice()
	if err == nil && words[0] != "ok" {
		err = &statebackend.FencedError{Job: c.job, Token: l.Token, Leader: leaderOf(words[1:])}
	}
	return err
}

// read reads what was written, in one command.
func (c *caller) read(ctx context.Context) (out leaseOut, err error) {
	got, err := c.b.client.HMGet(ctx, c.job.Record(), statebackend.FieldAttempt, statebackend.FieldCut).Result()
	for i, to := range []*snapshot.ID{&out.attempt, &out.cut} {
		if err != nil || got[i] == nil {
			continue
		}
		var n uint64
		n, err = strconv.ParseUint(got[i].(string), 10, 64)
		*to = snapshot.ID(n)
	}
	return out, err
}

// runOut makes the current lease run out: it ended long ago, or lasts longer
// than it can, as after the server's clock was put forward or back.
func (c *caller) runOut(ctx context.Context, at int64) error {
	until := "1"
	if at%2 == 0 {
		until = "99999999999999"
	}
	return c.b.client.Eval(ctx, `if redis.call('HEXISTS', KEYS[1], 'holder') == 1 then redis.call('HSET', KEYS[1], 'until', ARGV[1]) end return 1`,
		[]string{c.job.Lease()}, until).Err()
}

// wander makes random calls: most with the lease that it had last, some with
// one from before.
func (c *caller) wander(rng *rand.Rand, calls []string) error {
	for _, what := range calls {
		if what == callIdle {
			if err := c.idle(2 * c.ttl); err != nil {
				return err
			}
			continue
		}
		l := c.held
		if n := len(c.old); n > 0 && rng.IntN(4) == 0 {
			l = c.old[rng.IntN(n)]
		}
		if _, err := c.do(what, l, ""); err != nil {
			return err
		}
	}
	return nil
}

// idle does nothing for its lease for as long, and works meanwhile.
func (c *caller) idle(d time.Duration) error {
	for began := time.Now(); time.Since(began) < d; {
		for _, what := range []string{callRead, callLeads} {
			if _, err := c.do(what, c.held, ""); err != nil {
				return err
			}
		}
	}
	return nil
}

// some draws n calls from a list.
func some(rng *rand.Rand, n int, from ...string) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = from[rng.IntN(len(from))]
	}
	return all
}
