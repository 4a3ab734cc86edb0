package redis

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"sort"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/keygroups"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// staged is a key as a checkpoint has it.
type staged struct {
	key      snapshot.Key
	elements []snapshot.Element
	end      snapshot.KeyEnd
}

var testJob = statebackend.Job{Prefix: "run\x00time", Name: "a"}

// uglyNames are names of other jobs that must stay untouched.
var uglyNames = []string{"a:b", "ab", "a*", "[x]", `a\b`, "a?", "a b", "*"}

func openTest(t testing.TB, s *redistest.Server) *Backend {
	t.Helper()
	b, err := Open(context.Background(), Config{URL: s.URL(), CAFile: s.CAFile(), Tracking: TrackOff})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// readJob reads a job as a checkpoint would have it, in the order of a walk.
func readJob(t testing.TB, b *Backend, job statebackend.Job) []staged {
	t.Helper()
	names, err := b.client.SMembers(context.Background(), job.Index()).Result()
	require.NoError(t, err)
	sort.Strings(names)
	all := make([]staged, 0, len(names)+3)
	for _, name := range names {
		all = append(all, staged{key: snapshot.Key{Section: statebackend.Classify(job, []byte(name)), Name: []byte(name)}})
	}
	for _, name := range []string{job.Registry(), job.OperatorStates(), job.Assignment()} {
		all = append(all, staged{key: snapshot.Key{Section: snapshot.SectionMeta, Name: []byte(name)}})
	}
	readStaged(t, b, all)
	return slices.DeleteFunc(all, func(k staged) bool {
		return k.key.Section == snapshot.SectionMeta && k.key.Type == snapshot.TypeMissing
	})
}

// readKey reads one key by its name.
func readKey(t testing.TB, b *Backend, name string, section snapshot.Section) staged {
	t.Helper()
	one := []staged{{key: snapshot.Key{Section: section, Name: []byte(name)}}}
	readStaged(t, b, one)
	return one[0]
}

// readStaged reads keys by their names: types, expiries and what is small of
// many keys at once, everything else key by key.
func readStaged(t testing.TB, b *Backend, keys []staged) {
	t.Helper()
	ctx := context.Background()
	for batch := range slices.Chunk(keys, 500) {
		pipe := b.client.Pipeline()
		kinds, expiries := make([]*goredis.StatusCmd, len(batch)), make([]*goredis.Cmd, len(batch))
		for i, k := range batch {
			kinds[i], expiries[i] = pipe.Type(ctx, string(k.key.Name)), pipe.Do(ctx, "PEXPIRETIME", k.key.Name)
		}
		_, err := pipe.Exec(ctx)
		require.NoError(t, err)
		pages := make([]goredis.Cmder, len(batch))
		for i := range batch {
			k, kind := &batch[i], kinds[i].Val()
			expire, err := expiries[i].Int64()
			require.NoError(t, err)
			k.key.ExpireAt = max(0, expire)
			if k.key.Type = typesByName[kind]; kind == "stream" {
				k.key.TypeName, k.key.Server = kind, "7.0.15"
			}
			pages[i] = firstPage(ctx, pipe, string(k.key.Name), kind)
		}
		_, _ = pipe.Exec(ctx) // each answer is looked at
		for i := range batch {
			if k := &batch[i]; k.key.Type != snapshot.TypeMissing {
				readContent(t, b, k, pages[i])
			}
		}
	}
}

var typesByName = map[string]snapshot.KeyType{
	"string": snapshot.TypeString, "hash": snapshot.TypeHash, "list": snapshot.TypeList,
	"set": snapshot.TypeSet, "zset": snapshot.TypeZSet, "stream": snapshot.TypeOpaque,
}

// firstPage asks for the first elements of a key, nil where Each reads all.
func firstPage(ctx context.Context, pipe goredis.Pipeliner, name, kind string) goredis.Cmder {
	switch kind {
	case "hash":
		return pipe.HScan(ctx, name, 0, "", eachPage)
	case "list":
		return pipe.LRange(ctx, name, 0, eachPage-1)
	case "set":
		return pipe.SScan(ctx, name, 0, "", eachPage)
	case "stream":
		return pipe.Dump(ctx, name)
	}
	return nil
}

// readContent takes a key's elements from its first page where that is all,
// and from Each where it isn't.
func readContent(t testing.TB, b *Backend, k *staged, page goredis.Cmder) {
	t.Helper()
	if parts, whole := wholePage(page); whole {
		width := map[bool]int{true: 2, false: 1}[k.key.Type == snapshot.TypeHash]
		for ; len(parts) > 0; parts = parts[width:] {
			v := parts[width-1]
			e := snapshot.Element{Size: uint64(len(v)), Value: []byte(v)}
			if width == 2 {
				e.Field = []byte(parts[0])
			}
			k.elements = append(k.elements, e)
		}
	} else {
		require.NoError(t, b.Each(context.Background(), string(k.key.Name), k.key.Type, func(e snapshot.Element) error {
			k.elements = append(k.elements, e)
			return nil
		}))
	}
	k.sum()
}

// wholePage is a first page that is also the last.
func wholePage(page goredis.Cmder) (parts []string, whole bool) {
	switch p := page.(type) {
	case *goredis.ScanCmd:
		parts, cursor, err := p.Result()
		return parts, err == nil && cursor == 0
	case *goredis.StringSliceCmd:
		return p.Val(), p.Err() == nil && len(p.Val()) < eachPage
	case *goredis.StringCmd:
		return []string{p.Val()}, p.Err() == nil
	}
	return nil, false
}

func (k *staged) sum() {
	var d snapshot.Digester
	d.Reset(k.key.Type)
	for _, e := range k.elements {
		d.Element(e)
	}
	k.key.Count, k.end.Count, k.end.Digest = d.Count(), d.Count(), d.Sum()
}

// feed pushes keys into a sink, long values in parts.
func feed(sink snapshot.Sink, keys []staged) error {
	for _, k := range keys {
		if err := sink.BeginKey(k.key); err != nil {
			return err
		}
		for _, e := range k.elements {
			rest := e.Value
			e.Value = rest[:min(len(rest), 100<<10)]
			rest = rest[len(e.Value):]
			if err := sink.Element(e); err != nil {
				return err
			}
			for len(rest) > 0 {
				n := min(len(rest), 200<<10)
				if err := sink.Part(rest[:n]); err != nil {
					return err
				}
				rest = rest[n:]
			}
		}
		if err := sink.EndKey(k.end); err != nil {
			return err
		}
	}
	return nil
}

func testRequest(id string, epoch uint64) statebackend.RestoreRequest {
	return statebackend.RestoreRequest{
		ID: id, Job: testJob, Scope: statebackend.ScopeAll, Checkpoint: 12, StartedAt: time.Now(),
		Epoch: epoch, NewEpoch: epoch + 4, Incarnation: "new-incarnation", Attempt: 21,
		Assignment: &statebackend.Assignment{
			Epoch: 1, MaxParallelism: 128, Parallelism: 3, Hash: keygroups.HashJava,
			Ranges: []keygroups.Range{{Subtask: 0, Start: 0, End: 127}},
		},
		AsOf: time.Now(),
	}
}

// restore runs a whole restore.
func restore(ctx context.Context, b *Backend, req statebackend.RestoreRequest, keys []staged) (statebackend.FlipResult, error) {
	s, err := b.Stage(ctx, req)
	if err != nil {
		return statebackend.FlipResult{}, err
	}
	res, err := stageProveFlip(ctx, s, keys)
	if err != nil {
		if abortErr := s.Abort(ctx); abortErr != nil {
			return res, fmt.Errorf("%w; abort: %w", err, abortErr)
		}
	}
	return res, err
}

func stageProveFlip(ctx context.Context, s statebackend.Staging, keys []staged) (statebackend.FlipResult, error) {
	if err := feed(s, keys); err != nil {
		return statebackend.FlipResult{}, err
	}
	if err := s.Prove(ctx); err != nil {
		return statebackend.FlipResult{}, err
	}
	return s.Flip(ctx)
}

// digests gives every key of the server with its content's digest and expiry;
// the server computes both.
func digests(t testing.TB, c *goredis.Client) map[string]string {
	t.Helper()
	ctx := context.Background()
	var names []string
	iter := c.Scan(ctx, 0, "", 1000).Iterator()
	for iter.Next(ctx) {
		names = append(names, iter.Val())
	}
	require.NoError(t, iter.Err())
	all := make(map[string]string)
	for batch := range slices.Chunk(names, 500) {
		pipe := c.Pipeline()
		var answers []*goredis.Cmd
		for _, key := range batch {
			answers = append(answers, pipe.Do(ctx, "DEBUG", "DIGEST-VALUE", key), pipe.Do(ctx, "PEXPIRETIME", key))
		}
		_, err := pipe.Exec(ctx)
		require.NoError(t, err)
		for i, key := range batch {
			d, err := answers[2*i].StringSlice()
			require.NoError(t, err)
			all[key] = fmt.Sprint(d[0], " ", answers[2*i+1].Val())
		}
	}
	return all
}

// apart splits what a restore sets by itself from all other keys.
func apart(all map[string]string, job statebackend.Job) (own, rest map[string]string) {
	own, rest = map[string]string{}, map[string]string{}
	for k, v := range all {
		if k == job.Record() || k == job.Assignment() {
			own[k] = v
		} else {
			rest[k] = v
		}
	}
	return own, rest
}

func requireSame(t testing.TB, want, got map[string]string, what string) {
	t.Helper()
	for k, v := range want {
		require.Equal(t, v, got[k], "%s: key %.80q", what, k)
	}
	for k := range got {
		_, was := want[k]
		require.True(t, was, "%s: key %.80q is new", what, k)
	}
}

// noTraces checks that nothing staged and no mark is left.
func noTraces(t testing.TB, c *goredis.Client, job statebackend.Job) {
	t.Helper()
	ctx := context.Background()
	for k := range digests(t, c) {
		require.False(t, bytes.HasPrefix([]byte(k), []byte(job.Root()+":coordinator:stage:")), "left over: %q", k)
	}
	mark, err := c.HExists(ctx, job.Record(), "restore").Result()
	require.NoError(t, err)
	require.False(t, mark, "the mark is left over")
}

// disturb changes everything that a restore must put back.
func disturb(t testing.TB, c *goredis.Client, job statebackend.Job) {
	t.Helper()
	ctx := context.Background()
	root := job.Root() + ":cg:"
	for _, args := range [][]any{
		{"DEL", root + "string"}, {"RPUSH", root + "string", "now a list"},
		{"HSET", root + "small", "extra", "field"}, {"HDEL", root + "big", "field-7", "field-8"},
		{"RPUSH", root + "list", "x", "y"}, {"SREM", root + "ints", "3"}, {"ZADD", root + "scores", "5", "m0\x00"},
		{"PERSIST", root + "expiring"}, {"PEXPIRE", root + "beside expiring", "3600000"},
		{"DEL", root + "zset"}, {"SET", root + "missing", "is there now"}, {"XADD", root + "stream", "9-0", "a", "b"},
		{"HSET", root + "later", "k", "v"}, {"SADD", job.Index(), root + "later", root + "later, never written"},
		{"SREM", job.Index(), root + "set:s:k"}, {"HSET", job.Registry(), root + "later", "java.lang.Long|1"},
		{"HSET", job.OperatorStates(), "new\x01state", `{"mode":"union"}`},
	} {
		require.NoError(t, c.Do(ctx, args...).Err())
	}
}

func sameScore(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }
