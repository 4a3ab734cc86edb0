package rescaler

import (
	"context"
	"maps"
	"slices"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// meta writes the job's bookkeeping as it is after the rescale: the registry
// without the old operator keys and with the new ones, the operator state
// modes, the assignment, and whatever else there is as it was.
type meta struct {
	job        statebackend.Job
	old        map[string]struct{} // operator keys of the base
	stay       uint64              // entries of the registry that do
	schemas    map[string]string   // entries of the new operator keys
	modes      map[string][]byte
	assignment []byte
	out        snapshot.Sink

	mode     metaMode // of the key under way
	skip     bool     // the entry under way is dropped
	registry bool     // the base has one
}

// metaMode says what becomes of a key.
type metaMode uint8

const (
	metaCopy metaMode = iota
	metaDrop
	metaFilter // the registry
)

func (r *ready) newMeta(b *built, out snapshot.Sink) (*meta, error) {
	m := &meta{job: r.ops.job, old: r.ops.keys.index, stay: r.ops.otherSchemas,
		schemas: b.schemas, modes: map[string][]byte{}, out: out}
	for _, s := range b.states {
		text, err := statebackend.EncodeOperatorMode(s)
		if err != nil {
			return nil, err
		}
		m.modes[statebackend.OperatorField(s.Operator, s.Name)] = text
	}
	var err error
	m.assignment, err = statebackend.EncodeAssignment(*r.assignment(r.base.KeyGroups))
	return m, err
}

// write pushes the base's meta section through, and then what is new.
func (m *meta) write(ctx context.Context, src snapshot.ChunkSource, base *snapshot.Manifest) error {
	if err := snapshot.Walk(ctx, src, base, m, snapshot.SectionMeta); err != nil {
		return err
	}
	if !m.registry {
		if err := m.hash(m.job.Registry(), asBytes(m.schemas)); err != nil {
			return err
		}
	}
	if err := m.hash(m.job.OperatorStates(), m.modes); err != nil {
		return err
	}
	return m.key(m.job.Assignment(), snapshot.TypeString, []snapshot.Element{whole(nil, m.assignment)})
}

func asBytes(texts map[string]string) map[string][]byte {
	all := make(map[string][]byte, len(texts))
	for k, v := range texts {
		all[k] = []byte(v)
	}
	return all
}

func whole(field, value []byte) snapshot.Element {
	return snapshot.Element{Field: field, Size: uint64(len(value)), Value: value}
}

func (m *meta) hash(name string, fields map[string][]byte) error {
	return m.key(name, snapshot.TypeHash, elements(fields))
}

// elements are the fields of a hash in order: the same plan gives the same
// chunks.
func elements(fields map[string][]byte) []snapshot.Element {
	var all []snapshot.Element
	for _, f := range slices.Sorted(maps.Keys(fields)) {
		all = append(all, whole([]byte(f), fields[f]))
	}
	return all
}

// key writes a whole key; none without elements.
func (m *meta) key(name string, t snapshot.KeyType, all []snapshot.Element) error {
	if len(all) == 0 {
		return nil
	}
	k := snapshot.Key{Section: snapshot.SectionMeta, Name: []byte(name), Type: t, Count: uint64(len(all))}
	if err := m.out.BeginKey(k); err != nil {
		return err
	}
	if err := each(m.out, all); err != nil {
		return err
	}
	return m.out.EndKey(snapshot.KeyEnd{})
}

func each(out snapshot.Sink, all []snapshot.Element) error {
	for _, e := range all {
		if err := out.Element(e); err != nil {
			return err
		}
	}
	return nil
}

var _ snapshot.Sink = (*meta)(nil)

// BeginKey decides what becomes of the key.
func (m *meta) BeginKey(k snapshot.Key) error {
	m.mode, m.skip = metaCopy, false
	switch string(k.Name) {
	case m.job.Registry():
		m.mode, m.registry = metaFilter, true
		if k.Count = m.stay + uint64(len(m.schemas)); k.Count == 0 {
			m.mode = metaDrop
		}
	case m.job.OperatorStates(), m.job.Assignment():
		m.mode = metaDrop
	}
	if m.mode == metaDrop {
		return nil
	}
	return m.out.BeginKey(k)
}

// Element drops the registry's entries of old operator keys.
func (m *meta) Element(e snapshot.Element) error {
	_, old := m.old[string(e.Field)]
	m.skip = m.mode == metaDrop || m.mode == metaFilter && old
	if m.skip {
		return nil
	}
	return m.out.Element(e)
}

// Part follows its element.
func (m *meta) Part(b []byte) error {
	if m.skip {
		return nil
	}
	return m.out.Part(b)
}

// EndKey adds the registry's new entries.
func (m *meta) EndKey(snapshot.KeyEnd) error {
	if m.mode == metaDrop {
		return nil
	}
	if m.mode == metaFilter {
		if err := each(m.out, elements(asBytes(m.schemas))); err != nil {
			return err
		}
	}
	return m.out.EndKey(snapshot.KeyEnd{})
}
