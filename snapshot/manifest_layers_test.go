package snapshot

import (
	"context"
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

// layeredManifest has something in every field of format 2.
func layeredManifest(t tb) *Manifest {
	a, b, c := threeWorlds()
	m := layeredOf(t, EncoderOptions{ChunkTarget: 5000}, a, b, c).m
	cp := &m.Checkpoint
	cp.Incremental, cp.FullReason, cp.Tracking, cp.GradeReason = true, "base64:\xff", "fields", "\xfe no right"
	cp.Rounds, cp.BytesEstimated, cp.SelfChecked = 3, true, true
	cp.Hot = []HotKey{{Key: "job:\xff\x00hot", Elements: 7}, {Key: "", Elements: 1}}
	return m
}

func TestALayeredManifestComesBack(t *testing.T) {
	m := layeredManifest(t)
	data, err := EncodeManifest(m)
	require.NoError(t, err)
	require.EqualValues(t, 2, data[4])
	back, err := DecodeManifest(data)
	require.NoError(t, err)
	require.Equal(t, m, back)
	row, err := EncodeCheckpoint(m.Checkpoint)
	require.NoError(t, err)
	cp, err := DecodeCheckpoint(row)
	require.NoError(t, err)
	require.Equal(t, m.Checkpoint, cp)
}

func TestRowsOfVersion1AreRead(t *testing.T) {
	cp, err := DecodeCheckpoint([]byte(`{"job":"base64:/w==","id":7,"kind":"checkpoint","state":"completed","keys":3,"fullBytes":99,"sources":[]}`))
	require.NoError(t, err)
	require.Equal(t, Checkpoint{Job: "\xff", ID: 7, Kind: KindCheckpoint, State: StateCompleted, Keys: 3, FullBytes: 99}, cp)
}

func TestValidateNamesEveryIllegalLayer(t *testing.T) {
	for field, c := range map[string]func(m *Manifest){
		"format: 1 has no layers":                    func(m *Manifest) { m.Format = 1 },
		"layers: 7, but there are":                   func(m *Manifest) { m.Checkpoint.Layers = 7 },
		"layers[0].chunks: is empty":                 func(m *Manifest) { m.Layers[0].Chunks = nil },
		"layers[1].chunks[0]: chunk":                 func(m *Manifest) { m.Layers[1].Chunks[0] = m.Layers[0].Chunks[0] },
		"is chunks[0] too":                           func(m *Manifest) { m.Layers[0].Chunks[0] = m.Chunks[0] },
		"layers[0].chunks[0]: source below the last": func(m *Manifest) { m.Layers[0].Chunks[0].Section = SectionSource },
		"layers[0].chunks[0]: unknown section(9)":    func(m *Manifest) { m.Layers[0].Chunks[0].Section = 9 },
		"layers[1].chunks[1]: keyed after source": func(m *Manifest) {
			slices.Reverse(m.Layers[1].Chunks)
			m.Layers[1].Chunks = []ChunkRef{m.Layers[1].Chunks[0], m.Layers[1].Chunks[len(m.Layers[1].Chunks)-1]}
		},
		"layers[1].chunks[0]: 1 raw bytes": func(m *Manifest) { m.Layers[1].Chunks[0].Raw = 1 },
		"chunks[0]: source below":          func(m *Manifest) { m.Chunks = []ChunkRef{m.Chunks[0]}; m.Chunks[0].Section = SectionSource },
		"fullBytes":                        func(m *Manifest) { m.Checkpoint.FullBytes -= m.Layers[1].Chunks[0].Stored },
		"layers: 65: at most 64":           func(m *Manifest) { m.Layers = append(m.Layers, make([]Layer, 63)...) },
		"rounds":                           func(m *Manifest) { m.Checkpoint.Rounds = -1 },
	} {
		t.Run(field, func(t *testing.T) {
			m := layeredManifest(t)
			require.NoError(t, m.Validate())
			c(m)
			_, err := EncodeManifest(m)
			require.ErrorContains(t, err, "manifest of checkpoint 42: ")
			problems, err := Verify(context.Background(), &MemChunks{}, m)
			require.NoError(t, err)
			require.Contains(t, lines(problems), field)
		})
	}
	m := layeredManifest(t)
	m.Checkpoint.Layers = 0 // not said
	require.NoError(t, m.Validate())
}

// All keys of the layers below may be gone.
func TestACheckpointWhoseKeysAreAllGone(t *testing.T) {
	a := worldOf(hashKey(SectionKeyed, "h", 3), listKey(SectionOperator, "o", 2), hashKey(SectionMeta, "m", 1))
	s := layeredOf(t, EncoderOptions{}, a, world{})
	holds(t, s, world{})
	out := merged(t, s, 0, 0)
	require.Empty(t, out.m.Chunks)
	holds(t, out, world{})
}
