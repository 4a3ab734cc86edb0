package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"go.etcd.io/bbolt"

	"keyframe/snapshot"
)

// A chunk's id says what it must hold, so a stored one is never taken on
// trust: it is read and checked (length, envelope, checksum, id) whenever a new
// checkpoint is going to rely on it.

// checkStored reads a chunk that the index has and checks it whole. An error
// wraps snapshot.ErrCorrupt when the bytes are not what was written, or
// snapshot.ErrNewerFormat. buf is for the content, and comes back grown.
func checkStored(tx *bbolt.Tx, id snapshot.ChunkID, e entry, buf *[]byte) error {
	b := tx.Bucket(bucketChunks).Get(seqKey(e.seq))
	if b == nil {
		return fmt.Errorf("chunk %s: %w: its bytes (number %d) are missing", id, snapshot.ErrCorrupt, e.seq)
	}
	if uint64(len(b)) != uint64(e.stored) {
		return fmt.Errorf("chunk %s: %w: %d bytes are stored, the index says %d", id, snapshot.ErrCorrupt, len(b), e.stored)
	}
	defer letGo(tx, b)
	return checkBytes(id, b, buf)
}

// maxKeptBuffer is from what size on a chunk's content gets a buffer of its
// own: chunks of a huge field are rare.
const maxKeptBuffer = 4 << 20

// checkBytes holds an envelope against the id that it is to have.
func checkBytes(id snapshot.ChunkID, b []byte, buf *[]byte) error {
	ref, _, err := snapshot.OpenChunk(b, *buf)
	if err != nil {
		return fmt.Errorf("chunk %s: %w", id, err)
	}
	// The content may lie in b itself, so a buffer for the next is made here.
	if ref.Raw > uint64(cap(*buf)) && ref.Raw <= maxKeptBuffer {
		*buf = make([]byte, 0, ref.Raw+ref.Raw/8)
	}
	if ref.ID != id {
		return fmt.Errorf("chunk %s: %w: its bytes are of chunk %s", id, snapshot.ErrCorrupt, ref.ID)
	}
	return nil
}

// has reports whether a chunk is stored and whole. A damaged one is as good as
// none here: it is to be written again.
func (db *DB) has(ctx context.Context, id snapshot.ChunkID, buf *[]byte) (whole bool, err error) {
	err = db.view(ctx, func(tx *bbolt.Tx) error {
		e, ok, err := lookup(tx, id)
		if err == nil && ok {
			err = checkStored(tx, id, e, buf)
		}
		whole = err == nil && ok
		if errors.Is(err, snapshot.ErrCorrupt) {
			return nil
		}
		return err
	})
	return whole, err
}

// putter stores chunks in one transaction.
type putter struct {
	db   *DB
	tx   *bbolt.Tx
	lost bool   // see DB.lost
	buf  []byte // for the content of a chunk that is checked
	refs map[snapshot.ChunkID]uint32
}

// put stores a chunk without a reference, unless it is there and whole: then
// it is known. Damaged bytes are replaced, which mends every checkpoint that
// names them; their references stay.
func (p *putter) put(id snapshot.ChunkID, data []byte) (known bool, err error) {
	e, ok, err := lookup(p.tx, id)
	if err != nil && !errors.Is(err, snapshot.ErrCorrupt) {
		return false, err
	}
	if err != nil || !ok && p.lost {
		// With the entry its count was lost.
		if e.refs, err = p.count(id); err != nil {
			return false, err
		}
	}
	if ok {
		cause := checkStored(p.tx, id, e, &p.buf)
		if !errors.Is(cause, snapshot.ErrCorrupt) {
			return cause == nil, cause
		}
		if err := checkBytes(id, data, &p.buf); err != nil {
			return false, fmt.Errorf("it can't be replaced (%w): the new bytes: %w", cause, err)
		}
	}
	return false, p.write(id, e, ok, data)
}

func (p *putter) count(id snapshot.ChunkID) (n uint32, err error) {
	if p.refs == nil {
		// Those that can't be read can't be restored either.
		if p.refs, _, err = countReferences(p.tx); err != nil {
			return 0, err
		}
	}
	return p.refs[id], nil
}

// write stores a chunk's bytes with its entry: under the number that it has,
// if it has one of its own.
func (p *putter) write(id snapshot.ChunkID, e entry, has bool, data []byte) (err error) {
	chunks := p.tx.Bucket(bucketChunks)
	if !has || e.seq > chunks.Sequence() || !alone(p.tx, id, e.seq) {
		if e.seq, err = nextSeq(chunks); err != nil {
			return err
		}
	} else {
		p.db.mends.add(seqKey(e.seq))
	}
	e.stored = uint32(len(data))
	if err := chunks.Put(seqKey(e.seq), data); err != nil {
		return fmt.Errorf("chunk %s: %w", id, err)
	}
	if err := p.tx.Bucket(bucketIndex).Put(id[:], e.encode()); err != nil {
		return fmt.Errorf("chunk %s: %w", id, err)
	}
	return nil
}

// alone reports whether no other chunk's entry has the number seq. In a
// damaged index two can: then the bytes may be the other's.
func alone(tx *bbolt.Tx, id snapshot.ChunkID, seq uint64) bool {
	yes := true
	// The callback gives no error, so ForEach has none.
	_ = tx.Bucket(bucketIndex).ForEach(func(k, v []byte) error {
		if e, err := decodeEntry(v); err == nil && e.seq == seq && !bytes.Equal(k, id[:]) {
			yes = false
		}
		return nil
	})
	return yes
}

// nextSeq is a number that no chunk has. The bucket's counter can only be
// behind in a damaged file, and must not lead over another chunk's bytes.
func nextSeq(chunks *bbolt.Bucket) (uint64, error) {
	for {
		seq, err := chunks.NextSequence()
		if err != nil || chunks.Get(seqKey(seq)) == nil {
			return seq, err
		}
	}
}

// readBack reads what storeBatch has just stored, and compares it with what
// was to be stored. It goes by the index, as every later reader does.
func (db *DB) readBack(b *batch) error {
	return db.view(context.Background(), func(tx *bbolt.Tx) error {
		for _, it := range b.items {
			if it.known {
				continue
			}
			e, ok, err := lookup(tx, it.id)
			if err != nil {
				return err
			}
			if !ok {
				return fmt.Errorf("chunk %s: %w: it was just stored, and is not in the index", it.id, snapshot.ErrCorrupt)
			}
			got := tx.Bucket(bucketChunks).Get(seqKey(e.seq))
			if !bytes.Equal(got, b.data[it.start:it.end]) {
				return fmt.Errorf("chunk %s: %w: it was just stored, and reads back as other bytes: check the memory and the disk",
					it.id, snapshot.ErrCorrupt)
			}
			letGo(tx, got)
		}
		return nil
	})
}

// checkOthers reads the chunks that a manifest names and that this attempt
// has neither written nor checked: those that a rescale takes over from its
// base. One that is not stored is left to reference.
func (w *chunkWriter) checkOthers(ctx context.Context, m *snapshot.Manifest) error {
	for ref := range m.AllChunks() {
		if w.seen[ref.ID] {
			continue
		}
		err := w.db.view(ctx, func(tx *bbolt.Tx) error {
			e, ok, err := lookup(tx, ref.ID)
			if err != nil || !ok {
				return err
			}
			return checkStored(tx, ref.ID, e, &w.buf)
		})
		if err != nil {
			return fmt.Errorf("the manifest names a chunk of another checkpoint that is not whole: %w", err)
		}
	}
	return nil
}

// someBytes is how much checkSome reads: some milliseconds.
const someBytes = 8 << 20

// checkSome is checkOthers for an incremental checkpoint, which takes over
// nearly all chunks of the one before: to read them all would cost as much as
// a full one. They were checked when they were stored. It holds the checksums
// of some megabytes of them against their bytes, other ones for each
// checkpoint in turn, so that damage shows after a number of checkpoints
// though nothing is ever restored.
func (w *chunkWriter) checkSome(ctx context.Context, m *snapshot.Manifest) error {
	var others []snapshot.ChunkRef
	total := uint64(0)
	for ref := range m.AllChunks() {
		if !w.seen[ref.ID] {
			others, total = append(others, ref), total+ref.Stored
		}
	}
	if len(others) == 0 {
		return nil
	}
	count := uint64(len(others))
	each := max(1, total/count)
	turn := max(1, min(count, someBytes/each)) // about as many as are read
	start := uint64(m.Checkpoint.ID) % ((count + turn - 1) / turn) * turn
	for i, read := uint64(0), uint64(0); i < count && read < someBytes; i++ {
		ref := others[(start+i)%count]
		if err := w.checkSum(ctx, ref.ID); err != nil {
			return fmt.Errorf("the manifest names a chunk of another checkpoint that is not whole: %w", err)
		}
		read += ref.Stored
	}
	return nil
}

// checkSum reads one stored chunk. One that is not stored is left to reference.
func (w *chunkWriter) checkSum(ctx context.Context, id snapshot.ChunkID) error {
	return w.db.view(ctx, func(tx *bbolt.Tx) error {
		e, ok, err := lookup(tx, id)
		if err != nil || !ok {
			return err
		}
		b := tx.Bucket(bucketChunks).Get(seqKey(e.seq))
		defer letGo(tx, b)
		if uint64(len(b)) != uint64(e.stored) || !sound(b) {
			return fmt.Errorf("chunk %s: %w: its bytes are not those that were stored", id, snapshot.ErrCorrupt)
		}
		return nil
	})
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sound holds an envelope against the CRC-32C at its end, which every version
// of the format has there (FORMAT.md): enough to tell that bytes are those that
// were sealed, at the speed of memory.
func sound(b []byte) bool {
	body := len(b) - crc32.Size
	return body > 0 && crc32.Checksum(b[:body], castagnoli) == binary.LittleEndian.Uint32(b[body:])
}
