package memory

import (
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A table is a map, and every fork's parent stays as it was.
func TestTableIsAMapWithSnapshots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		token := uint64(1)
		live := newTable[int](token)
		model := map[string]int{}
		type shot struct {
			table *table[int]
			model map[string]int
		}
		var shots []shot
		key := rapid.Custom(func(t *rapid.T) string { return strconv.Itoa(rapid.IntRange(0, 400).Draw(t, "key")) })
		for i := range rapid.IntRange(1, 500).Draw(t, "steps") {
			switch rapid.IntRange(0, 20).Draw(t, "step") {
			case 0:
				shots = append(shots, shot{live, maps.Clone(model)})
				token++
				live = live.fork(token)
			case 1, 2, 3, 4:
				k := key.Draw(t, "gone")
				_, was := model[k]
				delete(model, k)
				require.Equal(t, was, live.remove(k))
			default:
				k := key.Draw(t, "set")
				_, was := model[k]
				model[k] = i
				require.Equal(t, !was, live.set(k, i))
			}
			require.Equal(t, len(model), live.n)
		}
		for _, s := range append(shots, shot{live, model}) {
			sameAsModel(t, s.table, s.model)
		}
	})
}

func sameAsModel(t *rapid.T, table *table[int], model map[string]int) {
	require.Equal(t, model, maps.Collect(table.all()))
	require.Equal(t, len(model), table.n)
	require.ElementsMatch(t, slices.Collect(maps.Keys(model)), slices.Collect(table.unordered()))
	for k, v := range model {
		got, ok := table.get(k)
		require.True(t, ok)
		require.Equal(t, v, got)
	}
}

// After a snapshot a writer copies one piece, not the table.
func TestWriterCopiesOnePiece(t *testing.T) {
	big := newTable[[]byte](1)
	for i := range 100_000 {
		big.set(strconv.Itoa(i), nil)
	}
	next := big.fork(2)
	require.True(t, next.set("another", nil))
	own, size := 0, 0
	for _, p := range next.pieces {
		if p.token == 2 {
			own++
			size = len(p.m)
		}
	}
	require.Equal(t, 1, own)
	require.Less(t, size, 4*pieceTarget)
	require.Equal(t, 100_000, big.n)
	_, ok := big.get("another")
	require.False(t, ok)
}

func TestOrderDependsOnContentOnly(t *testing.T) {
	a, b := newTable[int](1), newTable[int](2)
	for i := range 1000 {
		a.set(strconv.Itoa(i), i)
		b.set(strconv.Itoa(999-i), 999-i)
	}
	names := func(t *table[int]) (all []string) {
		for k := range t.all() {
			all = append(all, k)
		}
		return all
	}
	require.Equal(t, names(a), names(b))
}
