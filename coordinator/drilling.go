package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"keyframe/coordinator/drill"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/restore"
	"keyframe/coordinator/schedule"
	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// bucketDrills: root of a scratch job → JSON of scratchRecord. A record is
// there from before the first scratch key until the last is gone.
const bucketDrills = "drills"

// scratchRecord is what a drill that died may have left.
type scratchRecord struct {
	Job    statebackend.Job `json:"job"`
	Server string           `json:"server"`
}

// drills are restores on trial: beside the actors, one at a time for each job.
type drills struct {
	mu      sync.Mutex
	running map[string]*Operation
	active  map[string]bool      // roots of scratch jobs that are at work
	next    map[string]time.Time // of the schedules, by job
	spec    map[string]string    // the schedule that next is of
}

func newDrills() *drills {
	return &drills{running: map[string]*Operation{}, active: map[string]bool{}, next: map[string]time.Time{}, spec: map[string]string{}}
}

// runner is who makes drills of the coordinator's checkpoints.
func (c *Coordinator) runner() *drill.Runner {
	target := c.opts.DrillTarget
	if target == nil {
		target = c.opts.Backend
	}
	return &drill.Runner{Store: c.opts.Store, Target: target, Now: c.opts.Now, NewID: func() string { return randomID(8) }}
}

// drillsBeside reports whether drills are made in the jobs' own state store:
// only who leads a job writes there.
func (c *Coordinator) drillsBeside() bool {
	t := c.opts.DrillTarget
	return t == nil || t.Server() == c.opts.Backend.Server()
}

// endWithTerm lets a drill beside the job end with the term in which it began;
// its scratch keys are removed all the same.
func (c *Coordinator) endWithTerm(j *job, cancel context.CancelCauseFunc) (leave func() bool) {
	t := j.leading()
	if t == nil || !c.drillsBeside() {
		return func() bool { return true }
	}
	return context.AfterFunc(t.ctx, func() { cancel(context.Cause(t.ctx)) })
}

// Drill restores a checkpoint on trial: under a scratch job, whose keys are
// compared with the checkpoint and removed again. which is an id or a savepoint
// name, "" for the newest restorable one. Live keys are not touched, and the
// job's checkpoints go on meanwhile. The outcome stands with the checkpoint. In
// the job's own state store only its leader drills.
func (c *Coordinator) Drill(ctx context.Context, name, which string) (*Operation, error) {
	j, err := c.find(name)
	if err != nil {
		return nil, err
	}
	if c.drillsBeside() {
		if err := j.refuseStandby(ctx); err != nil {
			return nil, err
		}
	}
	cp, err := c.restorable(ctx, name, which)
	if err != nil {
		return nil, err
	}
	if !cp.Restorable() {
		why := string(cp.State)
		if cp.Bad != "" {
			why = "bad: " + cp.Bad
		}
		return nil, fault.New(fault.Refused, "`coordinator checkpoint list "+name+"` shows which can be restored", "checkpoint %d of job %q is %s", cp.ID, name, why)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, fault.New(fault.Busy, "", "%v", errStopping)
	}
	op, err := c.drills.begin(name, func() *Operation { return c.newOperation(name, OpDrill) })
	if err != nil {
		return nil, err
	}
	c.wg.Add(1)
	go c.runDrill(op, j, cp)
	return op, nil
}

// runDrill runs a drill to its end. It reads the store and writes scratch keys,
// so it needs no turn of the job's actor. A stop does not wait for it.
func (c *Coordinator) runDrill(op *Operation, j *job, cp snapshot.Checkpoint) {
	defer c.wg.Done()
	defer c.drills.end(cp.Job)
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.store.quit, func() { cancel(errStopping) })()
	defer c.endWithTerm(j, cancel)()
	op.begin(c.opts.Now(), cancel)
	res, err := c.drill(ctx, op, j, cp)
	if err != nil {
		err = Explain(err)
	}
	op.finish(c.opts.Now(), err, func(s *Status) { s.Drill = res })
}

func (d *drills) begin(job string, make func() *Operation) (*Operation, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if op := d.running[job]; op != nil {
		return nil, fault.New(fault.Busy, "try again when it has ended", "a drill of job %q is under way: %s", job, op.Status().ID)
	}
	op := make()
	d.running[job] = op
	return op, nil
}

func (d *drills) end(job string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.running, job)
}

// work keeps a scratch job from being swept until the drill has ended.
func (d *drills) work(scratch statebackend.Job) (end func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.active[scratch.Root()] = true
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.active, scratch.Root())
	}
}

func (d *drills) works(root string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.active[root]
}

// drill runs one, and writes down what it found.
func (c *Coordinator) drill(ctx context.Context, op *Operation, j *job, cp snapshot.Checkpoint) (*drill.Result, error) {
	spec := j.config()
	r := c.runner()
	scratch := drill.ScratchJob(spec.Key(), j.scratchID())
	defer c.drills.work(scratch)()
	if err := c.announce(ctx, r, scratch); err != nil {
		return nil, err
	}
	crashpoint.At(crashpoint.DrillNoted)
	op.expect(cp.Keys, cp.Elements, cp.Bytes)
	res, err := r.Run(ctx, drill.Request{Job: spec, Checkpoint: cp.ID, Scratch: scratch}, op.progress)
	if context.Cause(ctx) != nil && err != nil {
		// Stopped: that says nothing of the checkpoint. What it left goes at
		// the next look.
		return nil, fmt.Errorf("drill of checkpoint %d: %w", cp.ID, errors.Join(context.Cause(ctx), err))
	}
	if err == nil {
		res.Sources = c.sourceFindings(ctx, cp.Sources)
	}
	c.drilled(ctx, cp, res, err)
	crashpoint.At(crashpoint.DrillRecorded)
	if err != nil {
		return nil, err
	}
	err = c.opts.Journal.Delete(ctx, bucketDrills, scratch.Root())
	crashpoint.At(crashpoint.DrillEnded)
	return &res, err
}

// sourceFindings looks at the sources as they are now; that it can't is a
// finding too.
func (c *Coordinator) sourceFindings(ctx context.Context, positions []snapshot.Position) []string {
	all, err := restore.SourceFindings(ctx, c.opts.Backend, positions)
	if err != nil {
		return []string{"the sources could not be looked at: " + err.Error()}
	}
	return all
}

// announce writes down which scratch keys there will be.
func (c *Coordinator) announce(ctx context.Context, r *drill.Runner, scratch statebackend.Job) error {
	value, err := json.Marshal(scratchRecord{Job: scratch, Server: r.Target.Server()})
	if err != nil {
		return fmt.Errorf("note a drill: %w", err)
	}
	if err := c.opts.Journal.Put(ctx, bucketDrills, scratch.Root(), value); err != nil {
		return fmt.Errorf("note a drill: %w", err)
	}
	return nil
}

// outcome is what a drill found, as it stands with the checkpoint.
func (c *Coordinator) outcome(res drill.Result, cause error) snapshot.Drill {
	d := snapshot.Drill{At: res.StartedAt, OK: cause == nil && res.Equal, RestoreMs: res.RestoreMs, AgeMs: res.AgeMs, Server: res.Server}
	if d.At.IsZero() {
		d.At = c.opts.Now()
	}
	switch {
	case cause != nil:
		d.Message = cause.Error()
	case !res.Equal:
		first := res.Differences[0]
		d.Message = fmt.Sprintf("%d keys came back as something else, the first is %q: %s, and the checkpoint has %s", res.Differing, first.Key, first.Got, first.Want)
	}
	return d
}

// drilled records the outcome with the checkpoint, and tells it.
func (c *Coordinator) drilled(ctx context.Context, cp snapshot.Checkpoint, res drill.Result, cause error) {
	ctx = context.WithoutCancel(ctx)
	d := c.outcome(res, cause)
	e := Event{Kind: EventDrillPassed, Job: cp.Job, ID: cp.ID, Message: fmt.Sprintf(
		"drill of checkpoint %d: restored in %d ms, %d keys and %d elements equal; the cut was %d ms old", cp.ID, res.RestoreMs, res.Keys, res.Elements, res.AgeMs)}
	if n := len(res.Sources); n > 0 {
		e.Message += fmt.Sprintf("; %d findings about the sources, the first: %s", n, res.Sources[0])
	}
	if !d.OK {
		e.Kind, e.Message = EventDrillFailed, fmt.Sprintf("drill of checkpoint %d failed: %s", cp.ID, d.Message)
	}
	change := snapshot.Change{Drill: &d}
	if isCorrupt(cause) {
		change.Bad = &d.Message
	}
	if _, err := c.opts.Store.Edit(ctx, cp.Job, cp.ID, change); err != nil {
		e.Message += "; the outcome could not be written down: " + err.Error()
	}
	c.emit(e)
	if change.Bad == nil {
		return
	}
	c.emit(Event{Kind: EventCheckpointBad, Job: cp.Job, ID: cp.ID, Message: fmt.Sprintf("checkpoint %d can't be restored: %s", cp.ID, d.Message)})
	j, err := c.find(cp.Job)
	if err == nil { // its last good one may be another now
		err = j.learn(ctx)
	}
	if err != nil {
		c.emit(Event{Kind: EventRecordFailed, Job: cp.Job, ID: cp.ID, Message: "after the drill: " + err.Error()})
	}
}

// drillByItself makes the drills that are due, and removes what drills that
// died have left.
func (c *Coordinator) drillByItself() {
	defer c.wg.Done()
	tick := time.NewTicker(c.opts.Poll)
	defer tick.Stop()
	told := map[string]bool{} // scratch jobs whose removal failed
	swept, failed := map[string]uint64{}, map[string]uint64{}
	for {
		c.sweepScratch(told)
		c.sweepDead(swept, failed)
		for _, j := range c.Jobs() {
			if !j.Paused && c.drills.due(j.Name, j.Config.Drill.Schedule, c.opts.Now()) {
				if _, err := c.Drill(c.ctx, j.Name, ""); err != nil && !errors.Is(err, statebackend.ErrNotLeader) {
					c.emit(Event{Kind: EventDrillFailed, Job: j.Name, Message: "the drill that was due could not begin: " + err.Error()})
				}
			}
		}
		select {
		case <-tick.C:
		case <-c.store.quit.Done():
			return
		}
	}
}

// due tells whether a job's schedule has come, and if so sets its next time.
func (d *drills) due(job, spec string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spec[job] != spec {
		d.spec[job] = spec
		delete(d.next, job)
	}
	s, err := schedule.Parse(spec)
	if spec == "" || err != nil { // refused when it was applied
		return false
	}
	next, ok := d.next[job]
	if ok && now.Before(next) {
		return false
	}
	d.next[job] = s.Next(now)
	return ok
}

// sweepScratch removes scratch jobs that no drill of this process is at work
// on. What can't be removed now is tried at the next look; it is told once.
func (c *Coordinator) sweepScratch(told map[string]bool) {
	r := c.runner()
	err := c.opts.Journal.Each(c.ctx, bucketDrills, func(root string, value []byte) error {
		if c.drills.works(root) {
			return nil
		}
		err := c.removeScratch(r, value)
		if err == nil {
			return c.opts.Journal.Delete(c.ctx, bucketDrills, root)
		}
		if !told[root] {
			told[root] = true
			c.emit(Event{Kind: EventDrillFailed, Message: fmt.Sprintf("scratch keys %s:* of an earlier drill are left: %v", root, err)})
		}
		return nil
	})
	if err != nil && !told[""] {
		told[""] = true
		c.emit(Event{Kind: EventRecordFailed, Message: "look for what drills have left: " + err.Error()})
	}
}

func (c *Coordinator) removeScratch(r *drill.Runner, value []byte) error {
	var left scratchRecord
	if err := json.Unmarshal(value, &left); err != nil {
		return fmt.Errorf("the journal's note of it can't be read: %w", err)
	}
	if left.Server != r.Target.Server() {
		return fmt.Errorf("they are in %s, and drills are made in %s now: remove them by hand", left.Server, r.Target.Server())
	}
	ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
	defer cancel()
	return r.Remove(ctx, left.Job)
}
