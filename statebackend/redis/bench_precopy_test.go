package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// jobShape is how a job's elements are spread over hashes.
type jobShape struct {
	name          string
	hashes, width int
}

var benchShapes = []jobShape{{"D1", 16, 62_500}, {"D2", 200_000, 5}}

func (s jobShape) key(i int) string {
	return fmt.Sprintf("%s:cg:g:topic:t:p:%d:state:op:n:s:%d", testJob.Root(), i%128, i)
}

func (s jobShape) fill(tb testing.TB, srv *redistest.Server) {
	pipe := srv.Client().Pipeline()
	for i := range s.hashes {
		var args []any
		for f := range s.width {
			args = append(args, fmt.Sprintf("field-%d", f), fmt.Sprintf(`{"count":%d,"mean":%d.25,"what":"a value of sixty bytes"}`, i, f))
			if len(args) == 2000 || f == s.width-1 {
				pipe.HSet(context.Background(), s.key(i), args...)
				args = nil
			}
		}
		pipe.SAdd(context.Background(), testJob.Index(), s.key(i))
		if i%1000 == 999 || s.hashes < 1000 {
			_, err := pipe.Exec(context.Background())
			require.NoError(tb, err)
		}
	}
}

// steady writes fields at about that rate, each batch in one packet a
// millisecond, over one bare connection. stop gives the longest that a batch
// took, and how many writes there were.
func (s jobShape) steady(tb testing.TB, b *Backend, rate int) (stop func() (worst time.Duration, n int)) {
	ctx, cancel := context.WithCancel(context.Background())
	conn, err := b.dial(ctx)
	require.NoError(tb, err)
	var wg sync.WaitGroup
	var worst time.Duration
	n := 0
	wg.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		began := time.Now()
		for ctx.Err() == nil {
			<-tick.C
			batch := int(time.Since(began).Seconds()*float64(rate)) - n
			for range batch {
				err = conn.Command("HSET", s.key(rand.IntN(s.hashes)), fmt.Sprintf("field-%d", rand.IntN(s.width)),
					fmt.Sprintf(`{"count":%d,"mean":%d.25,"what":"another of sixty bytes"}`, rand.IntN(1<<30), n))
			}
			at := time.Now()
			if err == nil {
				err = conn.Flush()
			}
			for range batch {
				if err == nil {
					_, err = conn.Reply(1 << 10)
				}
			}
			worst, n = max(worst, time.Since(at)), n+batch
		}
	})
	return func() (time.Duration, int) {
		cancel()
		wg.Wait()
		require.NoError(tb, err)
		require.NoError(tb, conn.Close())
		return worst, n
	}
}

// layerCounter is a counter that takes layers.
type layerCounter struct {
	counter
	layers int
}

func (c *layerCounter) NextLayer() error { c.layers++; return nil }

func (c *layerCounter) Elements(run []snapshot.Element) error {
	for _, e := range run {
		c.elements++
		c.bytes += len(e.Field) + len(e.Value)
	}
	return nil
}

// BenchmarkPrecopy measures, with 20,000 writes a second going on: a full cut,
// an incremental one after 1 % of the fields was written, and a cut of grade
// paused. ms/stall is how long writers were held; ms/worst the longest that a
// batch of writes took.
func BenchmarkPrecopy(b *testing.B) {
	for _, s := range benchShapes {
		srv := redistest.Start(b)
		back, err := Open(b.Context(), Config{URL: srv.URL()})
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, back.Close()) })
		s.fill(b, srv)
		require.NoError(b, back.StartTracking())
		setFor(b, &trackPatience, 10*time.Second)
		token := ""
		measure := func(name string, writes int, req func() statebackend.CutRequest) {
			b.Run(s.name+"/"+name, func(b *testing.B) {
				var stall, worst float64
				for b.Loop() {
					b.StopTimer()
					s.burst(b, back, writes)
					stop := s.steady(b, back, 20_000)
					b.StartTimer()
					cut, err := back.Cut(b.Context(), req(), &layerCounter{})
					b.StopTimer()
					require.NoError(b, err)
					w, _ := stop()
					stall += float64(cut.Stall.Microseconds()) / 1000
					worst += float64(w.Microseconds()) / 1000
					if cut.Token != "" {
						token = cut.Token
					}
					b.StartTimer()
				}
				b.ReportMetric(stall/float64(b.N), "ms/stall")
				b.ReportMetric(worst/float64(b.N), "ms/worst")
			})
		}
		measure("full", 0, func() statebackend.CutRequest { return statebackend.CutRequest{Job: testJob} })
		measure("incremental", 10_000, func() statebackend.CutRequest { return statebackend.CutRequest{Job: testJob, Since: token} })
		measure("paused", 0, func() statebackend.CutRequest {
			return statebackend.CutRequest{Job: testJob, Grade: snapshot.GradePaused}
		})
	}
}

// burst writes that many fields in one go.
func (s jobShape) burst(tb testing.TB, b *Backend, n int) {
	conn, err := b.dial(context.Background())
	require.NoError(tb, err)
	defer func() { require.NoError(tb, conn.Close()) }()
	for i := 0; i < n; i += 1000 {
		for j := range 1000 {
			require.NoError(tb, conn.Command("HSET", s.key(rand.IntN(s.hashes)), fmt.Sprintf("field-%d", rand.IntN(s.width)), fmt.Sprintf("burst %d of %d", j, i)))
		}
		require.NoError(tb, conn.Flush())
		for range 1000 {
			_, err := conn.Reply(1 << 10)
			require.NoError(tb, err)
		}
	}
}
