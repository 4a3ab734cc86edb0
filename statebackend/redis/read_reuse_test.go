package redis

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// spoiler is an arenaSource that spoils what it gets back, so that whoever
// still uses it is found out.
type spoiler struct {
	arenaSource
	reused int
}

func (s *spoiler) read(n int) {
	s.arenaSource.read(n)
	for _, b := range s.batches {
		if !b.free {
			continue
		}
		for i := range b.keys {
			b.keys[i] = keyInfo{name: []byte("spoiled"), section: snapshot.SectionMeta, plan: planGone}
		}
		for i := range b.bytes {
			b.bytes[i] = 0xff
		}
		s.reused++
	}
}

// Small keys, missing ones, such that are larger than their state and such
// that are read page by page: all come right and in order though the memory of
// the keys before them is used again.
func TestKeysAreReadFromMemoryThatIsUsedAgain(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	names := crowd(t, c, 2400, directElements+1, 5000)
	for i := range 500 {
		names = append(names, []byte(crowdKey("nothing", i)))
	}
	arena := &nameArena{budget: 64 << 20}
	arena.reset(0)
	for _, name := range names {
		require.NoError(t, arena.add(name))
	}
	require.NoError(t, arena.sort())
	sortNames(names, func(n []byte) []byte { return n })
	want := recorded(t, readJobKeys(t, b, names))
	for _, loose := range []bool{false, true} {
		t.Run(fmt.Sprintf("loose %t", loose), func(t *testing.T) {
			var rec snapshot.Recorder
			r := readerOf(t, b, &rec)
			r.loose, r.odd = loose, func(k *keyInfo) { t.Errorf("%s changed", k.name) }
			source := &spoiler{arenaSource: arenaSource{job: testJob, arena: arena}}
			require.NoError(t, r.keys(source))
			require.Greater(t, source.reused, 4)
			require.Less(t, len(source.batches), 10)
			requireNames(t, names, rec.Keys)
			for i := range rec.Keys {
				require.Equal(t, snapshot.SectionKeyed, rec.Keys[i].Key.Section)
				rec.Keys[i].Key.Loose = false
			}
			require.Empty(t, snapshot.DiffKeys(want, rec.Keys))
		})
	}
}

// Large keys are handed over before the keys that stand in front of them were
// read: then no memory is given back.
func TestNoMemoryIsUsedAgainWhereLargeKeysAreHandedOver(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	names := crowd(t, c, 2300, 9000)
	arena := &nameArena{budget: 64 << 20}
	arena.reset(0)
	for _, name := range names {
		require.NoError(t, arena.add(name))
	}
	require.NoError(t, arena.sort())
	var rec snapshot.Recorder
	r := readerOf(t, b, &rec)
	large := map[string]*keyInfo{}
	r.large = func(k *keyInfo) { large[string(k.name)] = k }
	source := &spoiler{arenaSource: arenaSource{job: testJob, arena: arena}}
	require.NoError(t, r.keys(source))
	require.Zero(t, source.reused)
	require.Len(t, large, 12)
	require.Len(t, rec.Keys, len(names)-12)
	for name, k := range large {
		require.Equal(t, name, string(k.name))
	}
}

// expecting is a sink that is told how many keys come.
type expecting struct {
	layerCounter
	told []uint64
	late int // keys that came before
}

var _ snapshot.ExpectSink = (*expecting)(nil)

func (e *expecting) Expect(keys uint64) { e.told, e.late = append(e.told, keys), e.keys }

// What the server says of the index reaches the sink of a cut before the first
// key, for each grade.
func TestASinkIsToldHowManyKeysCome(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	for i := range 300 {
		run(t, c, "HSET", stateKey(i), "field", i)
		run(t, c, "SADD", testJob.Index(), stateKey(i))
	}
	b := tracked(t, s, "fields")
	for _, grade := range []snapshot.Grade{snapshot.GradePrecopy, snapshot.GradePaused} {
		var sink expecting
		cut, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob, Grade: grade}, &sink)
		require.NoError(t, err)
		require.Equal(t, grade, cut.Grade)
		require.Equal(t, []uint64{300}, sink.told)
		require.Zero(t, sink.late, "keys came before")
		require.Equal(t, 300, sink.keys)
	}
}
