package keygroups

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var anyRule = rapid.Custom(func(t *rapid.T) Rule {
	return Rule{
		Hash:           rapid.SampledFrom([]Hash{HashJava, HashFlink}).Draw(t, "hash"),
		KeyType:        rapid.SampledFrom([]KeyType{KeyString, KeyInt, KeyLong}).Draw(t, "keyType"),
		Ranges:         rapid.SampledFrom([]Ranges{RangesLeading, RangesFlink}).Draw(t, "ranges"),
		MaxParallelism: rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(1, MaxMaxParallelism)).Draw(t, "maxParallelism"),
	}
})

func requireCovers(t require.TestingT, r Rule, p int) []Range {
	ranges, err := r.Assign(p)
	require.NoError(t, err)
	require.Len(t, ranges, p)
	next := 0
	for i, x := range ranges {
		require.Equal(t, i, x.Subtask)
		require.Equal(t, next, x.Start)
		require.GreaterOrEqual(t, x.End, x.Start, "no subtask is without a group")
		one, err := r.RangeOf(i, p)
		require.NoError(t, err)
		require.Equal(t, x, one)
		next = x.End + 1
	}
	require.Equal(t, r.MaxParallelism, next)
	return ranges
}

func TestI4EachGroupHasOneOwner(t *testing.T) {
	for _, rules := range []Ranges{RangesLeading, RangesFlink} {
		for g := 1; g <= 48; g++ {
			r := Rule{Hash: HashJava, KeyType: KeyString, Ranges: rules, MaxParallelism: g}
			for p := 1; p <= g; p++ {
				for _, x := range requireCovers(t, r, p) {
					for group := x.Start; group <= x.End; group++ {
						owner, err := r.Owner(group, p)
						require.NoError(t, err)
						require.Equal(t, x.Subtask, owner, "%s: group %d of %d/%d", rules, group, g, p)
					}
				}
			}
		}
	}
}

func TestI4RangesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := anyRule.Draw(t, "rule")
		p := rapid.IntRange(1, r.MaxParallelism).Draw(t, "parallelism")
		ranges := requireCovers(t, r, p)
		low, high := r.MaxParallelism, 0
		for _, x := range ranges {
			low, high = min(low, x.End-x.Start+1), max(high, x.End-x.Start+1)
			for _, group := range []int{x.Start, x.End} {
				owner, err := r.Owner(group, p)
				require.NoError(t, err)
				require.Equal(t, x.Subtask, owner)
			}
		}
		require.LessOrEqual(t, high-low, 1)
		if r.Ranges == RangesLeading {
			require.Equal(t, high, ranges[0].End+1, "the first subtask has one of the long ranges")
		}
	})
}

func requireMoves(t require.TestingT, r Rule, from, to int) {
	moves, err := Moves(r, from, to)
	require.NoError(t, err)
	changed := map[int]Move{}
	end := -1
	for _, m := range moves {
		require.Greater(t, m.Start, end, "in order, none twice")
		end = m.End
		for group := m.Start; group <= m.End; group++ {
			changed[group] = m
		}
	}
	for group := range r.MaxParallelism {
		before, err := r.Owner(group, from)
		require.NoError(t, err)
		after, err := r.Owner(group, to)
		require.NoError(t, err)
		m, moved := changed[group]
		require.Equal(t, before != after, moved, "group %d, %d to %d", group, from, to)
		if moved {
			require.Equal(t, [2]int{before, after}, [2]int{m.From, m.To})
		}
	}
	for i := 1; i < len(moves); i++ {
		a, b := moves[i-1], moves[i]
		require.False(t, a.End+1 == b.Start && a.From == b.From && a.To == b.To, "runs are as long as they can be")
	}
}

func TestI4MovesOfAllPairs(t *testing.T) {
	for _, rules := range []Ranges{RangesLeading, RangesFlink} {
		for _, g := range []int{1, 2, 7, 10, 13, 16, 20} {
			r := Rule{Hash: HashJava, KeyType: KeyString, Ranges: rules, MaxParallelism: g}
			for from := 1; from <= g; from++ {
				for to := 1; to <= g; to++ {
					requireMoves(t, r, from, to)
				}
			}
		}
	}
}

func TestI4MovesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := anyRule.Draw(t, "rule")
		r.MaxParallelism = min(r.MaxParallelism, 600)
		from := rapid.IntRange(1, r.MaxParallelism).Draw(t, "from")
		to := rapid.IntRange(1, r.MaxParallelism).Draw(t, "to")
		requireMoves(t, r, from, to)
	})
}

func TestMovesNamesTheWrongParallelism(t *testing.T) {
	_, err := Moves(documentRule(10), 11, 3)
	require.ErrorIs(t, err, ErrRule)
	require.ErrorContains(t, err, "old parallelism")
	_, err = Moves(documentRule(10), 3, 0)
	require.ErrorIs(t, err, ErrRule)
	require.ErrorContains(t, err, "new parallelism")
}

func TestHashStringOfBytesThatAreNoUTF8(t *testing.T) {
	require.Equal(t, HashString("x\uFFFDy"), HashString("x\xffy"))
	require.Equal(t, HashString("x\uFFFD\uFFFDy"), HashString("x\xff\xfey"), "one for each byte")
	require.Equal(t, int32(31*'\x00'+'b'), HashString("\x00b"), "NUL is a unit like any other")
}

func TestNumberKeysFollowTheKeyType(t *testing.T) {
	r := documentRule(128)
	for _, c := range []struct {
		keyType KeyType
		key     string
		hash    int32
	}{
		{KeyString, "n:42", 1662}, // '4'·31 + '2'
		{KeyInt, "n:42", 42},
		{KeyInt, "n:-7", -7},
		{KeyLong, "n:42", 42},
		{KeyLong, "n:4294967297", 0}, // 1 folded onto 1
		{KeyString, "n:1.5", HashString("1.5")},
		{KeyInt, "s:42", 1662}, // only n: keys are numbers
		{KeyInt, "j:42", 1662},
		{KeyLong, "t:42", 1662},
		{KeyInt, "s:", 0},
	} {
		r.KeyType = c.keyType
		hash, group, err := r.GroupOfKey(c.key)
		require.NoError(t, err)
		require.Equal(t, c.hash, hash, "%s as %s", c.key, c.keyType)
		require.Equal(t, int(uint32(c.hash)%128), group, "%s as %s", c.key, c.keyType)
	}
}

func TestKeysThatCannotBeHashed(t *testing.T) {
	long := "n:" + strings.Repeat("9", 5000)
	for _, c := range []struct {
		keyType KeyType
		key     string
		says    []string
	}{
		{KeyInt, "n:2147483648", []string{`"n:2147483648"`, "32-bit", `key type "int"`, "keyGroups.keyType"}},
		{KeyInt, "n:1.0", []string{`"n:1.0"`, "32-bit"}},
		{KeyInt, "n:", []string{`"n:"`}},
		{KeyLong, "n:9223372036854775808", []string{"64-bit", `key type "long"`}},
		{KeyLong, "n:1e3", []string{`"n:1e3"`}},
		{KeyLong, long, []string{"(5002 bytes)"}},
		{KeyString, "", []string{`""`, "s:, n:, j:, t:"}},
		{KeyString, "s", []string{`"s"`}},
		{KeyString, "user-1", []string{`"user-1"`, "put the prefix"}},
		{KeyString, "x:1", []string{`"x:1"`}},
		{KeyString, "S:1", []string{`"S:1"`}},
	} {
		r := Rule{Hash: HashFlink, KeyType: c.keyType, Ranges: RangesLeading, MaxParallelism: 7}
		_, _, err := r.GroupOfKey(c.key)
		require.ErrorIs(t, err, ErrKey, c.key)
		require.Less(t, len(err.Error()), 500)
		for _, s := range c.says {
			require.ErrorContains(t, err, s)
		}
	}
}

func TestValidate(t *testing.T) {
	ok := documentRule(10)
	require.NoError(t, ok.Validate(1))
	require.NoError(t, ok.Validate(10))
	require.NoError(t, documentRule(MaxMaxParallelism).Validate(MaxMaxParallelism))
	for _, c := range []struct {
		rule Rule
		p    int
		says []string
	}{
		{ok, 0, []string{"parallelism 0", "max parallelism 10", "at least 1"}},
		{ok, -3, []string{"parallelism -3", "max parallelism 10"}},
		{ok, 11, []string{"parallelism 11", "max parallelism 10", "at most 10"}},
		{documentRule(0), 1, []string{"max parallelism 0", "1 to 32768"}},
		{documentRule(-5), 1, []string{"max parallelism -5"}},
		{documentRule(32769), 2, []string{"max parallelism 32769"}},
		{Rule{Hash: "md5", KeyType: KeyInt, Ranges: RangesFlink, MaxParallelism: 9}, 2, []string{`hash "md5"`, "java, flink"}},
		{Rule{Hash: HashJava, KeyType: "uuid", Ranges: RangesFlink, MaxParallelism: 9}, 2, []string{`keyType "uuid"`, "string, int, long"}},
		{Rule{Hash: HashJava, KeyType: KeyInt, Ranges: "even", MaxParallelism: 9}, 2, []string{`ranges "even"`, "leading, flink"}},
		{Rule{MaxParallelism: 9}, 2, []string{`hash ""`}},
	} {
		err := c.rule.Validate(c.p)
		require.ErrorIs(t, err, ErrRule)
		for _, s := range c.says {
			require.ErrorContains(t, err, s)
		}
		_, err = c.rule.Assign(c.p)
		require.ErrorIs(t, err, ErrRule)
		_, err = c.rule.Owner(0, c.p)
		require.ErrorIs(t, err, ErrRule)
		_, err = c.rule.RangeOf(0, c.p)
		require.ErrorIs(t, err, ErrRule)
	}
	_, _, err := documentRule(0).GroupOfKey("s:a")
	require.ErrorIs(t, err, ErrRule)
	_, _, err = documentRule(0).GroupOfText("a")
	require.ErrorIs(t, err, ErrRule)
}

func TestOwnershipOutsideTheJob(t *testing.T) {
	r := documentRule(10)
	for _, group := range []int{-1, 10} {
		_, err := r.Owner(group, 3)
		require.ErrorIs(t, err, ErrRule)
		require.ErrorContains(t, err, "max parallelism 10: give one from 0 to 9")
	}
	for _, subtask := range []int{-1, 3} {
		_, err := r.RangeOf(subtask, 3)
		require.ErrorIs(t, err, ErrRule)
		require.ErrorContains(t, err, "parallelism 3: give one from 0 to 2")
	}
}

func TestSameLayout(t *testing.T) {
	saved := Rule{Hash: HashFlink, KeyType: KeyLong, Ranges: RangesLeading, MaxParallelism: 64}
	other := saved
	other.Ranges = RangesFlink
	require.NoError(t, saved.SameLayout(other), "ranges move ownership, not keys")
	require.NoError(t, Rule{MaxParallelism: 9}.SameLayout(documentRule(9)), "empty means the default")

	err := saved.SameLayout(Rule{Hash: HashJava, KeyType: KeyInt, Ranges: RangesLeading, MaxParallelism: 65})
	require.ErrorIs(t, err, ErrLayout)
	for _, s := range []string{"max parallelism is 64 in the state and 65 in the job",
		"hash is flink in the state and java in the job", "key type is long in the state and int in the job", "rekey"} {
		require.ErrorContains(t, err, s)
	}
	other = saved
	other.KeyType = KeyString
	require.NotContains(t, saved.SameLayout(other).Error(), "max parallelism")
}

func TestParse(t *testing.T) {
	h, err := ParseHash("flink")
	require.NoError(t, err)
	require.Equal(t, HashFlink, h)
	r, err := ParseRanges("flink")
	require.NoError(t, err)
	require.Equal(t, RangesFlink, r)
	k, err := ParseKeyType("long")
	require.NoError(t, err)
	require.Equal(t, KeyLong, k)

	h, err = ParseHash("")
	require.NoError(t, err)
	r, err2 := ParseRanges("")
	require.NoError(t, err2)
	k, err3 := ParseKeyType("")
	require.NoError(t, err3)
	require.Equal(t, Rule{Hash: HashJava, Ranges: RangesLeading, KeyType: KeyString, MaxParallelism: 5},
		Rule{Hash: h, Ranges: r, KeyType: k, MaxParallelism: 5})

	_, err = ParseHash("Java")
	require.ErrorContains(t, err, `hash "Java": want one of java, flink`)
	_, err = ParseRanges("even")
	require.ErrorContains(t, err, `ranges "even": want one of leading, flink`)
	_, err = ParseKeyType("short")
	require.ErrorContains(t, err, `keyType "short": want one of string, int, long`)
}

func TestWithDefaultsKeepsWhatIsSet(t *testing.T) {
	set := Rule{Hash: HashFlink, KeyType: KeyInt, Ranges: RangesFlink, MaxParallelism: 77}
	require.Equal(t, set, set.WithDefaults())
	require.Equal(t, Rule{Hash: HashJava, KeyType: KeyString, Ranges: RangesLeading}, Rule{}.WithDefaults())
}

func FuzzGroupOfKey(f *testing.F) {
	for _, s := range []string{"", "s:", "s:a", "n:42", "n:-9223372036854775808", "j:{\"a\":1}", "t:\xff\xfe", "n:polygenelubricants", "s:polygenelubricants"} {
		f.Add(s, uint16(127))
		f.Add(s, uint16(0))
	}
	f.Fuzz(func(t *testing.T, key string, g uint16) {
		for _, hash := range []Hash{HashJava, HashFlink} {
			for _, keyType := range []KeyType{KeyString, KeyInt, KeyLong} {
				r := Rule{Hash: hash, KeyType: keyType, Ranges: RangesLeading, MaxParallelism: int(g)%MaxMaxParallelism + 1}
				code, group, err := r.GroupOfKey(key)
				if err != nil {
					require.ErrorIs(t, err, ErrKey)
					continue
				}
				require.Equal(t, r.Group(code), group)
				require.GreaterOrEqual(t, group, 0)
				require.Less(t, group, r.MaxParallelism)
			}
		}
	})
}
