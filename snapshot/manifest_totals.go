package snapshot

import "fmt"

// sums adds up statistics and notices when a sum leaves 64 bits.
type sums struct {
	keys, elements, bytes uint64
	over                  bool
}

func (s *sums) add(keys, elements, bytes uint64) {
	for _, one := range []struct {
		to *uint64
		n  uint64
	}{{&s.keys, keys}, {&s.elements, elements}, {&s.bytes, bytes}} {
		*one.to += one.n
		s.over = s.over || *one.to < one.n
	}
}

func (s *sums) check(field string, c Checkpoint, p *problems) {
	p.check(!s.over && s.keys <= c.Keys && s.elements <= c.Elements && s.bytes <= c.Bytes, field,
		"sum up to %d keys, %d elements, %d bytes: the checkpoint has %d, %d, %d",
		s.keys, s.elements, s.bytes, c.Keys, c.Elements, c.Bytes)
}

// checkStats checks the statistics by state and by key group.
func checkStats(m *Manifest, p *problems) {
	var states, groups sums
	seen := map[[3]string]bool{}
	for i, s := range m.States {
		name := [3]string{s.Operator, s.State, s.Type}
		p.check(!seen[name], fmt.Sprintf("states[%d]", i), "operator %q, state %q, type %q is there twice", s.Operator, s.State, s.Type)
		seen[name] = true
		states.add(s.Keys, s.Elements, s.Bytes)
	}
	states.check("states", m.Checkpoint, p)
	last := -1
	for i, g := range m.Groups {
		p.check(g.Group > last && g.Group < m.KeyGroups.MaxParallelism, fmt.Sprintf("groups[%d]", i),
			"key group %d after %d: want them ascending and below %d", g.Group, last, m.KeyGroups.MaxParallelism)
		last = g.Group
		groups.add(g.Keys, g.Elements, g.Bytes)
	}
	groups.check("groups", m.Checkpoint, p)
}

// checkChunks checks the list of chunks by itself.
func checkChunks(m *Manifest, p *problems) {
	seen := make(map[ChunkID]int, len(m.Chunks))
	var last Section
	for i, c := range m.Chunks {
		field := fmt.Sprintf("chunks[%d]", i)
		p.check(c.Section.Valid(), field, "unknown %s", c.Section)
		p.check(c.Section >= last, field, "%s after %s: want the sections in order", c.Section, last)
		last = max(last, c.Section)
		p.check(c.Raw >= minRaw && c.Raw <= MaxChunk, field, "%d raw bytes: want %d to %d", c.Raw, minRaw, MaxChunk)
		p.check(c.Stored > chunkOverhead && c.Stored <= MaxChunk+chunkOverhead, field,
			"%d stored bytes: want %d to %d", c.Stored, chunkOverhead+1, MaxChunk+chunkOverhead)
		if before, ok := seen[c.ID]; ok {
			p.add(field, "chunk %s is chunks[%d] too", c.ID, before)
		}
		seen[c.ID] = i
	}
}

// checkTotals checks the checkpoint's numbers against the list of chunks.
func checkTotals(m *Manifest, p *problems) {
	c := m.Checkpoint
	var full uint64
	state := false
	for _, ref := range m.Chunks {
		full += min(ref.Stored, MaxChunk+chunkOverhead) // larger ones are reported
		state = state || ref.Section == SectionKeyed || ref.Section == SectionOperator
	}
	p.check(c.FullBytes == full, "fullBytes", "%d, the chunks have %d", c.FullBytes, full)
	p.check(c.StoredBytes <= c.FullBytes, "storedBytes", "%d is above fullBytes %d", c.StoredBytes, c.FullBytes)
	p.check(state == (c.Keys > 0 || c.Missing > 0), "keys", "%d, missing %d, but chunks of state: %t", c.Keys, c.Missing, state)
	p.check(c.Keys > 0 || (c.Elements == 0 && c.Bytes == 0), "elements", "%d elements and %d bytes without keys", c.Elements, c.Bytes)
}
