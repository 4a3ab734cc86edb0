package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/audit"
	"keyframe/coordinator/fault"
)

// Auditor writes down who changes what, before and after. A nil Auditor writes
// nothing; the daemon always has one. Safe for concurrent use.
type Auditor struct {
	log    *audit.Log
	failed func(error)
	wg     sync.WaitGroup // who follows operations, and the writer of notes

	mu    sync.Mutex
	plans map[planKey]seenPlan
	tired map[string]*muffled
	notes []audit.Entry // of the coordinator itself, to be written
	lost  int           // notes that there was no room for
	wake  chan struct{}
	quit  chan struct{}
	once  sync.Once
	now   func() time.Time
}

// Bounds of what an Auditor remembers.
const (
	maxNotes  = 10000
	maxPlans  = 1000
	planFresh = 15 * time.Minute
	// quiet is how long the same refusal is not written again, so that nobody
	// fills the disk with them.
	quiet = 10 * time.Second
)

// NewAuditor writes to a log, which it closes. failed (may be nil) is told of
// lines that could not be written after what they are about had happened; the
// next change is refused then, until the log can be written again.
func NewAuditor(log *audit.Log, failed func(error)) *Auditor {
	a := &Auditor{log: log, failed: failed, plans: map[planKey]seenPlan{}, tired: map[string]*muffled{},
		wake: make(chan struct{}, 1), quit: make(chan struct{}), now: time.Now}
	a.wg.Go(a.writeNotes)
	return a
}

// Check says whether changes can be written down.
func (a *Auditor) Check() error {
	if a == nil {
		return nil
	}
	return a.log.Check()
}

// Close waits until the ends of all operations are written, or ctx ends, and
// closes the log. The operations must have been ended. It gives the newest line.
func (a *Auditor) Close(ctx context.Context) (audit.Head, error) {
	a.once.Do(func() { close(a.quit) })
	done := make(chan struct{})
	go func() {
		a.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	head := a.log.Head()
	return head, a.log.Close()
}

// append writes a line about what has happened already.
func (a *Auditor) append(e audit.Entry) {
	if _, err := a.log.Append(e); err != nil && a.failed != nil {
		a.failed(err)
	}
}

// entry is a line about a request.
func (c *caller) entry(phase audit.Phase) audit.Entry {
	return audit.Entry{Phase: phase, Request: c.request, Principal: c.Name, By: c.By, Role: string(c.Role), Source: c.source,
		Action: c.action, Job: c.job, Params: c.params}
}

// describe notes what a request asks for.
func (c *caller) describe(ctx huma.Context) {
	op := ctx.Operation()
	c.action, c.job = op.OperationID, ctx.Param("job")
	params := map[string]any{}
	for _, p := range op.Parameters {
		v := ctx.Param(p.Name)
		if p.In == "query" {
			v = ctx.Query(p.Name)
		}
		if p.Name != "job" && v != "" {
			params[p.Name] = redact(v)
		}
	}
	var body any
	if len(c.body) > 0 && json.Unmarshal(c.body, &body) == nil {
		params["body"] = redact(body)
	}
	if len(params) > 0 {
		c.params = params
	}
}

// readings only read the state and the store, or copy what is in them elsewhere:
// with a log that can't be written, such as on a full disk, they are what saves
// checkpoints. Who asked is told to failed then.
var readings = map[string]bool{
	"verify-checkpoint": true, "store-verify": true, "export-checkpoint": true, "store-backup": true, "drill": true, "plan-restore-archive": true,
}

// begin writes down that a change is about to be made. An error refuses it.
func (a *Auditor) begin(c *caller) error {
	if a == nil || c == nil {
		return nil
	}
	e := c.entry(audit.PhaseBegin)
	e.Plan = a.planOf(c)
	_, err := a.log.Append(e)
	if err != nil && readings[c.action] {
		if a.failed != nil {
			a.failed(fmt.Errorf("%s by %q of job %q: %w", c.action, c.Name, c.job, err))
		}
		return nil
	}
	if err != nil {
		return fault.Wrap(err, fault.Store, "changes are refused while they can't be written down; see that the disk has room, and look at /readyz", "%s was not begun", c.action)
	}
	return nil
}

// end writes down how a change went: at once, and when it goes on as an
// operation again when that has ended.
func (a *Auditor) end(c *caller, out any, err error, find func(string) (*coordinator.Operation, error)) {
	if a == nil || c == nil {
		return
	}
	e := c.entry(audit.PhaseEnd)
	e.Params, e.Outcome = nil, audit.OutcomeDone
	if err != nil {
		e.Outcome, e.Error = audit.OutcomeFailed, coordinator.Explain(err).Message
		a.append(e)
		return
	}
	op, ok := out.(Operation)
	if !ok {
		a.append(e)
		return
	}
	e.Operation = op.ID
	running, findErr := find(op.ID)
	if c.action == abortAction || op.Final() || findErr != nil {
		a.append(outcome(e, op, c.action != abortAction))
		return
	}
	e.Outcome = audit.OutcomeAccepted
	a.append(e)
	a.wg.Go(func() {
		// It ends with the coordinator at the latest.
		s, _ := running.Wait(context.Background())
		a.append(outcome(e, s, true))
	})
}

// abortAction answers with the operation that it aborts, whose end belongs to
// whoever began it.
const abortAction = "abort-operation"

// outcome fills in how an operation ended.
func outcome(e audit.Entry, s Operation, own bool) audit.Entry {
	e.Outcome = audit.OutcomeDone
	if !own {
		return e
	}
	e.Plan = resultOf(s)
	if s.Error != nil {
		e.Outcome, e.Error = audit.OutcomeFailed, s.Error.Message
	}
	return e
}

// audited reports whether requests of a route are written down: those that
// more than a viewer may make, other than reads.
func audited(op *huma.Operation) bool {
	return op.Method != http.MethodGet && needOf(op) != viewer
}

// muffled counts refusals that were not written.
type muffled struct {
	since time.Time
	count int
}

// speak reports whether a refusal is written, and how many were not before it.
func (a *Auditor) speak(key string) (before int, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.tired[key]
	now := a.now()
	if m != nil && now.Sub(m.since) < quiet {
		m.count++
		return 0, false
	}
	if m != nil {
		before = m.count
	}
	a.tired[key] = &muffled{since: now}
	return before, true
}

// denied notes a request that the principal's role was not enough for.
func (a *Auditor) denied(c *caller, f *fault.Error) {
	if a == nil || c.request == "" {
		return
	}
	before, ok := a.speak(c.By + " " + c.Name + " " + c.action) // as many as there are tokens and routes
	if !ok {
		return
	}
	e := c.entry(audit.PhaseNote)
	e.Outcome, e.Error = audit.OutcomeDenied, f.Message
	a.append(skipped(e, before))
}

// unknown notes a request whose token or certificate is not known.
func (a *Auditor) unknown(r *http.Request) {
	if a == nil {
		return
	}
	before, ok := a.speak("")
	if !ok {
		return
	}
	e := audit.Entry{Phase: audit.PhaseNote, Principal: "unknown", By: "unknown", Source: r.RemoteAddr, Action: "authenticate", Outcome: audit.OutcomeDenied,
		Params: map[string]any{"method": r.Method, "path": r.URL.EscapedPath()}}
	a.append(skipped(e, before))
}

func skipped(e audit.Entry, before int) audit.Entry {
	if before > 0 {
		params := map[string]any{"notWrittenBefore": before}
		for k, v := range e.Params {
			params[k] = v
		}
		e.Params = params
	}
	return e
}
