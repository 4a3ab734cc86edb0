package rescale

import (
	"context"
	"fmt"

	"keyframe/snapshot"
)

// DefaultBudget is how many bytes of operator state an Execution keeps in
// memory at most, when it doesn't say otherwise.
const DefaultBudget = 32 << 20

// itemCost is about what an item takes in memory beside its bytes: two slice
// headers in a list that grows, and the rounding of two allocations.
const itemCost = 128

// Execution writes the operator state of a plan.
type Execution struct {
	// Replay pushes the operator section of the checkpoint into sink, always
	// the same keys with the same content in the same order (other sections
	// are passed over). It ends with the sink's error, if that gives one. It
	// is called at least once when there is anything to write, and again for
	// state that is larger than the budget.
	Replay func(ctx context.Context, sink snapshot.Sink) error
	// Parse is what the plan's states were collected with.
	Parse Parse
	// KeyOf gives the key of a new part; never the same for two of them.
	KeyOf func(state snapshot.OperatorState, subtask int) []byte
	// Epoch is what the handed-out unions are remembered with.
	Epoch uint64
	// Budget bounds memory in bytes; 0 is DefaultBudget.
	Budget int
}

// Write pushes every new part into out, in the order of states, then of
// subtasks: a key of the operator section with its type, count and expiry. A
// part without items is no key, since Redis has no empty lists and hashes. It
// returns the states of the plan as they are to be registered: unions with
// what was handed out.
//
// What is within the budget is read once and written from memory. If all of
// the operator state is over it, each state is read by itself; if one state is
// over it, its new keys are written straight from the replay, which is then
// repeated for each key, and for each of its old parts that the replay gives
// out of order. The outcome is the same.
//
// Errors: of Replay and out as they are, wrapped with the key; ErrInput when
// the replay doesn't hold what the plan was made from. After an error what out
// has taken is worthless.
func (x Execution) Write(ctx context.Context, plan Plan, out snapshot.Sink) ([]snapshot.OperatorState, error) {
	if x.Budget == 0 {
		x.Budget = DefaultBudget
	}
	all, err := x.load(ctx, plan.States)
	if err != nil {
		return nil, err
	}
	states := make([]snapshot.OperatorState, 0, len(plan.States))
	for _, st := range plan.States {
		parts := all
		if parts == nil && len(plan.States) > 1 {
			if parts, err = x.load(ctx, []NewState{st}); err != nil {
				return nil, err
			}
		}
		registered, err := x.writeState(ctx, st, parts, out)
		if err != nil {
			return nil, fmt.Errorf("write operator state %s/%s: %w", st.Operator, st.Name, err)
		}
		states = append(states, registered)
	}
	return states, nil
}

// writeState writes one state's keys, from parts or, when that is nil, from
// the replay. The digest of a union is taken of its first key: the others have
// the same slices.
func (x Execution) writeState(ctx context.Context, st NewState, parts map[partID]*loaded, out snapshot.Sink) (snapshot.OperatorState, error) {
	registered := st.OperatorState
	registered.Handed = nil
	var digest *ItemsDigest
	if st.Mode == snapshot.ModeUnion {
		digest = NewItemsDigest(NoPrefix)
	}
	for subtask, run := range st.New {
		if err := ctx.Err(); err != nil {
			return registered, err
		}
		if total(run) == 0 {
			continue
		}
		key := snapshot.Key{
			Section: snapshot.SectionOperator, Name: x.KeyOf(st.OperatorState, subtask),
			Type: typeOf(st.Mode), ExpireAt: st.ExpireAt, Count: uint64(total(run)),
		}
		m := &emitter{out: out}
		if subtask == 0 {
			m.digest = digest
		}
		if err := x.writeKey(ctx, m, key, st, run, parts); err != nil {
			return registered, fmt.Errorf("key %s: %w", quote(key.Name), err)
		}
	}
	if digest == nil {
		return registered, nil
	}
	sum, err := digest.Sum()
	registered.Handed = &snapshot.Handed{Epoch: x.Epoch, Length: digest.Items(), Digest: sum}
	return registered, err
}

func (x Execution) writeKey(ctx context.Context, m *emitter, key snapshot.Key, st NewState, run []Slice, parts map[partID]*loaded) error {
	if err := m.out.BeginKey(key); err != nil {
		return err
	}
	var err error
	if parts != nil {
		err = writeLoaded(m, Field(st.OperatorState), run, parts)
	} else {
		err = x.stream(ctx, m, Field(st.OperatorState), run)
	}
	if err != nil {
		return err
	}
	if m.items != key.Count {
		return fmt.Errorf("%w: %d elements were planned and %d written", ErrInput, key.Count, m.items)
	}
	return m.out.EndKey(snapshot.KeyEnd{})
}

// emitter passes elements on and counts them, and takes their digest where
// that is wanted.
type emitter struct {
	out    snapshot.Sink
	digest *ItemsDigest
	items  uint64
}

func (m *emitter) element(e snapshot.Element) error {
	m.items++
	if m.digest != nil {
		if err := m.digest.Begin(e.Size); err != nil {
			return err
		}
		if _, err := m.digest.Write(e.Value); err != nil {
			return err
		}
	}
	return m.out.Element(e)
}

func (m *emitter) part(b []byte) error {
	if m.digest != nil {
		if _, err := m.digest.Write(b); err != nil {
			return err
		}
	}
	return m.out.Part(b)
}
