package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"keyframe/snapshot"
)

var _ snapshot.ChunkSource = (*Archive)(nil)

// Archive is an open archive. Safe for concurrent use.
type Archive struct {
	r        io.ReaderAt
	size     int64
	name     string // for messages
	close    func() error
	manifest *snapshot.Manifest
	chunks   map[snapshot.ChunkID]entry
}

// Open opens a file and reads all but its chunks: footer, table, manifest. The
// errors wrap snapshot.ErrCorrupt (with ErrUnfinished for a file without an
// end), or snapshot.ErrNewerFormat, and say where. In memory are the manifest
// and about 100 bytes for each chunk, never more than a few times the file.
func Open(path string) (*Archive, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the archive: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no file")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("archive %s: %w", path, err), f.Close())
	}
	a, err := NewFile(f, info.Size(), path)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return a, nil
}

// NewFile is New for an open file, which Close then closes.
func NewFile(f *os.File, size int64, name string) (*Archive, error) {
	a, err := New(f, size, name)
	if err == nil {
		a.close = f.Close
	}
	return a, err
}

// New is Open for size bytes that are read through r; name is for messages.
func New(r io.ReaderAt, size int64, name string) (*Archive, error) {
	a := &Archive{r: r, size: size, name: name, close: func() error { return nil }}
	if err := a.load(); err != nil {
		return nil, fmt.Errorf("archive %s: %w", name, err)
	}
	return a, nil
}

// Manifest is the checkpoint's manifest. The caller must not change it.
func (a *Archive) Manifest() *snapshot.Manifest { return a.manifest }

// Bytes is the size of the whole file.
func (a *Archive) Bytes() int64 { return a.size }

// Close closes the file. The chunks that were given stay valid.
func (a *Archive) Close() error {
	if err := a.close(); err != nil {
		return fmt.Errorf("close archive %s: %w", a.name, err)
	}
	return nil
}

// Chunk implements [snapshot.ChunkSource]. The envelope is given as it stands;
// whoever opens it checks it.
func (a *Archive) Chunk(ctx context.Context, id snapshot.ChunkID) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e, ok := a.chunks[id]
	if !ok {
		return nil, fmt.Errorf("archive %s: chunk %s: %w", a.name, id, snapshot.ErrNoChunk)
	}
	b, err := a.bytes(int64(e.offset)-prefixSize, prefixSize+int(e.length))
	if err != nil {
		return nil, fmt.Errorf("archive %s: chunk %s: %w", a.name, id, err)
	}
	if n := binary.LittleEndian.Uint32(b); n != e.length {
		return nil, fmt.Errorf("archive %s: chunk %s at byte %d: %d bytes by the length before it, %d by the table: %w",
			a.name, id, e.offset, n, e.length, snapshot.ErrCorrupt)
	}
	return b[prefixSize:], nil
}

// bytes reads n bytes at off, which lie within the file.
func (a *Archive) bytes(off int64, n int) ([]byte, error) {
	b := make([]byte, n)
	got, err := a.r.ReadAt(b, off)
	if got == n {
		return b, nil
	}
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("it became shorter while it was read: %d bytes at byte %d are gone: %w", n-got, off+int64(got), snapshot.ErrCorrupt)
	}
	return nil, fmt.Errorf("read %d bytes at byte %d: %w", n, off, err)
}

func (a *Archive) load() error {
	if a.size < headSize+footSize {
		return fmt.Errorf("%d bytes: an archive has at least %d: %w (%w)", a.size, headSize+footSize, ErrUnfinished, snapshot.ErrCorrupt)
	}
	first, err := a.bytes(0, headSize)
	if err != nil {
		return err
	}
	foot, err := a.bytes(a.size-footSize, footSize)
	if err != nil {
		return err
	}
	if err := a.recognize(first, foot); err != nil {
		return err
	}
	p := readPlaces(foot)
	if err := a.checkPlaces(p); err != nil {
		return err
	}
	table, err := a.bytes(int64(p.table), int(p.chunks)*entrySize)
	if err != nil {
		return err
	}
	if sum := indexSum(first, table, foot[:footSum]); !bytes.Equal(sum[:], foot[footSum:footWhole]) {
		return fmt.Errorf("the table of chunks (at byte %d) and the footer have the SHA-256 %x, the footer says %x: %w",
			p.table, sum, foot[footSum:footWhole], snapshot.ErrCorrupt)
	}
	return a.index(p, table)
}

// recognize checks that it is an archive of a version that is read.
func (a *Archive) recognize(first, foot []byte) error {
	switch {
	case !bytes.HasPrefix(first, []byte(headMagic)):
		return fmt.Errorf("it begins with %q: want %q: %w", first[:4], headMagic, snapshot.ErrCorrupt)
	case string(foot[footMagic:]) != endMagic:
		return fmt.Errorf("%w: the last 8 of its %d bytes are %q, want %q; it was cut short, or is still being written (%w)",
			ErrUnfinished, a.size, foot[footMagic:], endMagic, snapshot.ErrCorrupt)
	case first[4] > Version:
		// Only one whose checksum is right can be a newer one.
		if err := a.Check(context.Background()); err != nil {
			return err
		}
		return fmt.Errorf("it is of version %d, this program reads up to %d: %w", first[4], Version, snapshot.ErrNewerFormat)
	case first[4] == 0 || first[5] != 0 || first[6] != 0 || first[7] != 0:
		return fmt.Errorf("bytes 4 to 7 are % x: want % x: %w", first[4:], head()[4:], snapshot.ErrCorrupt)
	}
	return nil
}

// checkPlaces checks that manifest and table stand where they must: nothing
// is between them, and nothing before the footer.
func (a *Archive) checkPlaces(p places) error {
	end := uint64(a.size - footSize)
	switch {
	case p.manifest < headSize || p.manifest > end || p.manifestLength < minManifest || p.manifestLength > snapshot.MaxManifest || p.manifestLength > end-p.manifest:
		return fmt.Errorf("the footer places the manifest at byte %d, %d bytes long, in %d: %w", p.manifest, p.manifestLength, end, snapshot.ErrCorrupt)
	case p.table != p.manifest+p.manifestLength:
		return fmt.Errorf("the footer places the table at byte %d, the manifest ends at %d: %w", p.table, p.manifest+p.manifestLength, snapshot.ErrCorrupt)
	case p.chunks != (end-p.table)/entrySize || (end-p.table)%entrySize != 0:
		return fmt.Errorf("the footer counts %d chunks, the table has %d bytes: %w", p.chunks, end-p.table, snapshot.ErrCorrupt)
	}
	return nil
}

// index reads the manifest, and takes the table: the manifest's chunks in
// their order, one after the other without a gap.
func (a *Archive) index(p places, table []byte) error {
	b, err := a.bytes(int64(p.manifest), int(p.manifestLength))
	if err != nil {
		return err
	}
	if a.manifest, err = snapshot.DecodeManifest(b); err != nil {
		return fmt.Errorf("at byte %d: %w", p.manifest, err)
	}
	a.chunks = make(map[snapshot.ChunkID]entry, p.chunks)
	next, i := uint64(headSize), 0
	for ref := range a.manifest.AllChunks() {
		if (i+1)*entrySize > len(table) {
			return fmt.Errorf("the table has %d chunks, the manifest names more: %w", i, snapshot.ErrCorrupt)
		}
		e := readEntry(table[i*entrySize:])
		if e.id != ref.ID {
			return fmt.Errorf("chunk %d is %s in the table, %s in the manifest: %w", i, e.id, ref.ID, snapshot.ErrCorrupt)
		}
		if e.offset != next+prefixSize || e.length > maxEnvelope {
			return fmt.Errorf("chunk %d (%s) stands at byte %d with %d bytes: want byte %d and at most %d: %w",
				i, e.id, e.offset, e.length, next+prefixSize, maxEnvelope, snapshot.ErrCorrupt)
		}
		a.chunks[e.id] = e
		next = e.offset + uint64(e.length)
		i++
	}
	if i*entrySize != len(table) || next != p.manifest {
		return fmt.Errorf("the manifest names %d chunks, which end at byte %d; the table has %d, and the manifest stands at %d: %w",
			i, next, p.chunks, p.manifest, snapshot.ErrCorrupt)
	}
	return nil
}

// Check reads the whole file once and compares it with its SHA-256: nil says
// that each byte is the one that was written.
func (a *Archive) Check(ctx context.Context) error {
	const step = 1 << 20
	h := sha256.New()
	body := a.size - footSize + footWhole
	buf := make([]byte, min(step, body))
	for at := int64(0); at < body; {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n := min(int64(len(buf)), body-at)
		got, err := a.r.ReadAt(buf[:n], at)
		if int64(got) < n {
			return fmt.Errorf("archive %s: read at byte %d: %w", a.name, at+int64(got), err)
		}
		h.Write(buf[:n])
		at += n
	}
	want, err := a.bytes(body, sha256.Size)
	if err != nil {
		return err
	}
	if got := h.Sum(nil); !bytes.Equal(got, want) {
		return fmt.Errorf("archive %s: its SHA-256 is %x, its end says %x: %w", a.name, got, want, snapshot.ErrCorrupt)
	}
	return nil
}

// Verify reads all: the whole file against its checksum, and the checkpoint as
// snapshot.Verify does, which says what and where. The error is for a file that
// could not be read on.
func (a *Archive) Verify(ctx context.Context) ([]snapshot.Problem, error) {
	sum := a.Check(ctx)
	if sum != nil && !errors.Is(sum, snapshot.ErrCorrupt) {
		return nil, sum
	}
	all, err := snapshot.Verify(ctx, a, a.manifest)
	if err != nil {
		return all, fmt.Errorf("archive %s: %w", a.name, err)
	}
	if sum != nil {
		c := a.manifest.Checkpoint
		all = append(all, snapshot.Problem{Job: c.Job, Checkpoint: c.ID, What: "file", Detail: sum.Error()})
	}
	return all, nil
}
