package restore

import (
	"cmp"
	"slices"
	"time"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// scan goes with a pass over a checkpoint: it counts what a restore writes, and
// collects what the guards need. It changes nothing.
type scan struct {
	job     statebackend.Job // whose root the names have
	live    snapshot.ServerInfo
	asOf    time.Time
	rows    *rows    // nil when nobody asks for the table
	names   *nameSet // nil when there is no live index to compare with
	schemas *schemas // nil when there is nothing to compare with
	sources *sources // nil when there are no positions
	foreign outside  // names that the index lists and that aren't the job's
	claimed outside  // names that are left out: see renamer

	keys, elements, bytes, expired, missing uint64

	// The key under way.
	key      snapshot.Key // without its name
	passed   bool         // it isn't the job's: nothing of it is restored
	size     uint64
	count    uint64
	row      rowKey
	registry *whole
}

var _ snapshot.Sink = (*scan)(nil)

// indexed reports whether keys of the section are names of the job's index.
func indexed(s snapshot.Section) bool {
	return s == snapshot.SectionKeyed || s == snapshot.SectionOperator
}

// expiredBy is the rule of RestoreRequest.AsOf.
func expiredBy(expireAt int64, asOf time.Time) bool {
	return expireAt != 0 && expireAt <= asOf.UnixMilli()
}

// BeginKey looks at the key's head.
func (s *scan) BeginKey(k snapshot.Key) error {
	s.passed, s.registry = indexed(k.Section) && !s.job.Owns(k.Name), nil
	if s.passed {
		s.names.add(k.Name)
		s.foreign.add(k.Name)
		return nil
	}
	if err := checkPayload(k, s.live); err != nil {
		return err
	}
	if k.Section == snapshot.SectionMeta && s.schemas != nil && string(k.Name) == s.job.Registry() {
		s.registry = &whole{limit: maxEntry, emit: s.schemas.add}
	}
	if s.sources != nil {
		s.sources.begin(k.Name)
	}
	if indexed(k.Section) {
		s.names.add(k.Name)
		if s.rows != nil {
			s.row = s.rows.place(k.Name, k.Type.String())
		}
	}
	s.size, s.count = uint64(len(k.Name)), 0
	s.key = k
	s.key.Name = nil
	return nil
}

// Element counts.
func (s *scan) Element(e snapshot.Element) error {
	if s.passed {
		return nil
	}
	s.count++
	s.size += uint64(len(e.Field)) + e.Size
	if s.registry != nil {
		return s.registry.Element(e)
	}
	if s.sources != nil {
		return s.sources.element(e)
	}
	return nil
}

// Part feeds a registry entry that came in parts.
func (s *scan) Part(b []byte) error {
	if s.registry != nil {
		return s.registry.Part(b)
	}
	return nil
}

// EndKey books the key.
func (s *scan) EndKey(e snapshot.KeyEnd) error {
	if s.registry != nil {
		return s.schemas.flush()
	}
	if s.sources != nil {
		if err := s.sources.flush(); err != nil {
			return err
		}
	}
	if s.passed || !indexed(s.key.Section) {
		return nil
	}
	if s.key.Type == snapshot.TypeMissing {
		s.missing++
		return nil
	}
	expired := e.Expired || expiredBy(s.key.ExpireAt, s.asOf)
	if s.rows != nil {
		s.rows.get(s.row).add(expired, s.count, s.size)
	}
	if expired {
		s.expired++
		return nil
	}
	s.keys++
	s.elements += s.count
	s.bytes += s.size
	return nil
}

// add books one key.
func (p *StatePlan) add(expired bool, elements, bytes uint64) {
	if expired {
		p.Expired++
		return
	}
	p.Keys++
	p.Elements += elements
	p.Bytes += bytes
}

// rowKey is what the plan groups keys by.
type rowKey struct{ operator, state, typ string }

// maxRows bounds the table of a plan: names that can't be parsed well could
// otherwise make a row each.
const maxRows = 4096

// rows is the plan's table by operator, state and type.
type rows struct {
	job   statebackend.Job
	known statebackend.Known
	all   map[rowKey]*StatePlan
}

func newRows(job statebackend.Job, m *snapshot.Manifest) *rows {
	var names []statebackend.StateName
	for _, s := range m.OperatorStates {
		names = append(names, statebackend.StateName{Operator: s.Operator, Name: s.Name})
	}
	for _, s := range m.States {
		if s.Operator != "" || s.State != "" {
			names = append(names, statebackend.StateName{Operator: s.Operator, Name: s.State})
		}
	}
	return &rows{job: job, known: statebackend.NewKnown(names...), all: map[rowKey]*StatePlan{}}
}

// place is the row of a key.
func (r *rows) place(name []byte, typ string) rowKey {
	p, ok := statebackend.ParseKey(r.job, name, r.known)
	if !ok {
		return rowKey{typ: typ}
	}
	return rowKey{operator: p.Operator, state: p.Name, typ: typ}
}

func (r *rows) get(k rowKey) *StatePlan {
	row, ok := r.all[k]
	if !ok && len(r.all) >= maxRows {
		k = rowKey{typ: k.typ}
		row, ok = r.all[k]
	}
	if !ok {
		row = &StatePlan{Operator: k.operator, State: k.state, Type: k.typ}
		r.all[k] = row
	}
	return row
}

// remove books a live name that the checkpoint lacks. Its type isn't asked
// for: it goes to the state's row, or to one without a type when the
// checkpoint doesn't have the state in exactly one type.
func (r *rows) remove(name []byte) {
	if r == nil {
		return
	}
	k := r.place(name, "")
	var only *StatePlan
	for _, t := range []snapshot.KeyType{snapshot.TypeString, snapshot.TypeHash, snapshot.TypeList,
		snapshot.TypeSet, snapshot.TypeZSet, snapshot.TypeOpaque} {
		row, ok := r.all[rowKey{k.operator, k.state, t.String()}]
		if ok && only != nil {
			only = nil
			break
		}
		if ok {
			only = row
		}
	}
	if only == nil || k.operator == "" {
		only = r.get(k)
	}
	only.Remove++
}

// list is the table in the order of operator, state and type.
func (r *rows) list() []StatePlan {
	if r == nil {
		return nil
	}
	all := make([]StatePlan, 0, len(r.all))
	for _, row := range r.all {
		all = append(all, *row)
	}
	slices.SortFunc(all, func(a, b StatePlan) int {
		return cmp.Or(cmp.Compare(a.Operator, b.Operator), cmp.Compare(a.State, b.State), cmp.Compare(a.Type, b.Type))
	})
	return all
}
