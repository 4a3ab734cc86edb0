package snapshot

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func recorded(t *testing.T, keys ...RecordedKey) []RecordedKey {
	t.Helper()
	var r Recorder
	require.NoError(t, Replay(keys, &r))
	return r.Keys
}

func TestDiffKeysNamesWhatDiffers(t *testing.T) {
	a, b := element("f", "1", 0), element("g", "2", 0)
	x, y := element("", "x", 0), element("", "y", 0)
	m := func(score float64) RecordedElement { return element("", "m", score) }
	k := func(kt KeyType, e ...RecordedElement) RecordedKey { return key(SectionKeyed, kt, "job:\xfe", e...) }
	expiring := k(TypeHash, a)
	expiring.Key.ExpireAt = 77
	for name, c := range map[string]struct {
		want, got RecordedKey
		text      string // "" when they are the same
	}{
		"hash in another order": {k(TypeHash, a, b), k(TypeHash, b, a), ""},
		"set in another order":  {k(TypeSet, x, y), k(TypeSet, y, x), ""},
		"zset in another order": {k(TypeZSet, m(1), element("", "n", 2)), k(TypeZSet, element("", "n", 2), m(1)), ""},
		"list in another order": {k(TypeList, x, y), k(TypeList, y, x), "element 0"},
		"list with a duplicate": {k(TypeList, x, x, y), k(TypeList, x, y), "number of elements is 2, want 3"},
		"swapped values":        {k(TypeHash, a, b), k(TypeHash, element("f", "2", 0), element("g", "1", 0)), "element 0"},
		"swapped scores":        {k(TypeZSet, m(1), element("", "n", 2)), k(TypeZSet, m(2), element("", "n", 1)), "element 0"},
		"-0 and 0":              {k(TypeZSet, m(0)), k(TypeZSet, m(math.Copysign(0, -1))), "score -0"},
		"type":                  {k(TypeList, x), k(TypeSet, x), "Type:set"},
		"expiry":                {k(TypeHash, a), expiring, "ExpireAt:77"},
		"section":               {k(TypeHash, a), key(SectionMeta, TypeHash, "job:\xfe", a), "is not there"},
		"name":                  {k(TypeHash, a), key(SectionKeyed, TypeHash, "job:\xff", a), `"job:\xff" should not be there`},
	} {
		t.Run(name, func(t *testing.T) {
			other := hashKey(SectionKeyed, "other", 130)
			diff := DiffKeys(recorded(t, c.want, other), recorded(t, other, c.got))
			if c.text == "" {
				require.Empty(t, diff)
				return
			}
			require.Contains(t, strings.Join(diff, "\n"), c.text)
			require.NotContains(t, strings.Join(diff, "\n"), "other")
		})
	}
	twice := recorded(t, k(TypeHash, a), k(TypeHash, a))
	require.Contains(t, strings.Join(DiffKeys(twice[:1], twice), "\n"), `got has the keyed key "job:\xfe" twice`)
}

func TestRecorderComputesEndsAndCopies(t *testing.T) {
	var r Recorder
	name, value := []byte("job:k"), []byte("value")
	require.NoError(t, r.BeginKey(Key{Section: SectionKeyed, Type: TypeList, Name: name, Count: 1}))
	require.NoError(t, r.Element(Element{Size: 10, Value: value}))
	require.NoError(t, r.Part(value))
	require.NoError(t, r.EndKey(KeyEnd{}))
	copy(name, "xxxxx")
	copy(value, "yyyyy")
	k := r.Find(SectionKeyed, "job:k")
	require.NotNil(t, k)
	require.Equal(t, "valuevalue", string(k.Elements[0].Value))
	require.Equal(t, KeyEnd{Count: 1, Digest: digestOf("valuevalue")}, k.End)
	require.Nil(t, r.Find(SectionOperator, "job:k"))
}

func TestReplayNamesTheKey(t *testing.T) {
	err := Replay([]RecordedKey{hashKey(SectionKeyed, "job:k", 3)}, sinkFunc(func() error { return errFull }))
	require.ErrorIs(t, err, errFull)
	require.ErrorContains(t, err, "job:k")
}

func TestMemChunksIsSafeForManyAndCopies(t *testing.T) {
	var m MemChunks
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 100 {
				id := ChunkID{byte(n), byte(n * 3)}
				data := fmt.Appendf(nil, "content %d", n)
				if _, err := m.WriteChunk(ctx, Chunk{Ref: ChunkRef{ID: id}, Data: data}); err != nil {
					t.Error(i, err)
				}
				data[0] = 'X'
				got, err := m.Chunk(ctx, id)
				if err != nil || string(got) != fmt.Sprintf("content %d", n) {
					t.Error(i, string(got), err)
				}
				got[0] = 'Y'
			}
		})
	}
	wg.Wait()
	ids := m.IDs()
	require.Len(t, ids, 100)
	require.Equal(t, ChunkID{0, 0}, ids[0])
	require.Equal(t, ChunkID{99, 41}, ids[99])
	m.Remove(ids[0])
	_, err := m.Chunk(ctx, ids[0])
	require.ErrorIs(t, err, ErrNoChunk)
	require.ErrorContains(t, err, ids[0].String())
	fresh, err := m.WriteChunk(ctx, Chunk{Ref: ChunkRef{ID: ids[1]}})
	require.NoError(t, err)
	require.False(t, fresh)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = m.Chunk(ended, ids[1])
	require.ErrorIs(t, err, context.Canceled)
	_, err = m.WriteChunk(ended, Chunk{})
	require.ErrorIs(t, err, context.Canceled)
}
