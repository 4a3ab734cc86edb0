package flights

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"keyframe/keygroups"
	"keyframe/statebackend"
)

// Sentinels that callers decide on; Run wraps them with what it found.
var (
	// ErrStart: the state as it lies in the store can't be continued from.
	ErrStart = errors.New("can't start from the state in the store")
	// ErrStateReplaced: the state under the running job was lost, restored or
	// rescaled. The job must be started again once the coordinator is done.
	ErrStateReplaced = errors.New("the job's state was replaced while it ran")
)

// Options say what Run runs. Store, Job, Rule and Parallelism must be given.
type Options struct {
	Store       statebackend.Store
	Job         statebackend.Job
	Rule        keygroups.Rule
	Parallelism int

	Partitions int // of the source, 8 when 0; fixed while state exists
	// Threshold is the delay in minutes over which a flight is late, 15 when
	// 0. It counts at a fresh start only; then the broadcast state says it.
	Threshold int
	// Continue refuses to start afresh where no state is: for a restart,
	// which must not begin at 0 because a restore isn't done yet.
	Continue bool
	// Rate is how many records are processed per second by all subtasks
	// together; 0 is no limit.
	Rate int
	// Limit stops the job after that many records; 0 is no limit.
	Limit int
	// Progress, when set, is called after each record, by one goroutine at a
	// time: done counts from the beginning of the source, all is its length.
	Progress func(done, all int)
}

// Summary is what a run did.
type Summary struct {
	Fresh     bool // it began at 0
	Processed int  // records of this run
	Done      int  // records since the beginning of the source
	All       int  // records of the source
	Finished  bool // Done == All
}

// DefaultPartitions and DefaultThreshold are what Options with zeros mean.
const (
	DefaultPartitions = 8
	DefaultThreshold  = 15
)

// inFlight is how long a record that has been begun may take when the job is
// stopped. The store's own timeouts are shorter.
const inFlight = time.Minute

// Run runs the job until the source is at its end, Limit is reached or ctx is
// done, all of which are no error. It stops between records: what has been
// begun is committed.
//
// Each record is committed in one batch with the position of its partition, so
// the store never shows one without the other: a restart, or a restore of any
// checkpoint, continues without losing or repeating a record. Without any
// state the job begins at 0, otherwise where the store says, also after the
// parallelism was changed by a rescale.
//
// Errors: ErrStart, ErrStateReplaced, and what the store gives; after each of
// them another Run continues from what the store holds.
func Run(ctx context.Context, o Options) (Summary, error) {
	j, err := newJob(o)
	if err != nil {
		return Summary{}, err
	}
	plan, err := j.start(ctx)
	if err != nil {
		return Summary{}, fmt.Errorf("flights job %q: %w", o.Job.Name, err)
	}
	all := len(j.source.records)
	j.summary = Summary{Fresh: plan.fresh, Done: plan.done, All: all, Finished: plan.done == all}
	if err := j.run(ctx, plan); err != nil {
		return j.summary, fmt.Errorf("flights job %q: %w", o.Job.Name, err)
	}
	return j.summary, nil
}

// job is one run.
type job struct {
	Options
	source source
	keyed  keyed
	parts  []parts // by subtask
	pace   *pace

	mu      sync.Mutex // guards what follows, and calls of Progress
	claimed int
	summary Summary
}

func newJob(o Options) (*job, error) {
	if o.Partitions == 0 {
		o.Partitions = DefaultPartitions
	}
	if o.Threshold == 0 {
		o.Threshold = DefaultThreshold
	}
	if o.Partitions < 1 || o.Rate < 0 || o.Limit < 0 {
		return nil, fmt.Errorf("flights job: %d partitions, rate %d, limit %d: want at least 1, 0 and 0", o.Partitions, o.Rate, o.Limit)
	}
	if err := o.Rule.Validate(o.Parallelism); err != nil {
		return nil, fmt.Errorf("flights job: %w", err)
	}
	records, err := Records()
	if err != nil {
		return nil, err
	}
	j := &job{Options: o, source: source{records, o.Partitions}, pace: newPace(o.Rate)}
	if j.keyed, err = openKeyed(o.Store, o.Job, o.Rule); err != nil {
		return nil, err
	}
	for s := range o.Parallelism {
		p, err := openParts(o.Store, o.Job, s)
		if err != nil {
			return nil, err
		}
		j.parts = append(j.parts, p)
	}
	return j, nil
}

// run runs a reader and an owner for each subtask: readers read the subtask's
// partitions, owners keep the state of the subtask's key groups.
func (j *job) run(ctx context.Context, plan plan) error {
	owners, owning := errgroup.WithContext(ctx)
	readers, reading := errgroup.WithContext(owning)
	inbox := make([]chan delivery, j.Parallelism)
	for s := range inbox { // all of them before the first reader looks for one
		inbox[s] = make(chan delivery)
	}
	for s := range inbox {
		o := &owner{job: j, threshold: plan.threshold, identity: plan.identity}
		owners.Go(func() error { return o.run(inbox[s]) })
		r := &reader{job: j, subtask: s, positions: plan.positions[s], inbox: inbox}
		readers.Go(func() error { return r.run(reading) })
	}
	owners.Go(func() error {
		err := readers.Wait()
		for _, in := range inbox {
			close(in)
		}
		return err
	})
	return owners.Wait()
}

// claim asks for one more record of this run.
func (j *job) claim() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.Limit > 0 && j.claimed >= j.Limit {
		return false
	}
	j.claimed++
	return true
}

// committed counts a record.
func (j *job) committed() {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := &j.summary
	s.Processed++
	s.Done++
	s.Finished = s.Done == s.All
	if j.Progress != nil {
		j.Progress(s.Done, s.All)
	}
}
