package keygroups

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDocumentKeys(t *testing.T) {
	all := document(t).Keys
	require.Len(t, all, 14)
	for _, v := range all {
		require.Equal(t, v.HashCode, HashString(v.Key), "%q", v.Key)
		require.Len(t, v.Group, 4)
		for g, want := range v.Group {
			r := documentRule(number(t, g))
			hash, group, err := r.GroupOfText(v.Key)
			require.NoError(t, err)
			require.Equal(t, v.HashCode, hash, "%q", v.Key)
			require.Equal(t, want, group, "%q of %s", v.Key, g)
			for _, prefix := range []string{"s:", "n:", "j:", "t:"} {
				hash, group, err = r.GroupOfKey(prefix + v.Key)
				require.NoError(t, err)
				require.Equal(t, v.HashCode, hash)
				require.Equal(t, want, group, "%s%q of %s", prefix, v.Key, g)
			}
		}
	}
}

func TestFlinkMurmur(t *testing.T) {
	all := flink(t).Murmur
	require.Len(t, all, 10)
	for _, v := range all {
		require.Equal(t, v.Murmur, Murmur(v.Code), "code %d", v.Code)
	}
	require.Equal(t, int32(0), Murmur(murmurMin(t)), "the one negative result without a negation")
}

// murmurMin is the code whose raw murmur hash is the smallest int, found by
// walking Murmur's steps backwards.
func murmurMin(t *testing.T) int32 {
	t.Helper()
	unshift := func(h uint32, by int) uint32 {
		for x, i := h, by; i < 32; i += by {
			x >>= by
			h ^= x
			if by > 15 {
				break
			}
		}
		return h
	}
	inverse := func(m uint32) uint32 { // of an odd number modulo 2³², by Newton
		x := m
		for range 5 {
			x *= 2 - m*x
		}
		return x
	}
	h := uint32(0x80000000)
	h = unshift(h, 16)
	h *= inverse(0xc2b2ae35)
	h = unshift(h, 13)
	h *= inverse(0x85ebca6b)
	h = unshift(h, 16)
	h ^= 4
	h = (h - 0xe6546b64) * inverse(5)
	h = h>>13 | h<<19
	h *= inverse(0x1b873593)
	h = h>>15 | h<<17
	return int32(h * inverse(0xcc9e2d51))
}

// hashCode is Java's hashCode of a vector's value, built from what the
// package offers for keys.
func hashCode(t *testing.T, typ string, raw json.RawMessage) int32 {
	t.Helper()
	var text string
	if json.Unmarshal(raw, &text) != nil {
		text = string(raw)
	}
	float := func(bits int) float64 {
		f, err := strconv.ParseFloat(text, bits)
		require.NoError(t, err)
		return f
	}
	switch typ {
	case "String", "Character":
		return HashString(text)
	case "Integer", "Short", "Byte":
		return int32(number(t, text))
	case "Long":
		v, err := strconv.ParseInt(text, 10, 64)
		require.NoError(t, err)
		return HashLong(v)
	case "Boolean":
		return map[string]int32{"true": 1231, "false": 1237}[text]
	case "Double":
		if f := float(64); !math.IsNaN(f) {
			return HashLong(int64(math.Float64bits(f)))
		}
		return HashLong(0x7ff8000000000000)
	case "Float":
		return int32(math.Float32bits(float32(float(32))))
	case "UUID":
		return hashUUID(t, text)
	}
	var parts []json.RawMessage
	require.NoError(t, json.Unmarshal(raw, &parts), "type %s", typ)
	switch typ {
	case "List<Integer>":
		h := int32(1)
		for _, p := range parts {
			h = 31*h + hashCode(t, "Integer", p)
		}
		return h
	case "Tuple2<String,Integer>":
		return 31*hashCode(t, "String", parts[0]) + hashCode(t, "Integer", parts[1])
	}
	t.Fatalf("type %s has no hash code here", typ)
	return 0
}

func hashUUID(t *testing.T, text string) int32 {
	t.Helper()
	digits := strings.ReplaceAll(text, "-", "")
	hi, err := strconv.ParseUint(digits[:16], 16, 64)
	require.NoError(t, err)
	lo, err := strconv.ParseUint(digits[16:], 16, 64)
	require.NoError(t, err)
	return HashLong(int64(hi ^ lo))
}

func TestFlinkKeys(t *testing.T) {
	all := flink(t).Keys
	require.Len(t, all, 69)
	for i, v := range all {
		name := fmt.Sprintf("%d %s %.40s", i, v.Type, v.Value)
		require.Equal(t, v.HashCode, hashCode(t, v.Type, v.Value), name)
		require.Equal(t, v.Murmur, Murmur(v.HashCode), name)
		require.NotEmpty(t, v.KeyGroup, name)
		require.NotEmpty(t, v.Subtask, name)
		for g, want := range v.KeyGroup {
			r := flinkRule(number(t, g))
			require.Equal(t, want, r.Group(v.HashCode), "%s of %s", name, g)
			requireTypedKey(t, r, v, want)
		}
		for gp, want := range v.Subtask {
			g, p, _ := strings.Cut(gp, "/")
			r := flinkRule(number(t, g))
			owner, err := r.Owner(r.Group(v.HashCode), number(t, p))
			require.NoError(t, err)
			require.Equal(t, want, owner, "%s at %s", name, gp)
		}
	}
}

// requireTypedKey checks the vectors that have a typed key of their own.
func requireTypedKey(t *testing.T, r Rule, v keyVector, want int) {
	t.Helper()
	var text string
	if json.Unmarshal(v.Value, &text) != nil {
		text = string(v.Value)
	}
	var key string
	switch v.Type {
	case "String":
		key = "s:" + text
	case "Integer":
		r.KeyType, key = KeyInt, "n:"+text
	case "Long":
		r.KeyType, key = KeyLong, "n:"+text
	default:
		return
	}
	hash, group, err := r.GroupOfKey(key)
	require.NoError(t, err)
	require.Equal(t, v.HashCode, hash, key)
	require.Equal(t, want, group, key)
}

func requireRanges(t *testing.T, r Rule, v rangeVector) {
	t.Helper()
	got, err := r.Assign(v.Parallelism)
	require.NoError(t, err)
	require.Len(t, got, v.Parallelism)
	for i, want := range v.Ranges {
		require.Equal(t, Range{Subtask: i, Start: want[0], End: want[1]}, got[i], "%+v", v)
	}
	if v.First != nil {
		require.Equal(t, *v.First, [2]int{got[0].Start, got[0].End}, "%+v", v)
	}
	if v.Last != nil {
		last := got[len(got)-1]
		require.Equal(t, *v.Last, [2]int{last.Start, last.End}, "%+v", v)
	}
}

func TestDocumentRanges(t *testing.T) {
	all := document(t).Ranges
	require.Len(t, all, 9)
	for _, v := range all {
		r := documentRule(v.MaxParallelism)
		requireRanges(t, r, v)
		// Sizes are given as the distinct sizes from the first subtask on.
		var sizes []int
		ranges, err := r.Assign(v.Parallelism)
		require.NoError(t, err)
		for _, x := range ranges {
			if n := x.End - x.Start + 1; len(sizes) == 0 || sizes[len(sizes)-1] != n {
				sizes = append(sizes, n)
			}
		}
		require.Equal(t, v.Sizes, sizes, "%+v", v)
	}
}

func TestFlinkRanges(t *testing.T) {
	all := flink(t).Ranges
	require.Len(t, all, 25)
	for _, v := range all {
		require.NotEmpty(t, v.Ranges)
		require.Len(t, v.Sizes, v.Parallelism)
		requireRanges(t, flinkRule(v.MaxParallelism), v)
		for i, want := range v.Sizes {
			x, err := flinkRule(v.MaxParallelism).RangeOf(i, v.Parallelism)
			require.NoError(t, err)
			require.Equal(t, want, x.End-x.Start+1, "%+v subtask %d", v, i)
		}
	}
}

func TestFlinkRangeSpots(t *testing.T) {
	all := flink(t).RangeSpots
	require.Len(t, all, 7)
	for _, v := range all {
		got, err := flinkRule(v.MaxParallelism).RangeOf(v.Index, v.Parallelism)
		require.NoError(t, err)
		require.Equal(t, Range{Subtask: v.Index, Start: v.Start, End: v.End}, got)
	}
}

func TestFlinkOperatorIndex(t *testing.T) {
	all := flink(t).OperatorIndex
	require.Len(t, all, 6)
	for _, v := range all {
		require.NotEmpty(t, v.KeyGroupToIndex)
		for g, want := range v.KeyGroupToIndex {
			got, err := flinkRule(v.MaxParallelism).Owner(number(t, g), v.Parallelism)
			require.NoError(t, err)
			require.Equal(t, want, got, "group %s of %d/%d", g, v.MaxParallelism, v.Parallelism)
		}
	}
}

func TestFlinkKeyGroupMoves(t *testing.T) {
	all := flink(t).KeyGroupMoves
	require.Len(t, all, 6)
	for _, v := range all {
		r := flinkRule(v.MaxParallelism)
		var want []Move
		for _, a := range v.Assignment {
			x, err := r.RangeOf(a.New, v.To)
			require.NoError(t, err)
			require.Equal(t, Range{Subtask: a.New, Start: a.Range[0], End: a.Range[1]}, x)
			for _, p := range a.Parts {
				if p.FromOld != a.New {
					want = append(want, Move{Start: p.Range[0], End: p.Range[1], From: p.FromOld, To: a.New})
				}
			}
		}
		got, err := Moves(r, v.From, v.To)
		require.NoError(t, err)
		require.Equal(t, want, got, "%d: %d to %d", v.MaxParallelism, v.From, v.To)
		moved := 0
		for _, m := range got {
			moved += m.End - m.Start + 1
		}
		require.Equal(t, v.GroupsChangingSubtask, moved)
	}
}

func TestFlinkDefaultMaxParallelism(t *testing.T) {
	all := flink(t).DefaultMaxParallelism
	require.Len(t, all, 22)
	for _, v := range all {
		require.Equal(t, v.DefaultMaxParallelism, DefaultMaxParallelism(v.Parallelism), "parallelism %d", v.Parallelism)
	}
	// 171 + 85 and 683 + 341 are powers of two already.
	for p, want := range map[int]int{math.MinInt: 128, -1: 128, 0: 128, 85: 128, 171: 256, 683: 1024, math.MaxInt: 32768} {
		require.Equal(t, want, DefaultMaxParallelism(p), "parallelism %d", p)
	}
}

// TestFlinkRestoreChecks: state saved under one rule is taken up by a job
// that gives another parallelism, and maybe a max parallelism of its own.
func TestFlinkRestoreChecks(t *testing.T) {
	all := flink(t).RestoreChecks
	require.Len(t, all, 7)
	for _, v := range all {
		saved := flinkRule(v.Saved.MaxParallelism)
		require.NoError(t, saved.Validate(v.Saved.Parallelism))
		asked := saved
		if v.New.MaxParallelism != nil {
			asked.MaxParallelism = *v.New.MaxParallelism
		}
		same, fits := saved.SameLayout(asked), asked.Validate(v.New.Parallelism)
		switch v.Error {
		case "":
			require.True(t, v.OK)
			require.NoError(t, same)
			require.NoError(t, fits)
			require.Equal(t, v.EffectiveMax, asked.MaxParallelism)
		case "PARALLELISM_EXCEEDS_SAVED_MAX":
			require.NoError(t, same)
			require.ErrorIs(t, fits, ErrRule)
			require.ErrorContains(t, fits, fmt.Sprintf("parallelism %d is above max parallelism %d", v.New.Parallelism, asked.MaxParallelism))
		case "MAX_PARALLELISM_CHANGED":
			require.ErrorIs(t, same, ErrLayout)
			require.ErrorContains(t, same, fmt.Sprintf("max parallelism is %d in the state and %d in the job", v.Saved.MaxParallelism, asked.MaxParallelism))
		case "MAX_PARALLELISM_OUT_OF_BOUNDS":
			require.ErrorIs(t, fits, ErrRule)
			require.ErrorContains(t, fits, fmt.Sprintf("max parallelism %d: set one from 1 to 32768", asked.MaxParallelism))
		default:
			t.Fatalf("unknown outcome %q", v.Error)
		}
	}
}
