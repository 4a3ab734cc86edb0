package alarm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net"
	"os"
	"sync"
	"time"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
)

// Bounds of deliveries. A queue holds what happened, not the JSON: about a KiB
// each.
const (
	queueLength = 1000
	firstPause  = time.Second     // before the second try; doubled with each
	longPause   = 5 * time.Minute // at most
)

// Options is what alarms stand on.
type Options struct {
	Alarms  config.Alarms
	Version string
	// Jobs tells how all jobs stand, for the heartbeat.
	Jobs func() []coordinator.JobStatus
	// Tell is told what becomes of deliveries. It must not pass that on to the
	// Dispatcher (which would ignore it).
	Tell coordinator.Listener

	// Journal keeps what waits for its delivery over a restart; nil keeps nothing.
	Journal Journal

	// For tests.
	queue int
	pause time.Duration
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
}

// Dispatcher brings events to the hooks. Safe for concurrent use.
type Dispatcher struct {
	hooks []*hook
	wg    sync.WaitGroup
	// closing ends the pauses between tries, ended the tries.
	closing, ended context.Context
	close, end     context.CancelFunc
}

var _ coordinator.Listener = (*Dispatcher)(nil)

// NewDispatcher starts the deliveries; Close ends them.
func NewDispatcher(o Options) *Dispatcher {
	d := &Dispatcher{}
	d.closing, d.close = context.WithCancel(context.Background())
	d.ended, d.end = context.WithCancel(context.Background())
	if o.queue == 0 {
		o.queue = queueLength
	}
	if o.pause == 0 {
		o.pause = firstPause
	}
	if o.Tell == nil {
		o.Tell = coordinator.Listeners(nil)
	}
	about := Notice{Schema: NoticeSchema, Version: o.Version, Run: runID(), Host: hostName()}
	for i, spec := range o.Alarms.Hooks {
		h := newHook(spec.WithDefaults(i), o, about)
		d.hooks = append(d.hooks, h)
		d.wg.Add(1)
		go func() {
			defer d.wg.Done()
			h.run(d.closing, d.ended)
		}()
	}
	return d
}

func runID() string {
	b := make([]byte, 8)
	rand.Read(b) // never fails (it ends the process instead)
	return hex.EncodeToString(b)
}

// hostName is "" where the system has none.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// OnEvent implements coordinator.Listener: it queues the event and returns.
func (d *Dispatcher) OnEvent(e coordinator.Event) {
	for _, h := range d.hooks {
		if wants(h.spec, e) {
			h.put(e)
		}
	}
}

// Hooks tells how deliveries stand, in the order of the configuration.
func (d *Dispatcher) Hooks() []HookStatus {
	all := make([]HookStatus, 0, len(d.hooks))
	for _, h := range d.hooks {
		all = append(all, h.status())
	}
	return all
}

// Close ends the deliveries: each notice that is queued is tried once more,
// without pauses, until ctx ends; what is left is kept for the next start, or,
// without a journal, counted as dropped and told.
// Events that come later are dropped. It returns when nothing runs any more,
// and may be called again.
func (d *Dispatcher) Close(ctx context.Context) {
	for _, h := range d.hooks {
		h.shut()
	}
	d.close()
	stop := context.AfterFunc(ctx, d.end)
	defer stop()
	d.wg.Wait()
	d.end()
}
