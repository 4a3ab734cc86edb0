package snapshot

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"
)

// readdress gives an envelope a right CRC after a change.
func readdress(data []byte, change func(b []byte)) []byte {
	data = bytes.Clone(data)
	change(data)
	body := data[:len(data)-trailerSize]
	binary.LittleEndian.PutUint32(data[len(body):], crc32.Checksum(body, castagnoli))
	return data
}

func TestEnvelopesThatAreRefused(t *testing.T) {
	raw := rawItem(rawKey(TypeList, "job:l", 1), text(900, "value"))
	ref, good, err := sealChunk(raw, nil)
	require.NoError(t, err)
	require.EqualValues(t, codecZstd, good[5])
	for text, c := range map[string]struct {
		is     error
		change func(b []byte)
	}{
		"format 3, this program reads up to 2": {ErrNewerFormat, func(b []byte) { b[4] = 3 }},
		"format 0":                             {ErrCorrupt, func(b []byte) { b[4] = 0 }},
		"codec 2":                              {ErrCorrupt, func(b []byte) { b[5] = 2 }},
		"uncompressed payload":                 {ErrCorrupt, func(b []byte) { b[5] = codecRaw }},
		"unknown section(9)":                   {ErrCorrupt, func(b []byte) { b[6] = 9 }},
		"its envelope says meta":               {ErrCorrupt, func(b []byte) { b[6] = byte(SectionMeta) }},
		"reserved byte":                        {ErrCorrupt, func(b []byte) { b[7] = 1 }},
		"raw length 41943041":                  {ErrCorrupt, func(b []byte) { binary.LittleEndian.PutUint32(b[8:], MaxChunk+1) }},
		"raw length 1:":                        {ErrCorrupt, func(b []byte) { binary.LittleEndian.PutUint32(b[8:], 1) }},
		"decompressed to":                      {ErrCorrupt, func(b []byte) { binary.LittleEndian.PutUint32(b[8:], ref32(ref)+1) }},
		"decompress":                           {ErrCorrupt, func(b []byte) { binary.LittleEndian.PutUint32(b[8:], ref32(ref)-1) }},
		"the envelope says 7":                  {ErrCorrupt, func(b []byte) { binary.LittleEndian.PutUint32(b[12:], 7) }},
		"content has the id":                   {ErrCorrupt, func(b []byte) { b[16]++ }},
	} {
		_, _, err := OpenChunk(readdress(good, c.change), nil)
		require.ErrorIs(t, err, c.is, text)
		require.ErrorContains(t, err, text)
	}
	got, back, err := OpenChunk(good, nil)
	require.NoError(t, err)
	require.Equal(t, ref, got)
	require.Equal(t, raw, back)
	_, _, err = sealChunk([]byte{1}, nil)
	require.ErrorContains(t, err, "chunk of 1 raw bytes")
}

func ref32(ref ChunkRef) uint32 { return uint32(ref.Raw) }

func TestContentThatDoesNotCompressIsStoredAsItIs(t *testing.T) {
	raw := rawItem(rawKey(TypeList, "k", 1), "x")
	ref, data, err := sealChunk(raw, nil)
	require.NoError(t, err)
	require.EqualValues(t, codecRaw, data[5])
	require.EqualValues(t, len(raw)+chunkOverhead, ref.Stored)
	_, back, err := OpenChunk(data, nil)
	require.NoError(t, err)
	require.Equal(t, raw, back)
}
