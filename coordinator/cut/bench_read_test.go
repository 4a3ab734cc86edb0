package cut

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

// dropped is a ChunkWriter that stores nothing, so that what is measured is
// reading, counting and encoding.
type dropped struct{}

func (dropped) WriteChunk(context.Context, snapshot.Chunk) (bool, error) { return true, nil }

// BenchmarkFullRead makes full cuts of grade precopy of a real server, through
// the counter and the encoder: MB, allocations and collections are of each.
// "first" is a job's first checkpoint, for which nobody said how many names
// there are.
func BenchmarkFullRead(b *testing.B) {
	for _, shape := range []struct {
		name          string
		hashes, width int
	}{{"D2", 200_000, 5}, {"D1", 16, 62_500}} {
		s := redistest.Start(b)
		fillHashes(b, s, shape.hashes, shape.width)
		back, err := redis.Open(b.Context(), redis.Config{URL: s.URL()})
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, back.Close()) })
		require.NoError(b, back.StartTracking())
		for _, known := range []int{0, shape.hashes} {
			name := shape.name + "/first"
			if known > 0 {
				name = shape.name + "/known"
			}
			b.Run(name, func(b *testing.B) { readFull(b, back, shape.hashes, shape.hashes*shape.width, uint64(known)) })
		}
	}
}

func readFull(b *testing.B, back *redis.Backend, keys, elements int, known uint64) {
	var before, after runtime.MemStats
	cuts := 0
	runtime.GC()
	runtime.ReadMemStats(&before)
	for b.Loop() {
		s := &sink{ctx: b.Context(), w: dropped{}, names: known, progress: func(string, uint64, uint64, uint64) {},
			tally: func() tally { return newTally(tallyJob, 128) }}
		cut, err := back.Cut(b.Context(), statebackend.CutRequest{Job: tallyJob}, s)
		require.NoError(b, err)
		require.Equal(b, snapshot.GradePrecopy, cut.Grade)
		_, err = s.close()
		require.NoError(b, err)
		require.EqualValues(b, keys, s.count.draft.keys)
		require.EqualValues(b, elements, s.count.draft.elements)
		require.NotNil(b, s.count.draft.settle())
		cuts++
	}
	runtime.ReadMemStats(&after)
	per := func(n uint64) float64 { return float64(n) / float64(cuts) }
	b.ReportMetric(per(after.TotalAlloc-before.TotalAlloc)/1e6, "MB/cut")
	b.ReportMetric(per(after.Mallocs-before.Mallocs), "allocs/cut")
	b.ReportMetric(per(uint64(after.NumGC-before.NumGC)), "GCs/cut")
}

// fillHashes writes a job of hashes, with the index.
func fillHashes(b *testing.B, s *redistest.Server, hashes, width int) {
	pipe := s.Client().Pipeline()
	for i := range hashes {
		key := tallyJob.KeyedKey(statebackend.Scope{Group: "g", Topic: "t", Partition: i % 128, Operator: "op"}, "n", fmt.Sprintf("s:airport-%d", i))
		pipe.SAdd(b.Context(), tallyJob.Index(), key)
		var args []any
		for f := range width {
			args = append(args, fmt.Sprintf("field-%d", f), fmt.Sprintf(`{"count":%d,"mean":%d.25,"what":"a value of sixty bytes"}`, i, f))
			if len(args) == 2000 || f == width-1 {
				pipe.HSet(b.Context(), key, args...)
				args = nil
			}
		}
		if pipe.Len() >= 2000 || i == hashes-1 {
			_, err := pipe.Exec(b.Context())
			require.NoError(b, err)
		}
	}
}
