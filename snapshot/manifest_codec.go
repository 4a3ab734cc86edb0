package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// The layout of an encoded manifest: FORMAT.md, "Manifest".
const (
	manifestMagic = "KFMF"
	manifestHead  = 12 // magic, version, three zero bytes, length of the body
	manifestSum   = 12 // where the checksum stands
	manifestBody  = manifestSum + sha256.Size
)

// MaxManifest is the largest encoded manifest that is written or read, in
// bytes. It has room for more than a million chunks.
const MaxManifest = 512 << 20

// EncodeManifest writes a manifest after Validate, in the version of today: one
// that was read from an earlier one becomes FormatVersion. Every byte of every
// string survives, also of those that are no UTF-8; times become UTC.
func EncodeManifest(m *Manifest) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	now := mapStrings(*m, escapeString)
	now.Format = FormatVersion
	body, err := json.Marshal(now)
	if err != nil {
		return nil, fmt.Errorf("encode the manifest of checkpoint %d: %w", m.Checkpoint.ID, err)
	}
	if manifestBody+len(body) > MaxManifest {
		return nil, fmt.Errorf("manifest of checkpoint %d has %d bytes: at most %d", m.Checkpoint.ID, len(body), MaxManifest)
	}
	out := make([]byte, manifestBody, manifestBody+len(body))
	copy(out, manifestMagic)
	out[4] = FormatVersion
	binary.LittleEndian.PutUint32(out[8:], uint32(len(body)))
	out = append(out, body...)
	sum := manifestChecksum(out)
	copy(out[manifestSum:], sum[:])
	return out, nil
}

// manifestChecksum is over everything but the checksum itself.
func manifestChecksum(data []byte) [sha256.Size]byte {
	h := sha256.New()
	h.Write(data[:manifestHead])
	h.Write(data[manifestBody:])
	return [sha256.Size]byte(h.Sum(nil))
}

// DecodeManifest reads what EncodeManifest wrote and validates it. Errors wrap
// ErrCorrupt, or ErrNewerFormat for a later version whose checksum is right.
func DecodeManifest(data []byte) (*Manifest, error) {
	body, err := openManifest(data)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	var m Manifest
	if err := dec.Decode(&m); err != nil {
		return nil, fmt.Errorf("manifest: %w: %w", ErrCorrupt, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("manifest: more follows the object: %w", ErrCorrupt)
	}
	var bad error
	m = mapStrings(m, func(s string) string {
		out, err := unescapeString(s)
		if err != nil && bad == nil {
			bad = err
		}
		return out
	})
	if bad != nil {
		return nil, fmt.Errorf("manifest: %w: %w", ErrCorrupt, bad)
	}
	if m.Format != int(data[4]) {
		return nil, fmt.Errorf("manifest of format %d inside one of format %d: %w", m.Format, data[4], ErrCorrupt)
	}
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return &m, nil
}

// openManifest checks all around the body. The checksum comes before the
// version: only a sound manifest can be a newer one.
func openManifest(data []byte) ([]byte, error) {
	switch {
	case len(data) < manifestBody:
		return nil, fmt.Errorf("%d bytes: want at least %d: %w", len(data), manifestBody, ErrCorrupt)
	case len(data) > MaxManifest:
		return nil, fmt.Errorf("%d bytes: at most %d: %w", len(data), MaxManifest, ErrCorrupt)
	case !bytes.HasPrefix(data, []byte(manifestMagic)):
		return nil, fmt.Errorf("begins with %q: want %q: %w", data[:4], manifestMagic, ErrCorrupt)
	}
	body := data[manifestBody:]
	if n := binary.LittleEndian.Uint32(data[8:]); uint64(n) != uint64(len(body)) {
		return nil, fmt.Errorf("body of %d bytes, its head says %d: %w", len(body), n, ErrCorrupt)
	}
	if sum := manifestChecksum(data); !bytes.Equal(sum[:], data[manifestSum:manifestBody]) {
		return nil, fmt.Errorf("its SHA-256 is %x, it says %x: %w", sum, data[manifestSum:manifestBody], ErrCorrupt)
	}
	switch v := data[4]; {
	case v > FormatVersion:
		return nil, fmt.Errorf("is of format %d, this program reads up to %d: %w", v, FormatVersion, ErrNewerFormat)
	case v == 0 || data[5] != 0 || data[6] != 0 || data[7] != 0:
		return nil, fmt.Errorf("bytes 4 to 7 are % x: want % x: %w", data[4:8], []byte{FormatVersion, 0, 0, 0}, ErrCorrupt)
	}
	return body, nil
}
