package statebackend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrNotLeader: the job is led by somebody else, or by nobody any more. What
// wraps it wraps ErrFenced too.
var ErrNotLeader = errors.New("this coordinator doesn't lead the job")

// Owner says who asks for a job's lease.
type Owner struct {
	ID string // random, one for each run of a process
	// Host, PID and Address (of its API) are for people.
	Host    string
	PID     int
	Address string
	// Store is the absolute path of the store file, which only one process can
	// have open; "" for none. See Claim.Before.
	Store string
}

// Leader is who holds a job's lease. Owner.ID is "" when nobody does.
type Leader struct {
	Owner
	// Token grows by at least one with each new term, and is never used twice.
	Token uint64
	Since time.Time // beginning of the term, by the state store's clock
	// Until is when the lease runs out by the state store's clock, unless it is
	// renewed.
	Until time.Time
}

// Lease is the right to write a job's record and to put a restore in place, for
// one term of one holder. It is valid as long as nobody else has begun a term.
type Lease struct {
	Job    Job
	Holder string // Owner.ID
	Token  uint64
}

// Claim asks for a lease.
type Claim struct {
	Owner Owner
	TTL   time.Duration // whole milliseconds, from one on
	// Floor is the highest token that the claimant has heard of: the new one is
	// above it. A state store that came back empty, or from an old file, doesn't
	// know.
	Floor uint64
	// Before are ids of earlier processes that had the store file Owner.Store on
	// Owner.Host. Since the claimant has that file open now, they have ended, and
	// their lease is taken over at once.
	Before []string
}

// Validate refuses a claim that could not be told from another, or never held.
func (c Claim) Validate() error {
	switch {
	case c.Owner.ID == "":
		return errors.New("lease: the owner's id is empty: give a random one")
	case c.TTL < time.Millisecond:
		return fmt.Errorf("lease of %v: want a millisecond at least", c.TTL)
	case c.Floor >= 1<<53-1:
		return fmt.Errorf("lease: the highest token that is known is %d: want less than 2^53, was it put right by hand?", c.Floor)
	}
	return nil
}

// Leases elect one leader for each job (I7). Time is measured by the state
// store's clock only, so clocks of coordinators don't matter; where that one
// jumps, a lease may end early, which fencing makes harmless, and never lasts
// longer than its TTL from then on.
type Leases interface {
	// Acquire begins a new term, when the lease is free, has run out, is the
	// claimant's own, or was left by an earlier process with its store file. A
	// *FencedError otherwise, which names the leader.
	Acquire(ctx context.Context, job Job, c Claim) (Leader, error)
	// Renew lets a lease last for ttl from now on, also one that has run out,
	// as long as nobody else has begun a term: a *FencedError then. While
	// writers are paused nobody can, and it may just find out that the lease
	// still holds.
	Renew(ctx context.Context, l Lease, ttl time.Duration) error
	// Release ends the term, so that others needn't wait. It does nothing when
	// somebody else leads already.
	Release(ctx context.Context, l Lease) error
	// Leads asks whether a write for the job would be let through with the lease
	// that ctx carries (see WithLease), and writes nothing: a *FencedError when
	// not. For what is decided outside the state store, such as the commit of a
	// checkpoint.
	Leads(ctx context.Context, job Job) error
}

type leaseKey struct{}

// WithLease lets everything that is written in ctx be fenced by the lease: a
// write for its job (Note, Adopt, Stage, Flip, the mark of a cut) is refused
// with a *FencedError, and changes nothing, once another term has begun. A
// write without a lease is refused for every job that was ever led. Contexts
// carry it since it must reach each write, through layers that don't know of
// it, and whoever forgets it must not be able to write.
func WithLease(ctx context.Context, l Lease) context.Context {
	return context.WithValue(ctx, leaseKey{}, l)
}

// LeaseOf is the lease that ctx carries for a job; the zero Lease, which only
// fits a job that was never led, when it carries none for it.
func LeaseOf(ctx context.Context, job Job) Lease {
	if l, ok := ctx.Value(leaseKey{}).(Lease); ok && l.Job == job {
		return l
	}
	return Lease{Job: job}
}

// FencedError refuses a write of somebody who doesn't lead the job, or a claim.
type FencedError struct {
	Job    Job
	Token  uint64 // of the lease that was brought, 0 for none
	Leader Leader // who leads; without an id when nobody does
}

// Error names the job, its leader and both tokens, and says what to do.
func (e *FencedError) Error() string {
	own := "this one has no token"
	if e.Token != 0 {
		own = fmt.Sprintf("this one's token is %d", e.Token)
	}
	return fmt.Sprintf("job %q (prefix %q): %v: %s, and %s: %s", e.Job.Name, e.Job.Prefix, ErrNotLeader, e.Leader, own, e.Leader.remedy())
}

// remedy is what who was refused can do.
func (l Leader) remedy() string {
	switch {
	case l.ID == "":
		return "try again, it asks for the lease by itself"
	case l.Address == "":
		return "ask that one"
	}
	return "ask that one, at " + l.Address
}

// Lost reports whether the lease is gone without somebody else having led since
// it was given: it was deleted, or the state store has come back without it.
func (e *FencedError) Lost() bool { return e.Leader.ID == "" && e.Leader.Token <= e.Token }

// Unwrap gives ErrFenced and ErrNotLeader.
func (e *FencedError) Unwrap() []error { return []error{ErrFenced, ErrNotLeader} }

// String says who leads, and since when.
func (l Leader) String() string {
	if l.ID == "" {
		return fmt.Sprintf("nobody leads it now; the last token was %d", l.Token)
	}
	where := l.Host
	if l.PID != 0 {
		where = fmt.Sprintf("%s, process %d", where, l.PID)
	}
	if l.Address != "" {
		where += ", API at " + l.Address
	}
	where = strings.TrimPrefix(where, ", ")
	return fmt.Sprintf("it is led by coordinator %s (%s) since %s, token %d", l.ID, where, l.Since.UTC().Format("2006-01-02 15:04:05Z"), l.Token)
}
