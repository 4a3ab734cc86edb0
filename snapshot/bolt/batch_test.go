package bolt

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// allocated is how many bytes fn allocates, garbage among them.
func allocated(fn func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// storeSound stores count chunks of size bytes, the first of which is number
// from, in an attempt that is then given up.
func storeSound(t *testing.T, db *DB, from uint64, count, size int) (chunks []snapshot.Chunk, allocs int64) {
	t.Helper()
	ctx := context.Background()
	for i := range count {
		chunks = append(chunks, soundChunk(from+uint64(i), size))
	}
	w, err := db.Begin(ctx, storetest.Attempt("flights"))
	require.NoError(t, err)
	allocs = allocated(func() {
		for _, c := range chunks {
			_, err := w.WriteChunk(ctx, c)
			require.NoError(t, err)
		}
		require.NoError(t, w.(*writer).Flush(ctx))
	})
	for _, c := range chunks {
		got, err := db.Chunk(ctx, c.Ref.ID)
		require.NoError(t, err)
		require.Equal(t, c.Data, got)
	}
	w.Abort()
	storetest.MustBeSwept(t, db)
	return chunks, allocs
}

// Storing 20 MiB in a new file costs them once for the pages that bbolt writes,
// and two batches, which the next attempt uses again. A file that is mapped
// anew while it grows, or a batch that grows by append, costs much more.
func TestStoringAllocatesLittleMoreThanItStores(t *testing.T) {
	const count, size = 80, 256 << 10
	f := newFixture(t)
	f.db.opts.BatchBytes = 4 << 20
	_, first := storeSound(t, f.db, 0, count, size)
	require.Less(t, first, int64(count*size*5/4+2*(5<<20)+2<<20))
	_, next := storeSound(t, f.db, 1000, count, size)
	require.Less(t, next, int64(count*size*5/4+2<<20))
	storetest.MustBeClean(t, f.db)
}

// A checkpoint of what little changed must not take what a full one does.
func TestStoringLittleAllocatesLittle(t *testing.T) {
	f := newFixture(t)
	f.db.opts.BatchBytes = 4 << 20
	_, few := storeSound(t, f.db, 0, 20, 10<<10)
	require.Less(t, few, int64(2<<20))
	_, one := storeSound(t, f.db, 100, 1, 100)
	require.Less(t, one, int64(128<<10))
}

// A batch holds what was added, grows in few steps, and has room for no more
// than twice what little it holds, or for a full one.
func TestABatchGrowsInFewSteps(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		full := rapid.IntRange(1, 4<<20).Draw(rt, "full")
		b, steps, largest, was := &batch{}, 0, 0, 0
		var added [][]byte
		for len(b.data) < full && len(added) < 200 {
			n := rapid.OneOf(rapid.IntRange(1, 1000), rapid.IntRange(1, 300<<10)).Draw(rt, "bytes")
			data := make([]byte, n)
			data[0], data[n-1] = byte(len(added)), byte(n)
			b.add(snapshot.ChunkID{byte(len(added))}, data, full)
			added, largest = append(added, data), max(largest, n)
			if cap(b.data) != was {
				steps, was = steps+1, cap(b.data)
			}
			require.LessOrEqual(rt, cap(b.data), max(2*len(b.data), fewBytes, full+largest+largest/8))
		}
		require.LessOrEqual(rt, steps, 9, "of %d", len(added))
		for i, it := range b.items {
			require.Equal(rt, snapshot.ChunkID{byte(i)}, it.id)
			require.Equal(rt, added[i], b.data[it.start:it.end])
		}
		require.Len(rt, b.items, len(added))
		b.reset()
		require.Equal(rt, []int{0, 0, was}, []int{len(b.data), len(b.items), cap(b.data)})
	})
}

// However many attempts run at once, two batches are kept, and none of a huge
// chunk; each is one attempt's at a time.
func TestTwoBatchesAreKeptForTheNextAttempt(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	f.db.opts.BatchBytes = 64 << 10
	var all []snapshot.Writer
	for i := range uint64(3) {
		w, err := f.db.Begin(ctx, storetest.Attempt("flights"))
		require.NoError(t, err)
		for j := range uint64(12) {
			_, err := w.WriteChunk(ctx, soundChunk(100*i+j, 16<<10))
			require.NoError(t, err)
		}
		all = append(all, w)
	}
	for _, w := range all {
		w.Abort()
		w.Abort()
	}
	kept := f.db.spares.free
	require.Len(t, kept, sparesMost)
	require.NotSame(t, kept[0], kept[1])
	for _, b := range kept {
		require.Empty(t, b.items)
		require.LessOrEqual(t, cap(b.data), 2*64<<10)
	}
	w, err := f.db.Begin(ctx, storetest.Attempt("flights"))
	require.NoError(t, err)
	defer w.Abort()
	require.Len(t, f.db.spares.free, sparesMost-1)
	_, err = w.WriteChunk(ctx, soundChunk(1000, 1<<20))
	require.NoError(t, err)
	w.Abort()
	require.Len(t, f.db.spares.free, sparesMost-1, "1 MiB is too much to keep")
	storetest.MustBeClean(t, f.db)
}

// A file grows with its content: not by bbolt's 16 MiB when it holds little,
// though more than that is mapped, and not in many small steps.
func TestAFileGrowsByWhatIsInUse(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	w, err := f.db.Begin(ctx, storetest.Attempt("flights"))
	require.NoError(t, err)
	defer w.Abort()
	steps, was := 0, int64(0)
	for i := range uint64(512) {
		_, err := w.WriteChunk(ctx, soundChunk(i, 64<<10))
		require.NoError(t, err)
		require.NoError(t, w.(*writer).Flush(ctx))
		info, err := os.Stat(f.path)
		require.NoError(t, err)
		used := int64(0)
		require.NoError(t, f.db.view(ctx, func(tx *bbolt.Tx) error { used = tx.Size(); return nil }))
		require.LessOrEqual(t, info.Size(), 2*used+160<<10)
		require.LessOrEqual(t, info.Size(), used+16<<20+64<<10, "and some pages")
		if info.Size() != was {
			steps, was = steps+1, info.Size()
		}
	}
	require.Less(t, steps, 16, "each step costs a sync")
}

// Where addresses abound, a file that grows stays where it is mapped, and so
// does the one that a compaction puts in its place.
func TestAGrowingFileIsMappedOnce(t *testing.T) {
	if initialMap() == 0 {
		return // by bbolt's own rule then, which is its own to test
	}
	ctx := context.Background()
	f := newFixture(t)
	f.db.opts.BatchBytes = 4 << 20
	for range 2 {
		at := f.db.file.Info().Data
		_, _ = storeSound(t, f.db, 0, 160, 256<<10)
		require.Equal(t, at, f.db.file.Info().Data)
		_, err := f.db.Compact(ctx, nil)
		require.NoError(t, err)
		require.NotEqual(t, at, f.db.file.Info().Data)
	}
	info, err := os.Stat(f.path)
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(1<<20), "the mapping does not make the file long")
	copied := filepath.Join(t.TempDir(), "copy.db")
	res, err := f.db.Backup(ctx, copied, nil)
	require.NoError(t, err)
	require.Less(t, res.Bytes, int64(1<<20))
	storetest.MustBeClean(t, f.db)
}
