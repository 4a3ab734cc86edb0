package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// requireEvictionWarned: a policy that evicts is told when it can evict.
func requireEvictionWarned(t *testing.T, c *goredis.Client, look func() statebackend.Glimpse) {
	t.Helper()
	policy := func(name, limit string) {
		require.NoError(t, c.ConfigSet(t.Context(), "maxmemory-policy", name).Err())
		require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", limit).Err())
	}
	policy("allkeys-lru", "0")
	require.Empty(t, look().Warnings, "nothing is evicted without a limit")
	policy("allkeys-lru", "1gb")
	require.Len(t, look().Warnings, 1)
	require.Contains(t, look().Warnings[0], "allkeys-lru")
	policy("volatile-ttl", "1gb")
	require.Contains(t, look().Warnings[0], "1 keys of this database have an expiry")
	require.NoError(t, c.Persist(t.Context(), testJob.Root()+":cg:expiring").Err())
	require.Empty(t, look().Warnings)
	policy("noeviction", "1gb")
	require.Empty(t, look().Warnings)
}

func TestLookWarnsOfRealDangersOnly(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	ctx := t.Context()
	look := func() statebackend.Glimpse {
		g, err := b.Look(ctx, testJob)
		require.NoError(t, err)
		return g
	}
	require.Equal(t, "database 0 is empty", look().Where)
	require.Empty(t, look().Warnings)
	require.NoError(t, c.HSet(ctx, testJob.Root()+":cg:x", "field", "value").Err())
	require.Contains(t, look().Where, "database 0 has 1 keys")
	fillJob(t, c, testJob, "seed")
	g := look()
	require.Empty(t, g.Where)
	require.EqualValues(t, 16, g.Indexed)
	require.Equal(t, 128, g.Assigned.MaxParallelism)
	require.Equal(t, "7.0.15", g.Server.Version)
	require.False(t, g.At.IsZero())

	requireEvictionWarned(t, c, look)
	c.Set(ctx, testJob.Assignment(), "not JSON", 0)
	_, err := b.Look(ctx, testJob)
	require.ErrorContains(t, err, "assignment")
	s.Kill()
	_, err = b.Look(ctx, testJob)
	require.ErrorIs(t, err, statebackend.ErrUnreachable)
}

func TestKeyspaceOfOtherVersions(t *testing.T) {
	all := keyspaceOf("# Keyspace\r\ndb0:keys=4,expires=1,avg_ttl=0,subexpiry=2\r\ndb12:keys=7,expires=x\r\ndbx:keys=1\r\nother:keys=5\r\n")
	require.Equal(t, map[int]keyspace{0: {keys: 4, expires: 1, subexpiry: 2}, 12: {keys: 7}}, all)
	warnings := dangers(serverFacts{role: "master", cluster: true}, map[string]string{"maxmemory": "0"}, all[0])
	require.Len(t, warnings, 2)
	require.Contains(t, warnings[0], "cluster")
	require.Contains(t, warnings[1], "2 hashes")
}

// noteUnderWriters notes in a record that changes all the time: each change is
// seen, none is lost.
func noteUnderWriters(t *testing.T, s *redistest.Server, b *Backend, incarnation string) {
	t.Helper()
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		c := s.Client()
		wg.Go(func() {
			for n := range 30 {
				errs[i] = errors.Join(errs[i],
					c.HSet(context.Background(), testJob.Record(), fmt.Sprintf("field %d", i), n).Err())
			}
		})
	}
	for n := range 30 {
		require.NoError(t, b.Note(t.Context(), testJob, incarnation, statebackend.Notes{Attempt: snapshot.ID(n + 1)}))
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	g, err := b.Look(t.Context(), testJob)
	require.NoError(t, err)
	require.EqualValues(t, 30, g.Record.Attempt)
}

func TestRecordsUnderContention(t *testing.T) {
	s := redistest.Start(t)
	b := openTest(t, s)
	got := make([]statebackend.Record, 8)
	errs := make([]error, len(got))
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			a := statebackend.Assignment{MaxParallelism: 16, Parallelism: i + 1, Hash: "java"}
			got[i], errs[i] = b.Adopt(context.Background(), testJob, fmt.Sprintf("inc-%d", i), a)
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	for _, r := range got {
		require.Equal(t, got[0], r, "one of them was first")
	}
	g, err := b.Look(t.Context(), testJob)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("inc-%d", g.Assigned.Parallelism-1), g.Record.Incarnation, "record and assignment are one step")

	noteUnderWriters(t, s, b, g.Record.Incarnation)
	_, err = b.Adopt(t.Context(), testJob, "", statebackend.Assignment{})
	require.ErrorContains(t, err, "incarnation is empty")
	s.Do("DEL", testJob.Record())
	s.Do("SET", testJob.Record(), "not a hash")
	_, err = b.Adopt(t.Context(), testJob, "x", statebackend.Assignment{})
	require.ErrorIs(t, err, statebackend.ErrWrongType)
	require.ErrorContains(t, err, "coordinator")
}

func TestIndexAndSchemasOfManyNames(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	ctx := t.Context()
	var names [][]byte
	pipe := c.Pipeline()
	for i := range 5000 {
		name := fmt.Sprintf("%s:cg:%d\x00\xff", testJob.Root(), i)
		names = append(names, []byte(name))
		pipe.SAdd(ctx, testJob.Index(), name)
		if i%3 == 0 {
			pipe.HSet(ctx, testJob.Registry(), name, fmt.Sprintf("type %d|%d", i, i%7))
		}
	}
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	seen := map[string]int{}
	require.NoError(t, b.Index(ctx, testJob, func(name []byte) error {
		seen[string(name)]++
		return nil
	}))
	require.Len(t, seen, 5000)
	schemas, err := b.Schemas(ctx, testJob, names)
	require.NoError(t, err)
	require.Len(t, schemas, 5000)
	for i, name := range names {
		require.Equal(t, 1, seen[string(name)])
		want := ""
		if i%3 == 0 {
			want = fmt.Sprintf("type %d|%d", i, i%7)
		}
		require.Equal(t, want, schemas[i])
	}
	require.NoError(t, c.Set(ctx, testJob.Index(), "no set", 0).Err())
	require.ErrorIs(t, b.Index(ctx, testJob, func([]byte) error { return nil }), statebackend.ErrWrongType)
	require.NoError(t, c.Set(ctx, testJob.Registry(), "no hash", 0).Err())
	_, err = b.Schemas(ctx, testJob, names[:1])
	require.ErrorIs(t, err, statebackend.ErrWrongType)
}

func TestNameSetIsASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s nameSet
		s.reset(rapid.IntRange(0, 50).Draw(t, "expected"))
		model := map[string]bool{}
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 300), 0, 600).Draw(t, "names") {
			name := fmt.Sprint("name ", n)
			require.Equal(t, !model[name], s.add([]byte(name), uint64(len(name))), name)
			model[name] = true
		}
		used := len(s.now.rests)
		for _, full := range s.old {
			used += len(full.rests)
		}
		require.Equal(t, len(model), used)
	})
	var s nameSet
	s.reset(4)
	require.True(t, s.add([]byte("beginning"), 1<<21))
	require.True(t, s.add([]byte("beginning"), 1<<22), "another length")
	require.False(t, s.add([]byte("beginning"), 1<<21))
	s.reset(4)
	require.True(t, s.add([]byte("beginning"), 1<<21), "empty after a reset")
}

// Runs are looked up as single identities are, with repetitions inside a run
// and between runs, and while the set grows.
func TestNameSetTakesRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s nameSet
		for range rapid.IntRange(1, 3).Draw(t, "keys") {
			s.reset(rapid.SampledFrom([]int{0, 3, 200, 5000}).Draw(t, "expected"))
			shares := rapid.Uint64Range(1, 3).Draw(t, "shares")
			s.shares, s.share = shares, shares-1
			fields := rapid.Bool().Draw(t, "fields")
			model := map[int]bool{}
			for range rapid.IntRange(0, 12).Draw(t, "runs") {
				var run []snapshot.Element
				var want []string
				for _, n := range rapid.SliceOfN(rapid.IntRange(0, 900), 0, runMost).Draw(t, "names") {
					name := fmt.Appendf(nil, "name %d", n)
					e := snapshot.Element{Value: name, Size: uint64(len(name))}
					if fields {
						e = snapshot.Element{Field: name, Value: []byte("same")}
					}
					run = append(run, e)
					if !model[n] && snapshot.NameHash(name)%shares == shares-1 {
						want = append(want, string(name))
						model[n] = true
					}
				}
				var got []string
				for _, e := range s.fresh(run, fields) {
					got = append(got, string(append(e.Field, e.Value...)))
				}
				for i := range want {
					if fields {
						want[i] += "same"
					}
				}
				require.Equal(t, want, got)
			}
		}
	})
}

// A set that outgrows its table many times over, as an index does whose size
// nobody knows.
func TestNameSetGrows(t *testing.T) {
	var s nameSet
	s.reset(0)
	const n = 200_000
	for _, fresh := range []bool{true, false} {
		for i := range n {
			name := binary.LittleEndian.AppendUint64(nil, uint64(i)*7)
			require.Equal(t, fresh, s.add(name, 8), i)
		}
	}
	slots := len(s.now.slots)
	for _, full := range s.old {
		slots += len(full.slots)
	}
	require.Less(t, slots, 6*n)
}
