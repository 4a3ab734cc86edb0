package rescale

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func digestOf(prefix int, values ...string) *ItemsDigest {
	d := NewItemsDigest(prefix)
	for _, v := range values {
		if err := d.Begin(uint64(len(v))); err != nil {
			panic(err)
		}
		if _, err := d.Write([]byte(v)); err != nil {
			panic(err)
		}
	}
	return d
}

func hexSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func TestItemsDigestIsWhatItsDocumentSays(t *testing.T) {
	d := digestOf(1, "ab", "", "c")
	sum, err := d.Sum()
	require.NoError(t, err)
	require.Equal(t, hexSum("\x00\x00\x00\x00\x00\x00\x00\x02ab"+"\x00\x00\x00\x00\x00\x00\x00\x00"+"\x00\x00\x00\x00\x00\x00\x00\x01c"), sum)
	require.Equal(t, hexSum("\x00\x00\x00\x00\x00\x00\x00\x02ab"), d.Prefix())
	require.Equal(t, 3, d.Items())

	sum, err = NewItemsDigest(NoPrefix).Sum()
	require.NoError(t, err)
	require.Equal(t, hexSum(""), sum)
	require.Equal(t, hexSum(""), NewItemsDigest(0).Prefix())
	require.Empty(t, digestOf(NoPrefix, "x").Prefix())
	require.Empty(t, digestOf(3, "x", "y").Prefix(), "fewer items than that")
}

func TestItemsDigestOfPiecesAndPrefixes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.StringN(0, 6, 12), 0, 9).Draw(t, "values")
		n := rapid.IntRange(0, 9).Draw(t, "prefix")
		d := NewItemsDigest(n)
		for _, v := range values {
			require.NoError(t, d.Begin(uint64(len(v))))
			for rest := []byte(v); len(rest) > 0; {
				k := rapid.IntRange(0, len(rest)).Draw(t, "piece")
				w, err := d.Write(rest[:k])
				require.NoError(t, err)
				require.Equal(t, k, w)
				rest = rest[k:]
			}
		}
		sum, err := d.Sum()
		require.NoError(t, err)
		whole, err := digestOf(NoPrefix, values...).Sum()
		require.NoError(t, err)
		require.Equal(t, whole, sum)
		if n > len(values) {
			require.Empty(t, d.Prefix())
			return
		}
		first, err := digestOf(NoPrefix, values[:n]...).Sum()
		require.NoError(t, err)
		require.Equal(t, first, d.Prefix())
	})
}

func TestItemsDigestSeesWrongSizes(t *testing.T) {
	d := NewItemsDigest(NoPrefix)
	_, err := d.Write([]byte("x"))
	require.ErrorIs(t, err, ErrInput)
	require.NoError(t, d.Begin(3))
	_, err = d.Write([]byte("four"))
	require.ErrorContains(t, err, "item 0 is 1 bytes longer")
	_, err = d.Write([]byte("tw"))
	require.NoError(t, err)
	require.ErrorContains(t, d.Begin(1), "item 0 lacks 1 bytes")
	_, err = d.Sum()
	require.ErrorIs(t, err, ErrInput)
}

func fieldsDigest(t require.TestingT, fields ...item) string {
	d := &FieldsDigest{}
	for _, f := range fields {
		require.NoError(t, d.Begin(f.field, uint64(len(f.value))))
		_, err := d.Write(f.value)
		require.NoError(t, err)
	}
	require.Equal(t, len(fields), d.Fields())
	sum, err := d.Sum()
	require.NoError(t, err)
	return sum
}

func TestFieldsDigest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.MapOfN(rapid.StringN(0, 3, 6), rapid.StringN(0, 3, 6), 0, 200).Draw(t, "hash")
		var all []item
		for k, v := range m {
			all = append(all, field(k, v))
		}
		sum := fieldsDigest(t, all...)
		require.Equal(t, sum, fieldsDigest(t, rapid.Permutation(all).Draw(t, "order")...))
		if len(all) == 0 {
			return
		}
		i := rapid.IntRange(0, len(all)-1).Draw(t, "i")
		changed := append([]item{}, all...)
		changed[i].value = append(append([]byte{}, all[i].value...), 'x')
		require.NotEqual(t, sum, fieldsDigest(t, changed...))
		require.NotEqual(t, sum, fieldsDigest(t, append(changed[:i:i], changed[i+1:]...)...))
	})
}

func TestFieldsDigestTellsWhatFieldsAndValuesMayConfuse(t *testing.T) {
	seen := map[string][]item{}
	for _, c := range [][]item{
		{},
		{field("", "")},
		{field("a", "b")},
		{field("b", "a")},
		{field("ab", "")},
		{field("", "ab")},
		{field("a", "c"), field("b", "d")},
		{field("a", "d"), field("b", "c")},
		{field("\xff", "1"), field("\xfe", "1")},
		// A reader that repeats fields is seen too: pairs don't cancel out.
		{field("r", "1"), field("r", "1"), field("q", "2")},
		{field("s", "3"), field("s", "3"), field("q", "2")},
	} {
		sum := fieldsDigest(t, c...)
		require.NotContains(t, seen, sum)
		seen[sum] = c
	}
}

func TestFieldsDigestSeesWrongSizes(t *testing.T) {
	d := &FieldsDigest{}
	require.NoError(t, d.Begin([]byte("f"), 2))
	_, err := d.Write([]byte("abc"))
	require.ErrorContains(t, err, "value of field 0 is 1 bytes longer")
	_, err = d.Sum()
	require.ErrorIs(t, err, ErrInput)
	require.ErrorContains(t, d.Begin([]byte("g"), 1), "lacks 2 bytes")
}
