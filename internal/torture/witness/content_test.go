package witness

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
)

// repack makes an envelope of version 2 of raw content, with right checksums.
func repack(raw []byte) (id string, data []byte) {
	sum := sha256.Sum256(raw)
	data = append([]byte("KFCK"), 2, 0, raw[0], 0)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(raw)))
	data = binary.LittleEndian.AppendUint32(data, uint32(len(raw)))
	data = append(append(data, sum[:]...), raw...)
	return hex.EncodeToString(sum[:]), binary.LittleEndian.AppendUint32(data, crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))
}

// TestContentThatIsWrongUnderRightChecksumsIsNoticed changes bytes of the
// content and makes all checksums right again: what a broken writer would
// leave. Nearly each such change gives an error or another state. The others are
// of what a newer record supersedes (its expiry, its count), of keys that had
// expired, or of the server's version beside an opaque payload.
func TestContentThatIsWrongUnderRightChecksumsIsNoticed(t *testing.T) {
	data, chunks := golden(t, filepath.Join("../../../snapshot/testdata", "golden-2"))
	m, err := openManifest(data)
	require.NoError(t, err)
	want, err := readGolden(data, chunks)
	require.NoError(t, err)
	lists := [][]chunkRef{m.Chunks}
	for _, l := range m.Layers {
		lists = append(lists, l.Chunks)
	}
	wrong, equal := 0, 0
	for i, refs := range lists {
		for k, ref := range refs {
			raw, _, err := unpack(chunks[ref.ID], ref)
			require.NoError(t, err)
			raw = bytes.Clone(raw)
			salt := 0
			if i > 0 {
				salt = 11 // kind, number, layer: after the section
			}
			for at := 1 + salt; at < len(raw); at += 1 + len(raw)/5 {
				raw[at] ^= 0x04
				refs[k].ID, chunks["changed"] = repack(raw)
				all, err := readSections(m, func(id string) ([]byte, error) {
					if id == refs[k].ID {
						return chunks["changed"], nil
					}
					return getFrom(chunks)(id)
				})
				var got *State
				if err == nil {
					got, err = m.state(all, "job")
				}
				if wrong++; err == nil && ref.Section != sectionSource && reflect.DeepEqual(want, got) {
					equal++
				}
				raw[at] ^= 0x04
			}
			refs[k] = ref
		}
	}
	require.Greater(t, wrong, 150)
	require.Less(t, equal, wrong/25, "of %d", wrong)
}

// frames are raw content of the keyed section.
func frames(all ...[]byte) []byte { return bytes.Join(append([][]byte{{sectionKeyed}}, all...), nil) }

func TestFramesThatBreakTheRulesAreRefused(t *testing.T) {
	sum := func(elements ...element) []byte {
		return binary.LittleEndian.AppendUint64(nil, digest(typeSet, elements))
	}
	m, n := element{value: []byte("m")}, element{value: []byte("n")}
	salt := append([]byte{frameSalt}, make([]byte, 9)...)
	head := []byte{frameKey, typeSet, 1, 'k', 0, 1}
	one := []byte{frameElement, 1, 'm'}
	end := append([]byte{frameEnd, 0, 1}, sum(m)...)
	read := func(layer int, version byte, chunks ...[]byte) error {
		r := &reader{layer: layer, section: sectionKeyed}
		for _, c := range chunks {
			if err := r.chunk(c, version); err != nil {
				return err
			}
		}
		return nil
	}
	require.NoError(t, read(0, 1, frames(head, one, end)))
	require.NoError(t, read(1, 2, frames(salt, head, one, end)))
	resume := []byte{frameResume, typeSet, 1, 'k', 1, 0}
	require.NoError(t, read(0, 1, frames(head, one), frames(resume, end)))
	for text, err := range map[string]error{
		"begins with a salt: true":               read(0, 2, frames(salt, head, one, end)),
		"begins with a salt: false":              read(1, 2, frames(head, one, end)),
		"no frame is in it":                      read(0, 2, frames()),
		"frame 10 in a chunk of version 1":       read(0, 1, frames([]byte{frameLoose, typeSet, 1, 'k', 0, 1}, one, end)),
		"1 elements of digest":                   read(0, 2, frames(head, one, append([]byte{frameEnd, 0, 1}, sum(n)...))),
		"2 elements, its count is 1":             read(0, 2, frames(head, one, []byte{frameElement, 1, 'n'}, append([]byte{frameEnd, 0, 2}, sum(m, n)...))),
		"frame 1 resumes key":                    read(0, 2, frames(head, one), frames(head, one, end)),
		"after 2 elements":                       read(0, 2, frames(head, one), frames([]byte{frameResume, typeSet, 1, 'k', 2, 0}, end)),
		"frame 2":                                read(0, 2, frames(resume, end)),
		"frame 3 while a key is open: false":     read(0, 2, frames(one, end)),
		"it expired and has no expiry":           read(0, 2, frames(head, one, append([]byte{frameEnd, 1, 1}, sum(m)...))),
		"frame 8 in layer 0":                     read(0, 2, frames([]byte{frameGone, 1, 'k'}, append([]byte{frameEnd, 0, 0}, sum()...))),
		"comes after":                            read(1, 2, frames(salt, head, one, end, head, one, end)),
		"frame 9":                                read(0, 2, frames(head, []byte{frameRemoved, 1, 'm'}, end)),
		"its type is 9":                          read(0, 2, frames([]byte{frameKey, 9, 1, 'k', 0, 1})),
		"bytes are wanted":                       read(0, 2, frames(head[:3])),
		"its expiry is 9223372036854775808":      read(0, 2, frames([]byte{frameKey, typeSet, 1, 'k', 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1, 1})),
		"it is missing and has the expiry 0 and": read(0, 2, frames([]byte{frameKey, typeMissing, 1, 'k', 0, 1})),
	} {
		require.ErrorContains(t, err, text)
	}
	whole := &record{frame: frameKey, kind: typeSet, name: "k", count: 1, elements: []element{m}}
	patch := &record{frame: framePatch, kind: typeSet, name: "k", count: 2, elements: []element{n}}
	over := func(all ...*record) error {
		got := merged{}
		for i, r := range all {
			if err := got.put(r, i); err != nil {
				return err
			}
		}
		return got.settle()
	}
	require.NoError(t, over(whole, patch))
	require.ErrorContains(t, over(patch), "has no key of type 4 below it")
	require.ErrorContains(t, over(&record{frame: frameKey, kind: typeHash, name: "k"}, patch), "has no key of type 4 below it")
	require.ErrorContains(t, over(whole, &record{frame: frameGone, name: "k"}, patch), "has no key")
	require.ErrorContains(t, over(whole, &record{frame: framePatch, kind: typeSet, name: "k", count: 2, elements: []element{n, n}}), "twice")
	require.ErrorContains(t, over(whole, &record{frame: framePatch, kind: typeSet, name: "k", count: 3, elements: []element{n}}), "2 elements, its count is 3")
}

// TestACopyOfAFileInUseIsWhole copies the store file while checkpoints are
// committed to it: whatever is opened can be read whole.
func TestACopyOfAFileInUseIsWhole(t *testing.T) {
	r := newRig(t)
	r.populate()
	r.apply()
	r.checkpoint()
	var stop atomic.Bool
	ended := make(chan error, 1)
	go func() {
		for !stop.Load() {
			op, err := r.c.Checkpoint(t.Context(), r.spec.Name, coordinator.CheckpointRequest{})
			if err == nil {
				_, err = op.Wait(t.Context())
			}
			if err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	j, greatest := NewJournal(), uint64(0)
	for range 6 {
		s, err := OpenStore(r.path, t.TempDir())
		require.NoError(t, err)
		all, err := s.Checkpoints(r.spec.Name)
		require.NoError(t, err)
		last, err := s.Last(r.spec.Name)
		require.NoError(t, err)
		require.Empty(t, j.Listed(all, last))
		_, f, err := CheckReadable(s, r.spec.Name, 2)
		require.NoError(t, err)
		require.Empty(t, f)
		greatest = last
		require.NoError(t, s.Close())
	}
	stop.Store(true)
	require.NoError(t, <-ended)
	require.Greater(t, greatest, uint64(1), "it was in use")
}
