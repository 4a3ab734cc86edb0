package statebackend

import (
	"context"
	"fmt"
	"sync"

	"keyframe/snapshot"
)

// home is what every handle stands on: it registers keys and checks their
// registration.
//
// Each write goes out in one atomic call with the registration of its key
// (index, schema, for operator state the mode), so that a key is never without
// it: not after a FLUSHALL, nor after a restore of a checkpoint that is older
// than the key. The call also reads the registration back, so a schema that
// came from elsewhere meanwhile is noticed at once. Before the first write to
// a key the registration is compared without writing anything; each read
// compares it too.
type home struct {
	space  Space
	name   string
	schema string
	mode   snapshot.OperatorMode // "" for keyed state

	mu   sync.Mutex
	seen map[string]struct{} // keys whose registration fitted, as far as we know
}

// maxSeen bounds the memory of home.seen: when it is full it starts again,
// which costs one more round trip per key.
const maxSeen = 1 << 16

func newHome(space Space, name string, schema Schema) (*home, error) {
	if err := space.validate(); err != nil {
		return nil, fmt.Errorf("state %q: %w", name, err)
	}
	return &home{space: space, name: name, schema: schema.String(), seen: make(map[string]struct{})}, nil
}

// lookups are the commands that read a key's registration.
func (h *home) lookups(key string) []Cmd {
	cmds := []Cmd{Command(OpHGet, h.space.Job.Registry(), key)}
	if h.mode != "" {
		cmds = append(cmds, Command(OpHGet, h.space.Job.OperatorStates(), h.modeField()))
	}
	return cmds
}

// registration are the commands that register a key and read back what is
// registered; the replies from the given index on are those of lookups.
func (h *home) registration(key string) (cmds []Cmd, lookups int) {
	cmds = []Cmd{
		Command(OpSAdd, h.space.Job.Index(), key),
		Command(OpHSetNX, h.space.Job.Registry(), key, h.schema),
	}
	if h.mode != "" {
		// Only when it isn't there: the coordinator keeps more in it.
		cmds = append(cmds, Command(OpHSetNX, h.space.Job.OperatorStates(), h.modeField(), `{"mode":"`+string(h.mode)+`"}`))
	}
	return append(cmds, h.lookups(key)...), len(cmds)
}

func (h *home) modeField() string { return OperatorField(h.space.Scope.Operator, h.name) }

// fits compares what is registered (the replies of lookups) with ours.
func (h *home) fits(key string, replies []Reply) error {
	err := h.compare(key, replies)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		delete(h.seen, key)
		return err
	}
	if len(h.seen) >= maxSeen {
		clear(h.seen)
	}
	h.seen[key] = struct{}{}
	return nil
}

func (h *home) compare(key string, replies []Reply) error {
	if r := replies[0]; !r.Nil && string(r.Bytes) != h.schema {
		return fmt.Errorf("%w: state key %q is registered as %.200q and this handle wants %q: use the type and version it was written with, or delete the key and its registration",
			ErrSchema, key, r.Bytes, h.schema)
	}
	if h.mode == "" || replies[1].Nil {
		return nil
	}
	stored, err := DecodeOperatorState(h.modeField(), replies[1].Bytes)
	if err != nil {
		return err
	}
	if stored.Mode != h.mode {
		return fmt.Errorf("%w: state %q of operator %q is registered as %s and this handle wants %s: use the mode it was written with",
			ErrMode, h.name, h.space.Scope.Operator, stored.Mode, h.mode)
	}
	return nil
}

// check compares the registration of a key without writing.
func (h *home) check(ctx context.Context, key string) error {
	replies, err := h.space.Store.Do(ctx, h.lookups(key)...)
	if err != nil {
		return fmt.Errorf("read the registration of key %q: %w", key, err)
	}
	return h.fits(key, replies)
}

func (h *home) checkOnce(ctx context.Context, key string) error {
	h.mu.Lock()
	_, seen := h.seen[key]
	h.mu.Unlock()
	if seen {
		return nil
	}
	return h.check(ctx, key)
}

// read runs reading commands on one key and compares its registration in the
// same step.
func (h *home) read(ctx context.Context, key string, cmds ...Cmd) ([]Reply, error) {
	look := h.lookups(key)
	n := len(look)
	replies, err := h.space.Store.Do(ctx, append(look, cmds...)...)
	if err != nil {
		return nil, &KeyError{Key: []byte(key), Op: "read", Err: err}
	}
	return replies[n:], h.fits(key, replies[:n])
}

// each reads all elements of a key.
func (h *home) each(ctx context.Context, key string, t snapshot.KeyType, fn func(snapshot.Element) error) error {
	if err := h.check(ctx, key); err != nil {
		return err
	}
	if err := h.space.Store.Each(ctx, key, t, fn); err != nil {
		return &KeyError{Key: []byte(key), Op: "read", Err: err}
	}
	return nil
}

// write registers a key and runs commands on it in one step, or queues them in
// the context's batch: then there are no replies.
func (h *home) write(ctx context.Context, key string, cmds ...Cmd) ([]Reply, error) {
	if err := h.checkOnce(ctx, key); err != nil {
		return nil, err
	}
	if b := batchOf(ctx); b != nil {
		return nil, b.write(h, key, cmds)
	}
	reg, at := h.registration(key)
	n := len(reg)
	replies, err := h.space.Store.Do(ctx, append(reg, cmds...)...)
	if err != nil {
		return nil, &KeyError{Key: []byte(key), Op: "write", Err: err}
	}
	if err := h.fits(key, replies[at:n]); err != nil {
		return nil, fmt.Errorf("%w (the registration changed since it was last read, so this write was done)", err)
	}
	return replies[n:], nil
}

// remove runs commands that only take away: they register nothing.
func (h *home) remove(ctx context.Context, key string, cmds ...Cmd) ([]Reply, error) {
	if err := h.checkOnce(ctx, key); err != nil {
		return nil, err
	}
	if b := batchOf(ctx); b != nil {
		return nil, b.add(h.space.Store, cmds)
	}
	replies, err := h.space.Store.Do(ctx, cmds...)
	if err != nil {
		return nil, &KeyError{Key: []byte(key), Op: "write", Err: err}
	}
	return replies, nil
}
