package redis

import (
	"fmt"
	"testing"

	"keyframe/snapshot"
)

// BenchmarkNameSet looks at the fields of large hashes in the order in which a
// scan gives them, which is none. Between the runs as many bytes go through the
// processor's cache as reading and encoding the fields moves. ns/field is of
// each.
func BenchmarkNameSet(b *testing.B) {
	for _, n := range []int{62_500, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			all := make([]snapshot.Element, n)
			for i := range all {
				all[i] = snapshot.Element{Field: fmt.Appendf(nil, "field-%d", i)}
			}
			var s nameSet
			run := make([]snapshot.Element, runMost)
			from, to := make([]byte, 1<<20), make([]byte, 1<<20)
			const moved = 16 << 10
			for b.Loop() {
				s.reset(n)
				for i := 0; i < n; i += runMost {
					part := run[:copy(run, all[i:])]
					at := i / runMost * moved % len(from)
					copy(to[at:at+moved], from[at:])
					if len(s.fresh(part, true)) != len(part) {
						b.Fatal("a field came twice")
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/field")
		})
	}
}
