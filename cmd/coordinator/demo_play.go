package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/examples/flights"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend"
)

// demo is one life of the flights job beside a coordinator.
type demo struct {
	app     *app
	backend statebackend.Backend
	lose    func(context.Context, statebackend.Job) error
	rate    int
	job     config.Job
	began   time.Time
	db      *bolt.DB
	c       *coordinator.Coordinator
	events  chan coordinator.Event

	mu       sync.Mutex
	done     int // records processed
	lastCP   uint64
	result   demoResult
	watchers []demoWatcher
}

// demoWatcher is told once when the condition holds.
type demoWatcher struct {
	records int    // processed at least
	after   uint64 // a checkpoint newer than this one, when withCP
	withCP  bool
	fire    func()
}

func newDemo(a *app, b statebackend.Backend, lose func(context.Context, statebackend.Job) error, rate int) *demo {
	began := time.Now()
	return &demo{app: a, backend: b, lose: lose, rate: rate, began: began,
		job: demoJob(fmt.Sprintf("%x", began.UnixNano())), events: make(chan coordinator.Event, 10000)}
}

var _ coordinator.Listener = (*demo)(nil)

// OnEvent implements coordinator.Listener.
func (d *demo) OnEvent(e coordinator.Event) {
	switch e.Kind {
	case coordinator.EventCheckpointCompleted:
		d.mu.Lock()
		d.lastCP = uint64(e.ID)
		d.result.Checkpoints++
		d.mu.Unlock()
		c := e.Checkpoint
		d.say("checkpoint %d: %s keys, %s elements, writers waited %.1f ms", c.ID, count(c.Keys), count(c.Elements), c.StallMs)
		d.check()
	case coordinator.EventStateLost, coordinator.EventRecoveryAttempt, coordinator.EventRecovered,
		coordinator.EventRecoveryFailed, coordinator.EventCheckpointFailed:
		d.say("%s", e.Message)
	}
	select {
	case d.events <- e:
	default: // nobody reads that far behind
	}
}

// say tells one step, as it happens.
func (d *demo) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := demoStep{AtMs: time.Since(d.began).Milliseconds(), Records: d.done, What: fmt.Sprintf(format, args...)}
	d.result.Steps = append(d.result.Steps, s)
	if !d.app.json {
		fmt.Fprintf(d.app.out, "%6.1fs %7s flights  %s\n", float64(s.AtMs)/1000, count(uint64(s.Records)), s.What)
	}
}

func (d *demo) open(ctx context.Context, path string) error {
	db, err := openStore(ctx, path)
	if err != nil {
		return err
	}
	d.db = db
	d.c = coordinator.New(coordinator.Options{
		Store: db, Journal: db.Journal(), Backend: d.backend, Jobs: []config.Job{d.job}, Listener: d, Poll: 200 * time.Millisecond,
	})
	d.say("20,000 flights of 2001 (US Bureau of Transportation Statistics); state at %s, checkpoints in %s", d.backend.Server(), path)
	if err := d.c.Start(ctx); err != nil {
		return errors.Join(err, db.Close())
	}
	return nil
}

// close ends the coordinator and removes the job's keys.
func (d *demo) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), demoLimit)
	defer cancel()
	return errors.Join(d.c.Stop(ctx), deleteJobKeys(ctx, d.backend, d.job.Key()), d.db.Close())
}

// play is the story.
func (d *demo) play(ctx context.Context) (demoResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, demoLimit, errors.New("the demo took too long"))
	defer cancel()
	for _, act := range []func(context.Context) error{d.actLoss, d.actRecovery, d.actRescale(3, 15000), d.actRescale(5, 0), d.prove} {
		if err := act(ctx); err != nil {
			return d.result, fault.Wrap(err, fault.Failed, "", "demo")
		}
	}
	d.result.DurationMs = time.Since(d.began).Milliseconds()
	return d.result, nil
}

// actLoss runs the job at its first parallelism, and loses everything in the
// middle, right after records that no checkpoint has.
func (d *demo) actLoss(ctx context.Context) error {
	d.say("the job starts at parallelism 2, max parallelism %d", d.job.MaxParallelism)
	d.result.Parallelism = append(d.result.Parallelism, 2)
	lost := make(chan error, 1)
	d.when(demoWatcher{records: 6500, withCP: true, fire: func() {
		d.say("ALL STATE IS LOST: the state store comes back empty")
		lost <- d.lose(ctx, d.job.Key())
	}})
	err := d.runJob(ctx, 2, false, 0)
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("interrupted: %w", err)
	}
	if !errors.Is(err, flights.ErrStateReplaced) {
		return fmt.Errorf("the job should have noticed that its state is gone: %w", err)
	}
	d.say("the job noticed that its state is gone, and stopped")
	return <-lost
}

// actRecovery waits until the coordinator has put the state back by itself,
// and runs on from there.
func (d *demo) actRecovery(ctx context.Context) error {
	e, err := d.await(ctx, coordinator.EventRecovered)
	if err != nil {
		return err
	}
	d.result.Recovered = uint64(e.ID)
	d.say("the job starts again from the positions of checkpoint %d", e.ID)
	return d.runJob(ctx, 2, true, 10500)
}

// actRescale changes the parallelism while the job stands, and runs on: until
// that many records are processed, or to the end for 0.
func (d *demo) actRescale(to, until int) func(context.Context) error {
	return func(ctx context.Context) error {
		op, err := d.c.Rescale(ctx, d.job.Name, coordinator.RescaleRequest{Parallelism: to})
		for fault.CodeOf(err) == fault.Busy { // the schedule's checkpoint is running
			if _, err := d.await(ctx, coordinator.EventCheckpointCompleted); err != nil {
				return err
			}
			op, err = d.c.Rescale(ctx, d.job.Name, coordinator.RescaleRequest{Parallelism: to})
		}
		if err != nil {
			return err
		}
		s, err := op.Wait(ctx)
		if err == nil && s.Error != nil {
			err = s.Error
		}
		if err != nil {
			return fmt.Errorf("rescale to %d: %w", to, err)
		}
		moved := 0
		for _, m := range s.Rescale.Moved {
			moved += m.End - m.Start + 1
		}
		d.say("rescaled from %d to %d: %d of %d key groups changed their subtask, operator state redistributed, epoch %d", s.Rescale.From, to, moved, d.job.MaxParallelism, s.Rescale.Epoch)
		d.result.Parallelism = append(d.result.Parallelism, to)
		return d.runJob(ctx, to, true, until)
	}
}

// runJob runs the flights job until the end, or until that many records are
// processed.
func (d *demo) runJob(ctx context.Context, parallelism int, again bool, until int) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if until > 0 {
		d.when(demoWatcher{records: until, fire: stop})
	}
	_, err := flights.Run(ctx, flights.Options{
		Store: d.backend, Job: d.job.Key(), Rule: d.job.Rule(), Parallelism: parallelism, Continue: again, Rate: d.rate,
		Progress: func(done, _ int) {
			d.mu.Lock()
			d.done = done
			d.mu.Unlock()
			d.check()
		},
	})
	return err
}

// when has fire called once, as soon as the condition holds.
func (d *demo) when(w demoWatcher) {
	d.mu.Lock()
	w.after = d.lastCP
	d.watchers = append(d.watchers, w)
	d.mu.Unlock()
}

func (d *demo) check() {
	d.mu.Lock()
	var fire []func()
	kept := d.watchers[:0]
	for _, w := range d.watchers {
		if d.done >= w.records && (!w.withCP || d.lastCP > w.after) {
			fire = append(fire, w.fire)
			continue
		}
		kept = append(kept, w)
	}
	d.watchers = kept
	d.mu.Unlock()
	for _, f := range fire {
		f()
	}
}

func (d *demo) await(ctx context.Context, kind coordinator.EventKind) (coordinator.Event, error) {
	for {
		select {
		case e := <-d.events:
			if e.Kind == kind {
				return e, nil
			}
		case <-ctx.Done():
			return coordinator.Event{}, fmt.Errorf("waiting for %s: %w", kind, context.Cause(ctx))
		}
	}
}

// prove counts the file in another way and compares every number.
func (d *demo) prove(ctx context.Context) error {
	d.say("the job is at the end of its source")
	o := flights.CheckOptions{Store: d.backend, Job: d.job.Key(), Rule: d.job.Rule(), Parallelism: 5}
	report, err := flights.Check(ctx, o)
	if err != nil {
		return err
	}
	busiest, err := flights.Busiest(ctx, o, 5)
	if err != nil {
		return err
	}
	r := &d.result
	r.Verified, r.Records, r.Airports = report.OK() && report.Complete, report.Records, report.Airports
	r.Checks, r.Differences, r.Busiest, r.Store = report.Checks, append([]string{}, report.Differences...), busiest, d.backend.Server()
	return nil
}
