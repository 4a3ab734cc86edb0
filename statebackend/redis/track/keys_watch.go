package track

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"keyframe/statebackend/redis/resp"
)

// keyWatch is a watch of whole keys with the connection that it listens on.
type keyWatch struct {
	t      *keyTracker
	root   string // with the colon
	cancel context.CancelFunc
	ctx    context.Context
	tried  chan struct{} // closed when the first attempt is decided
	now    chan struct{} // asks for the next attempt without a pause
	done   chan struct{} // closed when run has ended

	mu       sync.Mutex
	marks    keyMarks
	extra    map[string]struct{}
	unarmed  map[string]struct{} // extra names that the server doesn't tell of for certain
	link     *keyLink            // nil while not attached
	asked    []string            // prefixes that link was asked for
	armed    []string            // and that the server has confirmed
	calls    commandCalls        // at the last look
	fresh    bool                // link was attached when the marks began
	why      error               // why there is no link
	attempts int                 // that have failed
	change   chan struct{}       // closed when the above changes
	closed   bool
}

var _ Watch = (*keyWatch)(nil)

func newKeyWatch(t *keyTracker, s Scope) *keyWatch {
	w := &keyWatch{
		t: t, root: s.Root + ":", extra: make(map[string]struct{}, len(s.Extra)),
		tried: make(chan struct{}), now: make(chan struct{}, 1), done: make(chan struct{}),
		change: make(chan struct{}), why: fmt.Errorf("%w: server %s: the first attempt is under way", ErrLost, t.opts.Server),
		marks: keyMarks{limit: t.opts.Limits.Bytes},
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	for _, name := range s.Extra {
		w.extra[string(name)] = struct{}{}
	}
	w.marks.setAll("the tracker was not attached to server " + t.opts.Server)
	return w
}

// begin gives a watch that nobody has seen yet its first marks: none if it is
// attached.
func (w *keyWatch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.restartMarks()
}

// restartMarks begins the marks anew, and gives those that there were. w.mu is
// held.
func (w *keyWatch) restartMarks() Marks {
	taken := w.marks.take()
	switch {
	case w.closed:
		w.marks.setAll("the watch is closed")
	case w.link == nil:
		w.marks.setAll(w.why.Error())
	default:
		w.fresh = true
		for name := range w.unarmed {
			w.marks.add([]byte(name))
		}
	}
	return taken
}

// invalid marks a key that matters.
func (w *keyWatch) invalid(name []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(name) < len(w.root) || string(name[:len(w.root)]) != w.root {
		if _, ok := w.extra[string(name)]; !ok {
			return
		}
	}
	w.marks.add(name)
}

// invalidAll marks everything.
func (w *keyWatch) invalidAll(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marks.setAll(reason)
}

// Take gives the marks and begins anew: with All as long as the watch isn't
// attached, and with the extra names that the server doesn't tell of yet.
func (w *keyWatch) Take() Marks {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.restartMarks()
}

// Size is how many keys are marked; fields is always 0.
func (w *keyWatch) Size() (keys, fields int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.marks.count(), 0
}

// Barrier asks the server twice, the second time after the first answer has
// come. Why everything that it had executed before the call is marked then:
//
// The server collects the names of one turn of its event loop and sends them
// near the turn's end, before it writes answers (beforeSleep). It reads each
// connection at most once a turn. So the second question is executed in a
// later turn than the first, and the end of the first's turn, with its
// broadcast, lies between them: all writes before the first question are on
// the connection before the second answer. One question alone would not do: it
// may be executed in the very turn of the write, and its answer stand before
// the broadcast. That the answer to the caller's last write or CLIENT PAUSE
// has come doesn't help either: a connection with a backlog is written to in
// the middle of a turn, and so may be those that io-threads serve.
//
// The first question is a PING. The second is INFO commandstats, which tells
// of SWAPDB, with INFO replication where at has a ReplID: a link to a server
// that isn't the master of that history, as after a failover, is given up. A
// server that is busy with a script (its writes are not broadcast while it
// runs) or loads refuses both, and they are repeated until ctx ends.
func (w *keyWatch) Barrier(ctx context.Context, at Position) error {
	w.mu.Lock()
	l, err := w.link, w.broken()
	w.mu.Unlock()
	if err != nil {
		return err
	}
	err = w.insist(ctx, l, func() error {
		_, err := l.ask(ctx, "PING")
		return err
	})
	if err == nil {
		err = w.insist(ctx, l, func() error { return w.examine(ctx, l, at) })
	}
	if err != nil {
		return w.failed(ctx, l, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.broken(); err != nil {
		return err
	}
	if w.link != l {
		return fmt.Errorf("%w: server %s: it was attached anew meanwhile", ErrLost, w.t.opts.Server)
	}
	return nil
}

// broken says why no Barrier is possible, nil when one is. w.mu is held.
func (w *keyWatch) broken() error {
	server := w.t.opts.Server
	switch {
	case w.closed:
		return fmt.Errorf("%w: watch on server %s", ErrClosed, server)
	case w.link == nil && errors.Is(w.why, ErrLost):
		return w.why
	case w.link == nil:
		return fmt.Errorf("%w: %w", ErrLost, w.why)
	case !w.fresh:
		return fmt.Errorf("%w: server %s: it was attached anew, and the marks have not been taken since", ErrLost, server)
	}
	return nil
}

// insist asks again as long as the server refuses for a while only.
func (w *keyWatch) insist(ctx context.Context, l *keyLink, ask func() error) error {
	for {
		err := ask()
		var refused *resp.Error
		if !errors.As(err, &refused) || l.dead() || errors.Is(judge(w.t.opts.Server, err), ErrDenied) {
			return err
		}
		select {
		case <-time.After(w.t.times.busy):
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}
}

// examine asks for what tells of unannounced changes, and of another master.
func (w *keyWatch) examine(ctx context.Context, l *keyLink, at Position) error {
	looked := make(chan error, 1)
	l.send(func(a answer, err error) { looked <- w.look(l, a, err) }, "INFO", "commandstats")
	if at.ReplID != "" {
		text, err := l.ask(ctx, "INFO", "replication")
		if err == nil {
			err = follows(text, at)
		}
		if err != nil {
			return err
		}
	}
	select {
	case err := <-looked:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for the answer to INFO: %w", context.Cause(ctx))
	}
}

// look compares the server's counts of commands with the last look. It runs
// in the reading goroutine, so that looks are compared in their order.
func (w *keyWatch) look(l *keyLink, a answer, err error) error {
	if err == nil {
		err = a.refused([]string{"INFO", "commandstats"})
	}
	if err != nil {
		return err
	}
	calls, err := parseCalls(a.text)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDenied, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.link == l {
		if reason := calls.since(w.calls); reason != "" {
			w.marks.setAll(reason)
		}
		w.calls = calls
	}
	return nil
}

// follows checks that INFO replication is of the master whose history at is.
func follows(text string, at Position) error {
	if role := infoField(text, "role"); role != "master" {
		return fmt.Errorf("the server that the tracker is attached to is a %q, not the master", role)
	}
	if id := infoField(text, "master_replid"); id != at.ReplID {
		return fmt.Errorf("the server that the tracker is attached to follows the history %q, not %q", id, at.ReplID)
	}
	return nil
}

// failed is the error of a Barrier on l. What isn't the end of the caller's
// ctx is the end of the link.
func (w *keyWatch) failed(ctx context.Context, l *keyLink, err error) error {
	server := w.t.opts.Server
	if ctx.Err() != nil {
		return fmt.Errorf("server %s: %w", server, err)
	}
	l.kill(err)
	err = judge(server, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return fmt.Errorf("%w: watch on server %s", ErrClosed, server)
	}
	if w.link == l {
		w.detach(err)
	}
	if errors.Is(err, ErrLost) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// Close ends the watch and its connection. It may be called twice.
func (w *keyWatch) Close() {
	w.mu.Lock()
	w.closed = true
	w.marks.setAll("the watch is closed")
	w.mu.Unlock()
	w.cancel()
	<-w.done
	w.t.forget(w)
}
