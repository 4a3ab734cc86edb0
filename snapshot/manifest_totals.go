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

// checkChunks checks the lists of chunks by themselves: the base's and each
// layer's.
func checkChunks(m *Manifest, p *problems) {
	p.check(len(m.Layers) <= MaxLayers, "layers", "%d: at most %d", len(m.Layers), MaxLayers)
	c := chunkCheck{p: p, seen: make(map[ChunkID]string, len(m.Chunks))}
	for i := range 1 + len(m.Layers) {
		prefix := ""
		if i > 0 {
			prefix = fmt.Sprintf("layers[%d].", i-1)
			p.check(len(m.layer(i)) > 0, prefix+"chunks", "is empty")
		}
		c.list(prefix, m.layer(i), i == len(m.Layers))
	}
}

// chunkCheck checks lists of chunks, each of which may be named once.
type chunkCheck struct {
	p    *problems
	seen map[ChunkID]string
}

func (c *chunkCheck) list(prefix string, refs []ChunkRef, newest bool) {
	var last Section
	for i, ref := range refs {
		field := fmt.Sprintf("%schunks[%d]", prefix, i)
		p := c.p
		p.check(ref.Section.Valid(), field, "unknown %s", ref.Section)
		p.check(ref.Section >= last, field, "%s after %s: want the sections in order", ref.Section, last)
		last = max(last, ref.Section)
		p.check(newest || ref.Section != SectionSource, field, "source below the last layer")
		p.check(ref.Raw >= minRaw && ref.Raw <= MaxChunk, field, "%d raw bytes: want %d to %d", ref.Raw, minRaw, MaxChunk)
		p.check(ref.Stored > chunkOverhead && ref.Stored <= MaxChunk+chunkOverhead, field,
			"%d stored bytes: want %d to %d", ref.Stored, chunkOverhead+1, MaxChunk+chunkOverhead)
		if before, ok := c.seen[ref.ID]; ok {
			p.add(field, "chunk %s is %s too", ref.ID, before)
		}
		c.seen[ref.ID] = field
	}
}

// checkTotals checks the checkpoint's numbers against the list of chunks.
func checkTotals(m *Manifest, p *problems) {
	c := m.Checkpoint
	var full uint64
	state := false
	for ref := range m.AllChunks() {
		full += min(ref.Stored, MaxChunk+chunkOverhead) // larger ones are reported
		state = state || ref.Section == SectionKeyed || ref.Section == SectionOperator
	}
	p.check(c.FullBytes == full, "fullBytes", "%d, the chunks have %d", c.FullBytes, full)
	p.check(c.StoredBytes <= c.FullBytes, "storedBytes", "%d is above fullBytes %d", c.StoredBytes, c.FullBytes)
	some := c.Keys > 0 || c.Missing > 0
	// With layers all keys may be gone.
	p.check(state == some || (state && len(m.Layers) > 0), "keys",
		"%d, missing %d, but chunks of state: %t", c.Keys, c.Missing, state)
	p.check(c.Keys > 0 || (c.Elements == 0 && c.Bytes == 0), "elements", "%d elements and %d bytes without keys", c.Elements, c.Bytes)
}

// checkLayers checks what format 2 says of layers.
func checkLayers(m *Manifest, p *problems) {
	c := m.Checkpoint
	p.check(m.Format != 1 || (len(m.Layers) == 0 && !m.Sorted), "format", "1 has no layers and no order")
	p.check(c.Layers == 0 || c.Layers == 1+len(m.Layers), "layers", "%d, but there are %d with the base", c.Layers, 1+len(m.Layers))
	p.check(c.Rounds >= 0, "rounds", "%d is negative", c.Rounds)
}
