package bolt

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

// FuzzSalvageReads: any bytes as a damaged file. What is found in it is whole,
// and nothing is a panic.
func FuzzSalvageReads(f *testing.F) {
	p := getPatient(f)
	n := 0
	for at, m := range p.manifests {
		b, err := snapshot.EncodeManifest(m)
		require.NoError(f, err, at)
		f.Add(b, uint32(n), []byte{1})
		for ref := range m.AllChunks() {
			if s := p.chunks[ref.ID]; n < 5 && s.size < 50_000 {
				n++
				f.Add(p.bytes[s.at:s.at+s.size], uint32(0), []byte{})
				f.Add(p.bytes[s.at:s.at+s.size], uint32(8), []byte{0xff, 0xff})
			}
		}
	}
	f.Add(p.bytes[:min(len(p.bytes), 64<<10)], uint32(0), []byte{})
	f.Fuzz(func(t *testing.T, b []byte, at uint32, with []byte) {
		b = bytes.Clone(b)
		if len(b) > 0 {
			copy(b[int(at)%len(b):], with)
		}
		m, err := findMarks(context.Background(), reader(b), int64(len(b)), nil)
		require.NoError(t, err)
		for id, s := range m.chunks {
			ref, _, err := snapshot.OpenChunk(b[s.at:s.at+s.size], nil)
			require.NoError(t, err, "what is found is whole")
			require.Equal(t, id, ref.ID)
		}
		for at, all := range m.manifests {
			for _, s := range all {
				got, err := snapshot.DecodeManifest(b[s.at : s.at+s.size])
				require.NoError(t, err)
				require.Equal(t, at, place{got.Checkpoint.Job, got.Checkpoint.ID})
			}
		}
		require.Equal(t, len(m.manifests)+m.newer > 0, holdsMarks(context.Background(), reader(b), int64(len(b))))
		tr := newTree(context.Background(), reader(b))
		if err := tr.read(int64(len(b))); err == nil {
			_ = tr.freePages() // must not panic
		}
	})
}

// FuzzRows: what a store's own records hold.
func FuzzRows(f *testing.F) {
	row, err := snapshot.EncodeCheckpoint(snapshot.Checkpoint{Job: "flights", ID: 7})
	require.NoError(f, err)
	f.Add(idKey(7), row, entry{seq: 3, refs: 2, stored: 99}.encode())
	f.Add([]byte{1}, []byte("{}"), make([]byte, 15))
	f.Fuzz(func(t *testing.T, key, value, index []byte) {
		c, err := decodeRow("flights", key, value)
		if err != nil {
			require.ErrorIs(t, err, snapshot.ErrCorrupt)
			require.ErrorContains(t, err, `"flights"`)
		} else {
			require.Equal(t, key, idKey(c.ID))
		}
		e, err := decodeEntry(index)
		if err != nil {
			require.ErrorIs(t, err, snapshot.ErrCorrupt)
			return
		}
		require.Equal(t, index, e.encode())
	})
}
