package coordinator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/restore"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Back-off of a recovery's attempts: 1 s, 1.5 times longer each time, at most
// 60 s (Flink's exponential-delay defaults, without jitter: there is one actor).
const (
	backoffFirst  = time.Second
	backoffFactor = 1.5
	backoffMost   = time.Minute
)

// mismatchTries is how many attempts a checkpoint gets whose staged keys differ
// from it before the next older one is taken.
const mismatchTries = 3

// backoff is how long to wait after the n-th attempt, n from 1.
func backoff(n int) time.Duration {
	d := float64(backoffFirst) * math.Pow(backoffFactor, float64(n-1))
	return time.Duration(math.Min(d, float64(backoffMost)))
}

// recoveryState is a recovery under way; zero when there is none.
type recoveryState struct {
	since     time.Time
	attempts  int
	lastError string
	next      time.Time
	candidate snapshot.ID
	held      bool // the policy, or an identity, leaves it to a person
}

func (r recoveryState) status() *RecoveryStatus {
	if r.since.IsZero() {
		return nil
	}
	s := &RecoveryStatus{Since: r.since, Attempts: r.attempts, LastError: r.lastError, Candidate: r.candidate}
	if !r.next.IsZero() && !r.held {
		next := r.next
		s.NextTry = &next
	}
	return s
}

// recovered forgets a recovery once the state is there again.
func (j *job) recovered() {
	j.mu.Lock()
	j.recovery = recoveryState{}
	j.mu.Unlock()
}

// recover makes one attempt to put lost state back, when one is due.
func (j *job) recover(ctx context.Context) {
	now := j.c.opts.Now()
	j.mu.Lock()
	if j.recovery.since.IsZero() {
		j.recovery.since = now
	}
	r, spec, health := j.recovery, j.spec, j.health
	j.mu.Unlock()
	if r.held || now.Before(r.next) {
		return
	}
	why := heldBack(spec, health.State)
	if newer := j.leftToOthers(health.State); newer != "" {
		why = newer
	}
	if why != "" {
		j.mu.Lock()
		j.recovery.held, j.recovery.lastError = true, why
		j.mu.Unlock()
		j.c.emit(Event{Kind: EventRecoveryFailed, Job: spec.Name, Message: "nothing is restored by itself: " + why})
		return
	}
	op := j.c.newOperation(spec.Name, OpRecovery)
	var result restore.Result
	var err error
	j.execute(ctx, task{op: op, do: func(ctx context.Context, op *Operation) (func(*Status), error) {
		result, err = j.recoverOnce(ctx, op, r.attempts+1)
		err = j.endedBy(ctx, err)
		return func(s *Status) { s.Restore = &result }, err
	}})
	if err == nil && op.Status().State == OpDone {
		j.afterRecovery(ctx, result, r)
		return
	}
	j.keepUnresolved(err)
	j.recoveryFailed(op.Status().Error, r.attempts+1)
}

// heldBack says why lost state is left to a person, "" when it is not.
func heldBack(spec config.Job, h HealthState) string {
	switch {
	case h == HealthForeign:
		return "the state store holds another state in its place; restore by hand if that one may be replaced"
	case spec.Recovery.OnStateLoss == config.LossHold:
		return "recovery.onStateLoss is hold"
	}
	return ""
}

// recoverOnce restores the newest checkpoint that verifies; a corrupt one is
// marked bad, once, and the next older is taken, visibly.
func (j *job) recoverOnce(ctx context.Context, op *Operation, attempt int) (restore.Result, error) {
	spec := j.config()
	history, err := j.c.opts.Store.List(ctx, spec.Name)
	if err != nil {
		return restore.Result{}, fmt.Errorf("list checkpoints of %q: %w", spec.Name, err)
	}
	j.mu.Lock()
	flip := j.flip
	j.mu.Unlock()
	var refused *snapshot.Checkpoint
	for _, cp := range j.trusted(history, flip) {
		j.announce(cp, refused, attempt)
		op.expect(cp.Keys, cp.Elements, cp.Bytes)
		res, err := j.restorer().Run(ctx, restore.Request{Job: spec, Checkpoint: cp.ID, Recovery: true, SameServer: j.sameServer(), Epoch: j.knownEpoch()}, op.progress)
		if err == nil {
			return res, nil
		}
		// What can't be put in place again and again is no better than damaged.
		if !isCorrupt(err) && !(errors.Is(err, statebackend.ErrMismatch) && attempt >= mismatchTries) {
			return res, err
		}
		if err := j.markBad(ctx, cp, err); err != nil {
			return res, err
		}
		refused = &cp
	}
	if err := j.learn(ctx); err != nil { // what is bad is nobody's last good one
		return restore.Result{}, err
	}
	return restore.Result{}, fault.New(fault.NoCheckpoint, "if there is a copy elsewhere, restore from that", "job %q has no restorable checkpoint left", spec.Name)
}

// isCorrupt reports whether an error is damage of the checkpoint itself; the
// code corrupt alone may also mean the journal's.
func isCorrupt(err error) bool {
	return errors.Is(err, snapshot.ErrCorrupt) || errors.Is(err, snapshot.ErrNoChunk)
}

// firstOf is a copy of the first, nil when there is none.
func firstOf(all []snapshot.Checkpoint) *snapshot.Checkpoint {
	if len(all) == 0 {
		return nil
	}
	return &all[0]
}

func (j *job) announce(cp snapshot.Checkpoint, refused *snapshot.Checkpoint, attempt int) {
	now := j.c.opts.Now()
	j.mu.Lock()
	j.recovery.candidate = cp.ID
	j.mu.Unlock()
	if refused != nil {
		j.c.emit(Event{Kind: EventRecoveryFellBack, Job: cp.Job, ID: cp.ID, Attempt: attempt, Message: fmt.Sprintf(
			"checkpoint %d (%s old) is damaged; falling back to checkpoint %d (%s old)", refused.ID, age(*refused, now), cp.ID, age(cp, now))})
	}
	j.c.emit(Event{Kind: EventRecoveryAttempt, Job: cp.Job, ID: cp.ID, Attempt: attempt, Message: fmt.Sprintf(
		"recovery attempt %d: restoring checkpoint %d (%s old)", attempt, cp.ID, age(cp, now))})
}

func age(c snapshot.Checkpoint, now time.Time) time.Duration {
	return now.Sub(c.StartedAt).Round(time.Second)
}

// markBad marks a checkpoint as unrestorable, so that nothing tries it again.
func (j *job) markBad(ctx context.Context, cp snapshot.Checkpoint, cause error) error {
	why := cause.Error()
	if _, err := j.c.opts.Store.Edit(context.WithoutCancel(ctx), cp.Job, cp.ID, snapshot.Change{Bad: &why}); err != nil {
		return fmt.Errorf("mark checkpoint %d bad: %w", cp.ID, err)
	}
	j.c.emit(Event{Kind: EventCheckpointBad, Job: cp.Job, ID: cp.ID, Message: fmt.Sprintf("checkpoint %d can't be restored: %s", cp.ID, why)})
	return nil
}

func (j *job) afterRecovery(ctx context.Context, res restore.Result, r recoveryState) {
	now := j.c.opts.Now()
	j.mu.Lock()
	since := j.recovery.since
	j.recovery = recoveryState{}
	j.mu.Unlock()
	j.afterFlip(ctx, "recovery")
	j.c.emit(Event{Kind: EventRecovered, Job: res.Job, ID: res.Checkpoint, Attempt: r.attempts + 1, Restore: &res, Message: fmt.Sprintf(
		"state recovered from checkpoint %d: %d keys in %s", res.Checkpoint, res.Keys, now.Sub(since).Round(time.Millisecond))})
}

func (j *job) recoveryFailed(cause *fault.Error, attempt int) {
	wait := backoff(attempt)
	text := "the attempt was cut short"
	if cause != nil {
		text = cause.Message
	}
	j.mu.Lock()
	name := j.spec.Name
	j.recovery.attempts, j.recovery.lastError = attempt, text
	j.recovery.next = j.c.opts.Now().Add(wait)
	// A foreign identity or an empty history doesn't mend itself.
	j.recovery.held = cause != nil && (cause.Code == fault.NoCheckpoint || (cause.Code == fault.Refused && !errors.Is(cause, statebackend.ErrNoRoom)))
	held := j.recovery.held
	j.mu.Unlock()
	then := fmt.Sprintf("next try in %s", wait)
	if held {
		then = "it needs a person"
	}
	j.c.emit(Event{Kind: EventRecoveryFailed, Job: name, Attempt: attempt, Message: fmt.Sprintf("recovery attempt %d failed: %s; %s", attempt, text, then)})
}
