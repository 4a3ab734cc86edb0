package track

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// run attaches the watch, again and again, until it is closed. It is the
// watch's only goroutine, and the one that reads its connections.
func (w *keyWatch) run() {
	defer close(w.done)
	shortest := w.t.opts.Retry
	pause, first := shortest, true
	for {
		began := time.Now()
		err := w.follow()
		w.lost(err)
		if first {
			first = false
			w.decided()
		}
		if w.ctx.Err() != nil {
			return
		}
		if time.Since(began) > retryFactor*shortest {
			pause = shortest // it held for a while
		}
		wait := pause
		if errors.Is(err, ErrDenied) {
			wait = w.t.times.denied
		}
		timer := time.NewTimer(wait)
		select {
		case <-w.ctx.Done():
			timer.Stop()
			return
		case <-w.now:
			timer.Stop()
		case <-timer.C:
		}
		pause = min(2*pause, retryFactor*shortest)
	}
}

// follow attaches once and reads until the link ends, and says why.
func (w *keyWatch) follow() error {
	server := w.t.opts.Server
	ctx, cancel := context.WithTimeout(w.ctx, w.t.times.dial)
	nc, err := w.t.opts.Dial(ctx)
	cancel()
	if err != nil {
		return judge(server, fmt.Errorf("connect: %w", err))
	}
	l := &keyLink{nc: nc, times: w.t.times}
	killed := make(chan struct{})
	stop := context.AfterFunc(w.ctx, func() {
		defer close(killed)
		l.kill(ErrClosed)
	})
	w.greet(l)
	err = l.serve(w)
	if !stop() {
		<-killed
	}
	return judge(server, err)
}

// greet sends everything that attaches the link, in one go. The answers are
// looked at as serve reads them.
func (w *keyWatch) greet(l *keyLink) {
	w.mu.Lock()
	prefixes := keyPrefixes(w.root, w.extra)
	w.mu.Unlock()
	for _, args := range [][]string{{"HELLO", "3"}, tracking(prefixes), {"PING"}} {
		l.send(func(a answer, err error) {
			if err == nil && a.fail != "" {
				l.kill(a.refused(args))
			}
		}, args...)
	}
	// The first look at the counts comes after tracking is on, so that no
	// SWAPDB falls between.
	l.send(func(a answer, err error) {
		if err == nil {
			w.attach(l, prefixes, a)
		}
	}, "INFO", "commandstats")
}

// tracking is the command that asks for prefixes, beside those that the
// connection has.
func tracking(prefixes []string) []string {
	args := []string{"CLIENT", "TRACKING", "ON", "BCAST"}
	for _, p := range prefixes {
		args = append(args, "PREFIX", p)
	}
	return args
}

// attach makes l the watch's link when its handshake has gone well. Marks
// that were All stay so until they are taken.
func (w *keyWatch) attach(l *keyLink, prefixes []string, stats answer) {
	err := stats.refused([]string{"INFO", "commandstats"})
	var calls commandCalls
	if err == nil {
		if calls, err = parseCalls(stats.text); err != nil {
			err = fmt.Errorf("%w: %w", ErrDenied, err)
		}
	}
	if err != nil {
		l.kill(err)
	}
	if l.dead() {
		return
	}
	w.mu.Lock()
	w.link, w.calls, w.fresh, w.why = l, calls, false, nil
	w.asked, w.armed, w.unarmed = prefixes, prefixes, make(map[string]struct{})
	more, ok := w.plan() // names that came since greet
	w.notify()
	w.mu.Unlock()
	w.decided()
	w.arm(l, more, ok)
}

// decided lets Watch go on. Only the first call does anything.
func (w *keyWatch) decided() {
	select {
	case <-w.tried:
	default:
		close(w.tried)
	}
}

// lost notes that an attempt or a link has ended.
func (w *keyWatch) lost(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.attempts++
	w.detach(err)
}

// detach marks everything, since what is written from now on isn't seen. w.mu
// is held.
func (w *keyWatch) detach(err error) {
	w.link, w.fresh, w.why = nil, false, err
	w.marks.setAll(err.Error())
	w.notify()
}

// notify wakes those who wait for a change. w.mu is held.
func (w *keyWatch) notify() {
	close(w.change)
	w.change = make(chan struct{})
}

// hurry makes the next attempt come without a pause.
func (w *keyWatch) hurry() {
	select {
	case w.now <- struct{}{}:
	default: // it will already
	}
}

// await waits until the watch is attached, or refused by an attempt that ended
// after the call. A closed watch is waited for by nobody.
func (w *keyWatch) await(ctx context.Context) error {
	w.hurry()
	for seen := -1; ; {
		w.mu.Lock()
		link, why, attempts, change, closed := w.link, w.why, w.attempts, w.change, w.closed
		w.mu.Unlock()
		if seen < 0 {
			seen = attempts
		}
		switch {
		case closed || link != nil:
			return nil
		case attempts > seen && errors.Is(why, ErrDenied):
			return why
		}
		select {
		case <-change:
		case <-ctx.Done():
			return fmt.Errorf("%w: server %s: %w, waiting for it to be attached after: %w",
				ErrLost, w.t.opts.Server, context.Cause(ctx), why)
		}
	}
}
