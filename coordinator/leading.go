package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"keyframe/coordinator/cut"
	"keyframe/internal/crashpoint"
	"keyframe/statebackend"
)

// Lease says who leads a job and for how long (I7): only the leader writes.
type Lease struct {
	// TTL is for how long nobody else takes over after the last sign of life;
	// 0 is DefaultLeaseTTL.
	TTL time.Duration
	// Owner tells people who leads. Its ID is set by New; Store is what a
	// restarted coordinator takes its own lease over by, without waiting.
	Owner statebackend.Owner
}

// DefaultLeaseTTL is how long a lease lasts that nobody renews.
const DefaultLeaseTTL = 15 * time.Second

// releaseTimeout bounds the giving back of a lease at a stop: it ends by itself.
const releaseTimeout = 2 * time.Second

// bucketLease is the journal's: job name → JSON of leaseRecord.
const bucketLease = "lease"

// leaseRecord is what a store file remembers of a job's leases.
type leaseRecord struct {
	// Holders are ids under which this store may hold a lease: written before
	// one is asked for.
	Holders []string `json:"holders"`
	Token   uint64   `json:"token"` // the highest that was held
}

// holdersMost bounds the ids of starts that never came to lead.
const holdersMost = 16

// Leader is who leads a job. Me says that it is this coordinator.
type Leader struct {
	ID      string    `json:"id"`
	Host    string    `json:"host"`
	Address string    `json:"address"` // of its API
	Since   time.Time `json:"since"`   // by the state store's clock
	Token   uint64    `json:"token"`   // grows with each term
	Me      bool      `json:"me"`
}

// term is the time for which this coordinator leads a job.
type term struct {
	lease  statebackend.Lease
	leader statebackend.Leader
	ctx    context.Context // ends with the term; its cause says why
	end    context.CancelCauseFunc
	ended  chan struct{} // nobody renews it any more
}

// leading is the term under way, nil when there is none.
func (j *job) leading() *term {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.term
}

// lead gives the term under way, or begins one where the lease is free. Errors:
// a *statebackend.FencedError that names the leader, and what kept the state
// store or the journal from answering. Only the actor calls it.
func (j *job) lead(ctx context.Context) (*term, error) {
	if t := j.leading(); t != nil {
		return t, nil
	}
	known, claim, err := j.claim(ctx)
	if err != nil {
		return nil, err
	}
	crashpoint.At(crashpoint.LeaseClaimed)
	sent := time.Now()
	within, cancel := context.WithTimeout(ctx, lookTimeout)
	got, err := j.c.opts.Backend.Acquire(within, j.key(), claim)
	cancel()
	if err != nil {
		j.follow(err)
		return nil, err
	}
	crashpoint.At(crashpoint.LeaseTaken)
	t := &term{lease: statebackend.Lease{Job: j.key(), Holder: got.ID, Token: got.Token}, leader: got, ended: make(chan struct{})}
	t.ctx, t.end = context.WithCancelCause(context.Background())
	j.mu.Lock()
	j.term, j.leader = t, nil
	j.mu.Unlock()
	go j.keepLease(t, sent)
	led, leave := j.underLease(ctx)
	defer leave()
	if err := j.takeOffice(led, known, t); err != nil {
		j.abdicate()
		return nil, err
	}
	j.c.emit(Event{Kind: EventLeading, Job: j.config().Name, Message: fmt.Sprintf("this coordinator (%s) leads the job, token %d", got.ID, got.Token)})
	return t, nil
}

// claim is what is asked for, after the journal knows by which id.
func (j *job) claim(ctx context.Context) (leaseRecord, statebackend.Claim, error) {
	var known leaseRecord
	name, me := j.config().Name, j.c.opts.Lease.Owner
	value, ok, err := j.c.opts.Journal.Get(ctx, bucketLease, name)
	if err == nil && ok {
		err = json.Unmarshal(value, &known)
	}
	if err != nil {
		return known, statebackend.Claim{}, fmt.Errorf("lease record of job %q: %w", name, err)
	}
	if !slices.Contains(known.Holders, me.ID) {
		known.Holders = append(known.Holders, me.ID)
		known.Holders = known.Holders[max(0, len(known.Holders)-holdersMost):]
		if err := j.c.put(ctx, bucketLease, name, known); err != nil {
			return known, statebackend.Claim{}, err
		}
	}
	floor := known.Token
	j.mu.Lock()
	if j.leader != nil {
		floor = max(floor, j.leader.Token)
	}
	j.mu.Unlock()
	return known, statebackend.Claim{Owner: me, TTL: j.c.opts.Lease.TTL, Floor: floor, Before: known.Holders}, nil
}

// follow remembers who leads instead of us.
func (j *job) follow(err error) {
	var f *statebackend.FencedError
	if !errors.As(err, &f) || f.Leader.ID == "" {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.leader = &f.Leader
}

// takeOffice does what has to be done first in a term: what is left of restores
// is ended, ours and those of leaders before us; and where somebody else led in
// between, what is known of the live state is known no longer.
func (j *job) takeOffice(ctx context.Context, known leaseRecord, t *term) error {
	if err := j.resume(ctx); err != nil {
		return err
	}
	if t.lease.Token > known.Token+1 {
		j.othersLed()
	}
	if known.Token != 0 && t.lease.Token > known.Token+1 {
		if err := j.afterOthers(ctx); err != nil {
			return err
		}
	}
	if err := j.learn(ctx); err != nil {
		return err
	}
	// Last: until then what others did is to be looked at again.
	err := j.c.put(ctx, bucketLease, j.config().Name, leaseRecord{Holders: []string{t.lease.Holder}, Token: t.lease.Token})
	crashpoint.At(crashpoint.LeaseRemembered)
	return err
}

// afterOthers takes over from another coordinator. If it has restored or
// rescaled, the live state comes from its history and not from ours.
func (j *job) afterOthers(ctx context.Context) error {
	j.unfoot(cut.StateChanged("another coordinator's term"))
	g, err := j.c.opts.Backend.Look(ctx, j.key())
	if err != nil {
		return err
	}
	j.mu.Lock()
	history, epoch, name := j.newest.id != 0, max(j.flip.Epoch, j.newest.epoch), j.spec.Name
	own := j.newest.incarnation
	j.mu.Unlock()
	if !history || g.Record.Epoch <= epoch {
		return nil
	}
	// What is restored keeps the job's incarnation. Another one was begun, by a
	// coordinator that knew of nothing, over what was left of lost state, or by a
	// person's wish: that is for the guard to tell (I5).
	if own != "" && g.Record.Incarnation != own {
		return nil
	}
	return errors.Join(j.c.dropUndo(ctx, name), j.keepLineage(ctx, 0, g.Record.Epoch))
}

// underLease fences what is written in the context by the term under way, and
// ends the context with the term. Without a term it leaves it as it is.
func (j *job) underLease(ctx context.Context) (context.Context, func()) {
	t := j.leading()
	if t == nil {
		return ctx, func() {}
	}
	led, cancel := context.WithCancelCause(statebackend.WithLease(ctx, t.lease))
	stop := context.AfterFunc(t.ctx, func() { cancel(context.Cause(t.ctx)) })
	return led, func() {
		stop()
		cancel(nil)
	}
}

// needsLead tells operations that write: what only looks, or checks by itself,
// is not among them.
func (k OperationKind) needsLead() bool {
	switch k {
	case OpRestore, OpRescale, OpUndo, OpRecovery, OpUnmark, OpAdopt:
		return true
	}
	return false
}

// asLeader runs a task under the lease, or refuses it where somebody else
// leads. Where the lease can't be asked for, the task finds out by itself.
func (j *job) asLeader(ctx context.Context, t task) (func(*Status), error) {
	within, done := ctx, func() {}
	if t.op.Status().Kind == OpCheckpoint {
		within, done = j.withinAttempt(ctx)
	}
	j.confirm(within)
	done()
	if t.op.Status().Kind.needsLead() {
		if _, err := j.lead(ctx); errors.Is(err, statebackend.ErrNotLeader) {
			return nil, err
		}
	}
	ctx, leave := j.underLease(ctx)
	defer leave()
	return t.do(ctx, t.op)
}

// confirm makes sure that a term is still ours before something is begun in it:
// a state store that has come back empty knows of none.
func (j *job) confirm(ctx context.Context) {
	t := j.leading()
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	// Another error comes again where it matters.
	if err := j.c.opts.Backend.Renew(ctx, t.lease, j.c.opts.Lease.TTL); errors.Is(err, statebackend.ErrNotLeader) {
		j.depose(t, err)
	}
}

// compare ends the term when the state store has been seen to know another one.
func (j *job) compare(g statebackend.Glimpse) {
	t := j.leading()
	if t != nil && (g.Leader.Token != t.lease.Token || g.Leader.ID != t.lease.Holder) {
		j.depose(t, &statebackend.FencedError{Job: t.lease.Job, Token: t.lease.Token, Leader: g.Leader})
	}
}

// keepLease renews a term's lease, three times in its TTL, until the term ends.
// It is no part of the actor, so that a long operation doesn't lose the lease.
// By our own monotonic clock, counted from before a renewal was sent, the term
// is over a tenth of the TTL before anybody else can begin one.
func (j *job) keepLease(t *term, confirmed time.Time) {
	defer close(t.ended)
	ttl := j.c.opts.Lease.TTL
	wait := ttl / 3
	var last error
	for {
		deadline := confirmed.Add(ttl - ttl/10)
		pause := time.NewTimer(min(wait, time.Until(deadline)))
		select {
		case <-t.ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		sent := time.Now()
		if !sent.Before(deadline) {
			j.depose(t, &lapsedError{since: confirmed, err: last})
			return
		}
		within, cancel := context.WithDeadline(t.ctx, earlier(deadline, sent.Add(ttl/3)))
		err := j.c.opts.Backend.Renew(within, t.lease, ttl)
		cancel()
		switch {
		case err == nil:
			crashpoint.At(crashpoint.LeaseRenewed)
			confirmed, last, wait = sent, nil, ttl/3
		case errors.Is(err, statebackend.ErrNotLeader):
			j.depose(t, err)
			return
		default:
			last, wait = err, ttl/10
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// lapsedError ends a term whose lease could not be renewed in time.
type lapsedError struct {
	since time.Time
	err   error // of the last renewal; nil when the process itself stood still
}

func (e *lapsedError) Error() string {
	why := "the process stood still"
	if e.err != nil {
		why = e.err.Error()
	}
	return fmt.Sprintf("the lease of the job was not renewed for %s: %s", time.Since(e.since).Round(time.Millisecond), why)
}

// Unwrap gives what kept it from being renewed, and ErrNotLeader.
func (e *lapsedError) Unwrap() []error {
	all := []error{statebackend.ErrFenced, statebackend.ErrNotLeader}
	if e.err != nil {
		all = append(all, e.err)
	}
	return all
}

// depose ends a term that was lost: what runs is ended, by the reason.
func (j *job) depose(t *term, why error) {
	t.end(why)
	j.follow(why)
	j.mu.Lock()
	was := j.term == t
	if was {
		j.term = nil
	}
	name := j.spec.Name
	j.mu.Unlock()
	// A lease that was lost with the state, or deleted, is asked for again.
	var f *statebackend.FencedError
	if was && !(errors.As(why, &f) && f.Leader.ID == "") {
		j.c.emit(Event{Kind: EventDeposed, Job: name, Message: "this coordinator no longer leads the job: " + why.Error()})
		j.setHealth(healthOf(why), why.Error(), nil)
	}
}

// abdicate gives the lease back, so that somebody else can take over at once.
func (j *job) abdicate() {
	t := j.leading()
	if t == nil {
		return
	}
	t.end(errStopping)
	<-t.ended
	j.mu.Lock()
	j.term = nil
	j.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	err := j.c.opts.Backend.Release(ctx, t.lease)
	crashpoint.At(crashpoint.LeaseReturned)
	if err != nil {
		j.c.emit(Event{Kind: EventRecordFailed, Job: j.config().Name, Message: fmt.Sprintf("the lease was not given back and lasts for %s at most: %v", j.c.opts.Lease.TTL, err)})
	}
}

// leaderLocked is who leads, as far as is known; nil for nobody.
func (j *job) leaderLocked() *Leader {
	l := j.leader
	if j.term != nil {
		l = &j.term.leader
	}
	if l == nil {
		return nil
	}
	return &Leader{ID: l.ID, Host: l.Host, Address: l.Address, Since: l.Since, Token: l.Token, Me: j.term != nil}
}
