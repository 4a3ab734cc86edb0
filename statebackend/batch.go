package statebackend

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
)

// Batch collects the writes of several handles and applies them in one atomic
// step: a job that puts the positions of its source and the state that follows
// from them in one batch is exactly-once with a cut of any grade.
//
//	b := statebackend.NewBatch(store)
//	ctx := statebackend.WithBatch(ctx, b)
//	... // handles called with ctx queue their writes
//	err := b.Commit(ctx)
//
// Reads see the store, not the batch. Writes whose result isn't known yet
// (SetState.Add and Remove) give false. Safe for concurrent use.
type Batch struct {
	store Store

	mu      sync.Mutex
	cmds    []Cmd
	checks  []batchCheck
	written map[registered]struct{}
}

// registered is a registration that a batch has queued.
type registered struct {
	h   *home
	key string
}

// batchCheck compares the replies from at on with what a handle registers.
type batchCheck struct {
	registered
	at int
}

// NewBatch gives an empty batch for handles on that store.
func NewBatch(store Store) *Batch { return &Batch{store: store} }

type batchKey struct{}

// WithBatch gives a context whose handle writes go into b.
func WithBatch(ctx context.Context, b *Batch) context.Context {
	return context.WithValue(ctx, batchKey{}, b)
}

func batchOf(ctx context.Context) *Batch {
	b, _ := ctx.Value(batchKey{}).(*Batch)
	return b
}

// Len is how many commands are queued, registrations included.
func (b *Batch) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.cmds)
}

// Discard drops what is queued.
func (b *Batch) Discard() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.take()
}

// Commit applies what is queued in one atomic step, in the order of the calls.
// The batch is empty afterwards, whatever the outcome: after ErrUnreachable
// nobody knows whether it was applied, so the caller reads its position again
// instead of committing twice. ErrSchema and ErrMode come when a registration
// changed since it was last read; the writes were done then.
func (b *Batch) Commit(ctx context.Context) error {
	b.mu.Lock()
	cmds, checks := b.take()
	b.mu.Unlock()
	if len(cmds) == 0 {
		return nil
	}
	replies, err := b.store.Do(ctx, cmds...)
	if err != nil {
		return fmt.Errorf("commit a batch of %d commands: %w", len(cmds), err)
	}
	var wrong []error
	for _, c := range checks {
		if err := c.h.fits(c.key, replies[c.at:]); err != nil {
			wrong = append(wrong, err)
		}
	}
	return errors.Join(wrong...)
}

func (b *Batch) take() ([]Cmd, []batchCheck) {
	cmds, checks := b.cmds, b.checks
	b.cmds, b.checks, b.written = nil, nil, nil
	return cmds, checks
}

// write queues commands on a key, before the first of them its registration.
func (b *Batch) write(h *home, key string, cmds []Cmd) error {
	if err := b.mine(h.space.Store); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r := registered{h, key}
	if _, done := b.written[r]; !done {
		if b.written == nil {
			b.written = make(map[registered]struct{})
		}
		b.written[r] = struct{}{}
		reg, at := h.registration(key)
		b.checks = append(b.checks, batchCheck{registered: r, at: len(b.cmds) + at})
		b.cmds = append(b.cmds, reg...)
	}
	b.cmds = append(b.cmds, cmds...)
	return nil
}

// add queues commands without a registration.
func (b *Batch) add(store Store, cmds []Cmd) error {
	if err := b.mine(store); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cmds = append(b.cmds, cmds...)
	return nil
}

func (b *Batch) mine(store Store) error {
	if reflect.TypeOf(store).Comparable() && store == b.store {
		return nil
	}
	return fmt.Errorf("%w: a batch is of one store, and this handle is on another", ErrUnsupported)
}
