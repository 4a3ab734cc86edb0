package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// The layout of a chunk's envelope: FORMAT.md, "Envelope".
const (
	chunkMagic  = "KFCK"
	codecRaw    = 0
	codecZstd   = 1
	headerSize  = 48
	trailerSize = 4
	// chunkOverhead is what an envelope adds to its payload, in bytes.
	chunkOverhead = headerSize + trailerSize
	minRaw        = 2 // the section and one byte of a frame
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The compressor and decompressor are shared: both are safe for concurrent
// use as they are used here, and their buffers are the larger part of what a
// chunk costs. Making them fails only for options that contradict themselves.
var (
	compressor = sync.OnceValues(func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil,
			zstd.WithEncoderLevel(zstd.SpeedFastest),
			zstd.WithEncoderConcurrency(2),
			zstd.WithWindowSize(1<<20),
			zstd.WithLowerEncoderMem(true),
			zstd.WithEncoderCRC(false)) // the envelope has its own
	})
	decompressor = sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil,
			zstd.WithDecoderConcurrency(2),
			zstd.WithDecoderLowmem(true),
			zstd.WithDecodeAllCapLimit(true),
			zstd.WithDecoderMaxMemory(MaxChunk))
	})
)

// sealChunk wraps the raw content of a chunk into its envelope, which it
// writes over buf (grown as needed). raw begins with the section.
func sealChunk(raw, buf []byte) (ChunkRef, []byte, error) {
	if len(raw) < minRaw || len(raw) > MaxChunk {
		return ChunkRef{}, buf, fmt.Errorf("chunk of %d raw bytes: want %d to %d", len(raw), minRaw, MaxChunk)
	}
	enc, err := compressor()
	if err != nil {
		return ChunkRef{}, buf, fmt.Errorf("make the compressor: %w", err)
	}
	ref := ChunkRef{ID: sha256.Sum256(raw), Section: Section(raw[0]), Raw: uint64(len(raw))}
	var header [headerSize]byte
	// In one step, for what compresses at all, and with some more, since chunks
	// of one target differ by a little.
	if room := chunkOverhead + len(raw)/2; cap(buf) < room {
		buf = make([]byte, 0, room+room/16)
	}
	out := enc.EncodeAll(raw, append(buf[:0], header[:]...))
	codec := byte(codecZstd)
	if len(out)-headerSize >= len(raw) {
		codec = codecRaw
		out = append(out[:headerSize], raw...)
	}
	copy(out, chunkMagic)
	out[4], out[5], out[6], out[7] = FormatVersion, codec, raw[0], 0
	binary.LittleEndian.PutUint32(out[8:], uint32(len(raw)))
	binary.LittleEndian.PutUint32(out[12:], uint32(len(out)-headerSize))
	copy(out[16:], ref.ID[:])
	out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
	ref.Stored = uint64(len(out))
	return ref, out, nil
}

// OpenChunk checks a chunk's envelope whole (lengths, checksums, codec,
// format) and gives what it is and its raw content, decompressed into buf,
// which is grown as needed (to little more than MaxChunk bytes whatever data says).
// The content's records aren't looked at; [Walk] does that.
//
// Errors wrap ErrCorrupt, or ErrNewerFormat for a chunk of a later version
// whose checksum is right.
func OpenChunk(data, buf []byte) (ChunkRef, []byte, error) {
	ref, payload, err := checkEnvelope(data)
	if err != nil {
		return ref, nil, err
	}
	raw := payload
	if data[5] == codecZstd {
		if raw, err = decompress(payload, buf, int(ref.Raw)); err != nil {
			return ref, nil, err
		}
	}
	if sum := ChunkID(sha256.Sum256(raw)); sum != ref.ID {
		return ref, nil, fmt.Errorf("content has the id %s, its envelope says %s: %w", sum, ref.ID, ErrCorrupt)
	}
	if raw[0] != byte(ref.Section) {
		return ref, nil, fmt.Errorf("content is of %s, its envelope says %s: %w",
			Section(raw[0]), ref.Section, ErrCorrupt)
	}
	return ref, raw, nil
}

// checkEnvelope checks all of an envelope but its content.
func checkEnvelope(data []byte) (ref ChunkRef, payload []byte, err error) {
	if len(data) < chunkOverhead {
		return ref, nil, fmt.Errorf("envelope of %d bytes: want at least %d: %w", len(data), chunkOverhead, ErrCorrupt)
	}
	if !bytes.HasPrefix(data, []byte(chunkMagic)) {
		return ref, nil, fmt.Errorf("envelope begins with %q: want %q: %w", data[:4], chunkMagic, ErrCorrupt)
	}
	body := data[:len(data)-trailerSize]
	want := binary.LittleEndian.Uint32(data[len(body):])
	if got := crc32.Checksum(body, castagnoli); got != want {
		return ref, nil, fmt.Errorf("envelope's CRC-32C is %08x, it says %08x: %w", got, want, ErrCorrupt)
	}
	if v := data[4]; v > FormatVersion {
		return ref, nil, fmt.Errorf("chunk of format %d, this program reads up to %d: %w", v, FormatVersion, ErrNewerFormat)
	} else if v == 0 {
		return ref, nil, fmt.Errorf("chunk of format 0: %w", ErrCorrupt)
	}
	ref = ChunkRef{
		Section: Section(data[6]),
		Raw:     uint64(binary.LittleEndian.Uint32(data[8:])),
		Stored:  uint64(len(data)),
	}
	copy(ref.ID[:], data[16:])
	payload = body[headerSize:]
	return ref, payload, checkHeader(data, ref, payload)
}

func checkHeader(data []byte, ref ChunkRef, payload []byte) error {
	codec := data[5]
	switch {
	case codec != codecRaw && codec != codecZstd:
		return fmt.Errorf("codec %d: want %d or %d: %w", codec, codecRaw, codecZstd, ErrCorrupt)
	case !ref.Section.Valid():
		return fmt.Errorf("unknown %s: %w", ref.Section, ErrCorrupt)
	case data[7] != 0:
		return fmt.Errorf("reserved byte 7 is %d: want 0: %w", data[7], ErrCorrupt)
	case ref.Raw < minRaw || ref.Raw > MaxChunk:
		return fmt.Errorf("raw length %d: want %d to %d: %w", ref.Raw, minRaw, MaxChunk, ErrCorrupt)
	}
	stored := binary.LittleEndian.Uint32(data[12:])
	if uint64(stored) != uint64(len(payload)) {
		return fmt.Errorf("payload of %d bytes, the envelope says %d: %w", len(payload), stored, ErrCorrupt)
	}
	if codec == codecRaw && uint64(stored) != ref.Raw {
		return fmt.Errorf("uncompressed payload of %d bytes, raw length %d: %w", stored, ref.Raw, ErrCorrupt)
	}
	return nil
}

// decompress gives exactly want bytes or an error.
func decompress(payload, buf []byte, want int) ([]byte, error) {
	dec, err := decompressor()
	if err != nil {
		return nil, fmt.Errorf("make the decompressor: %w", err)
	}
	if cap(buf) < want {
		// Chunks of one target differ by a little: the next one shall fit too.
		buf = make([]byte, 0, want+want/8)
	}
	raw, err := dec.DecodeAll(payload, buf[:0:want])
	if err != nil {
		return nil, fmt.Errorf("decompress %d bytes: %w (%w)", len(payload), err, ErrCorrupt)
	}
	if len(raw) != want {
		return nil, fmt.Errorf("decompressed to %d bytes, the envelope says %d: %w", len(raw), want, ErrCorrupt)
	}
	if want > 0 && &raw[0] == &buf[:1][0] {
		return buf[:want], nil // with the room that it has for the next one
	}
	return raw, nil
}
