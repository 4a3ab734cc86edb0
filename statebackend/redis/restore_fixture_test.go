package redis

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
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

// filling writes the keys of a job and keeps their names for its index.
type filling struct {
	t     testing.TB
	c     *goredis.Client
	job   statebackend.Job
	seed  string
	names []any
}

func (f *filling) do(args ...any) {
	f.t.Helper()
	require.NoError(f.t, f.c.Do(context.Background(), args...).Err())
}

// name lists a key of the job.
func (f *filling) name(rest string) string {
	n := f.job.Root() + ":cg:" + rest
	f.names = append(f.names, n)
	return n
}

// fillJob writes state of every type, with bytes and numbers of every kind.
func fillJob(t testing.TB, c *goredis.Client, job statebackend.Job, seed string) {
	t.Helper()
	f := &filling{t: t, c: c, job: job, seed: seed}
	small, big := f.hashes()
	f.large()
	f.odd()
	f.do(append([]any{"SADD", job.Index()}, f.names...)...)
	f.do("HSET", job.Registry(), small, "java.lang.Double|1", big, "java.lang.String|"+strconv.Itoa(len(seed)))
	f.do("HSET", job.OperatorStates(), statebackend.OperatorField("op", "offsets"+seed), `{"mode":"list"}`)
	f.do("SET", job.Assignment(), `{"epoch":3,"maxParallelism":128,"parallelism":2,"hash":"java","ranges":null}`)
	f.do("HSET", job.Record(), "incarnation", "inc-"+seed, "epoch", "3", "checkpoint", "17", "checkpointAt", "2024-05-06T07:08:09Z", "attempt", "18", "cut", "18")
}

func (f *filling) hashes() (small, big string) {
	small = f.name("small")
	f.do("HSET", small, "\xff", "v1"+f.seed, "\xfe", "v2", "", "empty field", "empty value", "", "nul\x00nul", "\r\n\"'", f.seed, "seed")
	big = f.name("big")
	for i := 0; i < 3000; i += 100 {
		args := []any{"HSET", big}
		for k := i; k < i+100; k++ {
			args = append(args, fmt.Sprintf("field-%d", k), fmt.Sprintf("value-%d-%s", k*7, f.seed))
		}
		f.do(args...)
	}
	return small, big
}

// large writes a list, a set and a sorted set of more than a page.
func (f *filling) large() {
	f.do("RPUSH", f.name("list"), "x", "y", "x", "", "\x00\xff", "x", f.seed)
	long := []any{"RPUSH", f.name("long\xfflist")}
	set := []any{"SADD", f.name("set:s:k")}
	zset := []any{"ZADD", f.name("zset")}
	for i := range 2500 {
		long = append(long, fmt.Sprintf("item-%d-%s", i%1700, f.seed))
		set = append(set, fmt.Sprintf("member-%d", i))
		zset = append(zset, strconv.Itoa(i*3), fmt.Sprintf("z-%d", i))
	}
	f.do(long...)
	f.do(set...)
	f.do(zset...)
}

// odd writes what a text, a number or a page loses easily.
func (f *filling) odd() {
	f.do("SADD", f.name("small set"), "1", "1.0", "", "\xff\xfe", f.seed)
	f.do("SADD", f.name("ints"), "3", "-7", "900000000000")
	scores := []any{"ZADD", f.name("scores")}
	for i, s := range []string{"inf", "-inf", "0.1", "3.0000000000000004", "9007199254740993", "9.9999999999999694e-310", "-0", "1e300"} {
		scores = append(scores, s, fmt.Sprintf("m%d\x00", i))
	}
	f.do(scores...)
	f.do("SET", f.name("string"), "\x00bytes\xff"+f.seed)
	f.do("SET", f.name("empty string"), "")
	f.do("SET", f.name("long name "+strings.Repeat("n", 40<<10)), "under a long name")
	expiring := f.name("expiring")
	f.do("HSET", expiring, "f", "v")
	f.do("PEXPIREAT", expiring, time.Now().Add(time.Hour).UnixMilli()+123)
	f.do("SET", f.name("beside expiring"), "no expiry")
	stream := f.name("stream")
	for i := 1; i < 6; i++ {
		f.do("XADD", stream, strconv.Itoa(i)+"-0", "field", f.seed+strconv.Itoa(i))
	}
	f.do("XGROUP", "CREATE", stream, "g", "2-0")
	f.name("missing")
}

// readJob reads a job as a checkpoint would have it, in the order of a walk.
func readJob(t testing.TB, b *Backend, job statebackend.Job) []staged {
	t.Helper()
	ctx := context.Background()
	names, err := b.client.SMembers(ctx, job.Index()).Result()
	require.NoError(t, err)
	sort.Strings(names)
	var all []staged
	for _, name := range names {
		all = append(all, readKey(t, b, name, statebackend.Classify(job, []byte(name))))
	}
	for _, name := range []string{job.Registry(), job.OperatorStates(), job.Assignment()} {
		if k := readKey(t, b, name, snapshot.SectionMeta); k.key.Type != snapshot.TypeMissing {
			all = append(all, k)
		}
	}
	return all
}

func readKey(t testing.TB, b *Backend, name string, section snapshot.Section) staged {
	t.Helper()
	ctx := context.Background()
	k := staged{key: snapshot.Key{Section: section, Name: []byte(name)}}
	kind, err := b.client.Type(ctx, name).Result()
	require.NoError(t, err)
	expire, err := b.client.Do(ctx, "PEXPIRETIME", name).Int64()
	require.NoError(t, err)
	k.key.ExpireAt = max(0, expire)
	for _, kt := range []snapshot.KeyType{snapshot.TypeString, snapshot.TypeHash, snapshot.TypeList, snapshot.TypeSet, snapshot.TypeZSet} {
		if kt.String() == kind {
			k.key.Type = kt
		}
	}
	switch {
	case kind == "none":
		return k
	case kind == "stream":
		k.key.Type, k.key.TypeName, k.key.Server = snapshot.TypeOpaque, kind, "7.0.15"
		payload, err := b.client.Dump(ctx, name).Result()
		require.NoError(t, err)
		k.elements = []snapshot.Element{{Size: uint64(len(payload)), Value: []byte(payload)}}
	default:
		require.NoError(t, b.Each(ctx, name, k.key.Type, func(e snapshot.Element) error {
			k.elements = append(k.elements, e)
			return nil
		}))
	}
	k.sum()
	return k
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
	all := make(map[string]string)
	iter := c.Scan(ctx, 0, "", 1000).Iterator()
	for iter.Next(ctx) {
		key := iter.Val()
		d, err := c.Do(ctx, "DEBUG", "DIGEST-VALUE", key).StringSlice()
		require.NoError(t, err)
		at, err := c.Do(ctx, "PEXPIRETIME", key).Int64()
		require.NoError(t, err)
		all[key] = d[0] + " " + strconv.FormatInt(at, 10)
	}
	require.NoError(t, iter.Err())
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
