package cut

import (
	"fmt"
	"slices"
	"testing"

	"keyframe/snapshot"
)

// BenchmarkLedger counts 200,000 hashes of 5 fields as a full cut, and 1 % of
// them as patches over it. B/op of full is what a ledger costs.
func BenchmarkLedger(b *testing.B) {
	const n = 200_000
	keys := make([]snapshot.Key, n)
	for i := range keys {
		keys[i] = snapshot.Key{Section: snapshot.SectionKeyed, Type: snapshot.TypeHash, Count: 5, Name: []byte(stateName(i%16, i%7) + fmt.Sprint(i))}
	}
	slices.SortFunc(keys, func(a, b snapshot.Key) int { return snapshot.CompareNames(a.Name, b.Name) })
	var run []snapshot.Element
	for i := range 5 {
		run = append(run, snapshot.Element{Field: fmt.Appendf(nil, "s:field-%d", i), Size: 60, Value: make([]byte, 60)})
	}
	take := func(b *testing.B, d *draft, step int, op snapshot.KeyOp) *draft {
		c := newCounter(discard{}, d, func(string, uint64, uint64, uint64) {})
		for i := 0; i < n; i += step {
			k := keys[i]
			k.Op = op
			if err := c.BeginKey(k); err != nil {
				b.Fatal(err)
			}
			if err := c.Elements(run); err != nil {
				b.Fatal(err)
			}
			if err := c.EndKey(snapshot.KeyEnd{}); err != nil {
				b.Fatal(err)
			}
		}
		return d
	}
	whole := func() *draft {
		d := newDraft(newTally(tallyJob, 128))
		d.expect(n)
		return take(b, d, 1, snapshot.OpWhole)
	}
	b.Run("full", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			whole()
		}
	})
	b.Run("1% patched", func(b *testing.B) {
		l := whole().settle()
		b.ReportAllocs()
		for b.Loop() {
			l = take(b, draftOver(l), 100, snapshot.OpPatch).settle()
		}
	})
}
