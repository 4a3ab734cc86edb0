package redis

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// counter is a Sink that only counts, so that reading is what is measured.
type counter struct{ keys, elements, bytes int }

func (c *counter) BeginKey(snapshot.Key) error { c.keys++; return nil }
func (c *counter) Element(e snapshot.Element) error {
	c.elements++
	c.bytes += len(e.Field) + len(e.Value)
	return nil
}
func (c *counter) Part(b []byte) error          { c.bytes += len(b); return nil }
func (c *counter) EndKey(snapshot.KeyEnd) error { return nil }

// BenchmarkCut reads 200,000 hashes of 5 fields (small) and 16 hashes of
// 62,500 (large); ms/stall is how long writers are held.
func BenchmarkCut(b *testing.B) {
	for _, shape := range []struct {
		name          string
		hashes, width int
	}{{"small", 200_000, 5}, {"large", 16, 62_500}} {
		b.Run(shape.name, func(b *testing.B) {
			s := redistest.Start(b)
			back, c := openTest(b, s), s.Client()
			pipe := c.Pipeline()
			for i := range shape.hashes {
				key := fmt.Sprintf("%s:cg:g:topic:t:p:%d:state:op:n:s:%d", testJob.Root(), i%128, i)
				var args []any
				for f := range shape.width {
					args = append(args, fmt.Sprintf("field-%d", f), fmt.Sprintf(`{"count":%d,"mean":%d.25,"what":"a value of sixty bytes"}`, i, f))
					if len(args) == 2000 || f == shape.width-1 {
						pipe.HSet(b.Context(), key, args...)
						args = nil
					}
				}
				pipe.SAdd(b.Context(), testJob.Index(), key)
				if i%1000 == 999 || shape.hashes < 1000 {
					_, err := pipe.Exec(b.Context())
					require.NoError(b, err)
				}
			}
			var stall float64
			for b.Loop() {
				var n counter
				cut, err := back.Cut(b.Context(), statebackend.CutRequest{Job: testJob}, &n)
				require.NoError(b, err)
				require.Equal(b, shape.hashes*shape.width, n.elements)
				stall += float64(cut.Stall.Microseconds()) / 1000
			}
			b.ReportMetric(stall/float64(b.N), "ms/stall")
		})
	}
}
