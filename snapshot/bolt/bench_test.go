package bolt

import (
	"context"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// largeState pushes one hash of 2,000,000 fields, 200 MB of names and values.
func largeState(b *testing.B, sink snapshot.Sink) {
	const fields = 2_000_000
	require.NoError(b, sink.BeginKey(snapshot.Key{Section: snapshot.SectionKeyed, Type: snapshot.TypeHash, Name: []byte("job:large"), Count: fields}))
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

func takeLarge(b *testing.B, db *DB) *snapshot.Manifest {
	ctx, a := context.Background(), storetest.Attempt("flights")
	w, err := db.Begin(ctx, a)
	require.NoError(b, err)
	defer w.Abort()
	enc := snapshot.NewEncoder(ctx, w, snapshot.EncoderOptions{})
	largeState(b, enc)
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
				takeLarge(b, db)
			}
			for b.Loop() {
				m := takeLarge(b, db)
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
