package bolt

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// inherit is a manifest of an incremental attempt that takes all of a parent's
// chunks over.
func inherit(w snapshot.Writer, parent *snapshot.Manifest) *snapshot.Manifest {
	m := *parent
	m.Checkpoint.ID, m.Attempt, m.Checkpoint.StoredBytes, m.Checkpoint.Incremental = w.ID(), w.ID(), 0, true
	return &m
}

// TestAnIncrementalCheckpointReadsAPartOfItsParentsChunks, another one each
// time, so that damage shows after a while, wherever it is.
func TestAnIncrementalCheckpointReadsAPartOfItsParentsChunks(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	a := storetest.Attempt("flights")
	w, err := f.db.Begin(ctx, a)
	require.NoError(t, err)
	// 64 chunks of 1 MiB: eight commits read all of them.
	var m *snapshot.Manifest
	sum := snapshot.Summary{Keys: 1, Elements: 1, Bytes: 64}
	for i := range uint64(64) {
		c := soundChunk(i, 1<<20-4)
		_, err := w.WriteChunk(ctx, c)
		require.NoError(t, err)
		sum.Chunks, sum.Stored, sum.Fresh = append(sum.Chunks, c.Ref), sum.Stored+c.Ref.Stored, sum.Fresh+c.Ref.Stored
	}
	m = storetest.ManifestOf(a, w.ID(), sum)
	require.NoError(t, w.Commit(ctx, m))
	for n := range 9 {
		w, err := f.db.Begin(ctx, a)
		require.NoError(t, err)
		require.NoError(t, w.Commit(ctx, inherit(w, m)), "%d", n)
	}
	for _, bad := range []int{0, 31, 63} {
		e := f.entry(m.Chunks[bad].ID)
		spoil := func() {
			f.edit(func(tx *bbolt.Tx) error {
				b := append([]byte(nil), tx.Bucket(bucketChunks).Get(seqKey(e.seq))...)
				b[len(b)/3] ^= 8
				return tx.Bucket(bucketChunks).Put(seqKey(e.seq), b)
			})
		}
		spoil()
		found := 0
		for range 8 {
			w, err := f.db.Begin(ctx, a)
			require.NoError(t, err)
			if err := w.Commit(ctx, inherit(w, m)); err != nil {
				require.ErrorIs(t, err, snapshot.ErrCorrupt)
				require.ErrorContains(t, err, m.Chunks[bad].ID.String())
				found++
			}
			w.Abort()
		}
		require.Equal(t, 1, found, "chunk %d", bad)
		spoil() // as it was
	}
	// One that is not there at all is found by each.
	f.edit(func(tx *bbolt.Tx) error {
		id := m.Chunks[5].ID
		return tx.Bucket(bucketIndex).Delete(id[:])
	})
	w, err = f.db.Begin(ctx, a)
	require.NoError(t, err)
	defer w.Abort()
	require.ErrorIs(t, w.Commit(ctx, inherit(w, m)), snapshot.ErrNoChunk)
}

// TestAFewChunksAreAllRead for sizes around what one commit reads.
func TestAFewChunksAreAllRead(t *testing.T) {
	ctx := context.Background()
	for _, sizes := range [][]int{{100}, {100, 200, 300}, {3 << 20, 3 << 20, 1 << 20}} {
		f := newFixture(t)
		a := storetest.Attempt("flights")
		w, err := f.db.Begin(ctx, a)
		require.NoError(t, err)
		sum := snapshot.Summary{Keys: 1, Elements: 1, Bytes: 64}
		for i, size := range sizes {
			c := soundChunk(uint64(i), size)
			_, err := w.WriteChunk(ctx, c)
			require.NoError(t, err)
			sum.Chunks, sum.Stored, sum.Fresh = append(sum.Chunks, c.Ref), sum.Stored+c.Ref.Stored, sum.Fresh+c.Ref.Stored
		}
		m := storetest.ManifestOf(a, w.ID(), sum)
		require.NoError(t, w.Commit(ctx, m))
		for i := range sizes {
			e := f.entry(m.Chunks[i].ID)
			f.edit(func(tx *bbolt.Tx) error {
				b := append([]byte(nil), tx.Bucket(bucketChunks).Get(seqKey(e.seq))...)
				b[0] ^= 1
				return tx.Bucket(bucketChunks).Put(seqKey(e.seq), b)
			})
			w, err := f.db.Begin(ctx, a)
			require.NoError(t, err)
			require.ErrorIs(t, w.Commit(ctx, inherit(w, m)), snapshot.ErrCorrupt, fmt.Sprint(sizes, i))
			w.Abort()
		}
	}
}
