package snapshot

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// replayRuns pushes keys as Replay does, but whole elements in runs of up to
// most.
func replayRuns(keys []RecordedKey, most int, s Sink) error {
	for _, k := range keys {
		if err := s.BeginKey(k.Key); err != nil {
			return err
		}
		var run []Element
		for _, e := range k.Elements {
			run = append(run, Element{Field: e.Field, Score: e.Score, Size: e.Size, Value: e.Value})
			if len(run) == most {
				if err := PushElements(s, run); err != nil {
					return err
				}
				run = run[:0]
			}
		}
		if err := PushElements(s, run); err != nil {
			return err
		}
		if err := s.EndKey(k.End); err != nil {
			return err
		}
	}
	return nil
}

// Runs are only a faster way to say the same: the chunks are the same bytes.
func TestRunsGiveTheSameChunks(t *testing.T) {
	keys := append(oddKeys(), hashKey(SectionKeyed, "job:many", 5000), listKey(SectionKeyed, "job:items", 700))
	for _, target := range []int{1, 64, 300, 5000, 0} {
		for _, most := range []int{1, 3, 256} {
			want := encode(t, target, keys)
			got := &saved{}
			enc := NewEncoder(context.Background(), &got.MemChunks, EncoderOptions{ChunkTarget: target})
			require.NoError(t, replayRuns(keys, most, enc))
			sum, err := enc.Close()
			require.NoError(t, err)
			require.Equal(t, want.sum, sum, "target %d, runs of %d", target, most)
		}
	}
}

// A sink that takes no runs gets the elements one by one, parts apart.
func TestRunsReachAnySink(t *testing.T) {
	var r Recorder
	require.NoError(t, replayRuns(bySection(t, oddKeys()), 7, &r))
	same(t, bySection(t, oddKeys()), r.Keys)
}

// What Element refuses is refused in a run too, with the same words, wherever
// it stands, and nothing is taken afterwards.
func TestRunsAreCheckedAsElementsAre(t *testing.T) {
	whole := func(field, value string, score float64) Element {
		return Element{Field: []byte(field), Value: []byte(value), Size: uint64(len(value)), Score: score}
	}
	rapid.Check(t, func(rt *rapid.T) {
		kt := rapid.SampledFrom([]KeyType{TypeString, TypeHash, TypeList, TypeSet, TypeZSet, TypeMissing}).Draw(rt, "type")
		k := Key{Section: SectionKeyed, Type: kt, Name: []byte("job:checked"), Count: 9}
		if kt == TypeString {
			k.Count = 1
		}
		if kt == TypeMissing {
			k.Count = 0
		}
		legal, ok := map[KeyType]Element{
			TypeHash: whole("f", "v1", 0), TypeList: whole("", "v2", 0), TypeSet: whole("", "v3", 0), TypeZSet: whole("", "v4", 1.5),
		}[kt]
		var run []Element
		if ok {
			for range rapid.IntRange(0, 5).Draw(rt, "legal") {
				run = append(run, legal)
			}
		}
		odd := whole(rapid.SampledFrom([]string{"", "f"}).Draw(rt, "field"), "v",
			rapid.SampledFrom([]float64{0, 1, math.Inf(-1), math.NaN(), math.Copysign(0, -1)}).Draw(rt, "score"))
		odd.Size += rapid.SampledFrom([]uint64{0, 0, 3}).Draw(rt, "missing")
		odd.Value = odd.Value[:rapid.IntRange(0, len(odd.Value)).Draw(rt, "given")]
		run = append(run, odd, whole("f", "after", 0))

		one := NewEncoder(context.Background(), &MemChunks{}, EncoderOptions{})
		many := NewEncoder(context.Background(), &MemChunks{}, EncoderOptions{})
		require.NoError(rt, one.BeginKey(k))
		require.NoError(rt, many.BeginKey(k))
		var want error
		for _, e := range run {
			if want = one.Element(e); want != nil {
				break
			}
		}
		got := many.Elements(run)
		if want == nil {
			require.NoError(rt, got)
			require.Equal(rt, one.tr.digest.Sum(), many.tr.digest.Sum())
			require.Equal(rt, one.tr.bytes, many.tr.bytes)
			return
		}
		require.EqualError(rt, got, want.Error())
		require.EqualError(rt, many.Elements(run), want.Error(), "a dead encoder")
		require.EqualError(rt, many.EndKey(KeyEnd{}), want.Error())
	})
}

func TestRunsBeforeAnyKeyAndAfterClose(t *testing.T) {
	e := NewEncoder(context.Background(), &MemChunks{}, EncoderOptions{})
	require.ErrorContains(t, e.Elements([]Element{{}}), "before any key")
	e = NewEncoder(context.Background(), &MemChunks{}, EncoderOptions{})
	_, err := e.Close()
	require.NoError(t, err)
	require.ErrorContains(t, e.Elements([]Element{{}}), "closed")
	require.NoError(t, e.Elements(nil), "nothing is no element")
}

// However many chunks there are, few are in the background, and their buffers
// go round.
func TestFewChunksAreInTheBackground(t *testing.T) {
	m := &MemChunks{}
	e := NewEncoder(context.Background(), m, EncoderOptions{ChunkTarget: 1000})
	require.NoError(t, e.BeginKey(Key{Section: SectionKeyed, Type: TypeList, Name: []byte("job:list"), Count: 20_000}))
	for i := range 20_000 {
		v := []byte(text(20, string(rune('a'+i%26))))
		require.NoError(t, e.Element(Element{Value: v, Size: uint64(len(v))}))
		require.LessOrEqual(t, len(e.flights), flightsMost)
		require.LessOrEqual(t, len(e.free), flightsMost+1)
		require.LessOrEqual(t, len(e.outs), flightsMost)
	}
	require.NoError(t, e.EndKey(KeyEnd{}))
	sum, err := e.Close()
	require.NoError(t, err)
	require.Empty(t, e.flights)
	require.Greater(t, len(sum.Chunks), 300)
}
