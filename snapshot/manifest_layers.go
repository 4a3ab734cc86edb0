package snapshot

import (
	"fmt"
	"iter"
	"slices"
)

// AllChunks gives every chunk that the checkpoint needs: the base's, then
// those of each layer, oldest first. Each comes once, since a manifest names
// a chunk once.
func (m *Manifest) AllChunks() iter.Seq[ChunkRef] {
	return func(yield func(ChunkRef) bool) {
		for i := range 1 + len(m.Layers) {
			for _, ref := range m.layer(i) {
				if !yield(ref) {
					return
				}
			}
		}
	}
}

// layer gives the chunks of the base (0) or of the i-th layer over it.
func (m *Manifest) layer(i int) []ChunkRef {
	if i == 0 {
		return m.Chunks
	}
	return m.Layers[i-1].Chunks
}

// sorts reports whether the keys of a section must be in order: where layers
// are merged, or where the manifest says that all are.
func (m *Manifest) sorts(s Section) bool {
	if m.Sorted {
		return true
	}
	n := 0
	for i := range 1 + len(m.Layers) {
		for _, ref := range m.layer(i) {
			if ref.Section == s {
				n++
				break
			}
		}
	}
	return n > 1
}

// Stack gives what a manifest over the parent names: the parent's base and
// layers without their source chunks, then the new layers without the empty
// ones. Without a parent the first of layers is the base. It changes neither.
//
// ErrCorrupt (wrapped) when no layer can stand over the parent because its
// keys aren't in order, when it has a chunk already that a new layer names
// (layers of an Encoder never do), or when there would be more than MaxLayers.
func Stack(parent *Manifest, layers []Layer) (base []ChunkRef, all []Layer, err error) {
	if parent == nil {
		if len(layers) == 0 {
			return nil, nil, nil
		}
		base, layers = slices.Clone(layers[0].Chunks), layers[1:]
	} else if !parent.Sorted {
		return nil, nil, fmt.Errorf("a layer over checkpoint %d, whose keys aren't in order: %w", parent.Checkpoint.ID, ErrCorrupt)
	} else {
		base = withoutSource(parent.Chunks)
		for _, l := range parent.Layers {
			l.Chunks = withoutSource(l.Chunks)
			all = append(all, l)
		}
	}
	for _, l := range layers {
		l.Chunks = slices.Clone(l.Chunks)
		all = append(all, l)
	}
	all = slices.DeleteFunc(all, func(l Layer) bool { return len(l.Chunks) == 0 })
	var p problems
	stacked := &Manifest{Chunks: base, Layers: all}
	if parent != nil {
		stacked.Checkpoint = parent.Checkpoint // for the error
	}
	if checkChunks(stacked, &p); len(p.list) > 0 {
		return nil, nil, fmt.Errorf("stack layers: %w: %w", p.err(stacked), ErrCorrupt)
	}
	return base, all, nil
}

func withoutSource(refs []ChunkRef) []ChunkRef {
	return slices.DeleteFunc(slices.Clone(refs), func(c ChunkRef) bool { return c.Section == SectionSource })
}
