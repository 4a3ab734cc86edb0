package alarm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
)

// HookStatus is how the deliveries of one hook stand.
type HookStatus struct {
	Name      string `json:"name"`
	Target    string `json:"target"`              // scheme and host, or the program: nothing secret
	Queued    int    `json:"queued"`              // that wait, without the one under way
	Trying    bool   `json:"trying"`              // one is under way, or waits for its next try
	Delivered uint64 `json:"delivered"`           // since the start, as all that follow
	Failed    uint64 `json:"failed"`              // tries
	GivenUp   uint64 `json:"givenUp"`             // notices: too many tries, or too old
	Dropped   uint64 `json:"dropped"`             // notices: the queue was full, or the coordinator stopped
	Kept      uint64 `json:"kept"`                // notices that a stop left for the next start
	LastError string `json:"lastError,omitempty"` // "" once a delivery works again

	LastDeliveredAt *time.Time `json:"lastDeliveredAt,omitempty"`
	LastFailedAt    *time.Time `json:"lastFailedAt,omitempty"`
}

// sender brings one notice to its receiver. No error shows a secret.
type sender interface {
	send(ctx context.Context, body []byte) error
	target() string
}

// queued is an event that waits for its delivery.
type queued struct {
	seq   uint64
	event coordinator.Event
	at    time.Time // put in, by a clock that doesn't jump
}

// hook is one receiver with its queue and its only goroutine, run.
type hook struct {
	spec  config.Hook
	to    sender
	tell  coordinator.Listener
	about Notice // what all notices have in common
	room  int
	pause time.Duration
	more  chan struct{} // something was put in

	journal Journal // nil keeps nothing

	mu      sync.Mutex // guards what follows
	queue   []queued
	seq     uint64
	closed  bool
	counts  HookStatus
	toldOf  uint64   // dropped notices that were told of
	failing bool     // told
	left    []queued // that a stop came before
	saved   bool     // the journal has something
	unsaved bool     // told
}

func newHook(spec config.Hook, o Options, about Notice) *hook {
	h := &hook{spec: spec, tell: o.Tell, about: about, room: o.queue, pause: o.pause, more: make(chan struct{}, 1), journal: o.Journal}
	h.about.Hook = spec.Name
	if len(spec.Command) > 0 {
		h.to = newCommand(spec)
	} else {
		h.to = newPost(spec, o)
	}
	h.counts.Name, h.counts.Target = spec.Name, h.to.target()
	h.load()
	return h
}

// put queues an event; the oldest one goes when there is no room. It never
// blocks.
func (h *hook) put(e coordinator.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	if h.closed {
		h.counts.Dropped++
		return
	}
	if len(h.queue) >= h.room {
		h.queue = append(h.queue[:0], h.queue[1:]...)
		h.counts.Dropped++
	}
	h.queue = append(h.queue, queued{seq: h.seq, event: e, at: time.Now()})
	select {
	case h.more <- struct{}{}:
	default:
	}
}

func (h *hook) shut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
}

func (h *hook) take() (queued, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.queue) == 0 {
		return queued{}, false
	}
	q := h.queue[0]
	h.queue = append(h.queue[:0], h.queue[1:]...)
	return q, true
}

func (h *hook) status() HookStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.counts
	s.Queued = len(h.queue)
	return s
}

// run delivers one notice after the other, until closing is done and the queue
// is empty, or ended is done.
func (h *hook) run(closing, ended context.Context) {
	for {
		q, ok := h.take()
		if !ok {
			select {
			case <-h.more:
				continue
			case <-closing.Done():
				if q, ok = h.take(); !ok { // nothing comes after shut
					h.settle()
					h.tellDropped()
					return
				}
			}
		}
		if ended.Err() != nil {
			h.leave(q)
			continue
		}
		h.count(func(s *HookStatus) { s.Trying = true })
		h.deliver(closing, ended, q)
		h.count(func(s *HookStatus) { s.Trying = false })
		h.tellDropped()
	}
}

// deliver tries until the receiver has the notice, or it has had its tries or
// its time.
func (h *hook) deliver(closing, ended context.Context, q queued) {
	pause := h.pause
	for try := 1; ; try++ {
		err := h.try(ended, q, try)
		if err == nil {
			h.delivered()
			h.saveLess()
			return
		}
		// Half of it at least, so that receivers aren't met by all at once.
		wait := pause/2 + rand.N(pause/2+1)
		pause = min(2*pause, longPause)
		switch {
		case ended.Err() != nil || closing.Err() != nil:
			h.failed(q, try, err)
			h.leave(q)
			return
		case try >= h.spec.Tries || time.Since(q.at)+wait > time.Duration(h.spec.MaxAge):
			h.failed(q, try, err)
			h.giveUp(q, try, err)
			h.saveLess()
			return
		}
		h.failed(q, try, err)
		h.save(q)
		select {
		case <-time.After(wait):
		case <-closing.Done(): // one last try
		}
	}
}

func (h *hook) try(ctx context.Context, q queued, try int) error {
	n := h.about
	n.Seq, n.Try, n.Event, n.SentAt = q.seq, try, q.event, time.Now().UTC()
	n.Group, n.Failed = Group(q.event.Kind), q.event.Kind.Failed()
	s := h.status()
	n.Lost = s.GivenUp + s.Dropped
	body, err := n.encode()
	if err != nil {
		return err
	}
	timeout := time.Duration(h.spec.Timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %s", timeout))
	defer cancel()
	return h.to.send(ctx, body)
}

func (h *hook) count(f func(*HookStatus)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(&h.counts)
}

func (h *hook) delivered() {
	h.mu.Lock()
	h.counts.Delivered++
	h.counts.LastDeliveredAt = now()
	h.counts.LastError = ""
	was := h.failing
	h.failing = false
	h.mu.Unlock()
	if was {
		h.say(coordinator.EventHookRecovered, "", "hook %q (%s): delivered again", h.spec.Name, h.to.target())
	}
}

func now() *time.Time {
	t := time.Now().UTC()
	return &t
}

// maxReason bounds what is told of why a delivery failed, in bytes.
const maxReason = 500

func (h *hook) failed(q queued, try int, err error) {
	why := cutText(err.Error(), maxReason)
	h.mu.Lock()
	h.counts.Failed++
	h.counts.LastFailedAt = now()
	h.counts.LastError = why
	was := h.failing
	h.failing = true
	h.mu.Unlock()
	if !was {
		h.say(coordinator.EventHookFailed, q.event.Job, "hook %q (%s): %s of %s could not be delivered at try %d: %s", h.spec.Name, h.to.target(), q.event.Kind, q.event.At.UTC().Format(time.RFC3339), try, why)
	}
}

func (h *hook) giveUp(q queued, tries int, err error) {
	h.count(func(s *HookStatus) { s.GivenUp++ })
	h.say(coordinator.EventHookFailed, q.event.Job, "hook %q (%s): %s of %s is given up after %d tries in %s: %s", h.spec.Name, h.to.target(), q.event.Kind, q.event.At.UTC().Format(time.RFC3339),
		tries, time.Since(q.at).Round(time.Millisecond), cutText(err.Error(), maxReason))
}

// tellDropped tells of what was dropped since the last time.
func (h *hook) tellDropped() {
	h.mu.Lock()
	n := h.counts.Dropped - h.toldOf
	h.toldOf = h.counts.Dropped
	h.mu.Unlock()
	if n > 0 {
		h.say(coordinator.EventHookDropped, "", "hook %q (%s): %d notices were dropped: more happened than could be delivered, or the coordinator stopped", h.spec.Name, h.to.target(), n)
	}
}

func (h *hook) say(kind coordinator.EventKind, job, format string, args ...any) {
	h.tell.OnEvent(coordinator.Event{At: time.Now().UTC(), Kind: kind, Job: job, Reason: h.spec.Name, Message: fmt.Sprintf(format, args...)})
}
