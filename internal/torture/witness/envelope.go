package witness

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Numbers of FORMAT.md, "Envelope" and "Limits".
const (
	envelopeHead = 48
	envelopeTail = 4
	maxChunk     = 40 << 20
	newest       = 2 // the format's version
)

// unpack checks an envelope whole and gives its raw content and its version.
func unpack(data []byte, ref chunkRef) (raw []byte, version byte, err error) {
	fail := func(format string, args ...any) ([]byte, byte, error) {
		return nil, 0, fmt.Errorf("chunk %s: %s", ref.ID, fmt.Sprintf(format, args...))
	}
	if len(data) < envelopeHead+envelopeTail {
		return fail("%d bytes", len(data))
	}
	end := len(data) - envelopeTail
	if string(data[:4]) != "KFCK" {
		return fail("its magic is %q", data[:4])
	}
	sum := crc32.Checksum(data[:end], crc32.MakeTable(crc32.Castagnoli))
	if said := binary.LittleEndian.Uint32(data[end:]); said != sum {
		return fail("its CRC-32C is %08x, it says %08x", sum, said)
	}
	version = data[4]
	codec, section, zero := data[5], data[6], data[7]
	rawLen, packed := binary.LittleEndian.Uint32(data[8:]), binary.LittleEndian.Uint32(data[12:])
	switch {
	case version < 1 || version > newest || codec > 1 || zero != 0:
		return fail("version %d, codec %d, byte 7 is %d", version, codec, zero)
	case section != ref.Section:
		return fail("its section is %d, the manifest says %d", section, ref.Section)
	case uint64(rawLen) != ref.Raw || rawLen > maxChunk || int(packed) != end-envelopeHead:
		return fail("%d raw bytes, %d packed ones of %d, the manifest says %d raw", rawLen, packed, end-envelopeHead, ref.Raw)
	}
	raw, err = inflate(data[envelopeHead:end], codec, int(rawLen))
	if err != nil {
		return fail("%v", err)
	}
	id := sha256.Sum256(raw)
	switch {
	case !bytes.Equal(id[:], data[16:envelopeHead]) || hex.EncodeToString(id[:]) != ref.ID:
		return fail("its content's SHA-256 is %x, it says %x", id, data[16:envelopeHead])
	case raw[0] != section:
		return fail("its content begins with section %d", raw[0])
	}
	return raw, version, nil
}

// decoder is one for all: it decodes whole frames only, without a goroutine.
var decoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxChunk))
})

func inflate(packed []byte, codec byte, size int) ([]byte, error) {
	raw := packed
	if codec == 1 {
		d, err := decoder()
		if err != nil {
			return nil, fmt.Errorf("zstd: %w", err)
		}
		if raw, err = d.DecodeAll(packed, make([]byte, 0, size)); err != nil {
			return nil, fmt.Errorf("zstd: %w", err)
		}
	}
	if len(raw) != size || size == 0 {
		return nil, fmt.Errorf("%d bytes of content, its head says %d", len(raw), size)
	}
	return raw, nil
}
