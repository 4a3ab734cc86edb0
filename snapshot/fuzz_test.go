package snapshot

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// expected are the only errors that bytes may give.
func expected(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerFormat) {
		t.Fatalf("error of no known kind: %v", err)
	}
}

func FuzzOpenChunk(f *testing.F) {
	s := smallOnes(f)
	for _, id := range s.IDs() {
		data, err := s.Chunk(ctx, id)
		require.NoError(f, err)
		f.Add(data)
		f.Add(readdress(data, func(b []byte) { b[8]++ }))
	}
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, one := range [][]byte{data, readable(data)} {
			ref, raw, err := OpenChunk(one, nil)
			expected(t, err)
			if err != nil {
				continue
			}
			again, sealed, err := sealChunk(raw, nil)
			require.NoError(t, err)
			require.Equal(t, ref.ID, again.ID)
			_, back, err := OpenChunk(sealed, nil)
			require.NoError(t, err)
			require.True(t, bytes.Equal(raw, back))
		}
	})
}

// readable gives data a right CRC, so that a fuzzer gets behind it.
func readable(data []byte) []byte {
	if len(data) < chunkOverhead {
		return data
	}
	return readdress(data, func([]byte) {})
}

// FuzzWalk reads any bytes as the content of two chunks. What a walk accepts,
// an encoder accepts too, and gives it back.
func FuzzWalk(f *testing.F) {
	s := smallOnes(f)
	var before []byte
	for _, ref := range s.m.Chunks {
		data, err := s.Chunk(ctx, ref.ID)
		require.NoError(f, err)
		_, raw, err := OpenChunk(data, nil)
		require.NoError(f, err)
		f.Add(raw, []byte(nil))
		f.Add(before, raw)
		before = raw
	}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		s, ok := twoChunks(one, two)
		if !ok {
			return
		}
		var r Recorder
		err := Walk(ctx, s, s.m, &r, s.m.Chunks[0].Section)
		expected(t, err)
		problems, verr := Verify(ctx, s, s.m)
		require.NoError(t, verr)
		if err != nil {
			require.NotEmpty(t, problems)
			return
		}
		var again MemChunks
		enc := NewEncoder(context.Background(), &again, EncoderOptions{ChunkTarget: 100})
		require.NoError(t, Replay(r.Keys, enc))
		sum, err := enc.Close()
		require.NoError(t, err)
		var back Recorder
		require.NoError(t, Walk(ctx, &again, manifestOf(sum), &back))
		require.Len(t, back.Keys, len(r.Keys))
	})
}

// twoChunks is a checkpoint of these raw contents, which must be of one
// section and differ.
func twoChunks(one, two []byte) (*saved, bool) {
	s := &saved{}
	var sum Summary
	for _, raw := range [][]byte{one, two} {
		if len(raw) == 0 {
			continue
		}
		ref, data, err := sealChunk(raw, nil)
		if err != nil || !ref.Section.Valid() {
			return nil, false
		}
		if len(sum.Chunks) > 0 && (sum.Chunks[0].Section != ref.Section || sum.Chunks[0].ID == ref.ID) {
			return nil, false
		}
		s.Put(ref.ID, data)
		sum.Chunks = append(sum.Chunks, ref)
	}
	s.m = manifestOf(sum)
	return s, len(sum.Chunks) > 0
}

func FuzzDecodeManifest(f *testing.F) {
	for _, keys := range [][]RecordedKey{nil, oddKeys()} {
		data, err := EncodeManifest(encode(f, 5000, keys).m)
		require.NoError(f, err)
		f.Add(data)
		f.Add(data[:len(data)-1])
	}
	layered, err := EncodeManifest(layeredManifest(f))
	require.NoError(f, err)
	f.Add(layered)
	old, err := os.ReadFile(filepath.Join(goldenDir1, "manifest"))
	require.NoError(f, err)
	f.Add(old)
	f.Add([]byte(manifestMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, one := range [][]byte{data, sealedManifest(data)} {
			m, err := DecodeManifest(one)
			expected(t, err)
			if err != nil {
				continue
			}
			again, err := EncodeManifest(m)
			require.NoError(t, err)
			back, err := DecodeManifest(again)
			require.NoError(t, err)
			m.Format = FormatVersion // what is written is
			require.Equal(t, m, back)
		}
	})
}

// sealedManifest gives data a right length and checksum.
func sealedManifest(data []byte) []byte {
	if len(data) < manifestBody {
		return data
	}
	return reseal(data)
}

// FuzzWalkLayers reads any bytes as a base and two layers over it, one chunk
// each. What a walk accepts is the same after every merge.
func FuzzWalkLayers(f *testing.F) {
	a, b, c := threeWorlds()
	small := []world{{}, {}, {}}
	for _, name := range []string{"job:due", "job:leaves", "job:new", "job:list", "job:set", "job:a"} {
		for i, w := range []world{a, b, c} {
			if k, ok := w[sectionName{SectionKeyed, name}]; ok && len(k.Elements) < 20 {
				small[i].put(k)
			}
		}
	}
	for _, worlds := range [][]world{small, {small[1], small[0], small[2]}} {
		s := layeredOf(f, EncoderOptions{Salt: 9}, worlds...)
		var raws [][]byte
		for ref := range s.m.AllChunks() {
			o, err := openRef(ctx, s, ref, nil)
			require.NoError(f, err)
			raws = append(raws, o.raw)
		}
		require.Len(f, raws, 3)
		f.Add(raws[0], raws[1], raws[2])
		f.Add(raws[0], raws[2], []byte(nil))
	}
	f.Fuzz(func(t *testing.T, base, one, two []byte) {
		s, ok := threeLayers(base, one, two)
		if !ok {
			return
		}
		section := Section(base[0])
		var r Recorder
		err := Walk(ctx, s, s.m, &r, section)
		expected(t, err)
		problems, verr := Verify(ctx, s, s.m)
		require.NoError(t, verr)
		if err != nil {
			require.NotEmpty(t, problems)
			return
		}
		s.m.Checkpoint.Keys, s.m.Checkpoint.Missing, s.m.Checkpoint.Elements, s.m.Checkpoint.Bytes = countOf(r.Keys)
		if s.m.Validate() != nil {
			return
		}
		for from := range s.m.Layers {
			out := &saved{MemChunks: MemChunks{data: maps.Clone(s.data)}}
			out.m, err = Merge(ctx, s, s.m, from, &out.MemChunks, EncoderOptions{ChunkTarget: 100})
			require.NoError(t, err)
			require.Empty(t, DiffKeys(r.Keys, walk(t, out)))
		}
	})
}

// threeLayers is a checkpoint of these raw contents, all of one section; two
// may be empty.
func threeLayers(base, one, two []byte) (*saved, bool) {
	s := &saved{}
	s.m = manifestOf(Summary{})
	s.m.Sorted = true
	for i, raw := range [][]byte{base, one, two} {
		if i == 2 && len(raw) == 0 {
			continue
		}
		ref, data, err := sealChunk(raw, nil)
		if err != nil || !ref.Section.Valid() || raw[0] != base[0] {
			return nil, false
		}
		s.Put(ref.ID, data)
		s.m.Checkpoint.FullBytes += ref.Stored
		if i == 0 {
			s.m.Chunks = []ChunkRef{ref}
		} else {
			s.m.Layers = append(s.m.Layers, Layer{Chunks: []ChunkRef{ref}, Names: 1 << 20})
		}
	}
	return s, walkable(s.m) == nil
}

// countOf counts keys as a checkpoint of them does.
func countOf(keys []RecordedKey) (exist, missing, elements, bytes uint64) {
	totals := newTotals()
	for _, k := range keys {
		if k.Key.Section > SectionOperator {
			continue
		}
		t := &totals[k.Key.Section]
		tr := tracker{key: k.Key, bytes: uint64(len(k.Key.Name))}
		for _, e := range k.Elements {
			if uint64(len(e.Value)) == e.Size {
				tr.bytes += uint64(len(e.Field)) + e.Size
			}
		}
		t.add(&tr, k.End)
	}
	for _, t := range totals {
		exist, missing, elements, bytes = exist+t.Keys, missing+t.Missing, elements+t.Elements, bytes+t.Bytes
	}
	return exist, missing, elements, bytes
}
