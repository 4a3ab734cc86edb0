package snapshot

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEveryKeyComesBackAsItWas(t *testing.T) {
	keys := oddKeys()
	want := bySection(t, keys)
	for _, target := range []int{1, 64, 300, 5000, 0} {
		t.Run(strconv.Itoa(target), func(t *testing.T) {
			s := encode(t, target, keys)
			same(t, want, walk(t, s))
			verified(t, s)
		})
	}
}

func TestSummaryCountsWhatWasWritten(t *testing.T) {
	s := encode(t, 700, oddKeys())
	var total SectionTotals
	for _, one := range bySection(t, oddKeys()) {
		if one.Key.Section > SectionOperator {
			continue
		}
		if one.Key.Type == TypeMissing {
			total.Missing++
			continue
		}
		total.Keys++
		total.Bytes += uint64(len(one.Key.Name))
		for _, e := range one.Elements {
			total.Elements++
			total.Bytes += uint64(len(e.Field) + len(e.Value))
		}
	}
	require.Equal(t, total.Keys, s.sum.Keys)
	require.Equal(t, total.Missing, s.sum.Missing)
	require.Equal(t, total.Elements, s.sum.Elements)
	require.Equal(t, total.Bytes, s.sum.Bytes)
	require.EqualValues(t, 2, s.sum.Expired)
	require.Equal(t, s.sum.Stored, s.sum.Fresh)
	require.Len(t, s.IDs(), len(s.sum.Chunks))
	require.Len(t, s.sum.Sections, 4)
	require.EqualValues(t, 2, s.sum.Sections[2].Keys, "meta keys")
	var stored uint64
	for _, ref := range s.sum.Chunks {
		data, err := s.Chunk(context.Background(), ref.ID)
		require.NoError(t, err)
		require.Len(t, data, int(ref.Stored))
		stored += ref.Stored
	}
	require.Equal(t, stored, s.sum.Stored)
}

func TestChunksThatAreStoredAlreadyAreFree(t *testing.T) {
	first := encode(t, 700, oddKeys())
	enc := NewEncoder(context.Background(), first, EncoderOptions{ChunkTarget: 700})
	require.NoError(t, Replay(oddKeys(), enc))
	again, err := enc.Close()
	require.NoError(t, err)
	require.Equal(t, first.sum.Chunks, again.Chunks)
	require.Zero(t, again.Fresh)
	require.Equal(t, first.sum.Stored, again.Stored)
}

func TestARescaleReplacesSectionsAndReusesTheOthers(t *testing.T) {
	s := encode(t, 200, oddKeys())
	enc := NewEncoder(context.Background(), s, EncoderOptions{ChunkTarget: 200})
	replaced := []RecordedKey{listKey(SectionOperator, "job:opstate:p2", 140), hashKey(SectionMeta, "job:assignment", 130)}
	require.NoError(t, Replay(replaced, enc))
	sum, err := enc.Close()
	require.NoError(t, err)
	require.Positive(t, sum.Sections[1].Chunks)
	require.Zero(t, sum.Sections[0].Chunks)

	m := *s.m
	m.Chunks = nil
	keyed := s.sum.Sections[0]
	for _, ref := range s.m.Chunks {
		if ref.Section == SectionKeyed {
			m.Chunks = append(m.Chunks, ref)
		}
	}
	m.Chunks = append(m.Chunks, sum.Chunks...)
	m.Checkpoint.Keys, m.Checkpoint.Missing = keyed.Keys+sum.Keys, keyed.Missing+sum.Missing
	m.Checkpoint.Elements, m.Checkpoint.Bytes = keyed.Elements+sum.Elements, keyed.Bytes+sum.Bytes
	m.Checkpoint.FullBytes, m.Checkpoint.StoredBytes = keyed.Stored+sum.Stored, sum.Fresh
	after := &saved{m: &m}
	for _, id := range s.IDs() {
		data, err := s.Chunk(context.Background(), id)
		require.NoError(t, err)
		after.Put(id, data)
	}
	verified(t, after)
	same(t, walk(t, s, SectionKeyed), walk(t, after, SectionKeyed))
	same(t, bySection(t, replaced), walk(t, after, SectionOperator, SectionMeta))
}

func TestAnEmptyJobIsACheckpointToo(t *testing.T) {
	s := encode(t, 0, nil)
	require.Empty(t, s.sum.Chunks)
	require.Empty(t, walk(t, s))
	verified(t, s)
}

func TestChunksDoNotDependOnHowValuesWereCut(t *testing.T) {
	value := text(300_000, "v")
	k := key(SectionKeyed, TypeHash, "job:k", element("f", value, 0), element("g", "small", 0))
	whole := encode(t, 10_000, []RecordedKey{k})
	for _, step := range []int{1 << 20, 65_536, 9_999, 777} {
		var m MemChunks
		enc := NewEncoder(context.Background(), &m, EncoderOptions{ChunkTarget: 10_000})
		require.NoError(t, enc.BeginKey(k.Key))
		for _, e := range k.Elements {
			require.NoError(t, enc.Element(Element{Field: e.Field, Size: e.Size, Value: e.Value[:min(step/3, len(e.Value))]}))
			for rest := e.Value[min(step/3, len(e.Value)):]; len(rest) > 0; rest = rest[min(step, len(rest)):] {
				require.NoError(t, enc.Part(rest[:min(step, len(rest))]))
			}
		}
		require.NoError(t, enc.EndKey(KeyEnd{}))
		sum, err := enc.Close()
		require.NoError(t, err)
		require.Equal(t, whole.sum.Chunks, sum.Chunks, "step %d", step)
	}
	require.Greater(t, len(whole.sum.Chunks), 10)
}

func TestAKeyMayExpireInTheMiddleOfAValue(t *testing.T) {
	for _, size := range []uint64{90, 50_000} { // short, long
		var m MemChunks
		enc := NewEncoder(context.Background(), &m, EncoderOptions{ChunkTarget: 1000})
		require.NoError(t, enc.BeginKey(Key{Section: SectionKeyed, Type: TypeHash, Name: []byte("k"), ExpireAt: 5, Count: 140}))
		require.NoError(t, enc.Element(Element{Field: []byte("a"), Size: 2, Value: []byte("xy")}))
		require.NoError(t, enc.Element(Element{Field: []byte("b"), Size: size, Value: []byte(text(40, "b"))}))
		require.NoError(t, enc.EndKey(KeyEnd{Expired: true}))
		require.NoError(t, Replay([]RecordedKey{hashKey(SectionKeyed, "next", 129)}, enc))
		sum, err := enc.Close()
		require.NoError(t, err)
		require.EqualValues(t, 1+129, sum.Elements)
		require.EqualValues(t, 1, sum.Expired)
		var r Recorder
		require.NoError(t, Walk(context.Background(), &m, manifestOf(sum), &r))
		require.True(t, r.Keys[0].End.Expired)
		require.EqualValues(t, 1, r.Keys[0].End.Count)
		require.Len(t, r.Keys[1].Elements, 129)
	}
}

type failingWriter struct {
	MemChunks
	left int
}

var errFull = errors.New("disk is full")

func (f *failingWriter) WriteChunk(ctx context.Context, c Chunk) (bool, error) {
	if f.left == 0 {
		return false, errFull
	}
	f.left--
	return f.MemChunks.WriteChunk(ctx, c)
}

// Fail the k-th write for k = 1, 2, … until all goes well.
func TestAFailingWriteIsTheEncodersLastWord(t *testing.T) {
	for k := 0; ; k++ {
		w := &failingWriter{left: k}
		enc := NewEncoder(context.Background(), w, EncoderOptions{ChunkTarget: 4000})
		err := Replay(oddKeys(), enc)
		sum, closeErr := enc.Close()
		if closeErr == nil {
			require.NoError(t, err)
			require.Len(t, sum.Chunks, k)
			require.Greater(t, k, 5)
			return
		}
		require.ErrorIs(t, closeErr, errFull)
		require.Equal(t, closeErr, enc.BeginKey(Key{Section: SectionKeyed, Name: []byte("x")}))
		require.Equal(t, closeErr, enc.EndKey(KeyEnd{}))
		_, again := enc.Close()
		require.Equal(t, closeErr, again)
	}
}

func TestACancelledContextStopsTheEncoder(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var m MemChunks
	enc := NewEncoder(ctx, &m, EncoderOptions{ChunkTarget: 100})
	require.NoError(t, Replay([]RecordedKey{hashKey(SectionKeyed, "a", 130)}, enc))
	cancel()
	require.ErrorIs(t, Replay([]RecordedKey{hashKey(SectionKeyed, "b", 130)}, enc), context.Canceled)
}

func TestCloseTwiceGivesTheSame(t *testing.T) {
	var m MemChunks
	enc := NewEncoder(context.Background(), &m, EncoderOptions{})
	require.NoError(t, Replay(oddKeys(), enc))
	first, err := enc.Close()
	require.NoError(t, err)
	again, err := enc.Close()
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.ErrorContains(t, enc.BeginKey(Key{}), "closed")
}
