package bolt

import (
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"

	"keyframe/snapshot"
)

// The file's format, as doc.go lists it.
const (
	magic         = "keyframe checkpoint store"
	formatVersion = 1
)

var (
	bucketMeta    = []byte("keyframe")
	bucketJobs    = []byte("jobs")
	bucketChunks  = []byte("chunks")
	bucketIndex   = []byte("index")
	bucketJournal = []byte("journal")

	keyMagic  = []byte("magic")
	keyFormat = []byte("format")
	keyLast   = []byte("last")
	// Within a job's bucket.
	bucketRows      = []byte("rows")
	bucketManifests = []byte("manifests")
)

// MaxName is how many bytes the name of a job, a journal bucket or a journal
// key may have: a quarter of what bbolt takes as a key.
const MaxName = bbolt.MaxKeySize / 4

func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%s: the name is empty", what)
	case len(name) > MaxName:
		return fmt.Errorf("%s %q…: the name has %d bytes, the store takes at most %d: choose a shorter one",
			what, name[:32], len(name), MaxName)
	}
	return nil
}

func idKey(id snapshot.ID) []byte { return binary.BigEndian.AppendUint64(nil, uint64(id)) }

func seqKey(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// number reads a u64 key or value.
func number(b []byte) (uint64, error) {
	if len(b) != 8 {
		return 0, fmt.Errorf("%w: a number has %d bytes instead of 8", snapshot.ErrCorrupt, len(b))
	}
	return binary.BigEndian.Uint64(b), nil
}

// entry is what the index says of a chunk.
type entry struct {
	seq    uint64
	refs   uint32 // manifests that name it
	stored uint32 // bytes of its envelope
}

const entrySize = 16

func (e entry) encode() []byte {
	b := make([]byte, 0, entrySize)
	b = binary.BigEndian.AppendUint64(b, e.seq)
	b = binary.BigEndian.AppendUint32(b, e.refs)
	return binary.BigEndian.AppendUint32(b, e.stored)
}

func decodeEntry(b []byte) (entry, error) {
	if len(b) != entrySize {
		return entry{}, fmt.Errorf("%w: index entry of %d bytes instead of %d", snapshot.ErrCorrupt, len(b), entrySize)
	}
	return entry{
		seq:    binary.BigEndian.Uint64(b),
		refs:   binary.BigEndian.Uint32(b[8:]),
		stored: binary.BigEndian.Uint32(b[12:]),
	}, nil
}

// lookup finds a chunk in the index.
func lookup(tx *bbolt.Tx, id snapshot.ChunkID) (e entry, ok bool, err error) {
	b := tx.Bucket(bucketIndex).Get(id[:])
	if b == nil {
		return entry{}, false, nil
	}
	e, err = decodeEntry(b)
	if err != nil {
		return entry{}, false, fmt.Errorf("chunk %s: %w", id, err)
	}
	return e, true, nil
}

// history is one job's buckets in a transaction.
type history struct {
	job       string
	bucket    *bbolt.Bucket
	rows      *bbolt.Bucket
	manifests *bbolt.Bucket
}

// openHistory gives a job's buckets; ok is false when the job is unknown.
func openHistory(tx *bbolt.Tx, job string) (h history, ok bool, err error) {
	if err := checkName("job", job); err != nil {
		return history{}, false, err
	}
	b := tx.Bucket(bucketJobs).Bucket([]byte(job))
	if b == nil {
		return history{}, false, nil
	}
	h = history{job: job, bucket: b, rows: b.Bucket(bucketRows), manifests: b.Bucket(bucketManifests)}
	if h.rows == nil || h.manifests == nil {
		return history{}, false, fmt.Errorf("job %q: %w: its history lacks a bucket", job, snapshot.ErrCorrupt)
	}
	return h, true, nil
}

// makeHistory is openHistory that creates what is missing.
func makeHistory(tx *bbolt.Tx, job string) (history, error) {
	if err := checkName("job", job); err != nil {
		return history{}, err
	}
	b, err := tx.Bucket(bucketJobs).CreateBucketIfNotExists([]byte(job))
	if err != nil {
		return history{}, fmt.Errorf("job %q: %w", job, err)
	}
	h := history{job: job, bucket: b}
	if h.rows, err = b.CreateBucketIfNotExists(bucketRows); err != nil {
		return history{}, fmt.Errorf("job %q: %w", job, err)
	}
	if h.manifests, err = b.CreateBucketIfNotExists(bucketManifests); err != nil {
		return history{}, fmt.Errorf("job %q: %w", job, err)
	}
	return h, nil
}

// last is the greatest id the job ever had.
func (h history) last() (snapshot.ID, error) {
	b := h.bucket.Get(keyLast)
	if b == nil {
		return 0, nil
	}
	n, err := number(b)
	if err != nil {
		return 0, fmt.Errorf("job %q: last id: %w", h.job, err)
	}
	return snapshot.ID(n), nil
}

// row reads one row; ok is false when there is none.
func (h history) row(id snapshot.ID) (c snapshot.Checkpoint, ok bool, err error) {
	b := h.rows.Get(idKey(id))
	if b == nil {
		return c, false, nil
	}
	c, err = decodeRow(h.job, idKey(id), b)
	return c, err == nil, err
}

func (h history) putRow(c snapshot.Checkpoint) error {
	b, err := snapshot.EncodeCheckpoint(c)
	if err != nil {
		return err
	}
	return h.rows.Put(idKey(c.ID), b)
}

// decodeRow reads a row and holds it against its place.
func decodeRow(job string, key, value []byte) (c snapshot.Checkpoint, err error) {
	n, err := number(key)
	if err != nil {
		return c, fmt.Errorf("job %q: key %x of the history: %w", job, key, err)
	}
	if c, err = snapshot.DecodeCheckpoint(value); err != nil {
		return c, fmt.Errorf("job %q checkpoint %d: its record can't be read: %w", job, n, err)
	}
	if c.ID != snapshot.ID(n) || c.Job != job {
		return c, fmt.Errorf("job %q checkpoint %d: %w: its record says job %q checkpoint %s",
			job, n, snapshot.ErrCorrupt, c.Job, c.ID)
	}
	return c, nil
}

// layDown makes the buckets of an empty file.
func layDown(tx *bbolt.Tx) error {
	for _, name := range [][]byte{bucketMeta, bucketJobs, bucketChunks, bucketIndex, bucketJournal} {
		if _, err := tx.CreateBucket(name); err != nil {
			return fmt.Errorf("bucket %s: %w", name, err)
		}
	}
	meta := tx.Bucket(bucketMeta)
	if err := meta.Put(keyMagic, []byte(magic)); err != nil {
		return err
	}
	return meta.Put(keyFormat, binary.BigEndian.AppendUint32(nil, formatVersion))
}
