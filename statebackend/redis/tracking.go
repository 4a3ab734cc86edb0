package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
	"keyframe/statebackend/redis/track"
)

// How writes may be tracked: Config.Tracking.
const (
	TrackAuto   = "auto"   // by fields, else by keys
	TrackFields = "fields" // by fields only
	TrackKeys   = "keys"   // by keys only
	TrackOff    = "off"
)

// How long a cut waits for a tracker: when it was just started, and later.
// Variables for tests.
var (
	trackPatience = 2 * time.Second
	trackAgain    = 200 * time.Millisecond
)

// trackers are the trackers of one store and the jobs that they follow. Each
// is started when the first cut wants it.
type trackers struct {
	b    *Backend
	mode string
	// make are the constructors; tests put others in.
	make map[track.Level]func(track.Options) track.Tracker

	mu      sync.Mutex
	started map[track.Level]track.Tracker
	waited  map[track.Level]bool // a cut has waited for it
	jobs    map[statebackend.Job]*followed
	closed  bool
}

// followed is a job with the turn of its cuts.
type followed struct {
	turn   chan struct{} // holds one token
	follow *follow       // nil when nothing is followed
}

func newTrackers(b *Backend, mode string) (*trackers, error) {
	switch mode {
	case "":
		mode = TrackAuto
	case TrackAuto, TrackFields, TrackKeys, TrackOff:
	default:
		return nil, badAddress("tracking %q: want %s, %s, %s or %s", mode, TrackAuto, TrackFields, TrackKeys, TrackOff)
	}
	return &trackers{
		b: b, mode: mode,
		make:    map[track.Level]func(track.Options) track.Tracker{track.LevelFields: track.NewFields, track.LevelKeys: track.NewKeys},
		started: map[track.Level]track.Tracker{}, waited: map[track.Level]bool{}, jobs: map[statebackend.Job]*followed{},
	}, nil
}

// StartTracking begins to follow the server's writes, in the background and
// ahead of the first cut that wants it: attaching takes a server with its
// usual settings five seconds. It may be called again.
func (b *Backend) StartTracking() error {
	levels := b.tracks.levels()
	if len(levels) == 0 || levels[0] != track.LevelFields {
		return nil // keys are followed per job, from its first cut on
	}
	_, err := b.tracks.start(levels[0])
	return err
}

// levels are those that the configuration permits, the best first.
func (t *trackers) levels() []track.Level {
	switch t.mode {
	case TrackFields:
		return []track.Level{track.LevelFields}
	case TrackKeys:
		return []track.Level{track.LevelKeys}
	case TrackOff:
		return nil
	}
	return []track.Level{track.LevelFields, track.LevelKeys}
}

func (t *trackers) start(level track.Level) (track.Tracker, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("track writes: %w", statebackend.ErrClosed)
	}
	if tr := t.started[level]; tr != nil {
		return tr, nil
	}
	tr := t.make[level](track.Options{Dial: t.b.dialTracker, Server: t.b.addr.server()})
	t.started[level] = tr
	return tr, nil
}

// enter waits for the job's turn. leave ends it.
func (t *trackers) enter(ctx context.Context, job statebackend.Job) (f *followed, leave func(), err error) {
	t.mu.Lock()
	f = t.jobs[job]
	if f == nil {
		f = &followed{turn: make(chan struct{}, 1)}
		t.jobs[job] = f
	}
	closed := t.closed
	t.mu.Unlock()
	if closed {
		return nil, nil, fmt.Errorf("cut: %w", statebackend.ErrClosed)
	}
	select {
	case f.turn <- struct{}{}:
		return f, func() { <-f.turn }, nil
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("wait for another cut of the same job: %w", context.Cause(ctx))
	}
}

// attach makes sure that the job is followed as well as can be, and says why
// not better. f.follow is nil when no tracking is possible.
func (t *trackers) attach(ctx context.Context, job statebackend.Job, f *followed) (reason string, err error) {
	var reasons []string
	levels := t.levels()
	if len(levels) == 0 {
		reasons = append(reasons, "tracking is off (redis.tracking)")
	}
	for _, level := range levels {
		err := t.attachAt(ctx, level, job, f)
		if err == nil {
			return strings.Join(reasons, "; "), nil
		}
		if ctx.Err() != nil {
			return "", fmt.Errorf("track writes: %w (%w)", context.Cause(ctx), err)
		}
		reasons = append(reasons, whyNot(level, err))
	}
	f.end()
	return strings.Join(reasons, "; "), nil
}

// end stops to follow a job.
func (f *followed) end() {
	if f.follow != nil {
		f.follow.watch.Close()
		f.follow = nil
	}
}

// attachAt makes sure that the job is followed at that level.
func (t *trackers) attachAt(ctx context.Context, level track.Level, job statebackend.Job, f *followed) error {
	tr, err := t.start(level)
	if err != nil {
		return err
	}
	t.mu.Lock()
	patience := trackAgain
	if !t.waited[level] || f.follow != nil && f.follow.level == level {
		// What is known of the job's writes is worth waiting for a link that
		// is taken up again.
		patience, t.waited[level] = trackPatience, true
	}
	t.mu.Unlock()
	limit := fmt.Errorf("it is not attached after %v: the next cut looks again", patience)
	short, cancel := context.WithTimeoutCause(ctx, patience, limit)
	defer cancel()
	if err := tr.Attached(short); err != nil {
		return err
	}
	if f.follow != nil && f.follow.level == level {
		return nil
	}
	w, err := tr.Watch(ctx, track.Scope{DB: t.b.addr.db, Root: job.Root()})
	if err != nil {
		return err
	}
	lost := ""
	if f.follow != nil && len(f.follow.chain) > 0 {
		lost = fmt.Sprintf("writes were tracked by %s and are now by %s", f.follow.level, level)
	}
	f.end()
	f.follow = &follow{job: job, level: level, tracker: tr, watch: w, lost: lost}
	return nil
}

// whyNot tells people why a level isn't possible, with the remedy.
func whyNot(level track.Level, err error) string {
	remedy := ""
	if errors.Is(err, track.ErrDenied) {
		remedy = map[track.Level]string{
			track.LevelFields: ": grant +psync +replconf with ACL SETUSER (Redis 7.0 or later)",
			track.LevelKeys:   ": grant +hello +client|tracking +ping +info with ACL SETUSER (Redis 6.0 or later)",
		}[level]
	}
	return fmt.Sprintf("tracking by %s: %v%s", level, err, remedy)
}

// Forget drops what is known of the job's writes: its next cut is a full one.
func (b *Backend) Forget(job statebackend.Job) {
	f, leave, err := b.tracks.enter(context.Background(), job)
	if err != nil {
		return // the store is closed, and with it nothing is known
	}
	defer leave()
	f.end()
}

var _ statebackend.Forgetter = (*Backend)(nil)

// close ends all trackers, and with them the watches.
func (t *trackers) close() error {
	t.mu.Lock()
	t.closed = true
	all := t.started
	t.started = map[track.Level]track.Tracker{}
	t.mu.Unlock()
	var errs []error
	for _, tr := range all {
		errs = append(errs, tr.Close())
	}
	return errors.Join(errs...)
}

// dialTracker opens a connection for a tracker: authenticated and named, on
// database 0, without a bound on silence.
func (b *Backend) dialTracker(ctx context.Context) (net.Conn, error) {
	nc, err := b.connect(ctx)
	if err != nil {
		return nil, b.mapError(ended(ctx, err), "connect")
	}
	conn := resp.NewConn(nc)
	release := conn.Bind(ctx)
	// Every reply is read, so the connection's buffer is empty afterwards.
	err = b.greetIn(conn, 0)
	release()
	if err == nil {
		err = nc.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = nc.Close() // the greeting's error is the one that counts
		return nil, b.mapError(err, "connect")
	}
	return nc, nil
}
