package track

import (
	"context"
	"fmt"
	"math"
)

// noOffset is what wanted holds when no Barrier waits.
const noOffset = math.MaxInt64

// waiter is a Barrier that waits for an offset.
type waiter struct {
	offset int64
	wake   chan struct{} // closed when the offset is reached or the state has changed
}

// Barrier waits until the stream has been marked up to at.
func (w *fieldsWatch) Barrier(ctx context.Context, at Position) error {
	for {
		wait, err := w.t.await(w, at)
		if wait == nil || err != nil {
			return err
		}
		select {
		case <-wait.wake:
		case <-ctx.Done():
			w.t.give(wait)
			return fmt.Errorf("wait until the write stream of %s, which is at %d, reaches %d: %w",
				w.t.opts.Server, w.t.offset.Load(), at.Offset, context.Cause(ctx))
		}
	}
}

// await gives a waiter, or nil when at is reached.
func (t *fields) await(w *fieldsWatch, at Position) (*waiter, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch epoch, closed := w.state(); {
	case t.closed:
		return nil, t.ended()
	case closed:
		return nil, fmt.Errorf("watch of %q: %w", w.scope.prefix, ErrClosed)
	case !t.on:
		return nil, t.notAttached()
	case epoch != t.epoch:
		return nil, fmt.Errorf("%s: %w: attached anew since the marks were last taken", t.opts.Server, ErrLost)
	case at.ReplID != t.replID:
		return nil, fmt.Errorf("%s: %w: it follows the history %s, not %s", t.opts.Server, ErrLost, t.replID, at.ReplID)
	}
	wait := &waiter{offset: at.Offset, wake: make(chan struct{})}
	t.waiters[wait] = struct{}{}
	t.wanted.Store(min(t.wanted.Load(), at.Offset))
	// Asked after wanted is set: either this sees the offset, or the stream's
	// goroutine, which stores the offset first, sees that it is wanted.
	if t.offset.Load() >= at.Offset {
		t.drop(wait)
		return nil, nil
	}
	return wait, nil
}

// reached notes that all bytes up to offset are marked. Called for each
// command, so it takes the lock only when somebody waits for that.
func (t *fields) reached(offset int64) {
	t.offset.Store(offset)
	if offset < t.wanted.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for w := range t.waiters {
		if w.offset <= offset {
			close(w.wake)
			t.drop(w)
		}
	}
}

// drop forgets a waiter. Under the lock.
func (t *fields) drop(wait *waiter) {
	delete(t.waiters, wait)
	lowest := int64(noOffset)
	for w := range t.waiters {
		lowest = min(lowest, w.offset)
	}
	t.wanted.Store(lowest)
}

// give is drop for one who no longer waits.
func (t *fields) give(wait *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(wait)
}
