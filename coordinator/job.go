package coordinator

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"keyframe/coordinator/config"
	"keyframe/coordinator/cut"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/schedule"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// task is an operation with what it does, waiting for the actor.
type task struct {
	op *Operation
	do func(ctx context.Context, op *Operation) (fill func(*Status), err error)
}

// job is one job's actor: run is its only goroutine, and everything that
// touches the job's state happens there, one thing at a time (I7).
type job struct {
	c     *Coordinator
	tasks chan task     // at most one waits
	wake  chan struct{} // the configuration has changed
	quit  chan struct{}
	once  sync.Once
	ended chan struct{}

	mu       sync.Mutex // guards what follows
	spec     config.Job
	schedule *schedule.Schedule // nil: on demand only
	paused   bool
	health   Health
	running  *Operation
	waiting  *Operation
	next     time.Time // of the schedule, zero when there is none
	skipped  uint64
	epoch    uint64
	parallel int
	last     *snapshot.Checkpoint // newest completed
	good     *snapshot.Checkpoint // newest restorable: completed and not found bad
	best     *snapshot.Checkpoint // what a recovery would begin with, nil when nothing can be restored
	failures uint64               // in a row
	recovery recoveryState
	newest   lineage
	flip     lineageRecord // the last flip
	server   string        // that was last seen to hold the job's state
	gen      uint64        // grows when the actor changes what learn reads
	undo     *undoRecord
	term     *term                // nil while this coordinator doesn't lead the job
	leader   *statebackend.Leader // who does then, as far as is known
	saw      sighting             // what the record last said, whoever led
	blind    error                // of the last look at the state
	footing  footing              // what the next checkpoint may stand on
	silence  silence              // since the last good checkpoint
	shrink   shrinking            // what it is compared with, and which are in doubt
	// yield asks a merge under way to end; nil when there is none.
	yield context.CancelCauseFunc
	// unresolved: the end of a restore is not known yet, since the state store
	// could not be asked. Nothing else is done before it is.
	unresolved bool

	examined atomic.Bool // a doctor is at it
}

// Health is how a job stands and since when.
type Health struct {
	State    HealthState `json:"state"`
	Message  string      `json:"message,omitempty"`
	Since    time.Time   `json:"since"`
	Warnings []string    `json:"warnings,omitempty"`
}

func newJob(c *Coordinator, spec config.Job, paused bool) (*job, error) {
	j := &job{
		c: c, paused: paused,
		tasks: make(chan task, 1), wake: make(chan struct{}, 1),
		quit: make(chan struct{}), ended: make(chan struct{}),
		health: Health{State: HealthStarting, Since: c.opts.Now()},
	}
	j.silence.since = j.health.Since
	if err := j.become(spec); err != nil {
		return nil, err
	}
	return j, nil
}

// become takes a new definition.
func (j *job) become(spec config.Job) error {
	var s *schedule.Schedule
	if spec.Checkpoint.Schedule != "" {
		parsed, err := schedule.Parse(spec.Checkpoint.Schedule)
		if err != nil {
			return fault.Wrap(err, fault.Config, "", "job %q", spec.Name)
		}
		s = &parsed
	}
	j.mu.Lock()
	if j.spec.Name != "" && (j.spec.Rule() != spec.Rule() || j.spec.Key() != spec.Key()) {
		j.footing.lose(cut.StateChanged("the job was applied with another layout"))
	}
	if j.spec.Name != "" && j.spec.Checkpoint.Schedule != spec.Checkpoint.Schedule {
		j.promiseAnewLocked()
	}
	j.spec, j.schedule = spec, s
	if j.parallel == 0 {
		j.parallel = spec.Parallelism
	}
	j.mu.Unlock()
	select {
	case j.wake <- struct{}{}:
	default:
	}
	return nil
}

// mayBecome refuses a definition that the job's state does not fit.
func (j *job) mayBecome(spec config.Job) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.newest.id == 0 {
		return nil
	}
	if j.spec.Prefix != spec.Prefix {
		return fault.New(fault.Refused, "apply it under another name, and restore into it with --as",
			"job %q has checkpoints of prefix %q: it can't become prefix %q", spec.Name, j.spec.Prefix, spec.Prefix)
	}
	if err := j.spec.Rule().SameLayout(spec.Rule()); err != nil {
		return fault.Wrap(err, fault.Refused, "key groups are fixed while state exists; changing them is rekeying", "job %q", spec.Name)
	}
	return nil
}

// stop ends the actor. Under the lock, so that a task is either handed in
// before, and ended by the actor, or refused.
func (j *job) stop() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.once.Do(func() { close(j.quit) })
	j.yieldLocked(errStopping)
}

func (j *job) key() statebackend.Job { return j.config().Key() }

func (j *job) config() config.Job {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.spec
}

func (j *job) isPaused() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.paused
}

func (j *job) setPaused(p bool) {
	j.mu.Lock()
	if j.paused && !p {
		j.promiseAnewLocked()
	}
	j.paused = p
	j.mu.Unlock()
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

func (j *job) current() *Operation {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.running != nil {
		return j.running
	}
	return j.waiting
}

func busy(job string, op *Operation) error {
	s := op.Status()
	return fault.New(fault.Busy, "try again when it has ended: `coordinator job show "+job+"`",
		"job %q is busy with %s %s", job, s.Kind, s.ID)
}

// submit hands a task to the actor. A checkpoint and an import may wait for
// another one to end; anything else is refused while the job is busy.
func (j *job) submit(kind OperationKind, do func(context.Context, *Operation) (func(*Status), error)) (*Operation, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case <-j.quit:
		return nil, fault.New(fault.Busy, "", "job %q is being stopped", j.spec.Name)
	default:
	}
	if j.waiting != nil {
		return nil, busy(j.spec.Name, j.waiting)
	}
	if j.running != nil && !(kind.queues() && j.running.Status().Kind.queues()) {
		return nil, busy(j.spec.Name, j.running)
	}
	op := j.c.newOperation(j.spec.Name, kind)
	j.waiting = op
	j.tasks <- task{op: op, do: do} // has room: nothing was waiting
	j.yieldLocked(errYield)
	return op, nil
}

func (k OperationKind) queues() bool { return k == OpCheckpoint || k == OpImport }

// run is the actor: it first settles what a crash may have left, then waits
// for the schedule, for tasks, and for the time to look at the state.
func (j *job) run(ctx context.Context) {
	defer close(j.ended)
	defer j.abdicate()
	defer j.refuseWaiting(fault.New(fault.Busy, "", "%v", errStopping))
	j.plan(j.c.opts.Now()) // it shows while the job is being settled
	j.guarded(func() { j.settle(ctx) })
	j.plan(j.c.opts.Now())
	look := time.NewTicker(j.c.opts.Poll)
	defer look.Stop()
	for {
		timer, stop := j.timer()
		select {
		case <-j.quit:
			stop()
			return
		default:
		}
		select {
		case <-j.quit:
			stop()
			return
		case t := <-j.tasks:
			j.execute(ctx, t)
			j.guarded(func() { j.merge(ctx) })
		case <-j.wake:
			j.plan(j.c.opts.Now())
		case <-timer:
			j.guarded(func() { j.tick(ctx) })
			j.guarded(func() { j.merge(ctx) })
		case <-look.C:
			if !j.tickIsDue() { // which looks first, and may have waited for this
				j.guarded(func() { j.watch(ctx) })
			}
		}
		stop()
	}
}

// guarded keeps a bug in one job from stopping the others.
func (j *job) guarded(f func()) {
	defer func() {
		if p := recover(); p != nil {
			j.c.emit(Event{Kind: EventJobPanicked, Job: j.config().Name, Message: fmt.Sprintf("panic: %v\n%s", p, debug.Stack())})
		}
	}()
	f()
}

// execute runs one task to its end.
func (j *job) execute(ctx context.Context, t task) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	j.mu.Lock()
	j.running, j.waiting = t.op, nil
	j.mu.Unlock()
	t.op.begin(j.c.opts.Now(), cancel)
	var fill func(*Status)
	err := fault.New(fault.Internal, "please report it with the log", "the operation panicked; the log has the stack")
	done := error(err)
	j.guarded(func() { fill, done = j.asLeader(ctx, t) })
	j.mu.Lock()
	j.running = nil
	j.mu.Unlock()
	t.op.finish(j.c.opts.Now(), done, fill)
}

// refuseWaiting ends the task that waits, if there is one.
func (j *job) refuseWaiting(why error) {
	select {
	case t := <-j.tasks:
		j.mu.Lock()
		j.waiting = nil
		j.mu.Unlock()
		t.op.finish(j.c.opts.Now(), why, nil)
	default:
	}
}

// timer fires at the schedule's next time.
func (j *job) timer() (<-chan time.Time, func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.next.IsZero() || j.paused {
		return nil, func() {}
	}
	t := time.NewTimer(j.next.Sub(j.c.opts.Now()))
	return t.C, func() { t.Stop() }
}

// plan sets the schedule's next time after now, not before the minimum pause
// since the last checkpoint is over.
func (j *job) plan(now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.next = time.Time{}
	if j.schedule == nil {
		return
	}
	j.next = j.schedule.Next(now)
	if j.last == nil || j.last.CompletedAt == nil {
		return
	}
	if free := j.last.CompletedAt.Add(time.Duration(j.spec.Checkpoint.MinPause)); free.After(j.next) && free.Sub(now) <= time.Duration(j.spec.Checkpoint.MinPause) {
		j.next = free
	}
}
