package track

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// keyRights is what the user of the tracker's connections may do. It needs no
// right to any key. Redis 7.0 permits HELLO to everybody; 6.x asks for +hello.
const keyRights = "+hello +client|tracking +ping +info"

// keyTimes are the periods of a tracker of keys.
type keyTimes struct {
	quiet  time.Duration // silence after which a link is asked for a sign of life
	missed int           // how many such PINGs without an answer are death
	write  time.Duration // for one command to be written
	dial   time.Duration // for one attempt to connect
	first  time.Duration // that Watch waits for its first attempt
	denied time.Duration // between attempts after the server has refused
	busy   time.Duration // before a question is repeated that a busy server refused
}

var defaultKeyTimes = keyTimes{
	quiet: 10 * time.Second, missed: 3, write: 10 * time.Second, dial: 10 * time.Second,
	first: 5 * time.Second, denied: 30 * time.Second, busy: 10 * time.Millisecond,
}

// NewKeys makes a tracker of whole keys, which listens to what the server
// broadcasts for client-side caching (CLIENT TRACKING BCAST, Redis 6.0 or
// newer). Each watch has a connection of its own; the tracker has none while
// there is no watch. The user needs [keyRights]: +hello +client|tracking +ping
// +info, no right to keys.
//
// Everything that changes a key's value or expiry is announced: commands,
// scripts, expiry when the server deletes the key, eviction, both names of a
// RENAME. A key that is written many times in one turn of the server's event
// loop is announced once. FLUSHALL and FLUSHDB, of any database, mark
// everything. Keys of the same name in other databases are marked too.
//
// Not announced, and dealt with:
//   - SWAPDB. Each Barrier compares the server's INFO commandstats with the
//     last look, and marks everything when SWAPDB was called or when the
//     statistics were reset (CONFIG RESETSTAT), which could hide a call. A
//     server that denies INFO denies this level (ErrDenied): without it a cut
//     could be wrong without a sign.
//   - Changes of a stream's consumer groups and of its last id (XREADGROUP,
//     XACK, XCLAIM, XAUTOCLAIM, XGROUP, XSETID). The server doesn't count them
//     as changes of the key. Whoever reads by these marks reads streams again
//     each time.
//   - A key whose time has come but that the server hasn't deleted yet. Its
//     expiry is part of what was read.
//
// Memory is that of Limits.Bytes for the marks of each watch, some 100 KiB for
// its connection, and up to 4 MiB more if the server has names or statistics
// of that length. Each key that is written on the server costs it a comparison
// with every prefix that is watched: those are one for the job and one for
// each extra name, cut short together from maxPrefixes on.
func NewKeys(opts Options) Tracker { return newKeys(opts, defaultKeyTimes) }

func newKeys(opts Options, times keyTimes) *keyTracker {
	if opts.Limits.Bytes <= 0 {
		opts.Limits.Bytes = DefaultBytes
	}
	if opts.Retry <= 0 {
		opts.Retry = defaultKeyRetry
	}
	return &keyTracker{opts: opts, times: times, watches: make(map[*keyWatch]struct{})}
}

const (
	defaultKeyRetry = 200 * time.Millisecond
	retryFactor     = 30 // the longest pause between attempts, in Options.Retry
)

// keyTracker is the tracker of NewKeys.
type keyTracker struct {
	opts  Options
	times keyTimes

	mu      sync.Mutex
	watches map[*keyWatch]struct{}
	closed  bool
}

var _ Tracker = (*keyTracker)(nil)

// Level is LevelKeys.
func (t *keyTracker) Level() Level { return LevelKeys }

// probeRoot is what nobody writes: a watch of it finds out whether the server
// lets us.
const probeRoot = "\x00keyframe\x00probe"

// Attached waits until every watch is attached, and without a watch until a
// connection that is opened for that was. A watch that waits for its next
// attempt makes it now, so a right that was given meanwhile is noticed.
func (t *keyTracker) Attached(ctx context.Context) error {
	t.mu.Lock()
	all := make([]*keyWatch, 0, len(t.watches))
	for w := range t.watches {
		all = append(all, w)
	}
	closed := t.closed
	t.mu.Unlock()
	if closed {
		return fmt.Errorf("%w: server %s", ErrClosed, t.opts.Server)
	}
	if len(all) == 0 {
		probe, err := t.open(Scope{Root: probeRoot})
		if err != nil {
			return err
		}
		defer probe.Close()
		all = append(all, probe)
	}
	for _, w := range all {
		if err := w.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Watch opens a connection for the scope and waits for the first attempt to
// attach it, but not longer than 5 s: then the watch's marks are All, and it
// goes on trying.
func (t *keyTracker) Watch(ctx context.Context, s Scope) (Watch, error) {
	w, err := t.open(s)
	if err != nil {
		return nil, err
	}
	patience := time.NewTimer(t.times.first)
	defer patience.Stop()
	select {
	case <-w.tried:
	case <-patience.C:
	case <-ctx.Done():
		w.Close()
		return nil, fmt.Errorf("watch %.80q on server %s: %w", s.Root, t.opts.Server, context.Cause(ctx))
	}
	w.begin()
	return w, nil
}

// open starts a watch. Nobody waits for it yet.
func (t *keyTracker) open(s Scope) (*keyWatch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("%w: server %s", ErrClosed, t.opts.Server)
	}
	w := newKeyWatch(t, s)
	t.watches[w] = struct{}{}
	go w.run()
	return w, nil
}

// forget takes a closed watch off the list.
func (t *keyTracker) forget(w *keyWatch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.watches, w)
}

// Close ends every watch. It may be called twice, and gives no error.
func (t *keyTracker) Close() error {
	t.mu.Lock()
	t.closed = true
	all := make([]*keyWatch, 0, len(t.watches))
	for w := range t.watches {
		all = append(all, w)
	}
	t.mu.Unlock()
	for _, w := range all {
		w.Close()
	}
	return nil
}
