package config_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/keygroups"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

// aclLines are the commands of configs/redis-acl.txt.
func aclLines(t *testing.T) [][]any {
	t.Helper()
	b, err := os.ReadFile("../../configs/redis-acl.txt")
	require.NoError(t, err)
	var all [][]any
	for _, line := range strings.Split(string(b), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var words []any
		for _, w := range strings.Fields(line) {
			words = append(words, w)
		}
		all = append(all, words)
	}
	return all
}

// tape keeps a cut, to be pushed again with the counts and digests that a
// checkpoint adds.
type tape struct {
	calls  []func(snapshot.Sink) error
	digest snapshot.Digester
}

func (r *tape) BeginKey(k snapshot.Key) error {
	k.Name = bytes.Clone(k.Name)
	r.digest.Reset(k.Type)
	r.calls = append(r.calls, func(s snapshot.Sink) error { return s.BeginKey(k) })
	return nil
}

func (r *tape) Element(e snapshot.Element) error {
	e.Field, e.Value = bytes.Clone(e.Field), bytes.Clone(e.Value)
	r.digest.Element(e)
	r.calls = append(r.calls, func(s snapshot.Sink) error { return s.Element(e) })
	return nil
}

func (r *tape) Part(b []byte) error {
	b = bytes.Clone(b)
	r.digest.Part(b)
	r.calls = append(r.calls, func(s snapshot.Sink) error { return s.Part(b) })
	return nil
}

func (r *tape) EndKey(e snapshot.KeyEnd) error {
	e.Count, e.Digest = r.digest.Count(), r.digest.Sum()
	r.calls = append(r.calls, func(s snapshot.Sink) error { return s.EndKey(e) })
	return nil
}

func (r *tape) play(t *testing.T, into snapshot.Sink) {
	t.Helper()
	for _, call := range r.calls {
		require.NoError(t, call(into))
	}
}

var aclJob = statebackend.Job{Prefix: statebackend.DefaultPrefix, Name: "flights"}

// fill writes a job with a key of each type and a source, as the job would.
func fill(t *testing.T, c *goredis.Client) {
	t.Helper()
	root := aclJob.Root() + ":cg:stats:topic:flights:p:7:state:op:"
	part := aclJob.OperatorKey("stats", "flights", 0, "source", "positions")
	for _, cmd := range [][]any{
		{"HSET", root + "value", "s:key", "1", "s:other", "2"}, {"RPUSH", root + "list:s:key", "3", "3", "4"},
		{"SADD", root + "set:s:key", "5", "6"}, {"ZADD", root + "due", "7.5", "member"}, {"SET", root + "text", "8"},
		{"SET", root + "expiring", "9", "PX", "3600000"}, {"XADD", root + "stream", "1-1", "f", "v"},
		{"SET", root + "long", strings.Repeat("long value ", 300_000)}, {"RPUSH", part, "10"},
		{"SADD", aclJob.Index(), root + "value", root + "list:s:key", root + "set:s:key", root + "due", root + "text",
			root + "expiring", root + "stream", root + "long", root + "missing", part},
		{"HSET", aclJob.Registry(), root + "value", "java.lang.Integer|1"},
		{"HSET", aclJob.OperatorStates(), statebackend.OperatorField("source", "positions"), `{"mode":"list"}`},
		{"HSET", "streaming:mq:topic:flights:meta", "partitionCount", "1"},
		{"HSET", "streaming:mq:commit:flights:p:0", "stats", "11-1"},
		{"XADD", "stream:topic:flights:p:0", "11-1", "f", "v"}, {"XADD", "stream:topic:flights:p:0", "12-1", "f", "v"},
		{"XGROUP", "CREATE", "stream:topic:flights:p:0", "stats", "0"},
		{"XREADGROUP", "GROUP", "stats", "reader", "COUNT", "1", "STREAMS", "stream:topic:flights:p:0", ">"},
		{"SET", "other:application", "not ours"},
	} {
		require.NoError(t, c.Do(t.Context(), cmd...).Err(), cmd)
	}
}

// TestACLIsEnoughAndNoMore runs everything that the coordinator does to Redis
// as the user of the example, and tries what that user must not.
func TestACLIsEnoughAndNoMore(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client()
	fill(t, admin)
	for _, line := range aclLines(t) {
		require.NoError(t, admin.Do(t.Context(), line...).Err(), line)
	}
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "keyframe", "on", ">s3cret").Err())
	b, err := redis.Open(t.Context(), redis.Config{URL: "redis://keyframe@" + server.Addr + "/0", Password: "s3cret"})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()

	everything(t, b)
	follows(t, server.Addr)
	log, err := admin.Do(t.Context(), "ACL", "LOG").Slice()
	require.NoError(t, err)
	require.Empty(t, log, "nothing was denied")
	inspects(t, b)

	requireUsed(t, admin)
	limited := goredis.NewClient(&goredis.Options{Addr: server.Addr, Username: "keyframe", Password: "s3cret", DisableIdentity: true})
	defer func() { require.NoError(t, limited.Close()) }()
	for _, cmd := range [][]any{
		{"FLUSHALL"}, {"FLUSHDB"}, {"CONFIG", "GET", "*"}, {"CONFIG", "SET", "save", ""}, {"SHUTDOWN"}, {"ACL", "LIST"}, {"KEYS", "*"},
		{"CLIENT", "NO-EVICT", "on"}, {"DEBUG", "SLEEP", "0"}, {"MONITOR"}, {"SWAPDB", "0", "1"}, {"REPLICAOF", "no", "one"},
		{"GET", "other:application"}, {"SET", "other:application", "x"}, {"UNLINK", "other:application"}, {"HSET", "streaming:mq:topic:flights:meta", "partitionCount", "9"},
	} {
		err := limited.Do(t.Context(), cmd...).Err()
		require.ErrorContains(t, err, "NOPERM", "%v must be denied", cmd)
	}
}

// follows makes cuts with each way of following writes.
func follows(t *testing.T, addr string) {
	t.Helper()
	for _, way := range []string{redis.TrackFields, redis.TrackKeys} {
		b, err := redis.Open(t.Context(), redis.Config{URL: "redis://keyframe@" + addr + "/0", Password: "s3cret", Tracking: way})
		require.NoError(t, err)
		since := ""
		require.Eventually(t, func() bool {
			cut, err := b.Cut(t.Context(), statebackend.CutRequest{Job: aclJob, Since: since}, new(snapshot.Recorder))
			require.NoError(t, err)
			since = cut.Token
			return cut.Incremental && cut.Tracking == way
		}, 20*time.Second, time.Millisecond, way)
		require.NoError(t, b.Close())
	}
}

// inspected wants the elements of every key.
type inspected struct{ keys, names int }

func (i *inspected) Key(statebackend.KeyFacts) (bool, error) { i.keys++; return true, nil }
func (i *inspected) Element([]byte) error                    { return nil }
func (i *inspected) Name(statebackend.NameFacts) error       { i.names++; return nil }

// inspects does what the doctor does. What the server may refuse to tell it,
// such as CONFIG GET, is denied.
func inspects(t *testing.T, b *redis.Backend) {
	t.Helper()
	var seen inspected
	_, err := b.Inspect(t.Context(), statebackend.InspectRequest{Job: aclJob, Sources: []statebackend.SourceRef{{Topic: "flights", Group: "stats"}}}, &seen)
	require.NoError(t, err)
	require.Positive(t, seen.keys)
	require.Positive(t, seen.names)
	root := aclJob.Root() + ":cg:stats:topic:flights:p:7:state:op:"
	held, err := b.Holds(t.Context(), []statebackend.HoldsAsk{{Key: root + "text"}, {Key: root + "value", Member: []byte("s:key")},
		{Key: root + "due", Type: "zset", Member: []byte("member")}, {Key: root + "due", Type: "zset", Member: []byte("another")}})
	require.NoError(t, err)
	require.Equal(t, []bool{true, true, true, false}, held)
}

// rare are rights that are used where everything doesn't come.
var rare = map[string]string{
	"select":      "a database other than 0",
	"unwatch":     "a note that comes too late",
	"hlen":        "a hash that is read in pages",
	"hrandfield":  "many small hashes of one state",
	"zcard":       "a sorted set that is read in pages",
	"zscan":       "a sorted set among the operator state",
	"zmscore":     "the same",
	"zrem":        "a sorted set with the score -0",
	"xack":        "pending entries that were acknowledged after the cut",
	"xclaim":      "pending entries of the cut",
	"client|kill": "a restore that died",
}

// requireUsed makes sure that each right that is granted has been used.
func requireUsed(t *testing.T, admin *goredis.Client) {
	t.Helper()
	stats, err := admin.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	for _, line := range aclLines(t) {
		for _, w := range line {
			if c, ok := strings.CutPrefix(w.(string), "+"); ok && rare[c] == "" {
				require.Contains(t, stats, "cmdstat_"+c+":", "nobody needs +%s", c)
			}
		}
	}
}

// everything is a life of the coordinator at one job: look, adopt, cut, a
// whole restore, a rescale's restore, clean up, discover.
func everything(t *testing.T, b *redis.Backend) {
	t.Helper()
	ctx := t.Context()
	_, err := b.Discover(ctx)
	require.NoError(t, err)
	record, err := b.Adopt(ctx, aclJob, "first", statebackend.Assignment{MaxParallelism: 128, Parallelism: 2, Hash: keygroups.HashJava})
	require.NoError(t, err)
	require.NoError(t, b.Note(ctx, aclJob, "first", statebackend.Notes{Attempt: 3, Checkpoint: 2, CheckpointAt: time.Now()}))
	_, err = b.Look(ctx, aclJob)
	require.NoError(t, err)
	var names [][]byte
	require.NoError(t, b.Index(ctx, aclJob, func(name []byte) error { names = append(names, bytes.Clone(name)); return nil }))
	_, err = b.Schemas(ctx, aclJob, names)
	require.NoError(t, err)
	n, err := b.Partitions(ctx, "flights")
	require.NoError(t, err)
	require.Equal(t, 1, n)

	var whole tape
	cut, err := b.Cut(ctx, statebackend.CutRequest{Job: aclJob, Incarnation: "first",
		Sources: []statebackend.SourceRef{{Topic: "flights", Group: "stats"}}}, &whole)
	require.NoError(t, err)
	require.Len(t, cut.Positions, 1)
	_, err = b.Streams(ctx, []statebackend.StreamAsk{{Stream: "stream:topic:flights:p:0", IDs: []string{"11-1"}}})
	require.NoError(t, err)
	require.NoError(t, b.Room(ctx, 10, 100, 1000))
	request := statebackend.RestoreRequest{ID: "one", Job: aclJob, Scope: statebackend.ScopeAll, Checkpoint: 2, StartedAt: time.Now(),
		Epoch: record.Epoch, NewEpoch: record.Epoch + 1, Incarnation: "second", Attempt: 4, AsOf: cut.At, Positions: cut.Positions}
	restore(ctx, t, b, request, &whole)

	var part tape
	key := snapshot.Key{Section: snapshot.SectionOperator, Type: snapshot.TypeList, Count: 1,
		Name: []byte(aclJob.OperatorKey("stats", "flights", 1, "source", "positions"))}
	require.NoError(t, part.BeginKey(key))
	require.NoError(t, part.Element(snapshot.Element{Size: 2, Value: []byte("10")}))
	require.NoError(t, part.EndKey(snapshot.KeyEnd{}))
	// The old part holds the same item: so it has the same digest.
	request.Unchanged = []statebackend.KeySummary{{Type: snapshot.TypeList, Count: 1, Digest: part.digest.Sum(),
		Name: []byte(aclJob.OperatorKey("stats", "flights", 0, "source", "positions"))}}
	request.ID, request.Scope, request.Epoch, request.NewEpoch, request.Positions = "two", statebackend.ScopeOperator, record.Epoch+1, record.Epoch+2, nil
	request.Operators, request.Schemas = cut.Operators, map[string]string{string(key.Name): "java.lang.Integer|1"}
	restore(ctx, t, b, request, &part)
	flipped, err := b.Resolve(ctx, aclJob, "two")
	require.NoError(t, err)
	require.True(t, flipped)

	staging, err := b.Stage(ctx, statebackend.RestoreRequest{ID: "three", Job: aclJob, Scope: statebackend.ScopeAll, Checkpoint: 2,
		StartedAt: time.Now(), Epoch: record.Epoch + 2, NewEpoch: record.Epoch + 3, Incarnation: "third"})
	require.NoError(t, err)
	require.NoError(t, staging.Abort(ctx))
}

func restore(ctx context.Context, t *testing.T, b *redis.Backend, request statebackend.RestoreRequest, tape *tape) {
	t.Helper()
	staging, err := b.Stage(ctx, request)
	require.NoError(t, err)
	tape.play(t, staging)
	require.NoError(t, staging.Prove(ctx))
	result, err := staging.Flip(ctx)
	require.NoError(t, err)
	require.Equal(t, request.NewEpoch, result.Epoch)
}
