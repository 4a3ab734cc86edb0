package backendtest

import (
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/keygroups"
	"keyframe/statebackend"
)

func space(h Harness) statebackend.Space {
	return statebackend.Space{Store: h.Backend, Job: job,
		Scope: statebackend.Scope{Group: "stats", Topic: "flights", Partition: 3, Operator: "x:y"}}
}

type delay struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
}

func testValueState(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	plain, err := statebackend.NewValueState(space(h), statebackend.Descriptor[int]{Name: "z"})
	require.NoError(t, err)
	_, err = plain.Get(ctx, "s:a")
	require.ErrorIs(t, err, statebackend.ErrAbsent)
	_, ok, err := plain.Lookup(ctx, "s:a")
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, plain.Update(ctx, "s:a", 0))
	got, ok, err := plain.Lookup(ctx, "s:a")
	require.NoError(t, err)
	require.True(t, ok, "a zero is not nothing")
	require.Zero(t, got)
	require.NoError(t, plain.Update(ctx, statebackend.NumberKey(-7), 42))
	at := job.StateKey(space(h).Scope, "z")
	require.Equal(t, map[string]string{"s:a": "0", "n:-7": "42"}, fields(t, h, at))
	require.NoError(t, plain.Clear(ctx, "s:never"))
	testDefault(t, h)

	do(t, h, cmd(statebackend.OpHSet, at, "s:null", "null"), cmd(statebackend.OpHSet, at, "s:bad", "x"))
	_, err = plain.Get(ctx, "s:null")
	require.ErrorIs(t, err, statebackend.ErrAbsent, "Java's null is no value")
	_, err = plain.Get(ctx, "s:bad")
	require.ErrorContains(t, err, "s:bad")
	require.Error(t, plain.Update(ctx, "untyped", 1))
}

// testDefault: a value that was never written, or cleared, is its default.
func testDefault(t *testing.T, h Harness) {
	t.Helper()
	ctx := ctxOf(t)
	preset, err := statebackend.NewValueState(space(h), statebackend.Descriptor[[]string]{Name: "preset", TypeName: "java.util.List", Default: &[]string{"d"}})
	require.NoError(t, err)
	d, err := preset.Get(ctx, "s:a")
	require.NoError(t, err)
	d[0] = "spoiled"
	d, err = preset.Get(ctx, "s:a")
	require.NoError(t, err)
	require.Equal(t, []string{"d"}, d, "each reader has its own default")
	require.NoError(t, preset.Update(ctx, "s:a", []string{}))
	d, err = preset.Get(ctx, "s:a")
	require.NoError(t, err)
	require.Empty(t, d)
	require.NoError(t, preset.Clear(ctx, "s:a"))
	d, err = preset.Get(ctx, "s:a")
	require.NoError(t, err)
	require.Equal(t, []string{"d"}, d)
}

// testPlacement: shards by the Java hash, partitions by the key group.
func testPlacement(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	rule := keygroups.Rule{Hash: keygroups.HashJava, KeyType: keygroups.KeyString, Ranges: keygroups.RangesLeading, MaxParallelism: 10}
	s := space(h)
	s.Partition = statebackend.ByKeyGroup(rule)
	v, err := statebackend.NewValueState(s, statebackend.Descriptor[int64]{Name: "sharded", Shards: 4})
	require.NoError(t, err)
	require.NoError(t, v.Update(ctx, statebackend.StringKey("a"), 5))
	scope := s.Scope
	scope.Partition = 7 // the document's example: a is 97, of 10
	shard := ((int(keygroups.HashString("s:a")) % 4) + 4) % 4
	require.Equal(t, map[string]string{"s:a": "5"}, fields(t, h, job.ShardKey(scope, "sharded", shard)))
	for i := range 200 {
		key := statebackend.StringKey("key" + strconv.Itoa(i))
		require.NoError(t, v.Update(ctx, key, int64(i)))
		got, err := v.Get(ctx, key)
		require.NoError(t, err)
		require.EqualValues(t, i, got)
	}
	known := statebackend.NewKnown(statebackend.StateName{Operator: "x:y", Name: "sharded"})
	names := members(t, h, job.Index())
	require.Greater(t, len(names), 10)
	for _, n := range names {
		p, ok := statebackend.ParseKey(job, []byte(n), known)
		require.True(t, ok, n)
		for f := range fields(t, h, n) {
			_, group, err := rule.GroupOfKey(f)
			require.NoError(t, err)
			require.Equal(t, group, p.Partition)
		}
	}
}

func testMapState(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	m, err := statebackend.NewMapState[string](space(h), statebackend.Descriptor[delay]{Name: "z", TypeName: "flights.Delay", Version: -3})
	require.NoError(t, err)
	empty, err := m.IsEmpty(ctx, "s:JFK")
	require.NoError(t, err)
	require.True(t, empty)
	require.NoError(t, m.Put(ctx, "s:JFK", "LAX", delay{2, 1e7}))
	require.NoError(t, m.Put(ctx, "s:JFK", "", delay{}))
	require.NoError(t, m.Put(ctx, "s:BOS", "LAX", delay{9, .5}))
	at := job.KeyedKey(space(h).Scope, "z", "s:JFK")
	require.Equal(t, map[string]string{`"LAX"`: `{"count":2,"mean":1.0E7}`, `""`: `{"count":0,"mean":0.0}`}, fields(t, h, at))
	require.Equal(t, "flights.Delay|1", fields(t, h, job.Registry())[at])

	v, ok, err := m.Get(ctx, "s:JFK", "LAX")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, delay{2, 1e7}, v)
	_, ok, err = m.Get(ctx, "s:JFK", "SFO")
	require.NoError(t, err)
	require.False(t, ok)
	has, err := m.Contains(ctx, "s:JFK", "")
	require.NoError(t, err)
	require.True(t, has)
	checkEntries(t, m)
	require.NoError(t, m.Remove(ctx, "s:JFK", ""))
	values, err := m.Values(ctx, "s:JFK")
	require.NoError(t, err)
	require.Equal(t, []delay{{2, 1e7}}, values)
	require.NoError(t, m.Clear(ctx, "s:JFK"))
	values, err = m.Values(ctx, "s:JFK")
	require.NoError(t, err)
	require.Empty(t, values)
	_, ok, err = m.Get(ctx, "s:BOS", "LAX")
	require.NoError(t, err)
	require.True(t, ok, "another key's map stays")
}

func checkEntries(t *testing.T, m *statebackend.MapState[string, delay]) {
	t.Helper()
	entries, err := m.Entries(ctxOf(t), "s:JFK")
	require.NoError(t, err)
	require.ElementsMatch(t, []statebackend.Entry[string, delay]{{Key: "LAX", Value: delay{2, 1e7}}, {Key: ""}}, entries)
	keys, err := m.Keys(ctxOf(t), "s:JFK")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"", "LAX"}, keys)
}

func testListState(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	l, err := statebackend.NewListState(space(h), statebackend.Descriptor[float64]{Name: "l", Version: 4})
	require.NoError(t, err)
	require.NoError(t, l.Add(ctx, "s:k", 1))
	require.NoError(t, l.AddAll(ctx, "s:k", []float64{2.5, 1}))
	require.NoError(t, l.AddAll(ctx, "s:k", nil))
	got, err := l.Get(ctx, "s:k")
	require.NoError(t, err)
	require.Equal(t, []float64{1, 2.5, 1}, got)
	at := job.KeyedKey(space(h).Scope, "l", "s:k")
	require.Equal(t, "java.lang.Double|4", fields(t, h, job.Registry())[at])

	many := make([]float64, 2500)
	for i := range many {
		many[i] = float64(i)
	}
	require.NoError(t, l.Update(ctx, "s:k", many))
	got, err = l.Get(ctx, "s:k")
	require.NoError(t, err)
	require.Equal(t, many, got)
	require.NoError(t, l.Update(ctx, "s:k", []float64{}))
	got, err = l.Get(ctx, "s:k")
	require.NoError(t, err)
	require.Empty(t, got)
	require.Equal(t, "none", string(do(t, h, cmd(statebackend.OpType, at))[0].Bytes))
	require.NoError(t, l.Add(ctx, "s:k", 3))
	require.NoError(t, l.Clear(ctx, "s:k"))
	require.EqualValues(t, 0, do(t, h, cmd(statebackend.OpLLen, at))[0].Int)
}

// testListIsNeverHalf: an update replaces in one step.
func testListIsNeverHalf(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	l, err := statebackend.NewListState(space(h), statebackend.Descriptor[int]{Name: "l"})
	require.NoError(t, err)
	short, long := make([]int, 30), make([]int, 1700)
	require.NoError(t, l.Update(ctx, "s:k", short))
	var wg sync.WaitGroup
	var writeErr error
	wg.Go(func() {
		for i := 0; i < 60 && writeErr == nil; i++ {
			writeErr = l.Update(ctx, "s:k", [][]int{long, short}[i%2])
		}
	})
	at := job.KeyedKey(space(h).Scope, "l", "s:k")
	for range 100 {
		n := do(t, h, cmd(statebackend.OpLLen, at))[0].Int
		require.True(t, n == 30 || n == 1700, "%d items", n)
	}
	wg.Wait()
	require.NoError(t, writeErr)
}

func testSetState(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	s, err := statebackend.NewSetState(space(h), statebackend.Descriptor[string]{Name: "s"})
	require.NoError(t, err)
	fresh, err := s.Add(ctx, "s:k", "用户<>")
	require.NoError(t, err)
	require.True(t, fresh)
	fresh, err = s.Add(ctx, "s:k", "用户<>")
	require.NoError(t, err)
	require.False(t, fresh)
	_, err = s.Add(ctx, "s:k", "")
	require.NoError(t, err)
	require.Equal(t, []string{`""`, `"用户<>"`}, members(t, h, job.KeyedKey(space(h).Scope, "s", "s:k")))
	n, err := s.Size(ctx, "s:k")
	require.NoError(t, err)
	require.Equal(t, 2, n)
	all, err := s.Get(ctx, "s:k")
	require.NoError(t, err)
	slices.Sort(all)
	require.Equal(t, []string{"", "用户<>"}, all)
	has, err := s.Contains(ctx, "s:k", "")
	require.NoError(t, err)
	require.True(t, has)
	was, err := s.Remove(ctx, "s:k", "")
	require.NoError(t, err)
	require.True(t, was)
	was, err = s.Remove(ctx, "s:k", "")
	require.NoError(t, err)
	require.False(t, was)
	empty, err := s.IsEmpty(ctx, "s:k")
	require.NoError(t, err)
	require.False(t, empty)
	require.NoError(t, s.Clear(ctx, "s:k"))
	empty, err = s.IsEmpty(ctx, "s:k")
	require.NoError(t, err)
	require.True(t, empty)
}

// testConcurrentHandles: handles are shared by goroutines, and lose nothing.
func testConcurrentHandles(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	set, err := statebackend.NewSetState(space(h), statebackend.Descriptor[int]{Name: "set"})
	require.NoError(t, err)
	list, err := statebackend.NewListState(space(h), statebackend.Descriptor[int]{Name: "list"})
	require.NoError(t, err)
	const workers, each = 8, 40
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := 0; i < each && errs[w] == nil; i++ {
				key := statebackend.NumberKey(int64(i % 3))
				if _, err := set.Add(ctx, key, w*each+i); err != nil {
					errs[w] = err
					return
				}
				errs[w] = list.Add(ctx, key, w*each+i)
			}
		})
	}
	wg.Wait()
	seen := 0
	for i := range 3 {
		require.Empty(t, slices.DeleteFunc(slices.Clone(errs), func(e error) bool { return e == nil }))
		n, err := set.Size(ctx, statebackend.NumberKey(int64(i)))
		require.NoError(t, err)
		items, err := list.Get(ctx, statebackend.NumberKey(int64(i)))
		require.NoError(t, err)
		require.Len(t, items, n)
		seen += n
	}
	require.Equal(t, workers*each, seen)
	require.Len(t, members(t, h, job.Index()), 6)
}
