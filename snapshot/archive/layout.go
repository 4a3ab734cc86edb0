package archive

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"keyframe/snapshot"
)

// Version is the version of archives that is written; all from 1 on are read.
const Version = 1

// Suffix is how the name of an archive ends where this program gives the name.
const Suffix = ".kfa"

// The layout of a file: FORMAT.md, "Archive".
const (
	headMagic  = "KFAR"
	endMagic   = "KFARDONE"
	headSize   = 8
	prefixSize = 4                       // before each envelope: its length
	entrySize  = sha256.Size + 8 + 4     // of the table: id, offset, length
	footSize   = 4*8 + 2*sha256.Size + 8 // see footer
	footSum    = 32                      // where the sum of header, table and places stands
	footWhole  = footSum + sha256.Size   // where the sum of all that is before it stands
	footMagic  = footWhole + sha256.Size
	// maxEnvelope is the longest envelope: a chunk that zstd doesn't make
	// smaller, with the 52 bytes around it.
	maxEnvelope = snapshot.MaxChunk + 52
	// minManifest is an encoded manifest without a body.
	minManifest = 44
)

// ErrUnfinished (with snapshot.ErrCorrupt) is about a file that has no footer:
// one that is still being written, or was cut short.
var ErrUnfinished = errors.New("the archive has no end")

// entry says where one chunk's envelope stands.
type entry struct {
	id     snapshot.ChunkID
	offset uint64
	length uint32
}

func (e entry) append(b []byte) []byte {
	b = append(b, e.id[:]...)
	b = binary.LittleEndian.AppendUint64(b, e.offset)
	return binary.LittleEndian.AppendUint32(b, e.length)
}

// readEntry reads entrySize bytes.
func readEntry(b []byte) (e entry) {
	copy(e.id[:], b)
	e.offset = binary.LittleEndian.Uint64(b[sha256.Size:])
	e.length = binary.LittleEndian.Uint32(b[sha256.Size+8:])
	return e
}

// places are the first bytes of the footer.
type places struct {
	manifest, manifestLength, table, chunks uint64
}

func (p places) append(b []byte) []byte {
	for _, n := range []uint64{p.manifest, p.manifestLength, p.table, p.chunks} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

func readPlaces(b []byte) places {
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return places{manifest: at(0), manifestLength: at(1), table: at(2), chunks: at(3)}
}

// head is the first bytes of a file.
func head() []byte { return append([]byte(headMagic), Version, 0, 0, 0) }

// indexSum is the sum by which a reader trusts what it finds chunks by.
func indexSum(head, table, places []byte) [sha256.Size]byte {
	h := sha256.New()
	h.Write(head)
	h.Write(table)
	h.Write(places)
	return [sha256.Size]byte(h.Sum(nil))
}
