package rescaler

import (
	"bytes"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// summaries describes the operator keys that pass, one by one and in sum. Its
// memory grows with the number of keys, which is that of parts.
type summaries struct {
	job   statebackend.Job
	keys  []statebackend.KeySummary
	index map[string]struct{} // their names
	stats map[stateRow]*snapshot.StateStats
	// As a checkpoint counts them.
	exist, missing, elements, bytes uint64

	key   snapshot.Key
	size  uint64 // of the finished elements
	open  uint64 // of the unfinished one
	left  uint64
	count uint64
}

type stateRow struct{ operator, state, typ string }

var _ snapshot.Sink = (*summaries)(nil)

func newSummaries(job statebackend.Job) *summaries {
	return &summaries{job: job, index: map[string]struct{}{}, stats: map[stateRow]*snapshot.StateStats{}}
}

// BeginKey opens a key.
func (s *summaries) BeginKey(k snapshot.Key) error {
	s.key = k
	s.key.Name = bytes.Clone(k.Name)
	s.size, s.count, s.left = uint64(len(k.Name)), 0, 0
	return nil
}

// Element counts.
func (s *summaries) Element(e snapshot.Element) error {
	s.open, s.left = uint64(len(e.Field))+e.Size, e.Size
	if s.left == uint64(len(e.Value)) {
		s.left = 0
		s.done()
		return nil
	}
	return s.Part(e.Value)
}

// Part counts.
func (s *summaries) Part(b []byte) error {
	if s.left == 0 {
		return nil
	}
	if s.left -= min(s.left, uint64(len(b))); s.left == 0 {
		s.done()
	}
	return nil
}

func (s *summaries) done() {
	s.count++
	s.size += s.open
}

// EndKey books the key. One that expired while it was being read is as good
// as missing to a comparison with what is there now.
func (s *summaries) EndKey(e snapshot.KeyEnd) error {
	k := statebackend.KeySummary{Name: s.key.Name, Type: s.key.Type, Count: e.Count, Digest: e.Digest}
	if e.Expired {
		k.Type, k.Count, k.Digest = snapshot.TypeMissing, 0, 0
	}
	s.keys = append(s.keys, k)
	s.index[string(k.Name)] = struct{}{}
	if s.key.Type == snapshot.TypeMissing {
		s.missing++
		return nil
	}
	s.exist++
	s.elements += s.count
	s.bytes += s.size
	row := s.row()
	row.Keys++
	row.Elements += s.count
	row.Bytes += s.size
	return nil
}

// row is where a checkpoint's statistics count the key: they split names
// without knowing the states, and so does this.
func (s *summaries) row() *snapshot.StateStats {
	r := stateRow{typ: s.key.Type.String()}
	if p, ok := statebackend.ParseKey(s.job, s.key.Name, statebackend.Known{}); ok {
		r.operator, r.state = p.Operator, p.Name
	}
	if s.stats[r] == nil {
		s.stats[r] = &snapshot.StateStats{Operator: r.operator, State: r.state, Type: r.typ}
	}
	return s.stats[r]
}
