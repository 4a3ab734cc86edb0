package cut

import (
	"cmp"
	"maps"
	"slices"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// mostStates bounds how many operator states are told apart; keys of further
// ones are counted as not parsed, so that strange names can't eat the memory.
const mostStates = 4096

// noGroup is the group of a key that isn't keyed state.
const noGroup = ^uint16(0)

type stateKey struct {
	operator, name, typ string
}

// tally counts keys, elements and logical bytes: in all, per operator state
// and per key group. Rows go in and out, so that a checkpoint that brings only
// what has changed is counted from the one before.
type tally struct {
	job    statebackend.Job
	index  map[stateKey]uint16
	states []snapshot.StateStats
	groups []snapshot.GroupStats

	keys, missing, elements, bytes uint64
	estimated                      int // rows whose bytes are near the truth only
}

func newTally(job statebackend.Job, groups int) tally {
	return tally{job: job, index: map[stateKey]uint16{}, groups: make([]snapshot.GroupStats, groups)}
}

// clone gives a tally of the same counts that goes its own way.
func (t *tally) clone() tally {
	c := *t
	c.index, c.states, c.groups = maps.Clone(t.index), slices.Clone(t.states), slices.Clone(t.groups)
	return c
}

// place finds what a key is counted under.
func (t *tally) place(k snapshot.Key) (state, group uint16) {
	operator, name, partition, ok := statebackend.StateOf(t.job, k.Name)
	group = noGroup
	if ok && k.Section == snapshot.SectionKeyed && partition < len(t.groups) {
		group = uint16(partition)
	}
	// Strings are made of a state that is new, and not for each of its keys.
	if i, known := t.index[stateKey{string(operator), string(name), k.Type.String()}]; known {
		return i, group
	}
	return t.state(stateKey{string(operator), string(name), k.Type.String()}), group
}

func (t *tally) state(key stateKey) uint16 {
	if i, ok := t.index[key]; ok {
		return i
	}
	if len(t.states) >= mostStates && (key.operator != "" || key.name != "") {
		return t.state(stateKey{typ: key.typ}) // at most one of each type
	}
	i := uint16(len(t.states))
	t.index[key] = i
	t.states = append(t.states, snapshot.StateStats{Operator: key.operator, State: key.name, Type: key.typ})
	return i
}

// add counts a row in.
func (t *tally) add(r row) {
	if r.is(rowMissing) {
		t.missing++
		return
	}
	t.keys++
	t.elements += r.elements
	t.bytes += r.bytes
	if r.is(rowEstimated) {
		t.estimated++
	}
	s := &t.states[r.state]
	s.Keys++
	s.Elements += r.elements
	s.Bytes += r.bytes
	if r.group != noGroup {
		g := &t.groups[r.group]
		g.Group = int(r.group)
		g.Keys++
		g.Elements += r.elements
		g.Bytes += r.bytes
	}
}

// remove counts a row out that was counted in.
func (t *tally) remove(r row) {
	if r.is(rowMissing) {
		t.missing--
		return
	}
	t.keys--
	t.elements -= r.elements
	t.bytes -= r.bytes
	if r.is(rowEstimated) {
		t.estimated--
	}
	s := &t.states[r.state]
	s.Keys--
	s.Elements -= r.elements
	s.Bytes -= r.bytes
	if r.group != noGroup {
		g := &t.groups[r.group]
		g.Keys--
		g.Elements -= r.elements
		g.Bytes -= r.bytes
	}
}

// stateStats are the counts by operator, state and type of those that hold
// something.
func (t *tally) stateStats() []snapshot.StateStats {
	all := make([]snapshot.StateStats, 0, len(t.states))
	for _, s := range t.states {
		if s.Keys > 0 {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b snapshot.StateStats) int {
		return cmp.Or(cmp.Compare(a.Operator, b.Operator), cmp.Compare(a.State, b.State), cmp.Compare(a.Type, b.Type))
	})
	return all
}

// groupStats are the counts of the key groups that hold something.
func (t *tally) groupStats() []snapshot.GroupStats {
	var all []snapshot.GroupStats
	for _, g := range t.groups {
		if g.Keys > 0 {
			all = append(all, g)
		}
	}
	return all
}
