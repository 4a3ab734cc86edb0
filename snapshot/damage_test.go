package snapshot

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var ctx = context.Background()

// smallOnes are few bytes in several chunks of several sections.
func smallOnes(t tb) *saved {
	keys := []RecordedKey{
		hashKey(SectionKeyed, "job:a", 9), listKey(SectionKeyed, "job:b", 14),
		key(SectionKeyed, TypeString, "job:c", element("", text(400, "c"), 0)),
		listKey(SectionOperator, "job:o", 6), hashKey(SectionMeta, "job:m", 2), hashKey(SectionSource, "job:s", 2)}
	s := encode(t, 150, keys)
	require.Greater(t, len(s.m.Chunks), 6)
	return s
}

// refused checks that a checkpoint is refused by Walk and reported by Verify.
func refused(t *testing.T, s *saved, note string, is ...error) error {
	t.Helper()
	err := Walk(ctx, s, s.m, nil)
	require.Error(t, err, note)
	for _, one := range is {
		require.ErrorIs(t, err, one, note)
	}
	problems, verr := Verify(ctx, s, s.m)
	require.NoError(t, verr, note)
	require.NotEmpty(t, problems, note)
	require.Equal(t, ID(42), problems[0].Checkpoint)
	require.Equal(t, "flights", problems[0].Job)
	return err
}

func TestAnyFlippedByteOfAnyChunkIsNoticed(t *testing.T) {
	s := smallOnes(t)
	for _, ref := range s.m.Chunks {
		good, err := s.Chunk(ctx, ref.ID)
		require.NoError(t, err)
		bad := bytes.Clone(good)
		for i := range good {
			for _, bit := range []byte{1, 0x10, 0xff} {
				bad[i] = good[i] ^ bit
				s.Put(ref.ID, bad)
				require.ErrorIs(t, Walk(ctx, s, s.m, nil), ErrCorrupt, "chunk %s byte %d ^ %02x", ref.ID, i, bit)
			}
			bad[i] = good[i]
			s.Put(ref.ID, good[:i])
			require.ErrorIs(t, Walk(ctx, s, s.m, nil), ErrCorrupt, "chunk %s cut at %d", ref.ID, i)
		}
		s.Put(ref.ID, append(bytes.Clone(good), 0))
		refused(t, s, "a byte more", ErrCorrupt)
		s.Put(ref.ID, good)
	}
	verified(t, s)
}

func TestMissingAndSwappedChunksAreNoticed(t *testing.T) {
	s := smallOnes(t)
	for i, ref := range s.m.Chunks {
		good, err := s.Chunk(ctx, ref.ID)
		require.NoError(t, err)
		other, err := s.Chunk(ctx, s.m.Chunks[(i+1)%len(s.m.Chunks)].ID)
		require.NoError(t, err)

		s.Put(ref.ID, other)
		require.ErrorContains(t, refused(t, s, "swapped", ErrCorrupt), "the store gave chunk")
		s.Remove(ref.ID)
		err = refused(t, s, "missing", ErrNoChunk)
		var c *ChunkError
		require.ErrorAs(t, err, &c)
		require.Equal(t, i, c.Index)
		require.Equal(t, ref.ID, c.ID)
		require.Equal(t, ref.Section, c.Section)
		s.Put(ref.ID, good)
	}
	verified(t, s)
}

// A manifest whose list of chunks was edited together with its sums: only the
// chunks themselves can tell.
func TestListsOfChunksThatLieAreNoticed(t *testing.T) {
	s := smallOnes(t)
	fix := func(m *Manifest) {
		m.Checkpoint.FullBytes, m.Checkpoint.StoredBytes = 0, 0
		for _, c := range m.Chunks {
			m.Checkpoint.FullBytes += c.Stored
		}
	}
	list := s.m.Chunks
	for i := range list {
		s.m.Chunks = slices.Delete(slices.Clone(list), i, i+1)
		fix(s.m)
		if list[i].Section <= SectionOperator {
			refused(t, s, fmt.Sprintf("without chunk %d", i), ErrCorrupt)
		}
		s.m.Chunks = slices.Insert(slices.Clone(list), i, list[i])
		fix(s.m)
		require.ErrorContains(t, refused(t, s, fmt.Sprintf("chunk %d twice", i), ErrCorrupt), "too")
	}
	keyed := 0
	for ; list[keyed].Section == SectionKeyed; keyed++ {
		if keyed == 0 {
			continue
		}
		s.m.Chunks = slices.Clone(list)
		s.m.Chunks[keyed-1], s.m.Chunks[keyed] = list[keyed], list[keyed-1]
		fix(s.m)
		refused(t, s, fmt.Sprintf("chunk %d before its place", keyed), ErrCorrupt)
	}
	require.Greater(t, keyed, 3)
	for _, lie := range []func(c *Checkpoint){
		func(c *Checkpoint) { c.Keys++ }, func(c *Checkpoint) { c.Elements-- },
		func(c *Checkpoint) { c.Bytes++ }, func(c *Checkpoint) { c.Missing = 1 },
	} {
		s.m.Chunks = list
		fix(s.m)
		before := s.m.Checkpoint
		lie(&s.m.Checkpoint)
		require.ErrorContains(t, refused(t, s, "totals", ErrCorrupt), "its chunks hold")
		s.m.Checkpoint = before
	}
	verified(t, s)
}

// forge replaces the content of s by chunks of these raw contents.
func forge(t tb, raws ...[]byte) *saved {
	t.Helper()
	s := &saved{}
	var sum Summary
	for _, raw := range raws {
		ref, data, err := sealChunk(raw, nil)
		require.NoError(t, err)
		s.Put(ref.ID, data)
		sum.Chunks = append(sum.Chunks, ref)
		sum.Stored += ref.Stored
	}
	sum.Keys = 1
	s.m = manifestOf(sum)
	s.m.States, s.m.Groups = nil, nil
	return s
}

func rawKey(t KeyType, name string, count uint64) []byte {
	return appendKey([]byte{byte(SectionKeyed)}, Key{Section: SectionKeyed, Type: t, Name: []byte(name), Count: count})
}

func rawItem(b []byte, value string) []byte {
	return append(appendElement(b, frameElement, TypeList, Element{Size: uint64(len(value))}), value...)
}

func rawResume(t KeyType, name string, count, left uint64) []byte {
	tr := tracker{key: Key{Type: t, Name: []byte(name)}, left: left}
	tr.digest.Reset(t)
	for range count {
		tr.digest.Element(Element{Value: []byte("x"), Size: 1})
	}
	return appendResume([]byte{byte(SectionKeyed)}, &tr)
}

func digestOf(values ...string) uint64 {
	var d Digester
	d.Reset(TypeList)
	for _, v := range values {
		d.Element(Element{Size: uint64(len(v)), Value: []byte(v)})
	}
	return d.Sum()
}

// Chunks whose checksums are right and whose content is not.
func TestContentThatLiesIsNoticed(t *testing.T) {
	list := func(count uint64) []byte { return rawKey(TypeList, "job:l", count) }
	one := rawItem(list(2), "x")
	endOf := func(b []byte, e KeyEnd) []byte { return appendEnd(bytes.Clone(b), e) }
	two := rawItem(bytes.Clone(one), "y")
	sum2 := digestOf("x", "y")
	for name, c := range map[string]struct {
		raws [][]byte
		text string
	}{
		"3 declared, 1 there": {[][]byte{endOf(rawItem(list(3), "x"), KeyEnd{Count: 1, Digest: digestOf("x")})}, "1 elements were read, the server said 3"},
		"end says 3":          {[][]byte{endOf(two, KeyEnd{Count: 3, Digest: sum2})}, "2 elements, its end says 3"},
		"digest":              {[][]byte{endOf(two, KeyEnd{Count: 2, Digest: sum2 + 1})}, "its end says"},
		"never ends":          {[][]byte{one}, "still open at the end of its section"},
		"not resumed":         {[][]byte{one, endOf(rawItem(rawKey(TypeList, "job:other", 1), "x"), KeyEnd{Count: 1})}, "doesn't resume it"},
		"resumed from nothing": {[][]byte{endOf(rawItem(rawResume(TypeList, "job:l", 1, 0), "y"), KeyEnd{Count: 2, Digest: sum2})},
			`resumes key "job:l", but no key is open`},
		"resumes another":  {[][]byte{one, rawItem(rawResume(TypeList, "job:m", 1, 0), "y")}, `resumes the list key "job:m", but the list key "job:l" is open`},
		"as another type":  {[][]byte{one, rawItem(rawResume(TypeSet, "job:l", 1, 0), "y")}, `resumes the set key`},
		"skips an element": {[][]byte{one, rawItem(rawResume(TypeList, "job:l", 2, 0), "y")}, "resumes after 2 elements, but 1 were read"},
		"skips bytes":      {[][]byte{one, rawItem(rawResume(TypeList, "job:l", 1, 7), "y")}, "lacks 7 bytes, but 0"},
		"resumes twice":    {[][]byte{one, append(rawResume(TypeList, "job:l", 1, 0), rawResume(TypeList, "job:l", 1, 0)[1:]...)}, "in the middle"},
		"no frame":         {[][]byte{one, rawResume(TypeList, "job:l", 1, 0)}, "no frame"},
		"unknown frame":    {[][]byte{append(bytes.Clone(one), 99)}, "unknown frame kind 99"},
		"unknown type":     {[][]byte{rawKey(9, "job:l", 0)}, "unknown type(9)"},
		"unknown flags":    {[][]byte{append(bytes.Clone(two), frameEnd, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0)}, "unknown flags 2"},
		"cut frame":        {[][]byte{endOf(two, KeyEnd{Count: 2, Digest: sum2})[:len(two)+4]}, "ends inside a frame"},
		"long name": {[][]byte{binary.AppendUvarint([]byte{byte(SectionKeyed), frameKey, byte(TypeList)}, MaxName+1)},
			"name of 16777217 bytes: at most"},
		"name past the end": {[][]byte{binary.AppendUvarint([]byte{byte(SectionKeyed), frameKey, byte(TypeList)}, MaxName)}, "ends inside a frame"},
		"number too long":   {[][]byte{append([]byte{byte(SectionKeyed), frameKey, byte(TypeList)}, bytes.Repeat([]byte{0xff}, 11)...)}, "more than 64 bits"},
		"far expiry": {[][]byte{binary.AppendUvarint(binary.AppendUvarint([]byte{byte(SectionKeyed), frameKey, byte(TypeList), 0}, 1<<63), 1)},
			"expiry 9223372036854775808"},
		"huge value":      {[][]byte{appendElement(list(1), frameElement, TypeList, Element{Size: MaxPart + 1})}, "value of 1048577 bytes"},
		"empty long":      {[][]byte{appendElement(list(1), frameLong, TypeList, Element{Size: 0})}, "a long element of 0 bytes"},
		"empty part":      {[][]byte{append(appendElement(list(1), frameLong, TypeList, Element{Size: 5}), framePart, 0, 0, 0, 0)}, "a part of 0 bytes"},
		"part too long":   {[][]byte{append(appendElement(list(1), frameLong, TypeList, Element{Size: 1}), framePart, 2, 0, 0, 0, 'a', 'b')}, "lacks 1 of 1"},
		"element, no key": {[][]byte{rawItem([]byte{byte(SectionKeyed)}, "x")}, "an element comes before any key"},
		"part, no key":    {[][]byte{{byte(SectionKeyed), framePart, 1, 0, 0, 0, 'x'}}, "a part comes before any key"},
		"end, no key":     {[][]byte{endOf([]byte{byte(SectionKeyed)}, KeyEnd{})}, "an end comes before any key"},
		"NaN": {[][]byte{append(rawKey(TypeZSet, "z", 1), frameElement, 0, 0, 0, 0, 0, 0, 0xf8, 0x7f, 0)},
			"score is not a number"},
		"empty list": {[][]byte{endOf(list(0), KeyEnd{})}, "list without elements"},
	} {
		t.Run(name, func(t *testing.T) {
			s := forge(t, c.raws...)
			require.ErrorContains(t, refused(t, s, name, ErrCorrupt), c.text)
			problems, err := Verify(ctx, s, s.m)
			require.NoError(t, err)
			require.Contains(t, lines(problems), c.text)
		})
	}
}

func TestANewerCheckpointSaysSo(t *testing.T) {
	s := smallOnes(t)
	s.m.Format = 3
	require.ErrorContains(t, refused(t, s, "newer", ErrNewerFormat), "format 3")
	s.m.Format = 2
	for _, ref := range s.m.Chunks {
		data, err := s.Chunk(ctx, ref.ID)
		require.NoError(t, err)
		s.Put(ref.ID, readdress(data, func(b []byte) { b[4] = 7 }))
	}
	refused(t, s, "newer chunk", ErrNewerFormat)
}

func TestVerifyReportsAllProblemsAndWalkTheFirst(t *testing.T) {
	s := smallOnes(t)
	s.m.Checkpoint.Kind = ""
	damaged := []int{1, 3, len(s.m.Chunks) - 2}
	for _, i := range damaged {
		s.Put(s.m.Chunks[i].ID, []byte("garbage"))
	}
	s.Remove(s.m.Chunks[len(s.m.Chunks)-1].ID)
	problems, err := Verify(ctx, s, s.m)
	require.NoError(t, err)
	require.Len(t, problems, len(damaged)+2, lines(problems))
	require.Contains(t, problems[0].String(), "job flights: checkpoint 42: kind:")
	for n, i := range append(damaged, len(s.m.Chunks)-1) {
		require.Contains(t, problems[n+1].What, s.m.Chunks[i].ID.String())
	}
	require.ErrorContains(t, Walk(ctx, s, s.m, nil), s.m.Chunks[1].ID.String())
}

// After a chunk that can't be read, what the next one resumes is taken over,
// and a key whose content is wrong doesn't end the verification either.
func TestVerifyGoesOnInsideAKeyAndAfterAWrongOne(t *testing.T) {
	item := func(raw []byte, v string) []byte { return rawItem(raw, v) }
	first := item(rawKey(TypeList, "job:l", 2), "x")
	second := appendEnd(item(rawResume(TypeList, "job:l", 1, 0), "y"), KeyEnd{Count: 2, Digest: digestOf("x", "y")})
	wrong := func(raw []byte, name string) []byte {
		raw = appendKey(raw, Key{Section: SectionKeyed, Type: TypeList, Name: []byte(name), Count: 5})
		return appendEnd(item(raw, "z"), KeyEnd{Count: 1, Digest: digestOf("z")})
	}
	s := forge(t, first, wrong(wrong(second, "job:w1"), "job:w2"))
	s.m.Checkpoint.Keys = 3
	problems, err := Verify(ctx, s, s.m)
	require.NoError(t, err)
	require.Len(t, problems, 2, lines(problems))
	s.Remove(s.m.Chunks[0].ID)
	problems, err = Verify(ctx, s, s.m)
	require.NoError(t, err)
	require.Len(t, problems, 3, lines(problems))
	require.Contains(t, problems[0].String(), "no such chunk")
	require.Contains(t, problems[1].String(), `key "job:w1": 1 elements were read, the server said 5`)
	require.Contains(t, problems[2].String(), "job:w2")
}

// brokenSource fails with an error of its own at the k-th chunk.
type brokenSource struct {
	*saved
	at  int
	err error
}

func (b *brokenSource) Chunk(ctx context.Context, id ChunkID) ([]byte, error) {
	if b.at--; b.at < 0 {
		return nil, b.err
	}
	return b.saved.Chunk(ctx, id)
}

func TestErrorsOfTheSourceAndTheSinkComeBack(t *testing.T) {
	s := smallOnes(t)
	bad := errors.New("input/output error")
	for k := range s.m.Chunks {
		require.ErrorIs(t, Walk(ctx, &brokenSource{s, k, bad}, s.m, nil), bad)
		problems, err := Verify(ctx, &brokenSource{s, k, bad}, s.m)
		require.NoError(t, err)
		require.Len(t, problems, len(s.m.Chunks)-k, "all that can't be read are named")
		_, err = Verify(ctx, &brokenSource{s, k, ErrClosed}, s.m)
		require.ErrorIs(t, err, ErrClosed)
	}
	calls := 0
	require.NoError(t, Walk(ctx, s, s.m, sinkFunc(func() error { calls++; return nil })))
	for k := range calls {
		left := k
		err := Walk(ctx, s, s.m, sinkFunc(func() error {
			if left--; left < 0 {
				return bad
			}
			return nil
		}))
		require.Equal(t, bad, err, "as it is")
	}
}

func TestACancelledWalkEnds(t *testing.T) {
	s := smallOnes(t)
	c, cancel := context.WithCancel(ctx)
	n := 0
	err := Walk(c, s, s.m, sinkFunc(func() error {
		if n++; n == 3 {
			cancel()
		}
		return nil
	}))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrCorrupt)
	_, err = Verify(c, s, s.m)
	require.ErrorIs(t, err, context.Canceled)
}
