package snapshot

import (
	"bytes"
	"context"
	"errors"
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
