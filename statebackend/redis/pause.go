package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"keyframe/internal/crashpoint"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// DefaultMaxPause is how long a living cut may hold writers when the request
// doesn't say: over ten million small elements on two busy cores. Writers whose
// own timeout is shorter than a state takes to read need a smaller one, or a
// smaller state.
const DefaultMaxPause = 2 * time.Minute

// pauseLease is the timeout that the server itself is given: the longest that
// writers stay held after we died. A living cut extends it, up to the
// request's MaxPause. A variable for tests.
var pauseLease = 10 * time.Second

// clockTolerance is by how much our clock and the server's may disagree over a
// pause, beside 1 % of it.
const clockTolerance = 500 * time.Millisecond

// pauseGates let one pause at a time be under way on each server: CLIENT PAUSE
// is one switch for the whole server, so the end of one cut's pause would end
// another's. Other processes are found out by the proofs below.
var pauseGates struct {
	sync.Mutex
	byServer map[string]chan struct{}
}

// enterPauseGate waits until no other cut of this process holds the server.
func (b *Backend) enterPauseGate(ctx context.Context) (leave func(), err error) {
	pauseGates.Lock()
	if pauseGates.byServer == nil {
		pauseGates.byServer = make(map[string]chan struct{})
	}
	gate, ok := pauseGates.byServer[b.addr.addr]
	if !ok {
		gate = make(chan struct{}, 1)
		pauseGates.byServer[b.addr.addr] = gate
	}
	pauseGates.Unlock()
	select {
	case gate <- struct{}{}:
		return func() { <-gate }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another cut on the same server: %w", context.Cause(ctx))
	}
}

// pause holds a server's writers by CLIENT PAUSE WRITE, and proves afterwards
// that they were held all the time.
//
// The server frees the writers by itself when the lease runs out, by its own
// clock, and anybody may free them earlier (CLIENT UNPAUSE), make the server
// a replica, or move its clock. So a pause is believed only when all of this
// holds after the last read: the lease had not run out by our clock, counted
// from before it was asked for; nor by the server's; both clocks agree; the
// server is still the same master; its count of writes has not grown; and the
// canary, a command that a pause holds as it holds writers, ran after that.
//
// It has a connection of its own, on which nothing but short questions are
// outstanding, so that the writers can be freed while a large reply is on its
// way.
type pause struct {
	b      *Backend
	guard  *resp.Conn
	canary *canary // nil when the server denies it
	total  time.Duration
	// readers are the connections whose answers are of no use after the pause.
	readers []*resp.Conn
	lease   statebackend.Lease
	mark    []string // a command that runs before the writers that are freed; nil for none

	clean bool      // no reply is outstanding on the guard
	asked bool      // a pause may be in force
	ended bool      // and was taken back
	began time.Time // before the first was asked for
	held  time.Time // when writers were held for certain
	until time.Time // the lease, by our clock
	safe  time.Time // reads must be done by then
	renew time.Time // when the lease should be extended; zero for never

	serverUntil time.Time // the lease, by the server's clock
	first       serverFacts
	last        serverFacts
}

// newPause opens the pause's connections and waits until nobody else pauses
// the server: our end of the pause would be theirs too.
func (b *Backend) newPause(ctx context.Context, req statebackend.CutRequest, now serverFacts) (*pause, error) {
	total := req.MaxPause
	if total == 0 {
		total = DefaultMaxPause
	}
	if total < time.Millisecond {
		return nil, fmt.Errorf("%w: longest pause %v: the server counts in ms", statebackend.ErrPauseExpired, total)
	}
	p := &pause{b: b, lease: statebackend.LeaseOf(ctx, req.Job), total: total, last: now}
	var err error
	if p.guard, err = b.dial(ctx); err != nil {
		return nil, err
	}
	if p.canary, err = b.newCanary(ctx, req.Job); err != nil {
		p.hangUp()
		return nil, err
	}
	return p, nil
}

func (p *pause) hangUp() {
	if p.guard != nil {
		_ = p.guard.Close() // what counts on it was answered
	}
	if p.canary != nil {
		p.canary.hangUp()
	}
}

// begin holds the writers. end must be called whatever it gives.
func (p *pause) begin(readers ...*resp.Conn) error {
	p.readers = readers
	p.began = time.Now()
	first, err := p.extend(p.began)
	if !p.until.IsZero() {
		p.held = p.began // at the latest a little after that
	}
	if err != nil {
		return err
	}
	if p.canary != nil {
		if err := p.canary.send(); err != nil {
			return p.b.mapError(err, "send the canary")
		}
	}
	p.first, p.last = first, first
	crashpoint.At(crashpoint.CutHeld)
	return p.compare(first)
}

// extend asks for the lease once more, counted from now, and in the same
// packet what the server is inside the pause.
func (p *pause) extend(now time.Time) (serverFacts, error) {
	f := serverFacts{asked: now}
	lease := min(pauseLease, p.total, p.began.Add(p.total).Sub(now)).Truncate(time.Millisecond)
	p.asked, p.clean = true, false
	for _, cmd := range [][]string{{"TIME"}, {"CLIENT", "PAUSE", strconv.FormatInt(lease.Milliseconds(), 10), "WRITE"}} {
		if err := p.guard.Command(cmd...); err != nil {
			return f, p.b.mapError(err, "pause writers")
		}
	}
	if err := errors.Join(sendFacts(p.guard), p.guard.Flush()); err != nil {
		return f, p.b.mapError(err, "pause writers")
	}
	at, err := replyTime(p.guard)
	if err != nil {
		return f, p.b.mapError(err, "pause writers")
	}
	if _, err := p.guard.Reply(1 << 10); err != nil {
		return f, p.refused(err)
	}
	if err := p.leased(now, at, lease); err != nil {
		return f, err
	}
	if err := f.take(p.guard); err != nil {
		return f, p.b.mapError(err, "look at the server")
	}
	p.clean = true
	return f, nil
}

// leased notes a lease that was asked for at now, and by the server's clock
// was given at.
func (p *pause) leased(now, at time.Time, lease time.Duration) error {
	if !p.serverUntil.IsZero() && !at.Before(p.serverUntil) {
		return fmt.Errorf("%w: by the server's clock it had ended before it was extended", statebackend.ErrPauseExpired)
	}
	p.until, p.serverUntil = now.Add(lease), at.Add(lease)
	p.safe = p.until.Add(-min(lease/10, time.Second))
	p.renew = time.Time{}
	if p.until.Before(p.began.Add(p.total - 2*time.Millisecond)) {
		p.renew = now.Add(lease / 3)
	}
	// A reply that comes later than this is of no use.
	for _, r := range p.readers {
		if err := r.SetDeadline(p.safe); err != nil {
			return err
		}
	}
	return nil
}

// refused tells a server that doesn't know the mode from other refusals.
func (p *pause) refused(err error) error {
	var reply *resp.Error
	if errors.As(err, &reply) && reply.Code == "ERR" {
		return fmt.Errorf("%w: the server (version %s) does not know CLIENT PAUSE with WRITE, which Redis has from 6.2 on: %w",
			statebackend.ErrGrade, p.last.version, err)
	}
	return p.b.mapError(err, "pause writers")
}

// check is called between reads: it extends the lease in time, and fails when
// it is too late.
func (p *pause) check() error {
	now := time.Now()
	if now.After(p.safe) {
		return p.tooLate()
	}
	if p.renew.IsZero() || now.Before(p.renew) {
		return nil
	}
	f, err := p.extend(now)
	if err != nil {
		return err
	}
	return p.compare(f)
}

func (p *pause) facts() (serverFacts, error) {
	p.clean = false
	f, err := askFacts(p.guard)
	if err != nil {
		return f, p.b.mapError(err, "look at the server")
	}
	p.clean = true
	return f, nil
}

func (p *pause) tooLate() error {
	return fmt.Errorf("%w: not all was read %v after the writers were held, of %v that they may be: allow a longer pause, or make the state smaller",
		statebackend.ErrPauseExpired, time.Since(p.began).Round(time.Millisecond), p.total)
}

// explain tells a read that failed by the end of the pause from others: it was
// cut off, or its key has changed under it.
func (p *pause) explain(err error) error {
	if !time.Now().Before(p.safe) {
		return fmt.Errorf("%w (%w)", p.tooLate(), err)
	}
	var key *statebackend.KeyError
	about := errors.As(err, &key) || errors.Is(err, statebackend.ErrChanged)
	if !about || !p.clean || errors.Is(err, statebackend.ErrUnreachable) {
		return err
	}
	f, askErr := p.facts()
	if askErr != nil {
		return err // the question was only to say more
	}
	if ended := p.compare(f); ended != nil {
		return fmt.Errorf("%w (%w)", ended, err)
	}
	return err
}

// prove fails unless nobody can have written since the pause began.
func (p *pause) prove() error {
	f, err := p.facts()
	if err != nil {
		return p.explain(err)
	}
	if time.Now().After(p.safe) {
		return p.tooLate()
	}
	return p.compare(f)
}

// compare holds what the server says now against what it said before.
func (p *pause) compare(f serverFacts) error {
	last := p.last
	p.last = f
	expired := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{statebackend.ErrPauseExpired}, args...)...)
	}
	switch {
	case f.runID != last.runID:
		return expired("the server was started anew (run id %s, then %s)", last.runID, f.runID)
	case f.role != "master":
		return fmt.Errorf("%w: the server was made a %q during the cut", statebackend.ErrReadOnly, f.role)
	case !f.at.Before(p.serverUntil):
		return expired("by the server's clock it ended at %s, and it is %s",
			p.serverUntil.Format(time.RFC3339Nano), f.at.Format(time.RFC3339Nano))
	}
	if p.first.runID == "" {
		return nil // nothing from inside the pause to compare with
	}
	ours := f.asked.Sub(p.first.asked)
	if off := (f.at.Sub(p.first.at) - ours).Abs(); off > clockTolerance+ours/100+
		f.answered.Sub(f.asked)+p.first.answered.Sub(p.first.asked) {
		return expired("the server's clock was moved: it counts %v where ours counts %v", f.at.Sub(p.first.at), ours)
	}
	if f.dirty > last.dirty {
		return expired("%d writes were done in the middle of it: somebody sent CLIENT UNPAUSE, or a module writes", f.dirty-last.dirty)
	}
	return nil
}
