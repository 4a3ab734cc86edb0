package cut

import (
	"sort"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// mostStates bounds how many operator states are told apart; keys of further
// ones are counted as not parsed, so that strange names can't eat the memory.
const mostStates = 4096

// counter is a Sink in the middle: it counts keys, elements and logical bytes
// per operator state and per key group, and passes everything on.
type counter struct {
	snapshot.Sink
	job      statebackend.Job
	groups   int // max parallelism
	progress func(keys, elements, bytes uint64)

	states  map[stateKey]*snapshot.StateStats
	byGroup []snapshot.GroupStats

	counts   bool // the open key belongs to the index
	state    *snapshot.StateStats
	group    *snapshot.GroupStats
	elements uint64
	bytes    uint64

	keys, allElements, allBytes uint64
}

type stateKey struct {
	operator, name, typ string
}

func newCounter(next snapshot.Sink, job statebackend.Job, groups int, progress func(keys, elements, bytes uint64)) *counter {
	return &counter{Sink: next, job: job, groups: groups, progress: progress,
		states: map[stateKey]*snapshot.StateStats{}, byGroup: make([]snapshot.GroupStats, groups)}
}

// BeginKey implements snapshot.Sink.
func (c *counter) BeginKey(k snapshot.Key) error {
	c.state, c.group, c.elements, c.bytes = nil, nil, 0, 0
	c.counts = k.Type != snapshot.TypeMissing && (k.Section == snapshot.SectionKeyed || k.Section == snapshot.SectionOperator)
	if c.counts {
		c.place(k)
		c.bytes = uint64(len(k.Name))
	}
	return c.Sink.BeginKey(k)
}

// place finds what the key is counted under.
func (c *counter) place(k snapshot.Key) {
	p, ok := statebackend.ParseKey(c.job, k.Name, statebackend.Known{})
	key := stateKey{typ: k.Type.String()}
	if ok {
		key.operator, key.name = p.Operator, p.Name
	}
	if c.states[key] == nil && len(c.states) >= mostStates {
		key = stateKey{typ: key.typ}
	}
	if c.states[key] == nil {
		c.states[key] = &snapshot.StateStats{Operator: key.operator, State: key.name, Type: key.typ}
	}
	c.state = c.states[key]
	if ok && k.Section == snapshot.SectionKeyed && p.Partition < c.groups {
		c.group = &c.byGroup[p.Partition]
		c.group.Group = p.Partition
	}
}

// Element implements snapshot.Sink.
func (c *counter) Element(e snapshot.Element) error {
	if c.counts {
		c.elements++
		c.bytes += uint64(len(e.Field)) + e.Size
	}
	return c.Sink.Element(e)
}

// EndKey implements snapshot.Sink.
func (c *counter) EndKey(e snapshot.KeyEnd) error {
	if err := c.Sink.EndKey(e); err != nil {
		return err
	}
	if !c.counts {
		return nil
	}
	c.state.Keys++
	c.state.Elements += c.elements
	c.state.Bytes += c.bytes
	if c.group != nil {
		c.group.Keys++
		c.group.Elements += c.elements
		c.group.Bytes += c.bytes
	}
	c.keys++
	c.allElements += c.elements
	c.allBytes += c.bytes
	if c.progress != nil && c.keys%256 == 0 {
		c.progress(c.keys, c.allElements, c.allBytes)
	}
	return nil
}

// stateStats are the counts by operator, state and type.
func (c *counter) stateStats() []snapshot.StateStats {
	all := make([]snapshot.StateStats, 0, len(c.states))
	for _, s := range c.states {
		all = append(all, *s)
	}
	sort.Slice(all, func(a, b int) bool {
		x, y := all[a], all[b]
		switch {
		case x.Operator != y.Operator:
			return x.Operator < y.Operator
		case x.State != y.State:
			return x.State < y.State
		}
		return x.Type < y.Type
	})
	return all
}

// groupStats are the counts of the key groups that hold something.
func (c *counter) groupStats() []snapshot.GroupStats {
	var all []snapshot.GroupStats
	for _, g := range c.byGroup {
		if g.Keys > 0 {
			all = append(all, g)
		}
	}
	return all
}
