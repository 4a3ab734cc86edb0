package snapshot

import "iter"

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
