package snapshot

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func genElement(t *rapid.T, kt KeyType, i int) RecordedElement {
	e := RecordedElement{}
	if kt == TypeHash {
		e.Field = rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "field")
		e.Field = append(e.Field, byte(i), byte(i>>8))
	}
	if kt == TypeZSet {
		e.Score = rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{
			math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 9.9999999999999694e-310})).Draw(t, "score")
	}
	size := 0
	if rapid.IntRange(0, 9).Draw(t, "long") == 0 {
		size = rapid.IntRange(21, 3000).Draw(t, "size")
	} else {
		size = rapid.IntRange(0, 20).Draw(t, "size")
	}
	e.Value = []byte(text(size, rapid.StringN(0, 3, -1).Draw(t, "seed")))
	e.Size = uint64(len(e.Value))
	return RecordedElement{Field: keep(e.Field), Score: e.Score, Size: e.Size, Value: keep(e.Value)}
}

func genKey(t *rapid.T) RecordedKey {
	k := RecordedKey{Key: Key{
		Section: Section(rapid.IntRange(1, 4).Draw(t, "section")),
		Type:    KeyType(rapid.IntRange(0, 6).Draw(t, "type")),
		Name:    keep(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "name")),
	}}
	if k.Key.Type == TypeMissing {
		return k
	}
	n := 1
	if k.Key.Type == TypeOpaque {
		k.Key.TypeName, k.Key.Server = "stream", rapid.StringN(0, 5, -1).Draw(t, "server")
	} else if k.Key.Type != TypeString {
		n = rapid.OneOf(rapid.IntRange(1, 6), rapid.IntRange(1, 150)).Draw(t, "elements")
	}
	for i := range n {
		k.Elements = append(k.Elements, genElement(t, k.Key.Type, i))
	}
	k.Key.Count = uint64(n)
	if rapid.Bool().Draw(t, "expires") {
		k.Key.ExpireAt = rapid.Int64Range(1, math.MaxInt64).Draw(t, "expireAt")
		if rapid.IntRange(0, 3).Draw(t, "expired") == 0 {
			k.End.Expired = true
			k.Elements = slices.Clone(k.Elements[:rapid.IntRange(0, n).Draw(t, "read")])
			if len(k.Elements) == 0 {
				k.Elements = nil
			}
		}
	}
	return k
}

// Any stream of keys that is encoded comes back the same, from any target,
// whole or by sections, and encoding what comes back gives the same chunks.
func TestAnyStreamComesBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		keys := rapid.SliceOfNDistinct(rapid.Custom(genKey), 0, 8, func(k RecordedKey) string {
			return k.Key.Section.String() + string(k.Key.Name)
		}).Draw(rt, "keys")
		target := rapid.SampledFrom([]int{1, 40, 500, 4096, 0}).Draw(rt, "target")
		s := encode(t, target, keys)
		want := bySection(t, keys)
		got := walk(t, s)
		same(t, want, got)
		verified(t, s)
		require.Equal(t, s.sum, encode(t, target, got).sum)

		only := Section(rapid.IntRange(1, 4).Draw(rt, "only"))
		want = slices.DeleteFunc(want, func(k RecordedKey) bool { return k.Key.Section != only })
		require.Empty(t, DiffKeys(want, walk(t, s, only)))
	})
}

// Any bytes changed anywhere in any chunk are noticed.
func TestAnyDamageIsNoticed(t *testing.T) {
	s := smallOnes(t)
	rapid.Check(t, func(rt *rapid.T) {
		ref := rapid.SampledFrom(s.m.Chunks).Draw(rt, "chunk")
		good, err := s.Chunk(ctx, ref.ID)
		require.NoError(t, err)
		at := rapid.IntRange(0, len(good)).Draw(rt, "at")
		cut := rapid.IntRange(at, len(good)).Draw(rt, "cut")
		put := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(rt, "put")
		bad := slices.Concat(good[:at], put, good[cut:])
		if slices.Equal(bad, good) {
			return
		}
		s.Put(ref.ID, bad)
		defer s.Put(ref.ID, good)
		require.ErrorIs(t, Walk(ctx, s, s.m, nil), ErrCorrupt)
		problems, err := Verify(ctx, s, s.m)
		require.NoError(t, err)
		require.NotEmpty(t, problems)
	})
}
