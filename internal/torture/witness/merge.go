package witness

import (
	"fmt"
	"math"
)

// The sections of a checkpoint.
const (
	sectionKeyed    = 1
	sectionOperator = 2
	sectionMeta     = 3
	sectionSource   = 4
)

// chunkOf gives a stored chunk's envelope.
type chunkOf func(id string) ([]byte, error)

// merged is one section with all its layers merged: by name, whole keys and
// missing ones.
type merged map[string]*record

// readSections reads a whole checkpoint: each chunk, each layer. Everything
// that FORMAT.md says of chunks, frames and layers is checked on the way.
func readSections(m *manifest, get chunkOf) (all [sectionSource + 1]merged, err error) {
	for s := range all {
		all[s] = merged{}
	}
	layers := make([][]chunkRef, 0, 1+len(m.Layers))
	layers = append(layers, m.Chunks)
	for _, l := range m.Layers {
		layers = append(layers, l.Chunks)
	}
	if err := checkRefs(m, layers); err != nil {
		return all, err
	}
	for i, refs := range layers {
		for s := byte(sectionKeyed); s <= sectionSource; s++ {
			records, err := readLayer(i, s, refs, get)
			if err != nil {
				return all, fmt.Errorf("layer %d: %w", i, err)
			}
			for _, r := range records {
				if err := all[s].put(r, i); err != nil {
					return all, fmt.Errorf("layer %d: %w", i, err)
				}
			}
		}
	}
	for _, one := range all {
		if err := one.settle(); err != nil {
			return all, err
		}
	}
	return all, nil
}

// checkRefs holds the lists of chunks to what FORMAT.md says of them.
func checkRefs(m *manifest, layers [][]chunkRef) error {
	seen, full := map[string]bool{}, uint64(0)
	if len(m.Layers) > 64 || m.Format == 1 && (len(m.Layers) > 0 || m.Sorted) {
		return fmt.Errorf("%d layers, sorted %t, in format %d", len(m.Layers), m.Sorted, m.Format)
	}
	for i, refs := range layers {
		if i > 0 && len(refs) == 0 {
			return fmt.Errorf("layer %d is empty", i)
		}
		last := byte(0)
		for _, ref := range refs {
			full += ref.Stored
			switch {
			case ref.Section < last || ref.Section < sectionKeyed || ref.Section > sectionSource:
				return fmt.Errorf("layer %d: section %d after %d", i, ref.Section, last)
			case ref.Section == sectionSource && i < len(layers)-1:
				return fmt.Errorf("layer %d of %d has source chunks", i, len(layers))
			case seen[ref.ID]:
				return fmt.Errorf("layer %d: chunk %s is named twice", i, ref.ID)
			}
			seen[ref.ID], last = true, ref.Section
		}
	}
	if full != m.Checkpoint.FullBytes {
		return fmt.Errorf("the chunks have %d bytes, fullBytes is %d", full, m.Checkpoint.FullBytes)
	}
	return nil
}

func readLayer(layer int, section byte, refs []chunkRef, get chunkOf) ([]*record, error) {
	r := &reader{layer: layer, section: section}
	for _, ref := range refs {
		if ref.Section != section {
			continue
		}
		data, err := get(ref.ID)
		if err != nil {
			return nil, err
		}
		raw, version, err := unpack(data, ref)
		if err != nil {
			return nil, err
		}
		if err := r.chunk(raw, version); err != nil {
			return nil, fmt.Errorf("chunk %s: %w", ref.ID, err)
		}
	}
	if r.open != nil {
		return nil, fmt.Errorf("key %q is open at the end of section %d", r.open.name, section)
	}
	return r.records, nil
}

// put lays a record over what is there.
func (m merged) put(r *record, layer int) error {
	below := m[r.name]
	if layer == 0 && below != nil {
		return fmt.Errorf("key %q comes twice", r.name)
	}
	if r.frame == framePatch {
		return m.patch(r, below)
	}
	m[r.name] = r
	return nil
}

// patch lays a patch over a whole key, or over one that was patched before.
func (m merged) patch(r, below *record) error {
	switch {
	case below == nil || below.frame == frameGone || below.kind != r.kind:
		return fmt.Errorf("key %q: a patch has no key of type %d below it", r.name, r.kind)
	case below.expired:
		return fmt.Errorf("key %q: a patch stands over a key that expired while it was read", r.name)
	}
	over := make(map[string]element, len(r.elements))
	for _, e := range r.elements {
		if _, twice := over[e.id(r.kind)]; twice {
			return fmt.Errorf("key %q: a patch has %q twice", r.name, e.id(r.kind))
		}
		over[e.id(r.kind)] = e
	}
	out := *r
	out.elements = make([]element, 0, len(below.elements)+len(r.elements))
	for _, e := range below.elements {
		if _, replaced := over[e.id(r.kind)]; !replaced && !r.expired { // then the patch is all that is left
			out.elements = append(out.elements, e)
		}
	}
	for _, e := range r.elements {
		if !e.removed {
			out.elements = append(out.elements, e)
		}
	}
	m[r.name] = &out
	return nil
}

// settle drops names that have gone, and holds each key to the count of its
// newest record, now that nothing can stand above it.
func (m merged) settle() error {
	for name, r := range m {
		if r.frame == frameGone {
			delete(m, name)
			continue
		}
		if r.expired {
			continue
		}
		if err := r.whole(uint64(len(r.elements))); err != nil {
			return err
		}
		if err := r.unique(); err != nil {
			return err
		}
	}
	return nil
}

// unique holds hashes, sets and zsets to having each field or member once.
func (r *record) unique() error {
	if r.kind != typeHash && r.kind != typeSet && r.kind != typeZSet {
		return nil
	}
	seen := make(map[string]bool, len(r.elements))
	for _, e := range r.elements {
		if seen[e.id(r.kind)] {
			return fmt.Errorf("key %q has %q twice", r.name, e.id(r.kind))
		}
		seen[e.id(r.kind)] = true
	}
	return nil
}

// entry is the record as a State has it.
func (r *record) entry() Entry {
	e := Entry{ExpireAt: int64(r.expire), Elements: make([]string, 0, len(r.elements)), Type: r.typeName}
	if r.kind != typeOpaque {
		e.Type = [...]string{"none", "string", "hash", "list", "set", "zset"}[r.kind]
	}
	for _, one := range r.elements {
		switch r.kind {
		case typeHash:
			e.Elements = append(e.Elements, HashText(string(one.field), string(one.value)))
		case typeZSet:
			e.Elements = append(e.Elements, ScoreText(math.Float64frombits(one.score), string(one.value)))
		default:
			e.Elements = append(e.Elements, StringText(string(one.value)))
		}
	}
	return e.sorted()
}
