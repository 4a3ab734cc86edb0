package restore

import "keyframe/snapshot"

// reportEvery is after how many elements a Progress is told again.
const reportEvery = 4096

// Tell calls p unless it is nil.
func (p Progress) Tell(phase string, keys, elements, bytes uint64) {
	if p != nil {
		p(phase, keys, elements, bytes)
	}
}

// Meter passes a stream of records on and counts it for a Progress. Next may
// be nil to only count.
type Meter struct {
	Next     snapshot.Sink
	Phase    string
	Progress Progress

	keys, elements, bytes, due uint64
}

var _ snapshot.Sink = (*Meter)(nil)

// Begin tells the Progress that the phase begins.
func (m *Meter) Begin() *Meter {
	m.Progress.Tell(m.Phase, 0, 0, 0)
	return m
}

// End tells the Progress the final numbers.
func (m *Meter) End() { m.Progress.Tell(m.Phase, m.keys, m.elements, m.bytes) }

// BeginKey counts the key's name.
func (m *Meter) BeginKey(k snapshot.Key) error {
	m.bytes += uint64(len(k.Name))
	if m.Next == nil {
		return nil
	}
	return m.Next.BeginKey(k)
}

// Element counts one element and its bytes, whole.
func (m *Meter) Element(e snapshot.Element) error {
	m.elements++
	m.bytes += uint64(len(e.Field)) + e.Size
	if m.elements >= m.due {
		m.due = m.elements + reportEvery
		m.End()
	}
	if m.Next == nil {
		return nil
	}
	return m.Next.Element(e)
}

// Part passes on.
func (m *Meter) Part(b []byte) error {
	if m.Next == nil {
		return nil
	}
	return m.Next.Part(b)
}

// EndKey counts the key.
func (m *Meter) EndKey(e snapshot.KeyEnd) error {
	m.keys++
	if m.Next == nil {
		return nil
	}
	return m.Next.EndKey(e)
}
