package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

// noticed requires that bytes which are not an archive are told as such, by
// opening or by verifying, and gives what was said.
func noticed(t *testing.T, b []byte, note string) string {
	t.Helper()
	a, err := New(bytes.NewReader(b), int64(len(b)), "test.kfa")
	if err != nil {
		require.True(t, errors.Is(err, snapshot.ErrCorrupt) || errors.Is(err, snapshot.ErrNewerFormat), "%s: %v", note, err)
		return err.Error()
	}
	problems, err := a.Verify(t.Context())
	require.NoError(t, err, note)
	require.NotEmpty(t, problems, note)
	return problems[0].String()
}

func TestEveryFlippedByteIsNoticed(t *testing.T) {
	chunks, m := made(t, "flip", 150)
	b := written(t, chunks, m)
	require.Less(t, len(b), 12<<10, "each byte costs a whole verification")
	for i := range b {
		b[i] ^= 0x41
		noticed(t, b, "flipped byte")
		b[i] ^= 0x41
	}
	whole(t, b)
}

func TestEveryTruncationIsNoticed(t *testing.T) {
	chunks, m := made(t, "cut", 150)
	b := written(t, chunks, m)
	for n := range b {
		_, err := New(bytes.NewReader(b[:n]), int64(n), "test.kfa")
		require.ErrorIs(t, err, snapshot.ErrCorrupt, "%d bytes", n)
		require.ErrorIs(t, err, ErrUnfinished, "%d bytes", n)
	}
	noticed(t, append(bytes.Clone(b), 0), "one byte more")
	noticed(t, append(bytes.Clone(b), b...), "twice")
	noticed(t, make([]byte, len(b)), "zeros")
}

func TestAZeroedPlaceIsNamed(t *testing.T) {
	chunks, m := made(t, "zero", 300)
	b := written(t, chunks, m)
	a := opened(t, b)
	e := a.chunks[m.Chunks[3].ID]
	clear(b[e.offset+60 : e.offset+80])
	require.Contains(t, noticed(t, b, "zeroed"), "chunk 3 (keyed, "+e.id.String()+")")
}

// resealed gives changed bytes right sums, so that a reader's other checks are
// met.
func resealed(b []byte, change func(b []byte, p places)) []byte {
	b = bytes.Clone(b)
	foot := b[len(b)-footSize:]
	change(b, readPlaces(foot))
	p := readPlaces(foot)
	if end := uint64(len(b) - footSize); p.table <= end {
		sum := indexSum(b[:headSize], b[p.table:end], foot[:footSum])
		copy(foot[footSum:], sum[:])
	}
	sum := sha256.Sum256(b[:len(b)-footSize+footWhole])
	copy(foot[footWhole:], sum[:])
	return b
}

// Whoever makes the sums right can still not make a reader read outside the
// file, allocate by a length that isn't checked, or take one chunk for another.
func TestLiesUnderRightSumsAreRefused(t *testing.T) {
	chunks, m := made(t, "lies", 300)
	b := written(t, chunks, m)
	foot := len(b) - footSize
	put := binary.LittleEndian.PutUint64
	for what, c := range map[string]struct {
		change func(b []byte, p places)
		says   string
	}{
		"manifest beyond the end":    {func(b []byte, _ places) { put(b[foot:], 1<<62) }, "places the manifest"},
		"manifest of a huge length":  {func(b []byte, _ places) { put(b[foot+8:], 1<<63) }, "places the manifest"},
		"table elsewhere":            {func(b []byte, p places) { put(b[foot+16:], p.table-44) }, "places the table"},
		"more chunks than there are": {func(b []byte, p places) { put(b[foot+24:], 1<<60) }, "counts"},
		"a length that wraps": {func(b []byte, p places) {
			binary.LittleEndian.PutUint32(b[p.table+40:], 1<<32-1)
		}, "stands at byte"},
		"two chunks exchanged": {func(b []byte, p places) {
			first, second := b[p.table:p.table+32], b[p.table+44:p.table+76]
			for i := range first {
				first[i], second[i] = second[i], first[i]
			}
		}, "in the table"},
		"a gap":              {func(b []byte, p places) { put(b[p.table+32:], 13) }, "stands at byte"},
		"a reserved byte":    {func(b []byte, _ places) { b[6] = 1 }, "bytes 4 to 7"},
		"a version below 1":  {func(b []byte, _ places) { b[4] = 0 }, "bytes 4 to 7"},
		"another manifest":   {func(b []byte, p places) { b[p.manifest+20] ^= 1 }, "manifest"},
		"no beginning":       {func(b []byte, _ places) { b[0] = 'k' }, "begins with"},
		"length before data": {func(b []byte, _ places) { b[8]++ }, "by the length before it"},
	} {
		require.Contains(t, noticed(t, resealed(b, c.change), what), c.says, what)
	}
}

func TestANewerArchiveIsToldFromADamagedOne(t *testing.T) {
	chunks, m := made(t, "newer", 150)
	b := written(t, chunks, m)
	later := resealed(b, func(b []byte, _ places) { b[4] = 3 })
	_, err := New(bytes.NewReader(later), int64(len(later)), "test.kfa")
	require.ErrorIs(t, err, snapshot.ErrNewerFormat)
	require.ErrorContains(t, err, "version 3, this program reads up to 1")
	b[4] = 3
	_, err = New(bytes.NewReader(b), int64(len(b)), "test.kfa")
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
	require.NotErrorIs(t, err, snapshot.ErrNewerFormat)
}

// FuzzOpenArchive reads any bytes, also with sums made right: an error of a
// known kind, or an archive that writes itself again.
func FuzzOpenArchive(f *testing.F) {
	chunks, m := made(f, "fuzz", 20)
	b := written(f, chunks, m)
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Add(resealed(b, func(b []byte, p places) { b[p.table+33]++ }))
	f.Add([]byte("KFAR"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all := [][]byte{data}
		if len(data) >= headSize+footSize {
			all = append(all, resealed(data, func(b []byte, _ places) {
				copy(b, head())
				copy(b[len(b)-8:], endMagic)
			}))
		}
		for _, one := range all {
			readAny(t, one)
		}
	})
}

func readAny(t *testing.T, b []byte) {
	a, err := New(bytes.NewReader(b), int64(len(b)), "fuzz")
	if err != nil {
		if !errors.Is(err, snapshot.ErrCorrupt) && !errors.Is(err, snapshot.ErrNewerFormat) {
			t.Fatalf("error of no known kind: %v", err)
		}
		return
	}
	problems, err := a.Verify(t.Context())
	require.NoError(t, err)
	if len(problems) > 0 {
		return
	}
	whole(t, written(t, a, a.Manifest()))
}
