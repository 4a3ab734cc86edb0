package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// lookTimeout bounds one look at a job's state.
const lookTimeout = 5 * time.Second

func isUnreachable(err error) bool {
	return errors.Is(err, statebackend.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded)
}

// settle ends what a crash may have left and learns the history. The actor
// does nothing else before: who asks meanwhile is told what it waits for.
func (j *job) settle(ctx context.Context) {
	for {
		err := j.settleOnce(ctx)
		if err == nil {
			return
		}
		j.setHealth(healthOf(err), err.Error(), nil)
		j.refuseWaiting(err)
		select {
		case <-j.quit:
			return
		case <-ctx.Done():
			return
		case <-time.After(j.c.opts.Poll):
		}
	}
}

func (j *job) settleOnce(ctx context.Context) error {
	if err := j.learn(ctx); err != nil {
		return err
	}
	if err := j.recall(ctx); err != nil {
		return err
	}
	// A job that there is something to lead of is led first: only a leader ends
	// what a crash left. Another one's is settled when it is taken over.
	if _, err := j.lookNow(ctx); errors.Is(err, statebackend.ErrNotLeader) {
		return nil
	} else if err != nil {
		return err
	}
	ctx, leave := j.underLease(ctx)
	defer leave()
	if err := j.resume(ctx); err != nil {
		return err
	}
	if err := j.learn(ctx); err != nil { // a resumed rescale may have added or removed one
		return err
	}
	j.watch(ctx)
	return nil
}

// learn reads the job's history: its newest completed checkpoint and what
// undo would restore. It may run beside the actor (after a deletion or a
// verification): what the actor has learned meanwhile counts.
func (j *job) learn(ctx context.Context) error {
	for {
		if done, err := j.learnOnce(ctx); done || err != nil {
			return err
		}
	}
}

// lately is the newest completed checkpoint, the newest that can be restored,
// and how many attempts failed since the former. Imports save nothing of what
// is live.
func lately(history []snapshot.Checkpoint) (last, good *snapshot.Checkpoint, failures uint64) {
	for i := len(history) - 1; i >= 0 && good == nil; i-- {
		cp := &history[i]
		if cp.Trigger == snapshot.TriggerImport {
			continue
		}
		switch {
		case cp.State == snapshot.StateFailed && last == nil:
			failures++
		case cp.State == snapshot.StateCompleted && last == nil:
			last = cp
		}
		if cp.Restorable() {
			good = cp
		}
	}
	return last, good, failures
}

func (j *job) learnOnce(ctx context.Context) (done bool, err error) {
	j.mu.Lock()
	name, gen := j.spec.Name, j.gen
	j.mu.Unlock()
	history, err := j.c.opts.Store.List(ctx, name)
	if err != nil {
		return false, fmt.Errorf("list checkpoints of %q: %w", name, storeTrouble(err))
	}
	last, good, failures := lately(history)
	newest, flip, err := j.readable(ctx, history)
	if err != nil {
		return false, err
	}
	undo, err := j.c.loadUndo(ctx, name)
	if err != nil {
		return false, err
	}
	server, _, err := j.c.opts.Journal.Get(ctx, bucketServer, name)
	if err != nil {
		return false, fmt.Errorf("address of the state of job %q: %w", name, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.gen != gen {
		return false, nil
	}
	j.last, j.good, j.newest, j.flip, j.failures, j.undo = last, good, newest, flip, failures, undo
	j.server = string(server)
	j.best = firstOf(recoverable(history, flip))
	j.shrink.learn(history, flip)
	if last != nil && j.epoch < last.Epoch {
		j.epoch, j.parallel = last.Epoch, last.Parallelism
	}
	return true, nil
}

// readable is the lineage of the newest completed checkpoint whose manifest
// can be read. Those that can't are marked bad, once, and told of.
func (j *job) readable(ctx context.Context, history []snapshot.Checkpoint) (lineage, lineageRecord, error) {
	name := j.config().Name
	for i := len(history) - 1; i >= 0; i-- {
		if history[i].State != snapshot.StateCompleted {
			continue
		}
		l, flip, err := j.c.lineage(ctx, name, &history[i])
		if err == nil || !isCorrupt(err) {
			return l, flip, err
		}
		if history[i].Bad == "" {
			if err := j.markBad(ctx, history[i], err); err != nil {
				return l, flip, err
			}
		}
	}
	return j.c.lineage(ctx, name, nil)
}

// watch looks at the state, and recovers it when it is lost and the job's
// policy says so.
func (j *job) watch(ctx context.Context) {
	if !j.resolve(ctx) {
		return
	}
	if _, err := j.lookNow(ctx); err != nil {
		if errors.Is(err, statebackend.ErrNotLeader) {
			j.recovered() // it is the leader's
		}
		return
	}
	j.mu.Lock()
	lost, paused := j.health.State, j.paused
	j.mu.Unlock()
	if j.leftToOthers(lost) != "" {
		j.abdicate()
	}
	switch {
	case !lost.Lost():
		j.recovered()
	case !paused:
		j.recover(ctx)
	}
}

// glance looks once and tells what that means; it writes nothing.
func (j *job) glance(ctx context.Context) (statebackend.Glimpse, verdict, error) {
	ctx, cancel := j.withinAttempt(ctx)
	defer cancel()
	spec := j.config()
	g, err := j.c.opts.Backend.Look(ctx, spec.Key())
	j.mu.Lock()
	newest := j.newest
	j.blind = err
	j.mu.Unlock()
	if err != nil {
		return g, verdict{}, err
	}
	v := j.missed(g, assess(g, newest, j.c.opts.Backend.Server()), newest)
	// Where another one leads, its store has them.
	others := g.Leader.ID != "" && g.Leader.ID != j.c.opts.Lease.Owner.ID
	if newest.id == 0 && g.Record.Checkpoint > 0 && !others {
		g.Warnings = append(g.Warnings, fmt.Sprintf("the state's record names checkpoint %d, and this store has none of the job: was its file lost or replaced?", g.Record.Checkpoint))
	}
	if v.health == HealthOK && g.Assigned != nil && (g.Assigned.MaxParallelism != spec.MaxParallelism || g.Assigned.Hash != spec.KeyGroups.Hash) {
		v.health = HealthMismatch
		v.message = fmt.Sprintf("the state is laid out for max parallelism %d and hash %s, the job's configuration says %d and %s",
			g.Assigned.MaxParallelism, g.Assigned.Hash, spec.MaxParallelism, spec.KeyGroups.Hash)
	}
	return g, v, nil
}

// lookNow looks once and sets the job's health by what it sees. Of a job that
// has state it takes the lead, where nobody else has it.
func (j *job) lookNow(ctx context.Context) (statebackend.Glimpse, error) {
	g, v, err := j.glance(ctx)
	if err == nil {
		j.compare(g)
	}
	if err == nil {
		err = j.givesWay(g)
	}
	// Who has the newer checkpoints is to find the lease free.
	if err == nil && j.leading() == nil && v.health != HealthWaiting && v.health != HealthMismatch && j.leftToOthers(v.health) == "" {
		if _, err = j.lead(ctx); err == nil {
			g, v, err = j.glance(ctx) // what a restore had left is gone now
		} else if errors.Is(err, statebackend.ErrNotLeader) {
			j.sight(g, v)
			j.seen(g)
			j.keepSeen(ctx)
		}
	}
	if err != nil {
		j.setHealth(healthOf(err), err.Error(), g.Warnings)
		return g, err
	}
	ctx, leave := j.underLease(ctx)
	defer leave()
	if err := j.mend(ctx, &g, v); err != nil {
		j.setHealth(healthOf(err), err.Error(), g.Warnings)
		return g, err
	}
	j.judged(ctx, g, v)
	return g, nil
}

// judged takes a look at the state for the job's health.
func (j *job) judged(ctx context.Context, g statebackend.Glimpse, v verdict) {
	j.sight(g, v)
	j.seen(g)
	j.keepSeen(ctx)
	if why := j.leftToOthers(v.health); why != "" {
		v.message += "; " + why
	}
	if v.health == HealthOK && j.newestID() != 0 {
		j.keepServer(ctx)
	}
	if err := j.c.storeErr(); v.health == HealthOK && err != nil {
		v.health, v.message = HealthStore, err.Error()
	}
	j.setHealth(v.health, v.message, slices.Concat(g.Warnings, j.warnings()))
}

// lostNow looks once beside the actor and tells whether there is state to lose.
// It writes nothing; what it sees shows in the job's health, unless somebody
// else leads. An error comes again, with its reason, when the state is needed.
func (j *job) lostNow(ctx context.Context) bool {
	g, v, err := j.glance(ctx)
	if err != nil {
		return false
	}
	if j.leading() != nil {
		j.setHealth(v.health, v.message, slices.Concat(g.Warnings, j.warnings()))
	}
	return v.health.Lost() || v.health == HealthWaiting
}

// mend writes what the record lacks.
func (j *job) mend(ctx context.Context, g *statebackend.Glimpse, v verdict) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if v.adopt {
		rec, err := j.adopt(ctx, *g)
		if err != nil {
			return err
		}
		g.Record = rec
	}
	if v.repair {
		// Not needed for the guard's verdict today, only for the next one.
		j.mu.Lock()
		newest, spec := j.newest, j.spec
		j.mu.Unlock()
		err := j.c.opts.Backend.Note(ctx, spec.Key(), g.Record.Incarnation, statebackend.Notes{Attempt: max(g.Record.Attempt, newest.attempt), Cut: newest.attempt})
		if err != nil {
			j.c.emit(Event{Kind: EventRecordFailed, Job: spec.Name, Message: "repair the record: " + err.Error()})
		}
	}
	return nil
}

// seen takes over what the state itself says of epoch and parallelism: after
// a rescale the configuration's parallelism is only where the job began.
func (j *job) seen(g statebackend.Glimpse) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if g.Record.Epoch > 0 {
		j.epoch = g.Record.Epoch
	}
	if g.Assigned != nil {
		j.parallel = g.Assigned.Parallelism
	}
}

func (j *job) adopt(ctx context.Context, g statebackend.Glimpse) (statebackend.Record, error) {
	spec := j.config()
	ranges, err := spec.Rule().Assign(spec.Parallelism)
	if err != nil {
		return statebackend.Record{}, fmt.Errorf("job %q: %w", spec.Name, err)
	}
	rec, err := j.c.opts.Backend.Adopt(ctx, spec.Key(), randomID(8), statebackend.Assignment{
		MaxParallelism: spec.MaxParallelism, Parallelism: spec.Parallelism, Hash: spec.KeyGroups.Hash, Ranges: ranges,
	})
	if err != nil {
		return rec, fmt.Errorf("adopt the state of job %q: %w", spec.Name, err)
	}
	crashpoint.At(crashpoint.StateAdopted)
	j.c.emit(Event{Kind: EventAdopted, Job: spec.Name, Message: fmt.Sprintf("state found at %s: %d names in the index, incarnation %s", j.c.opts.Backend.Server(), g.Indexed, rec.Incarnation)})
	return rec, nil
}

func healthOf(err error) HealthState {
	var store storeError
	switch {
	case errors.As(err, &store):
		return HealthStore
	case errors.Is(err, statebackend.ErrPermission), errors.Is(err, statebackend.ErrAuth), errors.Is(err, statebackend.ErrReadOnly):
		return HealthDenied
	case isUnreachable(err):
		return HealthUnreachable
	case errors.Is(err, statebackend.ErrNotLeader):
		return HealthStandby
	case errors.Is(err, statebackend.ErrMarked):
		return HealthMarked
	case errors.Is(err, statebackend.ErrDamaged), errors.Is(err, statebackend.ErrWrongType):
		return HealthDamaged
	}
	return HealthUnreachable
}

func (j *job) setHealth(state HealthState, message string, warnings []string) {
	j.mu.Lock()
	was := j.health
	if was.State == state {
		j.health.Message, j.health.Warnings = message, warnings
		j.mu.Unlock()
		return
	}
	j.health = Health{State: state, Message: message, Since: j.c.opts.Now(), Warnings: warnings}
	if was.State == HealthStandby {
		j.promiseAnewLocked()
	}
	name := j.spec.Name
	j.mu.Unlock()
	if state.Lost() && !was.State.Lost() {
		j.c.emit(Event{Kind: EventStateLost, Job: name, Health: state, Message: message})
	}
	text := string(was.State) + " → " + string(state)
	if message != "" {
		text += ": " + message
	}
	j.c.emit(Event{Kind: EventHealthChanged, Job: name, Health: state, Message: text})
}
