package snapshot

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAllChunksAreTheBaseAndThenItsLayers(t *testing.T) {
	ref := func(n byte) ChunkRef { return ChunkRef{ID: ChunkID{n}, Section: SectionKeyed} }
	m := &Manifest{Chunks: []ChunkRef{ref(1), ref(2)},
		Layers: []Layer{{Chunks: []ChunkRef{ref(3)}}, {}, {Chunks: []ChunkRef{ref(4), ref(5)}}}}
	require.Equal(t, []ChunkRef{ref(1), ref(2), ref(3), ref(4), ref(5)}, slices.Collect(m.AllChunks()))
	for n := range 5 { // whoever stops early is left alone
		got := 0
		for range m.AllChunks() {
			if got++; got > n {
				break
			}
		}
		require.Equal(t, n+1, got)
	}
	require.Empty(t, slices.Collect((&Manifest{}).AllChunks()))
}
