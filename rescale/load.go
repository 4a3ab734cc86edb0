package rescale

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"keyframe/snapshot"
)

// item is one element in memory.
type item struct{ field, value []byte }

// loaded is the run of items of an old part that a plan uses: from ≤ i < to.
type loaded struct {
	from, to int
	items    []item
}

// errOverBudget stops a replay that doesn't fit into memory.
var errOverBudget = errors.New("over budget")

// loader is a Sink that keeps the items which a plan uses, while they fit.
type loader struct {
	parse  Parse
	parts  map[partID]*loaded
	budget uint64 // bytes left
	over   bool   // it didn't fit: the contents are worthless
	err    error  // sticky

	cur   *loaded // of the open key, nil when nothing of it is wanted
	index int     // of the current element
	left  uint64  // bytes of the current element that are still to come
	keep  bool    // the current element is wanted
}

var _ snapshot.Sink = (*loader)(nil)

// load reads what the states need. It returns nil, and no error, when that is
// more than the budget.
func (x Execution) load(ctx context.Context, states []NewState) (map[partID]*loaded, error) {
	l := &loader{parse: x.Parse, parts: map[partID]*loaded{}, budget: uint64(max(x.Budget, 0))}
	for _, st := range states {
		for _, run := range st.New {
			for _, s := range run {
				l.want(partID{Field(st.OperatorState), s.Subtask}, s)
			}
		}
	}
	if len(l.parts) == 0 {
		return l.parts, nil
	}
	err := x.Replay(ctx, l)
	switch {
	case l.over:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read operator state: %w", err)
	case l.err != nil: // a replay that swallowed it
		return nil, fmt.Errorf("read operator state: %w", l.err)
	}
	return l.parts, nil
}

func (l *loader) want(id partID, s Slice) {
	p, known := l.parts[id]
	if !known {
		l.parts[id] = &loaded{from: s.From, to: s.To}
		return
	}
	p.from, p.to = min(p.from, s.From), max(p.to, s.To)
}

func (l *loader) BeginKey(k snapshot.Key) error {
	l.cur, l.index, l.left, l.keep = nil, -1, 0, false
	if l.err != nil || passOver(k) {
		return l.err
	}
	state, subtask, err := locate(l.parse, k)
	if err != nil {
		l.err = err
		return l.err
	}
	l.cur = l.parts[partID{Field(state), subtask}]
	if l.cur != nil && l.cur.items != nil {
		l.err = fmt.Errorf("%w: key %s is the second one for its part", ErrInput, quote(k.Name))
	}
	return l.err
}

func (l *loader) Element(e snapshot.Element) error {
	if l.err != nil || l.cur == nil {
		return l.err
	}
	if l.complete() != nil {
		return l.err
	}
	l.index++
	if l.keep = l.index >= l.cur.from && l.index < l.cur.to; !l.keep {
		return nil
	}
	// The budget is looked at before memory is taken: e.Size is what somebody
	// wrote into a checkpoint.
	need := uint64(itemCost + len(e.Field))
	if e.Size > l.budget || need > l.budget-e.Size {
		l.over, l.err = true, errOverBudget
		return l.err
	}
	l.budget -= need + e.Size
	l.left = e.Size
	l.cur.items = append(l.cur.items, item{field: slices.Clone(e.Field), value: make([]byte, 0, e.Size)})
	return l.Part(e.Value)
}

func (l *loader) Part(b []byte) error {
	if l.err != nil || l.cur == nil || !l.keep {
		return l.err
	}
	if uint64(len(b)) > l.left {
		l.err = fmt.Errorf("%w: an element is %d bytes longer than it was said to be", ErrInput, uint64(len(b))-l.left)
		return l.err
	}
	l.left -= uint64(len(b))
	last := &l.cur.items[len(l.cur.items)-1]
	last.value = append(last.value, b...)
	return nil
}

func (l *loader) EndKey(snapshot.KeyEnd) error {
	if l.err == nil && l.cur != nil {
		l.err = l.complete()
	}
	l.cur = nil
	return l.err
}

// complete is called where the current element must have come whole.
func (l *loader) complete() error {
	if l.left > 0 {
		l.err = fmt.Errorf("%w: an element lacks %d bytes", ErrInput, l.left)
	}
	return l.err
}

// writeLoaded writes the elements of a new part from memory.
func writeLoaded(m *emitter, field string, run []Slice, parts map[partID]*loaded) error {
	for _, s := range run {
		p := parts[partID{field, s.Subtask}]
		if have := p.from + len(p.items); s.To > have {
			return fmt.Errorf("%w: items %d to %d of subtask %d were planned, and the checkpoint has them up to %d",
				ErrInput, s.From, s.To, s.Subtask, have)
		}
		for _, it := range p.items[s.From-p.from : s.To-p.from] {
			if err := writeItem(m, it); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeItem(m *emitter, it item) error {
	first := it.value[:min(len(it.value), snapshot.MaxPart)]
	e := snapshot.Element{Field: it.field, Size: uint64(len(it.value)), Value: first}
	if err := m.element(e); err != nil {
		return err
	}
	for rest := it.value[len(first):]; len(rest) > 0; {
		part := rest[:min(len(rest), snapshot.MaxPart)]
		if err := m.part(part); err != nil {
			return err
		}
		rest = rest[len(part):]
	}
	return nil
}
