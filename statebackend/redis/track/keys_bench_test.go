package track

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
)

// BenchmarkKeysInvalidation is what one name costs us, from the bytes of the
// connection to the mark: names that are new, names that are marked already,
// and names when everything is marked.
func BenchmarkKeysInvalidation(b *testing.B) {
	const batch = 100
	pushes := make([][]byte, 1000)
	for i := range pushes {
		var some []string
		for j := range batch {
			some = append(some, fmt.Sprintf("streaming:runtime:job:cg:group:topic:flights:p:%d:state:op:%07d", i, j))
		}
		pushes[i] = []byte(keyInvalidation(some...))
	}
	for name, c := range map[string]struct{ limit, takeEach int }{
		"new": {1 << 30, 1}, "again": {1 << 30, 1 << 30}, "all": {1, 1 << 30},
	} {
		b.Run(name, func(b *testing.B) {
			w := newKeyWatch(newKeys(Options{Limits: Limits{Bytes: c.limit}}, defaultKeyTimes), Scope{Root: "streaming:runtime:job"})
			w.marks.take()
			r := newResp3(&endlessPushes{pushes: pushes}, w)
			b.ReportAllocs()
			for i := 0; b.Loop(); i += batch {
				if err := r.skipPush(); err != nil {
					b.Fatal(err)
				}
				if (i/batch)%(c.takeEach*len(pushes)) == len(pushes)-1 && c.takeEach == 1 {
					w.marks.take()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/name")
		})
	}
}

// skipPush reads one push.
func (r *resp3) skipPush() error {
	_, count, err := r.head()
	if err != nil {
		return err
	}
	return r.push(count)
}

// endlessPushes repeats pushes.
type endlessPushes struct {
	pushes [][]byte
	at     int
	left   bytes.Reader
}

func (e *endlessPushes) Read(b []byte) (int, error) {
	if e.left.Len() == 0 {
		e.left.Reset(e.pushes[e.at%len(e.pushes)])
		e.at++
	}
	return e.left.Read(b)
}

// BenchmarkKeysBarrier is what a pause waits for: two round trips and a look
// at the server's statistics.
func BenchmarkKeysBarrier(b *testing.B) {
	s := redistest.Start(b)
	w := watch(b, start(b, s, NewKeys), Scope{Root: "j"})
	at := position(b, s)
	for b.Loop() {
		require.NoError(b, w.Barrier(context.Background(), at))
	}
}

// BenchmarkKeysWriters is what a write costs the server with no watch, one, and
// many, in pipelines of 100.
func BenchmarkKeysWriters(b *testing.B) {
	for _, watches := range []int{0, 1, 16} {
		b.Run(fmt.Sprint(watches), func(b *testing.B) {
			s := redistest.Start(b)
			tr := start(b, s, NewKeys)
			for i := range watches {
				watch(b, tr, Scope{Root: fmt.Sprint("j", i)})
			}
			c := s.Client()
			for i := 0; b.Loop(); i++ {
				_, err := c.Pipelined(context.Background(), func(p redis.Pipeliner) error {
					for j := range 100 {
						p.Set(context.Background(), fmt.Sprintf("j0:%d", (i*100+j)%50_000), "value", 0)
					}
					return nil
				})
				require.NoError(b, err)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*100), "ns/write")
		})
	}
}
