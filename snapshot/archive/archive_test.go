package archive

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

var update = flag.Bool("update", false, "write the golden archive of this version anew")

const goldenFile = "testdata/golden-1.kfa"

func TestAnArchiveHoldsAllOfACheckpointWithLayers(t *testing.T) {
	chunks, m := golden(t)
	b := written(t, chunks, m)
	a := whole(t, b)
	require.Equal(t, m, a.Manifest())
	require.Equal(t, keysOf(t, chunks, m), keysOf(t, a, a.Manifest()))
	require.Equal(t, b, written(t, a, a.Manifest()), "an archive of an archive is the same")
}

// The bytes of version 1 never change: what was exported once is read by every
// later program.
func TestTheGoldenArchiveIsReadAndWritten(t *testing.T) {
	chunks, m := golden(t)
	b := written(t, chunks, m)
	if *update {
		require.Equal(t, 1, Version, "a later version has a golden file of its own")
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(goldenFile, b, 0o644))
	}
	kept, err := os.ReadFile(goldenFile)
	require.NoError(t, err)
	require.Equal(t, kept, b)
	require.Equal(t, keysOf(t, chunks, m), keysOf(t, whole(t, kept), m))
}

// FORMAT.md describes these bytes: each number of its table is held here.
func TestTheLayoutIsTheOneThatFormatDescribes(t *testing.T) {
	chunks, m := made(t, "layout", 300)
	b := written(t, chunks, m)
	foot := b[len(b)-104:]
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(foot[i:]) }
	require.Equal(t, "KFAR\x01\x00\x00\x00", string(b[:8]))
	require.Equal(t, "KFARDONE", string(foot[96:]))
	manifest, length, table, count := at(0), at(8), at(16), at(24)
	require.Equal(t, "KFMF", string(b[manifest:manifest+4]))
	require.Equal(t, manifest+length, table)
	require.EqualValues(t, len(b)-104, table+44*count)
	require.Greater(t, count, uint64(5))
	next := uint64(8)
	for i := range count {
		row := b[table+44*i:]
		offset, n := binary.LittleEndian.Uint64(row[32:]), binary.LittleEndian.Uint32(row[40:])
		require.Equal(t, next+4, offset)
		require.Equal(t, n, binary.LittleEndian.Uint32(b[next:]))
		require.Equal(t, "KFCK", string(b[offset:offset+4]))
		require.Equal(t, row[:32], b[offset+16:offset+48], "the chunk's id")
		next = offset + uint64(n)
	}
	require.Equal(t, manifest, next)
}

func TestAnyStateComesBackFromAnArchive(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var keys []snapshot.RecordedKey
		for i := range rapid.IntRange(0, 4).Draw(rt, "states") {
			seed := rapid.StringN(1, 12, -1).Draw(rt, "seed") + string(rune('a'+i))
			keys = append(keys, storetest.Keys(seed, rapid.IntRange(1, 400).Draw(rt, "fields"))...)
		}
		keys = sections(keys)
		chunks := &snapshot.MemChunks{}
		sum, err := storetest.Encode(context.Background(), chunks, keys)
		require.NoError(rt, err)
		m := storetest.ManifestOf(storetest.Attempt(rapid.StringN(1, 20, -1).Draw(rt, "job")), 9, sum)
		a := whole(t, written(t, chunks, m))
		require.Equal(rt, keysOf(t, chunks, m), keysOf(t, a, a.Manifest()))
	})
}

// sections puts the keys of each section before those of the next.
func sections(keys []snapshot.RecordedKey) (out []snapshot.RecordedKey) {
	for _, s := range []snapshot.Section{snapshot.SectionKeyed, snapshot.SectionOperator} {
		for _, k := range keys {
			if k.Key.Section == s {
				out = append(out, k)
			}
		}
	}
	return out
}

func TestADamagedStoreIsNotExported(t *testing.T) {
	for name, spoil := range storetest.Spoils {
		t.Run(name, func(t *testing.T) {
			chunks, m := made(t, "damaged", 300)
			id := m.Chunks[2].ID
			data, err := chunks.Chunk(t.Context(), id)
			require.NoError(t, err)
			if data = spoil(data); data == nil {
				chunks.Remove(id)
			} else {
				chunks.Put(id, data)
			}
			path := filepath.Join(t.TempDir(), "a.kfa")
			_, err = SaveCheckpoint(t.Context(), OS{}, path, chunks, m)
			require.ErrorContains(t, err, id.String())
			if name == "gone" {
				require.ErrorIs(t, err, snapshot.ErrNoChunk)
			} else {
				require.ErrorIs(t, err, snapshot.ErrCorrupt)
			}
			require.Empty(t, names(t, filepath.Dir(path)))
		})
	}
}

// A chunk of another's content under the id that the manifest names.
func TestAChunkUnderAnothersIdIsNotExported(t *testing.T) {
	chunks, m := made(t, "swapped", 300)
	other, err := chunks.Chunk(t.Context(), m.Chunks[1].ID)
	require.NoError(t, err)
	chunks.Put(m.Chunks[2].ID, other)
	_, err = Write(t.Context(), &bytes.Buffer{}, chunks, m)
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
	require.ErrorContains(t, err, "the manifest names")
}

func TestAFingerprintBelongsToTheCut(t *testing.T) {
	_, m := made(t, "print", 200)
	first := Fingerprint(m)
	require.Len(t, first, 16)
	imported := *m
	imported.Checkpoint.ID, imported.Checkpoint.Job, imported.Checkpoint.Trigger = 31, "elsewhere", snapshot.TriggerImport
	imported.Checkpoint.Note, imported.Checkpoint.Pinned = "imported", true
	imported.Chunks = imported.Chunks[:1] // merged
	require.Equal(t, first, Fingerprint(&imported))
	for what, change := range map[string]func(*snapshot.Manifest){
		"another server":      func(m *snapshot.Manifest) { m.Identity.Server = "redis://other:6379/0" },
		"another incarnation": func(m *snapshot.Manifest) { m.Incarnation = "f00d" },
		"another attempt":     func(m *snapshot.Manifest) { m.Attempt-- },
		"a later cut":         func(m *snapshot.Manifest) { m.CutAt = m.CutAt.Add(1) },
		"another state":       func(m *snapshot.Manifest) { m.Checkpoint.Elements++ },
	} {
		other := *m
		change(&other)
		require.NotEqual(t, first, Fingerprint(&other), what)
	}
}
