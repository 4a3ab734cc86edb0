package redis

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// passes walks over names, in any order and with repetitions, as often as an
// arena of that budget needs, and gives what each pass kept, one after the
// other.
func passes(t require.TestingT, budget int, names []string) (all []string, n int) {
	a := &nameArena{budget: budget}
	for from := uint64(0); ; from = a.below {
		n++
		a.reset(from)
		for _, name := range names {
			require.NoError(t, a.add([]byte(name)))
		}
		require.NoError(t, a.sort())
		size := 0
		for i := range a.names {
			all = append(all, string(a.name(i)))
			size += len(a.name(i))
		}
		require.Equal(t, size, a.size)
		if a.last {
			return all, n
		}
	}
}

func TestAnArenaGivesEachNameOnceInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var names []string
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 120), 0, 400).Draw(rt, "names") {
			switch {
			case n == 0:
				names = append(names, "")
			case n == 1:
				names = append(names, strings.Repeat("long", 1<<blockBits/4+n))
			case n == 2:
				names = append(names, strings.Repeat("exactly a block ", 1<<blockBits/16))
			default:
				names = append(names, fmt.Sprintf("%s name %d", strings.Repeat("x", n*3), n))
			}
		}
		want := slices.Clone(names)
		slices.SortFunc(want, func(a, b string) int { return snapshot.CompareNames([]byte(a), []byte(b)) })
		want = slices.Compact(want)
		budget := rapid.SampledFrom([]int{1, 300, 4000, 1 << 20, 64 << 20}).Draw(rt, "budget")
		got, n := passes(rt, budget, names)
		require.True(rt, slices.Equal(want, got), "%d names, %d came", len(want), len(got))
		if budget == 64<<20 {
			require.Equal(rt, 1, n, "passes")
		}
	})
}

// The index of the largest dataset of the bench is walked over once.
func TestAnArenaHoldsManyNames(t *testing.T) {
	var names []string
	for i := range 200_000 {
		names = append(names, fmt.Sprintf("streaming:runtime:bench:cg:stats:topic:flights:p:%d:state:airport:flights:s:airport-%d", i%128, i))
	}
	got, n := passes(t, nameBudget, names)
	require.Len(t, got, len(names))
	require.Equal(t, 1, n)
}

// Names that are longer than is lent, between short ones, over several pages.
func TestNamesOfAnyLength(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	want := map[string]bool{"": true}
	for i := range 3000 {
		name := fmt.Sprintf("%s:cg:%d", testJob.Root(), i)
		if i%500 == 7 {
			name += strings.Repeat(":", 70<<10+i)
		}
		want[name] = true
	}
	for name := range want {
		require.NoError(t, c.SAdd(t.Context(), testJob.Index(), name).Err())
	}
	r := readerOf(t, b, nil)
	x, err := r.indexSource()
	require.NoError(t, err)
	var kept []keyInfo
	for {
		batch, err := x.next(100)
		require.NoError(t, err)
		if len(batch) == 0 {
			break
		}
		require.LessOrEqual(t, len(batch), 100)
		kept = append(kept, batch...)
	}
	require.Len(t, kept, len(want))
	for _, k := range kept {
		require.True(t, want[string(k.name)], "%.80q was overwritten, or came twice", k.name)
		require.Equal(t, statebackend.Classify(testJob, k.name), k.section)
		delete(want, string(k.name))
	}
}

// Room is made once for the names that are expected, and never for more than
// the budget has.
func TestRoomForNamesIsMadeOnce(t *testing.T) {
	a := &nameArena{budget: nameBudget}
	a.reset(0)
	a.expect(50_000)
	room := cap(a.names)
	r := newRoster(false)
	r.expect(a.expected)
	for i := range 50_000 {
		name := fmt.Appendf(nil, "a name of the index %d", i)
		require.NoError(t, a.add(name))
		r.append(name, snapshot.TypeHash)
	}
	require.Equal(t, room, cap(a.names))
	require.LessOrEqual(t, cap(r.hashes), 51_000)
	require.LessOrEqual(t, cap(r.types), 60_000)

	a = &nameArena{budget: 64_000}
	a.expect(1 << 60)
	require.LessOrEqual(t, cap(a.names)*(nameCost+nameLikely), 65_000)
	r = newRoster(false)
	r.expect(int64(rosterMost) + 1)
	require.Zero(t, cap(r.hashes), "it would be blind")
}
