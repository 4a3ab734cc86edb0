package coordinator

import (
	"context"
	"strconv"
	"sync"
	"time"

	"keyframe/coordinator/drill"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/rescaler"
	"keyframe/coordinator/restore"
	"keyframe/snapshot"
)

// OperationKind is what an operation does.
type OperationKind string

// The kinds of operations.
const (
	OpCheckpoint OperationKind = "checkpoint"
	OpRestore    OperationKind = "restore"
	OpRescale    OperationKind = "rescale"
	OpUndo       OperationKind = "undo"
	OpRecovery   OperationKind = "recovery"
	OpVerify     OperationKind = "verify"
	OpDrill      OperationKind = "drill" // beside the job's actor
	OpUnmark     OperationKind = "unmark"
	OpAdopt      OperationKind = "adopt"
	OpCompact    OperationKind = "compact" // of the store; no job
	OpBackup     OperationKind = "backup"  // of the store; no job
	OpImport     OperationKind = "import"
)

// OperationState is where an operation stands.
type OperationState string

// The states. Done and failed are final.
const (
	OpQueued  OperationState = "queued"
	OpRunning OperationState = "running"
	OpDone    OperationState = "done"
	OpFailed  OperationState = "failed"
)

// Progress is how far an operation is. Totals are 0 when they aren't known;
// for a checkpoint they are those of the one before.
type Progress struct {
	Phase         string `json:"phase"`
	Keys          uint64 `json:"keys"`
	Elements      uint64 `json:"elements"`
	Bytes         uint64 `json:"bytes"`
	TotalKeys     uint64 `json:"totalKeys,omitempty"`
	TotalElements uint64 `json:"totalElements,omitempty"`
	TotalBytes    uint64 `json:"totalBytes,omitempty"`
}

// VerifyResult is what a verification found.
type VerifyResult struct {
	Job        string             `json:"job"`
	Checkpoint snapshot.ID        `json:"checkpoint"`
	OK         bool               `json:"ok"`
	Keys       uint64             `json:"keys"`
	Elements   uint64             `json:"elements"`
	Bytes      uint64             `json:"bytes"`
	Problems   []snapshot.Problem `json:"problems"`
	DurationMs int64              `json:"durationMs"`
}

// Status is an operation as it stands at one moment.
type Status struct {
	ID         string               `json:"id"`
	Job        string               `json:"job"`
	Kind       OperationKind        `json:"kind"`
	State      OperationState       `json:"state"`
	Progress   Progress             `json:"progress"`
	CreatedAt  time.Time            `json:"createdAt"`
	StartedAt  *time.Time           `json:"startedAt,omitempty"`
	EndedAt    *time.Time           `json:"endedAt,omitempty"`
	Error      *fault.Error         `json:"error,omitempty"`
	Checkpoint *snapshot.Checkpoint `json:"checkpoint,omitempty"`
	Restore    *restore.Result      `json:"restore,omitempty"`
	Rescale    *rescaler.Result     `json:"rescale,omitempty"`
	Verify     *VerifyResult        `json:"verify,omitempty"`
	Import     *ImportResult        `json:"import,omitempty"`
	Drill      *drill.Result        `json:"drill,omitempty"`
	// Of operations on the store, which have no job.
	Compact *snapshot.CompactResult `json:"compact,omitempty"`
	Backup  *snapshot.BackupResult  `json:"backup,omitempty"`
}

// Final reports whether the operation has ended.
func (s Status) Final() bool { return s.State == OpDone || s.State == OpFailed }

// Operation is a thing under way that a caller can follow. Safe for
// concurrent use.
type Operation struct {
	mu     sync.Mutex
	status Status
	done   chan struct{}
	cancel context.CancelCauseFunc
	killed error // asked to stop before it began
}

func newOperation(id, job string, kind OperationKind, now time.Time) *Operation {
	return &Operation{
		status: Status{ID: id, Job: job, Kind: kind, State: OpQueued, CreatedAt: now},
		done:   make(chan struct{}),
	}
}

// Status is the operation as it stands.
func (o *Operation) Status() Status {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.status
}

// Wait blocks until the operation has ended or ctx has, and gives the status
// as it is then. The error is the context's only.
func (o *Operation) Wait(ctx context.Context) (Status, error) {
	select {
	case <-o.done:
		return o.Status(), nil
	case <-ctx.Done():
		return o.Status(), context.Cause(ctx)
	}
}

func (o *Operation) begin(now time.Time, cancel context.CancelCauseFunc) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.status.State, o.status.StartedAt, o.cancel = OpRunning, &now, cancel
	if o.killed != nil {
		cancel(o.killed)
	}
}

func (o *Operation) abort(cause error) {
	o.mu.Lock()
	cancel := o.cancel
	o.killed = cause
	o.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
}

func (o *Operation) progress(phase string, keys, elements, bytes uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := &o.status.Progress
	p.Phase, p.Keys, p.Elements, p.Bytes = phase, keys, elements, bytes
}

func (o *Operation) expect(keys, elements, bytes uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := &o.status.Progress
	p.TotalKeys, p.TotalElements, p.TotalBytes = keys, elements, bytes
}

// finish ends the operation; fill sets its result.
func (o *Operation) finish(now time.Time, err error, fill func(*Status)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.status.Final() {
		return
	}
	o.status.EndedAt = &now
	o.status.State = OpDone
	if fill != nil {
		fill(&o.status)
	}
	if err != nil {
		o.status.State = OpFailed
		o.status.Error = Explain(err)
	}
	close(o.done)
}

// operations remembers the newest operations of all jobs.
type operations struct {
	mu    sync.Mutex
	byID  map[string]*Operation
	order []string
}

// rememberedOperations bounds the list; running ones are among the newest.
const rememberedOperations = 1000

func (l *operations) add(o *Operation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID == nil {
		l.byID = map[string]*Operation{}
	}
	id := o.Status().ID
	l.byID[id] = o
	l.order = append(l.order, id)
	for len(l.order) > rememberedOperations {
		delete(l.byID, l.order[0])
		l.order = l.order[1:]
	}
}

func (l *operations) get(id string) (*Operation, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o, ok := l.byID[id]
	return o, ok
}

func (l *operations) list(job string) []Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []Status
	for i := len(l.order) - 1; i >= 0; i-- {
		if s := l.byID[l.order[i]].Status(); job == "" || s.Job == job {
			all = append(all, s)
		}
	}
	return all
}

func (c *Coordinator) newOperation(job string, kind OperationKind) *Operation {
	id := "op-" + c.tag + "-" + strconv.FormatUint(c.seq.Add(1), 10)
	o := newOperation(id, job, kind, c.opts.Now())
	c.ops.add(o)
	return o
}

// Operation finds an operation by its id.
func (c *Coordinator) Operation(id string) (*Operation, error) {
	if o, ok := c.ops.get(id); ok {
		return o, nil
	}
	return nil, fault.New(fault.NoOperation, "operations are forgotten when the coordinator restarts", "no operation %q", id)
}

// Operations are the operations that are remembered, newest first; of one job
// when job isn't empty.
func (c *Coordinator) Operations(job string) []Status { return c.ops.list(job) }

// Abort asks a running operation to stop; it ends cleanly, with nothing half
// done, or finishes when it can't be stopped any more.
func (c *Coordinator) Abort(id string) error {
	o, err := c.Operation(id)
	if err != nil {
		return err
	}
	o.abort(fault.New(fault.Failed, "", "aborted on request"))
	return nil
}
