package snapshot

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestIDsAreDecimalFromOneOn(t *testing.T) {
	for _, s := range []string{"1", "42", "18446744073709551615"} {
		id, err := ParseID(s)
		require.NoError(t, err)
		require.Equal(t, s, id.String())
	}
	for _, s := range []string{"", "0", "-1", "+3", "1.0", "0x1", " 1", "18446744073709551616", "latest"} {
		_, err := ParseID(s)
		require.ErrorContains(t, err, "want a whole number from 1 on", s)
	}
}

func TestGradesAreAClosedList(t *testing.T) {
	for _, g := range []Grade{GradeAuto, GradeFenced, GradeReplica, GradePrecopy, GradePaused, GradeQuiet, GradeSnapshot} {
		got, err := ParseGrade(string(g))
		require.NoError(t, err)
		require.Equal(t, g, got)
	}
	got, err := ParseGrade("")
	require.NoError(t, err)
	require.Equal(t, GradeAuto, got)
	_, err = ParseGrade("best")
	require.ErrorContains(t, err, `grade "best": want one of auto, fenced`)
}

func TestChunkIDsAreHex(t *testing.T) {
	id := ChunkID{0xab, 1, 31: 0xcd}
	require.Equal(t, "ab01"+strings.Repeat("00", 29)+"cd", id.String())
	b, err := json.Marshal(id)
	require.NoError(t, err)
	var back ChunkID
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, id, back)
	for _, bad := range []string{`""`, `"ab"`, `"` + strings.Repeat("0", 66) + `"`, `"` + strings.Repeat("zz", 32) + `"`, `7`, `{}`} {
		require.Error(t, json.Unmarshal([]byte(bad), &back), bad)
	}
	require.Equal(t, id, back, "a failed read changes nothing")
}

func TestNamesOfTypesAndSections(t *testing.T) {
	var types, sections []string
	for i := range 9 {
		types = append(types, KeyType(i).String())
		sections = append(sections, Section(i).String())
		require.Equal(t, i < 7, KeyType(i).Valid())
		require.Equal(t, i >= 1 && i <= 4, Section(i).Valid())
	}
	require.Equal(t, strings.Fields("missing string hash list set zset opaque type(7) type(8)"), types)
	require.Equal(t, strings.Fields("section(0) keyed operator meta source section(5) section(6) section(7) section(8)"), sections)
	require.True(t, TypeList.Ordered())
	require.False(t, TypeZSet.Ordered())
}

func TestAProblemIsOneLine(t *testing.T) {
	require.Equal(t, "job a: checkpoint 7: keys: 3, want 4", Problem{Job: "a", Checkpoint: 7, What: "keys", Detail: "3, want 4"}.String())
	require.Equal(t, "file: torn", Problem{What: "file", Detail: "torn"}.String())
}

func TestOnlyCompletedGoodCheckpointsAreRestorable(t *testing.T) {
	require.True(t, Checkpoint{State: StateCompleted}.Restorable())
	require.False(t, Checkpoint{State: StateCompleted, Bad: "chunk gone"}.Restorable())
	require.False(t, Checkpoint{State: StateFailed}.Restorable())
	require.False(t, Checkpoint{State: StateInProgress}.Restorable())
}

func digest(t KeyType, all []RecordedElement, step int) (uint64, uint64) {
	var d Digester
	d.Reset(t)
	for _, e := range all {
		n := min(step, len(e.Value))
		d.Element(Element{Field: e.Field, Score: e.Score, Size: e.Size, Value: e.Value[:n]})
		for rest := e.Value[n:]; len(rest) > 0; {
			n = min(step, len(rest))
			d.Part(rest[:n])
			rest = rest[n:]
		}
	}
	return d.Sum(), d.Count()
}

// The digest doesn't depend on how values were cut, and on the order only
// where order is content.
func TestDigestOfOrderAndParts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		kt := rapid.SampledFrom([]KeyType{TypeHash, TypeList, TypeSet, TypeZSet}).Draw(rt, "type")
		n := rapid.IntRange(2, 200).Draw(rt, "n")
		var all []RecordedElement
		for i := range n {
			e := genElement(rt, kt, i)
			e.Value = append(e.Value, byte(i), byte(i>>8)) // all differ
			e.Size = uint64(len(e.Value))
			all = append(all, e)
		}
		sum, count := digest(kt, all, math.MaxInt)
		require.EqualValues(t, n, count)
		cut, _ := digest(kt, all, rapid.IntRange(1, 50).Draw(rt, "step"))
		require.Equal(t, sum, cut)
		other := append([]RecordedElement(nil), all...)
		seed := rapid.Uint64().Draw(rt, "seed")
		rand.New(rand.NewPCG(seed, 1)).Shuffle(n, func(i, j int) { other[i], other[j] = other[j], other[i] })
		moved := compareElements(other[0], all[0]) != 0
		shuffled, _ := digest(kt, other, math.MaxInt)
		if kt.Ordered() && moved {
			require.NotEqual(t, sum, shuffled)
		} else if !kt.Ordered() {
			require.Equal(t, sum, shuffled)
		}
	})
}

// What differs in any respect has another digest.
func TestDigestTellsElementsApart(t *testing.T) {
	base := []RecordedElement{element("ab", "c", 0), element("d", "ef", 0)}
	seen := map[uint64]int{}
	for i, all := range [][]RecordedElement{
		base,
		{element("a", "bc", 0), element("d", "ef", 0)},  // a byte moved from field to value
		{element("ab", "ef", 0), element("d", "c", 0)},  // swapped values
		{element("ab", "c", 0)},                         // one less
		{element("ab", "c", 0), element("d", "efx", 0)}, // longer
		{element("ab", "c", 1), element("d", "ef", 0)},  // a score
		{element("ab", "c", math.Copysign(0, -1)), element("d", "ef", 0)},
		{element("ab", "c", 0), element("ab", "c", 0), element("d", "ef", 0)}, // twice
		{element("c", "ab", 0), element("ef", "d", 0)},                        // field and value swapped
		{element("", "", 0)},
		{},
	} {
		sum, count := digest(TypeHash, all, math.MaxInt)
		require.EqualValues(t, len(all), count)
		before, ok := seen[sum]
		require.False(t, ok, "%d and %d", before, i)
		seen[sum] = i
	}
}
