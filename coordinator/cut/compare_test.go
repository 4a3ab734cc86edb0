package cut

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// sealed writes keys as a sorted checkpoint.
func sealed(t require.TestingT, chunks *snapshot.MemChunks, keys []snapshot.RecordedKey) *snapshot.Manifest {
	enc := snapshot.NewEncoder(context.Background(), chunks, snapshot.EncoderOptions{})
	require.NoError(t, snapshot.Replay(inOrder(keys), enc))
	sum, err := enc.Close()
	require.NoError(t, err)
	require.True(t, sum.Sorted)
	return &snapshot.Manifest{Format: snapshot.FormatVersion, Chunks: sum.Chunks, Sorted: true, Checkpoint: snapshot.Checkpoint{
		ID: 1, Keys: sum.Keys, Elements: sum.Elements, Bytes: sum.Bytes, Missing: sum.Missing, FullBytes: sum.Stored}}
}

// judged compares two contents under marks.
func judged(t require.TestingT, was, is []snapshot.RecordedKey, marks map[string]statebackend.MarkedKey) error {
	chunks := &snapshot.MemChunks{}
	j := &judge{marks: marks, index: marks[tallyJob.Index()], at: 1000, base: 7, progress: func(uint64) {}}
	return j.compare(context.Background(), chunks, sealed(t, chunks, was), sealed(t, chunks, is))
}

func fields(names ...string) map[string]struct{} {
	m := map[string]struct{}{}
	for _, n := range names {
		m[n] = struct{}{}
	}
	return m
}

func TestWhatIsMarkedIsNotHeldAgainstTracking(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := model{}
		for range rapid.IntRange(0, 300).Draw(t, "keys") {
			m[stateName(rapid.IntRange(0, 15).Draw(t, "group"), rapid.IntRange(0, 30).Draw(t, "state"))] = draw(t)
		}
		was := model{}
		for name, f := range m {
			was[name] = maps.Clone(f)
		}
		marks := map[string]statebackend.MarkedKey{tallyJob.Index(): {Fields: fields()}}
		changed := change(t, m)
		for _, k := range changed {
			name := string(k.Key.Name)
			mark := statebackend.MarkedKey{Whole: k.Key.Op == snapshot.OpWhole, Fields: fields()}
			for _, e := range k.Elements {
				mark.Fields[string(e.Field)] = struct{}{}
			}
			if _, before := was[name]; !before || k.Key.Op == snapshot.OpGone {
				marks[tallyJob.Index()].Fields[name] = struct{}{}
			}
			marks[name] = mark
		}
		require.NoError(t, judged(t, was.records(), m.records(), marks))

		// Without its mark, what has really changed is found, by its name.
		for _, k := range changed {
			name := string(k.Key.Name)
			left := maps.Clone(marks)
			delete(left, name)
			index := maps.Clone(marks[tallyJob.Index()].Fields)
			delete(index, name)
			left[tallyJob.Index()] = statebackend.MarkedKey{Fields: index}
			_, before := was[name]
			_, after := m[name]
			err := judged(t, was.records(), m.records(), left)
			if before == after && maps.Equal(was[name], m[name]) {
				require.NoError(t, err)
				continue
			}
			var wrong *TrackingError
			require.ErrorAs(t, err, &wrong)
			require.ErrorIs(t, err, ErrTracking)
			require.Equal(t, name, string(wrong.Key))
		}
	})
}

// setKey is a set with the members.
func setKey(name string, kind snapshot.KeyType, members ...string) snapshot.RecordedKey {
	k := snapshot.RecordedKey{Key: snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(name), Type: kind, Count: uint64(len(members))}}
	for _, m := range members {
		k.Elements = append(k.Elements, snapshot.RecordedElement{Size: uint64(len(m)), Value: []byte(m)})
	}
	return k
}

func TestMembersExpiryAndLongValues(t *testing.T) {
	name := stateName(1, 1)
	long := strings.Repeat("a long member ", 300_000) // in several parts
	until := func(at int64, k snapshot.RecordedKey) snapshot.RecordedKey {
		k.Key.ExpireAt = at
		return k
	}
	one := func(k snapshot.RecordedKey) []snapshot.RecordedKey { return []snapshot.RecordedKey{k} }
	for what, c := range map[string]struct {
		was, is []snapshot.RecordedKey
		mark    *statebackend.MarkedKey
		detail  string // "" for equal
	}{
		"a marked member":      {one(setKey(name, snapshot.TypeSet, "a", "b")), one(setKey(name, snapshot.TypeSet, "a", "c")), &statebackend.MarkedKey{Fields: fields("b", "c")}, ""},
		"another than marked":  {one(setKey(name, snapshot.TypeSet, "a", "b")), one(setKey(name, snapshot.TypeSet, "a", "c")), &statebackend.MarkedKey{Fields: fields("b")}, "1 of its elements that are not marked as written were there, and 2 are"},
		"a long marked member": {one(setKey(name, snapshot.TypeSet, "a", long)), one(setKey(name, snapshot.TypeSet, "a", "b")), &statebackend.MarkedKey{Fields: fields("b", long)}, ""},
		"a long member":        {one(setKey(name, snapshot.TypeSet, "a", long+"x")), one(setKey(name, snapshot.TypeSet, "a", long+"y")), &statebackend.MarkedKey{Fields: fields("a")}, "the content of its 1 elements"},
		"a list in order":      {one(setKey(name, snapshot.TypeList, "a", "b")), one(setKey(name, snapshot.TypeList, "b", "a")), nil, "the content of its 2 elements"},
		"all members marked":   {one(setKey(name, snapshot.TypeSet, "a")), one(setKey(name, snapshot.TypeMissing)), &statebackend.MarkedKey{Fields: fields("a")}, ""},
		"more went than that":  {one(setKey(name, snapshot.TypeSet, "a", "b")), one(setKey(name, snapshot.TypeMissing)), &statebackend.MarkedKey{Fields: fields("a")}, "1 of its elements that are not marked as written were there, and 0 are"},
		"an expiry":            {one(setKey(name, snapshot.TypeSet, "a")), one(until(5000, setKey(name, snapshot.TypeSet, "a"))), nil, "its expiry was 0 and is 5000"},
		"a marked expiry":      {one(setKey(name, snapshot.TypeSet, "a")), one(until(5000, setKey(name, snapshot.TypeSet, "a"))), &statebackend.MarkedKey{}, ""},
		"a marked expiry only": {one(setKey(name, snapshot.TypeSet, "a")), one(until(5000, setKey(name, snapshot.TypeSet, "b"))), &statebackend.MarkedKey{}, "the content of its 1 elements"},
		"past its expiry":      {one(until(900, setKey(name, snapshot.TypeSet, "a"))), one(setKey(name, snapshot.TypeMissing)), nil, ""},
		"gone before":          {one(until(2000, setKey(name, snapshot.TypeSet, "a"))), one(setKey(name, snapshot.TypeMissing)), nil, "it was set and is missing"},
		"a new name":           {nil, one(setKey(name, snapshot.TypeSet, "a")), nil, "its name is in the index now and was not"},
		"a name that left":     {one(setKey(name, snapshot.TypeSet, "a")), nil, nil, "its name was in the index and is not now"},
		"another type":         {one(setKey(name, snapshot.TypeSet, "a")), one(setKey(name, snapshot.TypeList, "a")), &statebackend.MarkedKey{Fields: fields("a")}, "it was set and is list"},
		"written whole":        {one(setKey(name, snapshot.TypeSet, "a")), one(setKey(name, snapshot.TypeList, "b")), &statebackend.MarkedKey{Whole: true}, ""},
	} {
		marks := map[string]statebackend.MarkedKey{}
		if c.mark != nil {
			marks[name] = *c.mark
		}
		err := judged(t, c.was, c.is, marks)
		if c.detail == "" {
			require.NoError(t, err, what)
			continue
		}
		require.ErrorContains(t, err, fmt.Sprintf("key %q since checkpoint 7 is wrong: %s", name, c.detail), what)
	}
}

func TestADamagedCheckpointIsNoFaultOfTracking(t *testing.T) {
	chunks := &snapshot.MemChunks{}
	was, is := sealed(t, chunks, model{stateName(1, 1): {"a": "1"}}.records()), sealed(t, chunks, model{stateName(2, 2): {"a": "1"}}.records())
	is.Chunks[0].ID[3] ^= 1
	j := &judge{at: 1000, progress: func(uint64) {}}
	err := j.compare(context.Background(), chunks, was, was)
	require.NoError(t, err)
	for _, pair := range [][2]*snapshot.Manifest{{is, is}, {was, is}, {is, was}} {
		err = j.compare(context.Background(), chunks, pair[0], pair[1])
		require.ErrorIs(t, err, snapshot.ErrNoChunk, "a side that can't be read isn't an empty one")
		require.NotErrorIs(t, err, ErrTracking)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, j.compare(ctx, chunks, was, was), context.Canceled)
}
