package alarm

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
)

// soonAgain is how long after a heartbeat that could not be sent the next try
// is, if the interval isn't shorter.
const soonAgain = 10 * time.Second

// Beat is the body of a heartbeat by POST.
type Beat struct {
	Schema  int       `json:"schema"`
	Host    string    `json:"host"`
	Version string    `json:"version"`
	At      time.Time `json:"at"`
	OK      bool      `json:"ok"`
	Wrong   []string  `json:"wrong,omitempty"` // what is, one sentence for each job
}

// HeartbeatStatus is how heartbeats stand.
type HeartbeatStatus struct {
	On     bool   `json:"on"`
	Sent   uint64 `json:"sent"`   // that said that all is well
	Failed uint64 `json:"failed"` // that could not be sent, of both kinds
	Held   bool   `json:"held"`   // something is wrong with a job

	LastSentAt *time.Time `json:"lastSentAt,omitempty"` // of those that said that all is well
}

// Heartbeat asks a URL again and again while every job is well.
type Heartbeat struct {
	spec   config.Heartbeat
	web    web
	jobs   func() []coordinator.JobStatus
	tell   coordinator.Listener
	about  Beat
	cancel context.CancelFunc
	ended  chan struct{}

	mu      sync.Mutex // guards what follows
	counts  HeartbeatStatus
	failing bool // told
}

// NewHeartbeat starts the heartbeat, if one is configured; Close ends it.
func NewHeartbeat(o Options) *Heartbeat {
	ctx, cancel := context.WithCancel(context.Background())
	h := &Heartbeat{spec: o.Alarms.Heartbeat, jobs: o.Jobs, tell: o.Tell, cancel: cancel, ended: make(chan struct{})}
	h.counts.On = h.spec.On()
	if !h.counts.On {
		close(h.ended)
		return h
	}
	h.spec = h.spec.WithDefaults()
	if h.tell == nil {
		h.tell = coordinator.Listeners(nil)
	}
	h.web = newWeb(o, h.spec.Address, h.spec.Headers)
	h.about = Beat{Schema: NoticeSchema, Host: hostName(), Version: o.Version}
	go h.run(ctx)
	return h
}

// Status tells how heartbeats stand.
func (h *Heartbeat) Status() HeartbeatStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts
}

// Close ends the heartbeat at once; it may be called again. Nothing is sent at
// the end: a coordinator that was stopped is silent, as one that died.
func (h *Heartbeat) Close() {
	h.cancel()
	<-h.ended
}

func (h *Heartbeat) run(ctx context.Context) {
	defer close(h.ended)
	every := time.Duration(h.spec.Every)
	wait := min(every, soonAgain) // jobs are looked at for the first time meanwhile
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = every
		if !h.beat(ctx) {
			wait = min(every, soonAgain)
		}
	}
}

// beat judges the jobs and sends what that calls for; false when it could not
// be sent.
func (h *Heartbeat) beat(ctx context.Context) bool {
	wrong := Wrong(h.jobs(), h.spec.Jobs)
	h.hold(wrong)
	if len(wrong) > 0 && h.spec.FailSuffix == "" {
		return true // silence is the message
	}
	suffix := ""
	if len(wrong) > 0 {
		suffix = h.spec.FailSuffix
	}
	err := h.send(ctx, suffix, wrong)
	if ctx.Err() != nil {
		return true
	}
	h.sent(err, len(wrong) == 0)
	return err == nil
}

func (h *Heartbeat) send(ctx context.Context, suffix string, wrong []string) error {
	timeout := time.Duration(h.spec.Timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %s", timeout))
	defer cancel()
	var body []byte
	if h.spec.Method == http.MethodPost {
		b := h.about
		b.At, b.OK, b.Wrong = time.Now().UTC(), len(wrong) == 0, wrong
		var err error
		if body, err = json.Marshal(b); err != nil {
			return fmt.Errorf("encode a heartbeat: %w", err)
		}
	}
	return h.web.ask(ctx, h.spec.Method, suffix, body)
}

// hold tells when heartbeats begin to be held back, and when they are sent
// again.
func (h *Heartbeat) hold(wrong []string) {
	h.mu.Lock()
	was := h.counts.Held
	h.counts.Held = len(wrong) > 0
	h.mu.Unlock()
	switch {
	case !was && len(wrong) > 0:
		h.say(coordinator.EventHeartbeatHeld, "the heartbeat is held back: "+strings.Join(wrong, "; "))
	case was && len(wrong) == 0:
		h.say(coordinator.EventHeartbeatBack, "the heartbeat is sent again: every job is well")
	}
}

func (h *Heartbeat) sent(err error, good bool) {
	h.mu.Lock()
	was := h.failing
	h.failing = err != nil
	switch {
	case err != nil:
		h.counts.Failed++
	case good:
		h.counts.Sent++
		h.counts.LastSentAt = now()
	}
	h.mu.Unlock()
	switch {
	case err != nil && !was:
		h.say(coordinator.EventHeartbeatFailed, fmt.Sprintf("the heartbeat could not be sent to %s: %s", h.web.shown, cutText(err.Error(), maxReason)))
	case err == nil && was:
		h.say(coordinator.EventHeartbeatBack, "the heartbeat reaches "+h.web.shown+" again")
	}
}

func (h *Heartbeat) say(kind coordinator.EventKind, text string) {
	h.tell.OnEvent(coordinator.Event{At: time.Now().UTC(), Kind: kind, Message: text})
}

// Wrong tells what keeps the jobs from being well, one sentence for each job of
// which there is something to say: it is overdue, or its health is not one in
// which checkpoints can be taken. Well is also who has no state yet, who stands
// by while another coordinator leads, and a job that a person has paused. Only
// names a list of jobs; empty is all of them, and one that isn't there is
// wrong.
func Wrong(jobs []coordinator.JobStatus, only []string) []string {
	var all []string
	for _, name := range only {
		if !slices.ContainsFunc(jobs, func(j coordinator.JobStatus) bool { return j.Name == name }) {
			all = append(all, fmt.Sprintf("job %q: there is none of that name", name))
		}
	}
	for _, j := range jobs {
		if len(only) > 0 && !slices.Contains(only, j.Name) {
			continue
		}
		switch j.Health.State {
		case coordinator.HealthOK, coordinator.HealthWaiting, coordinator.HealthStandby:
			if j.Overdue {
				all = append(all, fmt.Sprintf("job %q: no good checkpoint for longer than its schedule allows", j.Name))
			}
		default:
			all = append(all, fmt.Sprintf("job %q: %s", j.Name, j.Health.State))
		}
	}
	return all
}
