package archive

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// made is a checkpoint of some hundred fields and its chunks.
func made(t testing.TB, seed string, fields int) (*snapshot.MemChunks, *snapshot.Manifest) {
	t.Helper()
	chunks := &snapshot.MemChunks{}
	sum, err := storetest.Encode(t.Context(), chunks, storetest.Keys(seed, fields))
	require.NoError(t, err)
	return chunks, storetest.ManifestOf(storetest.Attempt("flights"), 7, sum)
}

// written is a checkpoint as the bytes of an archive.
func written(t testing.TB, src snapshot.ChunkSource, m *snapshot.Manifest) []byte {
	t.Helper()
	var b bytes.Buffer
	info, err := Write(t.Context(), &b, src, m)
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), info.Bytes)
	return b.Bytes()
}

func opened(t testing.TB, b []byte) *Archive {
	t.Helper()
	a, err := New(bytes.NewReader(b), int64(len(b)), "test.kfa")
	require.NoError(t, err)
	return a
}

// keysOf is what a checkpoint holds, as a walk gives it.
func keysOf(t testing.TB, src snapshot.ChunkSource, m *snapshot.Manifest) []snapshot.RecordedKey {
	t.Helper()
	var r snapshot.Recorder
	require.NoError(t, snapshot.Walk(t.Context(), src, m, &r))
	return r.Keys
}

// golden is the checkpoint of format 2 with two layers that the format's own
// tests keep: every type, section and kind of frame.
func golden(t testing.TB) (*snapshot.MemChunks, *snapshot.Manifest) {
	t.Helper()
	const dir = "../testdata/golden-2"
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	chunks := &snapshot.MemChunks{}
	for _, f := range files {
		if name, ok := strings.CutSuffix(f.Name(), ".chunk"); ok {
			id, err := snapshot.ParseChunkID(name)
			require.NoError(t, err)
			data, err := os.ReadFile(filepath.Join(dir, f.Name()))
			require.NoError(t, err)
			chunks.Put(id, data)
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "manifest"))
	require.NoError(t, err)
	m, err := snapshot.DecodeManifest(data)
	require.NoError(t, err)
	require.Len(t, m.Layers, 2)
	return chunks, m
}

// whole requires that the bytes are an archive without a fault.
func whole(t testing.TB, b []byte) *Archive {
	t.Helper()
	a := opened(t, b)
	problems, err := a.Verify(context.Background())
	require.NoError(t, err)
	require.Empty(t, problems)
	return a
}
