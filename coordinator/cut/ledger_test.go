package cut

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

var tallyJob = statebackend.Job{Prefix: "streaming:runtime", Name: "flights"}

// stateName is the name of a keyed state.
func stateName(group, n int) string {
	return tallyJob.StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: group, Operator: fmt.Sprintf("op%d", n%3)}, fmt.Sprintf("state-%d", n))
}

// model is what a job holds: name → field → value; nil for a missing key.
type model map[string]map[string]string

// records are the keys of a model in order.
func (m model) records() []snapshot.RecordedKey {
	var all []snapshot.RecordedKey
	for name, fields := range m {
		all = append(all, hashKey(name, fields))
	}
	return inOrder(all)
}

func inOrder(all []snapshot.RecordedKey) []snapshot.RecordedKey {
	slices.SortFunc(all, func(a, b snapshot.RecordedKey) int { return snapshot.CompareNames(a.Key.Name, b.Key.Name) })
	return all
}

func hashKey(name string, fields map[string]string) snapshot.RecordedKey {
	k := snapshot.RecordedKey{Key: snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(name), Type: snapshot.TypeMissing}}
	if len(fields) == 0 {
		return k
	}
	k.Key.Type, k.Key.Count = snapshot.TypeHash, uint64(len(fields))
	for f, v := range fields {
		k.Elements = append(k.Elements, snapshot.RecordedElement{Field: []byte(f), Size: uint64(len(v)), Value: []byte(v)})
	}
	return k
}

// push counts keys into a draft.
func push(t require.TestingT, d *draft, keys []snapshot.RecordedKey) {
	c := newCounter(discard{}, d, func(string, uint64, uint64, uint64) {})
	for _, k := range keys {
		require.NoError(t, c.BeginKey(k.Key))
		for _, e := range k.Elements {
			require.NoError(t, c.Element(snapshot.Element{Field: e.Field, Size: e.Size, Value: e.Value, Removed: e.Removed}))
		}
		require.NoError(t, c.EndKey(k.End))
	}
}

// whole counts a model by itself: what a ledger must come to.
func whole(t require.TestingT, m model) *draft {
	d := newDraft(newTally(tallyJob, 16))
	push(t, d, m.records())
	return d
}

// change alters a model at random and gives the keys of a layer that tells.
func change(t *rapid.T, m model) []snapshot.RecordedKey {
	touched := map[string]snapshot.RecordedKey{}
	for range rapid.IntRange(0, 12).Draw(t, "changes") {
		name := stateName(rapid.IntRange(0, 5).Draw(t, "group"), rapid.IntRange(0, 5).Draw(t, "state"))
		if _, twice := touched[name]; twice {
			continue
		}
		fields, there := m[name]
		switch kind := rapid.IntRange(0, 5).Draw(t, "kind"); {
		case kind == 0 && there:
			delete(m, name)
			k := hashKey(name, nil)
			k.Key.Op = snapshot.OpGone
			touched[name] = k
		case kind == 1:
			m[name] = nil
			touched[name] = hashKey(name, nil)
		case kind < 4 && len(fields) > 0:
			touched[name] = patchKey(t, name, fields)
		default:
			m[name] = draw(t)
			touched[name] = hashKey(name, m[name])
		}
	}
	var all []snapshot.RecordedKey
	for _, k := range touched {
		all = append(all, k)
	}
	return inOrder(all)
}

// patchKey changes fields, and leaves at least one.
func patchKey(t *rapid.T, name string, fields map[string]string) snapshot.RecordedKey {
	k := hashKey(name, nil)
	k.Key.Op, k.Key.Type = snapshot.OpPatch, snapshot.TypeHash
	for i := range rapid.IntRange(0, 4).Draw(t, "fields") {
		f := fmt.Sprintf("f%d", rapid.IntRange(0, 9).Draw(t, "field"))
		if slices.ContainsFunc(k.Elements, func(e snapshot.RecordedElement) bool { return string(e.Field) == f }) {
			continue
		}
		if rapid.Bool().Draw(t, "remove") && len(fields) > 1 {
			delete(fields, f) // it may not have been there
			k.Elements = append(k.Elements, snapshot.RecordedElement{Field: []byte(f), Removed: true})
			continue
		}
		fields[f] = fmt.Sprintf("value %d", i*100000)
		k.Elements = append(k.Elements, snapshot.RecordedElement{Field: []byte(f), Size: uint64(len(fields[f])), Value: []byte(fields[f])})
	}
	k.Key.Count = uint64(len(fields))
	return k
}

func draw(t *rapid.T) map[string]string {
	fields := map[string]string{}
	for i := range rapid.IntRange(1, 6).Draw(t, "n") {
		fields[fmt.Sprintf("f%d", rapid.IntRange(0, 9).Draw(t, "field"))] = fmt.Sprintf("v%d", i*i*i)
	}
	return fields
}

// sameCounts compares the counts, where they may be expected to be exact.
func sameCounts(t require.TestingT, want, got *draft) {
	require.Equal(t, want.keys, got.keys, "keys")
	require.Equal(t, want.missing, got.missing, "missing")
	require.Equal(t, want.elements, got.elements, "elements")
	a, b := want.stateStats(), got.stateStats()
	g, h := want.groupStats(), got.groupStats()
	if got.estimated > 0 {
		for i := range a {
			a[i].Bytes, b[i].Bytes = 0, 0
		}
		for i := range g {
			g[i].Bytes, h[i].Bytes = 0, 0
		}
	} else {
		require.Equal(t, want.bytes, got.bytes, "bytes that are said to be exact are")
	}
	require.Equal(t, a, b)
	require.Equal(t, g, h)
}

func TestALedgerFollowsAnyChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := model{}
		for range rapid.IntRange(0, 20).Draw(t, "keys") {
			m[stateName(rapid.IntRange(0, 5).Draw(t, "group"), rapid.IntRange(0, 5).Draw(t, "state"))] = draw(t)
		}
		d := whole(t, m)
		for range rapid.IntRange(0, 3).Draw(t, "rounds") { // of a full cut in layers
			d.nextLayer()
			push(t, d, change(t, m))
			sameCounts(t, whole(t, m), d)
		}
		l := d.settle()
		for range rapid.IntRange(1, 4).Draw(t, "checkpoints") {
			given := draftOver(l) // an attempt that fails leaves no trace
			push(t, given, []snapshot.RecordedKey{hashKey(stateName(9, 9), map[string]string{"x": "y"})})
			d = draftOver(l)
			for range rapid.IntRange(1, 3).Draw(t, "layers") {
				push(t, d, change(t, m))
				d.nextLayer()
			}
			sameCounts(t, whole(t, m), d)
			l = d.settle()
			require.Len(t, l.rows[0], len(m))
			require.True(t, slices.IsSortedFunc(l.rows[0], func(a, b row) int {
				if a.id.hash < b.id.hash {
					return -1
				}
				return 1
			}))
		}
	})
}

func TestAPatchNeedsAKeyBelow(t *testing.T) {
	d := whole(t, model{stateName(1, 1): {"a": "1"}, stateName(2, 2): nil})
	d.nextLayer()
	c := newCounter(discard{}, d, func(string, uint64, uint64, uint64) {})
	k := hashKey(stateName(3, 3), nil).Key
	k.Op, k.Type, k.Count = snapshot.OpPatch, snapshot.TypeHash, 1
	require.ErrorContains(t, c.BeginKey(k), "the layers below don't have it")
	k.Name = []byte(stateName(2, 2))
	require.ErrorContains(t, c.BeginKey(k), stateName(2, 2))
	k.Name = []byte(stateName(1, 1))
	require.NoError(t, c.BeginKey(k))
}

func TestBytesOfAPatch(t *testing.T) {
	key := func(kind snapshot.KeyType, count uint64) snapshot.Key { return snapshot.Key{Type: kind, Count: count} }
	hash, set := snapshot.TypeHash, snapshot.TypeSet
	for name, c := range map[string]struct {
		key          snapshot.Key
		set, removed load
		bytes        uint64
		exact        bool
	}{
		"new fields":                  {key(hash, 12), load{2, 50}, load{}, 1050, true},
		"only an expiry":              {key(hash, 10), load{}, load{}, 1000, true},
		"a replaced value":            {key(hash, 10), load{1, 50}, load{}, 1000, false},
		"one new, one replaced":       {key(hash, 11), load{2, 50}, load{}, 1025, false},
		"removed fields":              {key(hash, 8), load{}, load{2, 0}, 800, false},
		"a field that wasn't there":   {key(hash, 10), load{}, load{1, 0}, 1000, true},
		"new members":                 {key(set, 12), load{2, 50}, load{}, 1050, true},
		"members that were there":     {key(set, 10), load{2, 50}, load{}, 1000, true},
		"one of two was there":        {key(set, 11), load{2, 50}, load{}, 1025, false},
		"removed members":             {key(set, 8), load{}, load{2, 70}, 930, true},
		"all in exchange":             {key(set, 12), load{2, 50}, load{2, 70}, 1050, true},
		"some joined and some went":   {key(set, 10), load{2, 50}, load{2, 70}, 980, false},
		"while writers went on":       {snapshot.Key{Type: set, Count: 12, Loose: true}, load{2, 50}, load{}, 1050, false},
		"more gone than there can be": {key(hash, 0), load{}, load{3, 0}, 700, false},
	} {
		r := patch(row{elements: 10, bytes: 1000}, c.key, c.set, c.removed)
		require.Equal(t, c.key.Count, r.elements, name)
		require.Equal(t, c.bytes, r.bytes, name)
		require.Equal(t, c.exact, !r.is(rowEstimated), name)
	}
}

func TestTooManyNamesAreNotKept(t *testing.T) {
	defer func(n int) { MaxLedgerKeys = n }(MaxLedgerKeys)
	MaxLedgerKeys = 20
	m := model{}
	for i := range 20 {
		m[stateName(i%16, i)] = map[string]string{"f": "v"}
	}
	l := whole(t, m).settle()
	require.NotNil(t, l)
	d := draftOver(l)
	push(t, d, []snapshot.RecordedKey{hashKey(stateName(1, 1), map[string]string{"g": "w"})})
	require.False(t, d.lost, "as many as before")
	push(t, d, []snapshot.RecordedKey{hashKey(stateName(1, 21), map[string]string{"g": "w"})})
	require.True(t, d.lost, "a layer that can't be counted any more")
	require.Nil(t, d.settle())

	m[stateName(3, 22)] = nil
	d = whole(t, m)
	require.Nil(t, d.settle())
	require.EqualValues(t, 20, d.keys, "a base is counted all the same")
	require.EqualValues(t, 1, d.missing)
	d.nextLayer()
	require.True(t, d.lost)
}

func TestNamesInNoOrderAreCountedAndNotKept(t *testing.T) {
	m := model{stateName(1, 1): {"a": "1"}, stateName(2, 2): {"b": "2"}, stateName(3, 3): {"c": "3"}}
	keys := m.records()
	slices.Reverse(keys)
	d := newDraft(newTally(tallyJob, 16))
	push(t, d, keys)
	require.Nil(t, d.settle())
	sameCounts(t, whole(t, m), d)
}

func TestStatesBeyondTheBoundAreCountedTogether(t *testing.T) {
	ta := newTally(tallyJob, 16)
	for i := range mostStates + 10 {
		s, _ := ta.place(snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(tallyJob.StateKey(
			statebackend.Scope{Group: "g", Topic: "in", Partition: 1, Operator: "op"}, fmt.Sprintf("s%d", i))), Type: snapshot.TypeHash})
		ta.add(row{id: nameID{hash: uint64(i)}, elements: 1, state: s, group: noGroup})
	}
	stats := ta.stateStats()
	require.Len(t, stats, mostStates+1)
	require.Equal(t, snapshot.StateStats{Type: "hash", Keys: 10, Elements: 10}, stats[0])
}

func TestAnElementThatExpiredHalfReadIsNotCounted(t *testing.T) {
	d := newDraft(newTally(tallyJob, 16))
	c := newCounter(discard{}, d, func(string, uint64, uint64, uint64) {})
	name := stateName(1, 1)
	require.NoError(t, c.BeginKey(snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(name), Type: snapshot.TypeHash, Count: 2, ExpireAt: 5}))
	require.NoError(t, c.Elements([]snapshot.Element{{Field: []byte("f"), Size: 3, Value: []byte("abc")}}))
	require.NoError(t, c.Element(snapshot.Element{Field: []byte("g"), Size: 9, Value: []byte("half")}))
	require.NoError(t, c.Part([]byte("more")))
	require.NoError(t, c.EndKey(snapshot.KeyEnd{Expired: true}))
	require.EqualValues(t, 1, d.elements)
	require.EqualValues(t, len(name)+4, d.bytes)
}
