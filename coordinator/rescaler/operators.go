package rescaler

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"keyframe/coordinator/fault"
	"keyframe/coordinator/restore"
	"keyframe/rescale"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// home is where the parts of an operator state lie.
type home struct{ group, topic string }

// operators is what the base checkpoint says about operator state.
type operators struct {
	job    statebackend.Job
	known  statebackend.Known
	modes  map[string]snapshot.OperatorState // registered, by field
	states []rescale.State
	// homes and schemas are by field: where the parts lie, and the registry
	// entry of one of them.
	homes   map[string]home
	schemas map[string]string
	// otherSchemas counts the registry's entries that are of other keys.
	otherSchemas uint64
	keys         *summaries
	clash        error // parts of one state in two homes
}

// readOperators reads the operator section of the base and what its schema
// registry says about it.
func readOperators(ctx context.Context, src snapshot.ChunkSource, m *snapshot.Manifest, p Progress) (*operators, error) {
	job := statebackend.Job{Prefix: m.Identity.Prefix, Name: m.Identity.Job}
	o := &operators{job: job, modes: map[string]snapshot.OperatorState{},
		homes: map[string]home{}, schemas: map[string]string{}, keys: newSummaries(job)}
	var names []statebackend.StateName
	for _, s := range m.OperatorStates {
		o.modes[rescale.Field(s)] = s
		names = append(names, statebackend.StateName{Operator: s.Operator, Name: s.Name})
	}
	o.known = statebackend.NewKnown(names...)
	collector := rescale.NewCollector(m.OperatorStates, o.parse)
	meter := (&restore.Meter{Next: snapshot.Tee(&homing{o: o}, o.keys, collector), Phase: PhaseCollect, Progress: p}).Begin()
	err := snapshot.Walk(ctx, src, m, meter, snapshot.SectionOperator)
	if err = errors.Join(o.clash, err); err == nil {
		o.states, err = collector.States()
	}
	if err != nil {
		return nil, explain(err, "read the operator state of checkpoint %d", m.Checkpoint.ID)
	}
	meter.End()
	if err := o.readSchemas(ctx, src, m); err != nil {
		return nil, explain(err, "read the schema registry of checkpoint %d", m.Checkpoint.ID)
	}
	return o, nil
}

// parse is the rescale.Parse of this job: only registered states are told.
func (o *operators) parse(key []byte) (snapshot.OperatorState, int, bool) {
	s, p, ok := o.locate(key)
	return s, p.Partition, ok
}

func (o *operators) locate(key []byte) (snapshot.OperatorState, statebackend.Parsed, bool) {
	p, ok := statebackend.ParseKey(o.job, key, o.known)
	if !ok || p.Kind != statebackend.KindOperator {
		return snapshot.OperatorState{}, p, false
	}
	s, ok := o.modes[statebackend.OperatorField(p.Operator, p.Name)]
	return s, p, ok
}

// keyOf is the key of a new part.
func (o *operators) keyOf(s snapshot.OperatorState, subtask int) []byte {
	h := o.homes[rescale.Field(s)]
	return []byte(o.job.OperatorKey(h.group, h.topic, subtask, s.Operator, s.Name))
}

// homing learns from each key, existing or not, where its state's parts lie.
type homing struct{ o *operators }

var _ snapshot.Sink = (*homing)(nil)

// BeginKey refuses a state whose parts lie under two groups or topics: it
// can't be told where the new ones belong.
func (h *homing) BeginKey(k snapshot.Key) error {
	s, p, ok := h.o.locate(k.Name)
	if !ok {
		return nil // the collector refuses it, with the remedy
	}
	at, field := home{p.Group, p.Topic}, rescale.Field(s)
	if before, known := h.o.homes[field]; known && before != at {
		h.o.clash = fault.New(fault.Refused, "remove the parts that are left over",
			"operator state %s/%s has parts under group %q, topic %q and under group %q, topic %q",
			s.Operator, s.Name, before.group, before.topic, at.group, at.topic)
		return h.o.clash
	}
	h.o.homes[field] = at
	return nil
}

// Element is of no interest.
func (*homing) Element(snapshot.Element) error { return nil }

// Part is of no interest.
func (*homing) Part([]byte) error { return nil }

// EndKey is of no interest.
func (*homing) EndKey(snapshot.KeyEnd) error { return nil }

// readSchemas finds a registry entry for each operator state.
func (o *operators) readSchemas(ctx context.Context, src snapshot.ChunkSource, m *snapshot.Manifest) error {
	sink := &registryReader{name: o.job.Registry(), entry: func(field, value []byte) {
		if _, ok := o.keys.index[string(field)]; !ok {
			o.otherSchemas++
			return
		}
		if s, _, ok := o.locate(field); ok {
			o.schemas[rescale.Field(s)] = string(value)
		}
	}}
	return snapshot.Walk(ctx, src, m, sink, snapshot.SectionMeta)
}

// registryReader gives the entries of the registry; parts of one are joined.
type registryReader struct {
	name  string
	entry func(field, value []byte)

	open         bool
	field, value []byte
	left         uint64
}

var _ snapshot.Sink = (*registryReader)(nil)

// BeginKey opens the registry; other keys are passed over.
func (r *registryReader) BeginKey(k snapshot.Key) error {
	r.open = string(k.Name) == r.name
	return nil
}

// Element takes the first part of an entry.
func (r *registryReader) Element(e snapshot.Element) error {
	if !r.open {
		return nil
	}
	r.field, r.value = bytes.Clone(e.Field), r.value[:0]
	r.left = e.Size
	return r.Part(e.Value)
}

// Part takes the next bytes of an entry.
func (r *registryReader) Part(b []byte) error {
	if !r.open {
		return nil
	}
	r.value = append(r.value, b...)
	if r.left -= min(r.left, uint64(len(b))); r.left == 0 {
		r.entry(r.field, r.value)
	}
	return nil
}

// EndKey closes the key.
func (r *registryReader) EndKey(snapshot.KeyEnd) error {
	r.open = false
	return nil
}

// explain gives an error of package rescale or of a store its code.
func explain(err error, format string, args ...any) error {
	var disagree *rescale.DisagreeError
	switch {
	case errors.As(err, &disagree):
		return fault.Wrap(err, fault.Refused, "choose with --broadcast operator/name=subtask", format, args...)
	case errors.Is(err, rescale.ErrInput):
		return fault.Wrap(err, fault.Refused, "correct the operator state that is named", format, args...)
	}
	return restore.Fault(err, fault.Store, "%s", fmt.Sprintf(format, args...))
}
