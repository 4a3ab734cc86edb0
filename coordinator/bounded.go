package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"keyframe/coordinator/fault"
	"keyframe/statebackend"
)

// withinAttempt bounds a look at the state by lookTimeout, and by the timeout of
// the job's checkpoints where that is shorter: a state store that hangs must not
// keep an attempt that is due from its end. A second is left to it.
func (j *job) withinAttempt(ctx context.Context) (context.Context, context.CancelFunc) {
	limit, what := lookTimeout, "a look at the state takes at most"
	if t := time.Duration(j.config().Checkpoint.Timeout); t > 0 && t < limit {
		limit, what = max(t, time.Second), "checkpoint timeout of"
	}
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s %s: %w", what, limit, context.DeadlineExceeded))
}

// tickIsDue reports whether the schedule's time has come.
func (j *job) tickIsDue() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return !j.next.IsZero() && !j.paused && !j.next.After(j.c.opts.Now())
}

// unseenNow is why the state could not be looked at a moment ago, nil when it
// could: an attempt that begins now fails with it, and doesn't wait for the same
// once more.
func (j *job) unseenNow() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.health.State != HealthUnreachable {
		return nil
	}
	return j.blind
}

// lookBefore looks at the state ahead of an attempt, unless it is known that it
// can't be seen.
func (j *job) lookBefore(ctx context.Context, unseen error) (statebackend.Glimpse, error) {
	if unseen != nil {
		return statebackend.Glimpse{}, unseen
	}
	return j.lookNow(ctx)
}

// endedBy says of an operation that failed in the middle that its term had
// ended, and who leads now: whatever the call under way made of that.
func (j *job) endedBy(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if err == nil || cause == nil || !errors.Is(cause, statebackend.ErrNotLeader) || isUnreachable(cause) {
		return err
	}
	reason := cause
	var f *statebackend.FencedError
	if !errors.As(cause, &f) {
		if now := j.otherLeader(context.WithoutCancel(ctx)); now != nil {
			reason = fmt.Errorf("%w; %w", now, cause)
		}
	}
	// What it had found out so far is of no use any more: it is not the cause.
	hint := "ask the coordinator that leads the job; `coordinator job show` says which"
	if errors.As(reason, &f) {
		hint = leaderHint(f)
	}
	return &fault.Error{Code: fault.Refused, Hint: hint, Err: errors.Join(reason, err),
		Message: fmt.Sprintf("this coordinator was deposed while it was at work: %v (it had come to: %v)", reason, err)}
}
