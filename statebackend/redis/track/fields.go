package track

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// NewFields makes a tracker of [LevelFields] and starts to attach at once, in
// the background. It returns without waiting.
//
// # How
//
// The tracker attaches as a replica does, but asks for an RDB with nothing in
// it (REPLCONF rdb-filter-only ""), which costs the server one fork. Then it
// reads the stream of writes. It needs Redis 7.0 or later and the rights
// +psync +replconf. It is shown as a replica (with port 0), and counts for
// min-replicas-to-write; it never acknowledges an offset, so no WAIT is
// satisfied and no FAILOVER chosen by it.
//
// # Why nothing is missed
//
// Each change of a key's value, being there or expiry reaches the stream, as
// otherwise a replica would differ: scripts and functions as their effects,
// expiry and eviction as DEL, blocking commands as what they did. The stream
// is numbered by bytes from the offset that the server gave when it forked, a
// command that was executed after Watch returned comes later in it than all
// that was read by then, and a number in INFO replication bounds what Barrier
// waits for. A broken link is resumed at the first byte that wasn't part of a
// whole command, or everything is marked.
//
// A command marks all keys that it can have changed: for twelve commands on
// hashes, sets and sorted sets exactly the fields (see the table commands),
// and for every other one, known or not, every argument that could be one of
// the scope's names, as a whole. So what is missed would have to be a key that
// a command changes without naming it. Commands that do so make the marks All:
// flushes, swaps, code that is sent as such, and what modules change by rules.
//
// Not in the stream, and so not marked: scripts that switch replication off
// (redis.set_repl), DEBUG commands, modules that change keys without
// replicating that, and what is written to a writable replica directly.
func NewFields(opts Options) Tracker {
	return newFields(opts, timing{})
}

// timing are the pauses of a tracker; tests shorten them.
type timing struct {
	retry    time.Duration // first pause between attempts; 30 times as much the last
	denied   time.Duration // between attempts after the server has refused
	silence  time.Duration // without a byte: the link is dead. PINGs come each 10 s
	ackFirst time.Duration // between acknowledgements until the stream flows
	ack      time.Duration // and afterwards
	settle   time.Duration // for the stream's first byte, before the tracker says that it is attached
	dial     time.Duration // for a connection
}

func (tm timing) withDefaults(retry time.Duration) timing {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&tm.retry, retry)
	def(&tm.retry, 200*time.Millisecond)
	def(&tm.denied, 150*tm.retry) // 30 s by default
	def(&tm.silence, time.Minute)
	def(&tm.ackFirst, 5*time.Millisecond)
	def(&tm.ack, time.Second)
	// The server lets the stream go when its timer, each 100 ms, has seen the
	// snapshot's end: a Barrier before that would wait as long. An idle server
	// has nothing to send then.
	def(&tm.settle, 120*time.Millisecond)
	def(&tm.dial, 30*time.Second)
	return tm
}

// fields is the tracker of LevelFields. One goroutine (run) reads the stream
// and alone changes what is not under the lock.
type fields struct {
	opts   Options
	timing timing
	cancel context.CancelFunc
	done   chan struct{} // closed when run has ended

	scopes atomic.Pointer[index]
	offset atomic.Int64 // every byte of the stream up to here is marked
	wanted atomic.Int64 // the lowest offset that a Barrier waits for

	mu      sync.Mutex
	closed  bool
	stage   string // what an attempt to attach is at
	refused error  // wraps ErrDenied; nil when the last attempt wasn't refused
	broken  error  // how the last attempt or link ended
	on      bool   // attached
	replID  string // the history that offset counts; "" when there is none to go on with
	epoch   int    // grows with each full resync
	changed chan struct{}
	waiters map[*waiter]struct{}
	watches map[*fieldsWatch]struct{}

	db int // that the stream has selected; only run uses it
}

var _ Tracker = (*fields)(nil)

func newFields(opts Options, tm timing) *fields {
	if opts.Limits.KeyBytes <= 0 {
		opts.Limits.KeyBytes = DefaultKeyBytes
	}
	if opts.Limits.Bytes <= 0 {
		opts.Limits.Bytes = DefaultBytes
	}
	ctx, cancel := context.WithCancel(context.Background())
	t := &fields{
		opts: opts, timing: tm.withDefaults(opts.Retry), cancel: cancel, done: make(chan struct{}),
		stage: "starting", changed: make(chan struct{}),
		waiters: map[*waiter]struct{}{}, watches: map[*fieldsWatch]struct{}{}, db: anyDB,
	}
	t.scopes.Store(&index{})
	t.wanted.Store(noOffset)
	go t.run(ctx)
	return t
}

// Level is LevelFields.
func (t *fields) Level() Level { return LevelFields }

// Attached waits for the stream. The first time that takes the server's
// repl-diskless-sync-delay (5 s by default) and a fork.
func (t *fields) Attached(ctx context.Context) error {
	for {
		t.mu.Lock()
		on, err, changed := t.on, t.ended(), t.changed
		if err == nil && !on {
			err = t.refused
		}
		t.mu.Unlock()
		if err != nil || on {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.mu.Lock()
			err := t.notAttached()
			t.mu.Unlock()
			return fmt.Errorf("%w: %w", err, context.Cause(ctx))
		}
	}
}

// ended is ErrClosed after Close. Under the lock, as the next one.
func (t *fields) ended() error {
	if t.closed {
		return fmt.Errorf("write tracking of %s: %w", t.opts.Server, ErrClosed)
	}
	return nil
}

// notAttached says why the stream isn't followed now.
func (t *fields) notAttached() error {
	switch {
	case t.refused != nil:
		return fmt.Errorf("%w: %w", ErrLost, t.refused)
	case t.broken != nil:
		return fmt.Errorf("%s: %w: %s; before: %w", t.opts.Server, ErrLost, t.stage, t.broken)
	}
	return fmt.Errorf("%s: %w: %s", t.opts.Server, ErrLost, t.stage)
}

// longestRoot bounds a scope's root, so that a prefix can be compared in what
// is buffered.
const longestRoot = 64 << 10

// Watch opens a watch. It doesn't wait.
func (t *fields) Watch(ctx context.Context, s Scope) (Watch, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("watch the writes of %q on %s: %w", s.Root, t.opts.Server, err)
	}
	if len(s.Root) > longestRoot {
		return nil, fmt.Errorf("watch the writes of a root of %d bytes: shorten it to %d", len(s.Root), longestRoot)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ended(); err != nil {
		return nil, err
	}
	w := &fieldsWatch{t: t, limits: t.opts.Limits, epoch: t.epoch,
		scope: scope{db: s.DB, prefix: s.Root + ":", extra: nameSet(s.Extra)}}
	if !t.on {
		w.everything(t.notAttached().Error())
	}
	t.watches[w] = struct{}{}
	t.reindex()
	return w, nil
}

// reindex makes the index of all watches anew. Under the lock.
func (t *fields) reindex() { t.scopes.Store(newIndex(t.watches)) }

// Close detaches. It may be called twice.
func (t *fields) Close() error {
	t.mu.Lock()
	t.closed, t.on = true, false
	t.tell()
	for w := range t.watches {
		w.everything("the tracker is closed")
	}
	t.mu.Unlock()
	t.cancel()
	<-t.done
	return nil
}

// tell wakes everybody who waits for a change of the state. Under the lock.
func (t *fields) tell() {
	close(t.changed)
	t.changed = make(chan struct{})
	for w := range t.waiters {
		close(w.wake)
	}
	clear(t.waiters)
	t.wanted.Store(noOffset)
}

// at notes what an attempt does now, for errors.
func (t *fields) at(stage string) {
	t.mu.Lock()
	t.stage = stage
	t.mu.Unlock()
}

// attach notes that the stream is followed from offset on. With full, nothing
// is known of the time before.
func (t *fields) attach(nc net.Conn, to history, full bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	if full {
		t.epoch++
		for w := range t.watches {
			w.everything(t.whyAnew())
		}
	}
	t.replID, t.on, t.refused = to.replID, true, nil
	t.offset.Store(to.offset)
	t.stage = fmt.Sprintf("attached as %s", nc.LocalAddr())
	t.tell()
}

func (t *fields) whyAnew() string {
	switch {
	case t.epoch == 1:
		return "write tracking had not been attached before"
	case t.replID == "":
		return fmt.Sprintf("write tracking is attached anew: %v", t.broken)
	}
	return fmt.Sprintf("the server no longer had the writes since the link broke (%v)", t.broken)
}

// detach notes how an attempt or a link has ended.
func (t *fields) detach(err error, refused, forget bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.on, t.broken, t.refused = false, err, nil
	if refused {
		t.refused = err
	}
	if forget {
		t.replID = ""
	}
	t.stage = "waits for the next attempt to attach"
	t.tell()
}
