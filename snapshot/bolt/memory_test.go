package bolt

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// largeChunk is a chunk of 512 KiB that no compressor would help: chunk i.
func largeChunk(i uint64) snapshot.Chunk {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], i+1)
	data := make([]byte, 512<<10)
	_, _ = rand.NewChaCha8(seed).Read(data) // never fails
	return snapshot.Chunk{
		Ref:  snapshot.ChunkRef{ID: snapshot.ChunkID(seed), Section: snapshot.SectionKeyed, Raw: 600 << 10, Stored: uint64(len(data))},
		Data: data,
	}
}

// soundChunk is a chunk of about size bytes whose checksum is right: nothing
// of its content is looked at.
func soundChunk(i uint64, size int) snapshot.Chunk {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], i+1)
	data := make([]byte, size, size+crc32.Size)
	_, _ = rand.NewChaCha8(seed).Read(data) // never fails
	data = binary.LittleEndian.AppendUint32(data, crc32.Checksum(data, castagnoli))
	return snapshot.Chunk{
		Ref:  snapshot.ChunkRef{ID: snapshot.ChunkID(seed), Section: snapshot.SectionKeyed, Raw: uint64(size) + 100, Stored: uint64(len(data))},
		Data: data,
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestMemoryIsBounded (I8) writes 64 MiB in one attempt and reads them back.
func TestMemoryIsBounded(t *testing.T) {
	const chunks = 128
	ctx := context.Background()
	f := newFixture(t)
	f.db.opts.BatchBytes = 1 << 20
	w, err := f.db.Begin(ctx, storetest.Attempt("flights"))
	require.NoError(t, err)
	start := heap()
	for i := range uint64(chunks) {
		fresh, err := w.WriteChunk(ctx, largeChunk(i))
		require.NoError(t, err)
		require.True(t, fresh)
		if i%16 == 15 {
			require.Less(t, heap()-start, int64(10<<20), "after %d chunks", i)
		}
	}
	require.Equal(t, uint64(chunks*512<<10), w.StoredBytes())
	err = w.(*writer).land()
	require.NoError(t, err)

	before := mapped(t)
	for i := range uint64(chunks) {
		want := largeChunk(i)
		got, err := f.db.Chunk(ctx, want.Ref.ID)
		require.NoError(t, err)
		require.Equal(t, want.Data, got)
	}
	if runtime.GOOS == "linux" {
		require.Less(t, mapped(t)-before, int64(24<<20), "the file's pages must not stay mapped")
	}
	w.Abort()
	f.idle()
	st, err := f.db.Stats(ctx)
	require.NoError(t, err)
	require.Zero(t, st.Chunks)
	require.Greater(t, st.FreeBytes, int64(chunks*512<<10))
	storetest.MustBeClean(t, f.db)
}

// TestMemoryOfUpkeepIsBounded (I8) compacts and backs up 96 MiB.
func TestMemoryOfUpkeepIsBounded(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	f.db.opts.BatchBytes = 1 << 20
	w, err := f.db.Begin(ctx, storetest.Attempt("flights"))
	require.NoError(t, err)
	defer w.Abort()
	for i := range uint64(192) {
		_, err := w.WriteChunk(ctx, soundChunk(i, 512<<10))
		require.NoError(t, err)
	}
	err = w.(*writer).land()
	require.NoError(t, err)
	start, pages, most, steps := heap(), mapped(t), int64(0), 0
	f.db.opts.onCopy = func(string, *copier) {
		steps++
		most = max(most, heap()-start)
		require.Less(t, mapped(t)-pages, int64(32<<20), "pages of both files must not stay mapped")
	}
	for name, run := range upkeeps {
		require.NoError(t, run(ctx, f.db, f.path+".copy"), name)
	}
	require.Greater(t, steps, 2*96/8)
	require.Less(t, most, int64(1<<20), "nothing is kept from step to step, and a step is bounded")
}

// mapped is how many bytes of mapped files the process has in memory.
func mapped(t *testing.T) int64 {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	found := regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindSubmatch(status)
	require.NotNil(t, found)
	n, err := strconv.ParseInt(string(found[1]), 10, 64)
	require.NoError(t, err)
	return n << 10
}
