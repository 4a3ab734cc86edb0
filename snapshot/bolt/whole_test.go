package bolt

import (
	"bytes"
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

func TestDamagedChunks(t *testing.T) {
	withoutChild(t)
	storetest.RunDamaged(t, func(t testing.TB) (snapshot.Store, func() snapshot.Store, storetest.Damage) {
		f := newFixture(t)
		return f.db, func() snapshot.Store { return f.reopen() }, f.damage
	})
}

func (f *fixture) damage(id snapshot.ChunkID, spoil func([]byte) []byte) {
	f.t.Helper()
	require.NoError(f.t, f.db.file.Update(func(tx *bbolt.Tx) error {
		e, _, err := lookup(tx, id)
		if err != nil {
			return err
		}
		chunks := tx.Bucket(bucketChunks)
		if b := spoil(chunks.Get(seqKey(e.seq))); b != nil {
			return chunks.Put(seqKey(e.seq), b)
		}
		return chunks.Delete(seqKey(e.seq))
	}))
}

func (f *fixture) entry(id snapshot.ChunkID) (e entry) {
	f.t.Helper()
	require.NoError(f.t, f.db.file.View(func(tx *bbolt.Tx) (err error) {
		e, _, err = lookup(tx, id)
		return err
	}))
	return e
}

func (f *fixture) putEntry(id snapshot.ChunkID, e entry) {
	f.t.Helper()
	require.NoError(f.t, f.db.file.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketIndex).Put(id[:], e.encode()) }))
}

// TestAnIndexThatPointsAtAnothersBytes has two chunks with one number: mending
// the one must not overwrite the other, which is whole.
func TestAnIndexThatPointsAtAnothersBytes(t *testing.T) {
	f := newFixture(t)
	keys := storetest.Keys("s", 300)
	m := storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
	bad, good := m.Chunks[1].ID, m.Chunks[2].ID
	was, other := f.entry(bad), f.entry(good)
	f.putEntry(bad, entry{seq: other.seq, refs: was.refs, stored: other.stored})
	again := storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
	now := f.entry(bad)
	require.NotEqual(t, other.seq, now.seq)
	require.Equal(t, entry{seq: now.seq, refs: 2, stored: was.stored}, now)
	require.Equal(t, entry{seq: other.seq, refs: 2, stored: other.stored}, f.entry(good))
	for _, id := range []snapshot.ID{1, again.Checkpoint.ID} {
		storetest.MustHold(t, f.db, "flights", id, keys)
	}
	problems, err := f.db.Check(context.Background())
	require.NoError(t, err)
	require.Len(t, problems, 1, "the bytes that were lost sight of")
	require.Contains(t, problems[0].Detail, "the index does not name")
}

// TestANumberBeyondTheCounter is an index entry whose number was never given:
// the chunk gets one of its own, or the counter would come by it.
func TestANumberBeyondTheCounter(t *testing.T) {
	f := newFixture(t)
	keys := storetest.Keys("s", 300)
	m := storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
	e := f.entry(m.Chunks[0].ID)
	far := e
	far.seq += 1 << 40
	f.putEntry(m.Chunks[0].ID, far)
	storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
	require.Equal(t, uint64(len(m.Chunks)+1), f.entry(m.Chunks[0].ID).seq)
	storetest.MustHold(t, f.db, "flights", 1, keys)
}

// TestACounterThatIsBehind must not lead over the bytes of older chunks.
func TestACounterThatIsBehind(t *testing.T) {
	f := newFixture(t)
	old, fresh := storetest.Keys("old", 300), storetest.Keys("new", 300)
	storetest.MustTake(t, f.db, storetest.Attempt("flights"), old)
	require.NoError(t, f.db.file.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketChunks).SetSequence(1) }))
	storetest.MustTake(t, f.db, storetest.Attempt("flights"), fresh)
	storetest.MustHold(t, f.db, "flights", 1, old)
	storetest.MustHold(t, f.db, "flights", 2, fresh)
	storetest.MustBeClean(t, f.reopen())
}

// TestBadBytesDoNotReplaceBadBytes has an attempt whose own chunk is none.
func TestBadBytesDoNotReplaceBadBytes(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	keys := storetest.Keys("s", 200)
	m := storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
	id := m.Chunks[0].ID
	whole, err := f.db.Chunk(ctx, id)
	require.NoError(t, err)
	f.damage(id, storetest.Spoils["zeros"])
	w, err := f.db.Begin(ctx, storetest.Attempt("flights"))
	require.NoError(t, err)
	sum, err := storetest.Encode(ctx, longer{w}, keys)
	if err == nil {
		err = w.Commit(ctx, storetest.ManifestOf(storetest.Attempt("flights"), w.ID(), sum))
	}
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
	require.ErrorContains(t, err, "it can't be replaced")
	require.ErrorContains(t, err, id.String())
	w.Abort()
	got, err := f.db.Chunk(ctx, id)
	require.NoError(t, err)
	require.Equal(t, make([]byte, len(whole)), got, "as it was")
	storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
	got, err = f.db.Chunk(ctx, id)
	require.NoError(t, err)
	require.Equal(t, whole, got)
	storetest.MustBeClean(t, f.db)
}

// TestAnEnvelopeOfAnotherLengthMends has another version of the compressor
// replace a damaged chunk. The older manifest's length is of no consequence.
func TestAnEnvelopeOfAnotherLengthMends(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	keys := storetest.Keys("s", 200)
	m := storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
	bad := m.Chunks[0]
	data, err := f.db.Chunk(ctx, bad.ID)
	require.NoError(t, err)
	// The same chunk at another length: the index is told a lie about it.
	f.damage(bad.ID, func(b []byte) []byte { return append(bytes.Clone(b), "more"...) })
	e := f.entry(bad.ID)
	e.stored += 4
	f.putEntry(bad.ID, e)
	again := storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
	require.Equal(t, uint32(len(data)), f.entry(bad.ID).stored)
	require.Equal(t, m.Chunks, again.Chunks)
	storetest.MustHold(t, f.db, "flights", 1, keys)
	storetest.MustBeClean(t, f.db)
}

// TestWhatIsWrittenIsReadBack lets the disk take other bytes than it was given
// and say nothing: the attempt fails, and what was there stays.
func TestWhatIsWrittenIsReadBack(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	kept := storetest.Keys("kept", 150)
	storetest.MustTake(t, f.db, storetest.Attempt("flights"), kept)
	var rec storetest.RecordChunks
	_, err := storetest.Encode(ctx, &rec, storetest.Keys("new", 300))
	require.NoError(t, err)
	mark := rec.Chunks[2].Data[60:80]
	hits := 0
	intercept(t, f.db, func(write writeAt, b []byte, off int64) (int, error) {
		if at := bytes.Index(b, mark); at >= 0 {
			b = bytes.Clone(b)
			b[at+3] ^= 1
			hits++
		}
		return write(b, off)
	})
	_, err = storetest.Take(ctx, f.db, storetest.Attempt("flights"), storetest.Keys("new", 300))
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
	require.ErrorContains(t, err, "reads back as other bytes")
	require.ErrorContains(t, err, rec.Chunks[2].Ref.ID.String())
	require.NotZero(t, hits)
	all, err := f.db.List(ctx, "flights")
	require.NoError(t, err)
	require.Equal(t, snapshot.StateFailed, all[1].State)
	storetest.MustHold(t, f.db, "flights", 1, kept)
	storetest.MustBeClean(t, f.reopen())
}

// TestADiskThatFailsWhileAChunkIsMended leaves the damage as it was.
func TestADiskThatFailsWhileAChunkIsMended(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	keys := storetest.Keys("s", 300)
	m := storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
	f.damage(m.Chunks[1].ID, storetest.Spoils["cut short"])
	w, err := f.db.Begin(ctx, storetest.Attempt("flights"))
	require.NoError(t, err)
	full := fillable(t, f.db)
	full.Store(true)
	sum, err := storetest.Encode(ctx, w, keys)
	if err == nil {
		err = w.Commit(ctx, storetest.ManifestOf(storetest.Attempt("flights"), w.ID(), sum))
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	full.Store(false)
	w.Abort()
	require.Equal(t, uint32(1), f.entry(m.Chunks[1].ID).refs)
	storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
	storetest.MustHold(t, f.db, "flights", 1, keys)
	storetest.MustBeClean(t, f.reopen())
}
