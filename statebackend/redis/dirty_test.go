package redis

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/snapshot"
	"keyframe/statebackend/redis/track"
)

// TestARosterKnowsWhatWasPushed holds a roster, with its clones and its
// arrays, against a map.
func TestARosterKnowsWhatWasPushed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model := map[string]snapshot.KeyType{}
		r := newRoster(true)
		var base []string
		for i := range rapid.IntRange(0, 200).Draw(t, "base") {
			base = append(base, fmt.Sprintf("name %d", i))
		}
		sortNames(base, func(n string) []byte { return []byte(n) })
		for i, name := range base {
			model[name] = snapshot.KeyType(i % 5)
			r.append([]byte(name), snapshot.KeyType(i%5))
		}
		r = changeRoster(t, r, model)
		require.Equal(t, len(model), r.count)
		for i := range 301 {
			name := fmt.Sprintf("name %d", i)
			typ, ok := r.get([]byte(name))
			want, is := model[name]
			require.Equal(t, is, ok, name)
			if is {
				require.Equal(t, want, typ)
			}
		}
		requireMissing(t, r, model)
	})
}

// changeRoster changes a roster and its model in the same way.
func changeRoster(t *rapid.T, r *roster, model map[string]snapshot.KeyType) *roster {
	for range rapid.IntRange(0, 300).Draw(t, "changes") {
		name := fmt.Sprintf("name %d", rapid.IntRange(0, 300).Draw(t, "n"))
		typ := snapshot.KeyType(rapid.IntRange(0, 6).Draw(t, "type"))
		switch rapid.IntRange(0, 9).Draw(t, "what") {
		case 0, 1, 2:
			r.note(snapshot.Key{Section: snapshot.SectionKeyed, Op: snapshot.OpGone}, []byte(name))
			delete(model, name)
		case 3:
			r.settle()
		case 4:
			older := r
			r = r.clone()
			older.set([]byte(name), 1) // doesn't touch the clone
		default:
			r.note(snapshot.Key{Section: snapshot.SectionOperator, Type: typ}, []byte(name))
			model[name] = typ
		}
	}
	return r
}

func requireMissing(t *rapid.T, r *roster, model map[string]snapshot.KeyType) {
	var seen []uint64
	var left []string
	for name := range model {
		if len(left) < 5 && rapid.Bool().Draw(t, "left") {
			left = append(left, name)
			continue
		}
		seen = append(seen, snapshot.NameHash([]byte(name)))
	}
	slices.Sort(seen)
	slices.Sort(left)
	got, known := r.missingFrom(seen)
	slices.Sort(got)
	require.True(t, known)
	require.Equal(t, len(left), len(got))
	if len(left) > 0 {
		require.Equal(t, left, got)
	}
}

func TestARosterThatIsTooLargeSaysSo(t *testing.T) {
	setFor(t, &rosterMost, 10)
	r := newRoster(true)
	for i := range 11 {
		r.append(fmt.Appendf(nil, "%d", i), snapshot.TypeHash)
	}
	require.True(t, r.blind)
	_, ok := r.get([]byte("3"))
	require.False(t, ok)

	setFor(t, &rosterNames, 100)
	r = newRoster(true)
	for i := range 10 {
		r.append(fmt.Appendf(nil, "a rather long name %d", i), snapshot.TypeHash)
	}
	require.True(t, r.nameless)
	_, known := r.missingFrom(nil)
	require.False(t, known)
	r.set([]byte("new"), snapshot.TypeSet)
	typ, ok := r.get([]byte("new"))
	require.True(t, ok)
	require.Equal(t, snapshot.TypeSet, typ)
}

func TestCellsAreTheNewestOfEach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c cells
		model := map[string]cell{}
		size := 0
		for i := range rapid.IntRange(0, 100).Draw(t, "n") {
			id := fmt.Sprintf("id %d", rapid.IntRange(0, 40).Draw(t, "id"))
			el := cell{id: id, value: fmt.Appendf(nil, "value %d", i), removed: rapid.Bool().Draw(t, "removed")}
			size += el.cost() - c.set(id, el)
			model[id] = el
		}
		want, live := 0, 0
		for _, el := range model {
			want += el.cost()
			if !el.removed {
				live++
			}
		}
		require.Equal(t, want, size)
		require.Equal(t, live, c.len())
		c.purge()
		for _, el := range c.sorted() {
			require.Equal(t, model[el.id], el)
		}
		require.Len(t, c.all, live)
	})
}

// TestMarksThatAreTooMuchAreAll: what is remembered over several Takes is
// bounded as what one Take gives.
func TestMarksThatAreTooMuchAreAll(t *testing.T) {
	long := strings.Repeat(" long", 200)
	some := func(name string, n int) track.Marks {
		m := track.Marks{Keys: map[string]*track.Key{"k": {Fields: map[string]struct{}{}}}}
		for i := range n {
			m.Keys["k"].Fields[fmt.Sprintf("%s field with a name that is%s %d", name, long, i)] = struct{}{}
		}
		return m
	}
	var l link
	l.remember(some("a", 20_000)) // two thirds of what may be held
	require.False(t, l.marks.All)
	for range 4 {
		l.remember(some("a", 20_000))
	}
	require.False(t, l.marks.All, "the same ones")
	l.remember(some("another", 20_000))
	require.True(t, l.marks.All)
	require.Contains(t, l.marks.Reason, "bytes of names")
	require.False(t, statebackendMarks(l.marks).Known)
}
