package rescale

import (
	"fmt"
	"slices"

	"keyframe/snapshot"
)

// Parse says which part of which operator state a key of the operator section
// is; ok is false when it can't be told. Names may hold any byte, so only
// somebody who knows the job's groups, topics and states can tell.
type Parse func(key []byte) (state snapshot.OperatorState, subtask int, ok bool)

// partID names a part: Field of its state, and the subtask.
type partID struct {
	field   string
	subtask int
}

// Collector is a Sink that takes the keys of a checkpoint and describes the
// operator states among them. It keeps no content, so its memory grows with
// the number of parts only. Keys of other sections and names that don't exist
// are passed over.
type Collector struct {
	parse  Parse
	states map[string]*State // by Field
	seen   map[partID][]byte // the key of each part
	err    error             // sticky

	// The key that is open. cur is nil while it is passed over.
	open   bool
	cur    *State
	key    snapshot.Key
	part   Part
	items  *ItemsDigest  // of a list or union
	fields *FieldsDigest // of a broadcast
}

var _ snapshot.Sink = (*Collector)(nil)

// NewCollector begins with the job's registered states, which are part of the
// outcome also when no subtask has a part of them. Of a state that parse gives
// and that is registered, only Operator and Name are looked at.
func NewCollector(registered []snapshot.OperatorState, parse Parse) *Collector {
	c := &Collector{parse: parse, states: map[string]*State{}, seen: map[partID][]byte{}}
	for _, s := range registered {
		c.states[Field(s)] = &State{OperatorState: s}
	}
	return c
}

// BeginKey begins a part. ErrInput for a key that can't be parsed, that has
// another type than its state's mode asks for, or that is the second one for
// a part.
func (c *Collector) BeginKey(k snapshot.Key) error {
	if c.err == nil && c.open {
		c.err = fmt.Errorf("%w: key %s begins before key %s has ended", ErrInput, quote(k.Name), quote(c.key.Name))
	}
	if c.err != nil {
		return c.err
	}
	c.open, c.cur = true, nil
	c.key = k
	c.key.Name = slices.Clone(k.Name)
	if passOver(k) {
		return nil
	}
	c.err = c.begin()
	return c.err
}

// passOver tells the keys that are no part of an operator state: those of
// other sections, and names of the index that don't exist.
func passOver(k snapshot.Key) bool {
	return k.Section != snapshot.SectionOperator || k.Type == snapshot.TypeMissing
}

func (c *Collector) begin() error {
	state, subtask, err := locate(c.parse, c.key)
	if err != nil {
		return err
	}
	id := partID{Field(state), subtask}
	if other, twice := c.seen[id]; twice {
		return fmt.Errorf("%w: %s/%s: keys %s and %s are both its part of subtask %d; remove the one that is left over",
			ErrInput, state.Operator, state.Name, quote(other), quote(c.key.Name), subtask)
	}
	st, known := c.states[id.field]
	if !known {
		st = &State{OperatorState: state}
		c.states[id.field] = st
	}
	if want := typeOf(st.Mode); c.key.Type != want {
		return fmt.Errorf("%w: %s/%s: key %s is a %s, and a state of mode %q is a %s",
			ErrInput, state.Operator, state.Name, quote(c.key.Name), c.key.Type, st.Mode, want)
	}
	c.seen[id] = c.key.Name
	c.cur, c.part = st, Part{Subtask: subtask, ExpireAt: c.key.ExpireAt}
	c.items, c.fields = nil, nil
	if st.Mode == snapshot.ModeBroadcast {
		c.fields = &FieldsDigest{}
		return nil
	}
	prefix := NoPrefix
	if st.Mode == snapshot.ModeUnion && st.Handed != nil {
		prefix = st.Handed.Length
	}
	c.items = NewItemsDigest(prefix)
	return nil
}

// locate parses the key of a part.
func locate(parse Parse, k snapshot.Key) (snapshot.OperatorState, int, error) {
	state, subtask, ok := parse(k.Name)
	if !ok {
		return state, 0, fmt.Errorf("%w: operator key %s belongs to no known state and subtask; register its state, or remove the key",
			ErrInput, quote(k.Name))
	}
	return state, subtask, nil
}

// typeOf is the Redis type of a part.
func typeOf(m snapshot.OperatorMode) snapshot.KeyType {
	if m == snapshot.ModeBroadcast {
		return snapshot.TypeHash
	}
	return snapshot.TypeList
}

// Element takes an item, or a field of a broadcast.
func (c *Collector) Element(e snapshot.Element) error {
	if c.err == nil && !c.open {
		c.err = fmt.Errorf("%w: an element comes without a key", ErrInput)
	}
	if c.err != nil || c.cur == nil {
		return c.err
	}
	var err error
	if c.fields != nil {
		err = c.fields.Begin(e.Field, e.Size)
	} else {
		err = c.items.Begin(e.Size)
	}
	if err != nil {
		return c.fail(err)
	}
	return c.Part(e.Value)
}

// Part takes the next bytes of the current element's value.
func (c *Collector) Part(b []byte) error {
	if c.err == nil && !c.open {
		c.err = fmt.Errorf("%w: part of a value comes without a key", ErrInput)
	}
	if c.err != nil || c.cur == nil {
		return c.err
	}
	var err error
	if c.fields != nil {
		_, err = c.fields.Write(b)
	} else {
		_, err = c.items.Write(b)
	}
	return c.fail(err)
}

// EndKey ends a part. A key that expired while it was read is as good as not
// there: a restore would drop it. ErrInput when the key has another number of
// elements than it was said to have.
func (c *Collector) EndKey(e snapshot.KeyEnd) error {
	if c.err == nil && !c.open {
		c.err = fmt.Errorf("%w: a key ends that never began", ErrInput)
	}
	if c.err != nil {
		return c.err
	}
	c.open = false
	if c.cur == nil || e.Expired {
		return nil
	}
	var err error
	if c.fields != nil {
		c.part.Length = c.fields.Fields()
		c.part.Digest, err = c.fields.Sum()
	} else {
		c.part.Length, c.part.Prefix = c.items.Items(), c.items.Prefix()
		c.part.Digest, err = c.items.Sum()
	}
	if err != nil {
		return c.fail(err)
	}
	if uint64(c.part.Length) != c.key.Count {
		return c.fail(fmt.Errorf("%w: it should have %d elements and has %d", ErrInput, c.key.Count, c.part.Length))
	}
	c.cur.Parts = append(c.cur.Parts, c.part)
	return nil
}

func (c *Collector) fail(err error) error {
	if err != nil {
		c.err = fmt.Errorf("operator key %s: %w", quote(c.key.Name), err)
	}
	return c.err
}

// States gives what was collected: states in the order of operator and name,
// parts in the order of subtasks, as Compute wants them. It returns the error
// that a call before it returned, and ErrInput while a key is open.
func (c *Collector) States() ([]State, error) {
	if c.err != nil {
		return nil, c.err
	}
	if c.open {
		return nil, fmt.Errorf("%w: key %s has not ended", ErrInput, quote(c.key.Name))
	}
	all := make([]State, 0, len(c.states))
	for _, st := range c.states {
		out := *st
		out.Parts = slices.Clone(st.Parts)
		slices.SortFunc(out.Parts, func(a, b Part) int { return a.Subtask - b.Subtask })
		all = append(all, out)
	}
	slices.SortFunc(all, func(a, b State) int { return compare(a.OperatorState, b.OperatorState) })
	return all, nil
}

// quote shortens a name for a message: names may be megabytes long.
func quote(name []byte) string {
	const most = 200
	if len(name) > most {
		return fmt.Sprintf("%q… (%d bytes)", name[:most], len(name))
	}
	return fmt.Sprintf("%q", name)
}
