package bolt

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// largeState pushes one hash of that many fields, 100 bytes of name and value
// each.
func largeState(b testing.TB, sink snapshot.Sink, fields int) {
	require.NoError(b, sink.BeginKey(snapshot.Key{Section: snapshot.SectionKeyed, Type: snapshot.TypeHash, Name: []byte("job:large"), Count: uint64(fields)}))
	var field, value []byte
	for i := range fields {
		field = strconv.AppendInt(append(field[:0], "s:key-"...), int64(i), 10)
		value = strconv.AppendInt(append(value[:0], `{"count":`...), int64(i%977), 10)
		value = strconv.AppendInt(append(value, `,"mean":12.5,"name":"airport-of-a-longer-name-that-is-like-others-`...), int64(i)*2654435761, 16)
		value = append(value, `"}`...)
		require.NoError(b, sink.Element(snapshot.Element{Field: field, Size: uint64(len(value)), Value: value}))
	}
	require.NoError(b, sink.EndKey(snapshot.KeyEnd{}))
}

func takeLarge(b testing.TB, db *DB, fields int) *snapshot.Manifest {
	ctx, a := context.Background(), storetest.Attempt("flights")
	w, err := db.Begin(ctx, a)
	require.NoError(b, err)
	defer w.Abort()
	enc := snapshot.NewEncoder(ctx, w, snapshot.EncoderOptions{})
	largeState(b, enc, fields)
	sum, err := enc.Close()
	require.NoError(b, err)
	m := storetest.ManifestOf(a, w.ID(), sum)
	require.NoError(b, w.Commit(ctx, m))
	return m
}

// BenchmarkCheckpoint takes a large state: into an empty store, and again
// unchanged, when each chunk is read and checked instead of stored.
func BenchmarkCheckpoint(b *testing.B) {
	for _, again := range []bool{false, true} {
		name := map[bool]string{false: "fresh", true: "unchanged"}[again]
		b.Run(name, func(b *testing.B) {
			db, err := Open(context.Background(), filepath.Join(b.TempDir(), "keyframe.db"), Options{})
			require.NoError(b, err)
			if again {
				takeLarge(b, db, 2_000_000)
			}
			for b.Loop() {
				m := takeLarge(b, db, 2_000_000)
				b.SetBytes(int64(m.Checkpoint.Bytes))
				b.ReportMetric(float64(m.Checkpoint.FullBytes)/1e6, "storedMB")
				if !again {
					b.StopTimer()
					require.NoError(b, db.Delete(context.Background(), "flights", m.Checkpoint.ID))
					b.StartTimer()
				}
			}
			require.NoError(b, db.Close())
		})
	}
}

// BenchmarkGarbage takes 1,000,000 fields into a new file, and into one that
// has grown, with the collector set as the coordinator sets it: what a full
// checkpoint allocates, and how often that makes the collector run.
func BenchmarkGarbage(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(80 << 20))
	for _, young := range []bool{true, false} {
		b.Run(map[bool]string{true: "young", false: "grown"}[young], func(b *testing.B) {
			b.ReportAllocs()
			ctx, n := context.Background(), 0
			open := func() *DB {
				n++
				db, err := Open(ctx, filepath.Join(b.TempDir(), strconv.Itoa(n)+".db"), Options{})
				require.NoError(b, err)
				return db
			}
			db := open()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for b.Loop() {
				m := takeLarge(b, db, 1_000_000)
				b.SetBytes(int64(m.Checkpoint.Bytes))
				if young {
					require.NoError(b, db.Close())
					db = open()
				} else {
					require.NoError(b, db.Delete(ctx, "flights", m.Checkpoint.ID))
				}
			}
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.NumGC-before.NumGC)/float64(b.N), "GCs/op")
			require.NoError(b, db.Close())
		})
	}
}

// BenchmarkUpkeep compacts and backs up 1 GiB in 2,048 chunks with as much
// free, and says how long writers were held off.
func BenchmarkUpkeep(b *testing.B) {
	ctx := context.Background()
	db, err := Open(ctx, filepath.Join(b.TempDir(), "keyframe.db"), Options{})
	require.NoError(b, err)
	defer func() { require.NoError(b, db.Close()) }()
	fill := func(from uint64) snapshot.Writer {
		w, err := db.Begin(ctx, storetest.Attempt("flights"))
		require.NoError(b, err)
		for i := range uint64(2048) {
			_, err := w.WriteChunk(ctx, soundChunk(from+i, 512<<10))
			require.NoError(b, err)
		}
		err = w.(*writer).land()
		require.NoError(b, err)
		return w
	}
	first, second := fill(0), fill(1<<20)
	defer second.Abort()
	first.Abort()
	storetest.MustBeSwept(b, db)
	for b.Loop() {
		res, err := db.Compact(ctx, nil)
		require.NoError(b, err)
		b.ReportMetric(res.HeldMs, "heldMs")
		b.ReportMetric(float64(res.DurationMs), "compactMs")
		b.ReportMetric(float64(res.AfterBytes)/1e6, "afterMB")
		file := filepath.Join(b.TempDir(), "copy.db")
		backup, err := db.Backup(ctx, file, nil)
		require.NoError(b, err)
		b.ReportMetric(float64(backup.DurationMs), "backupMs")
		require.NoError(b, os.Remove(file))
	}
}
