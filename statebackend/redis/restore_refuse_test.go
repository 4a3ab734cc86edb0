package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// limitedUser opens the store as a user who may do everything but some
// commands.
func limitedUser(t *testing.T, srv *redistest.Server, rules ...string) *Backend {
	t.Helper()
	args := []any{"ACL", "SETUSER", "limited", "reset", "on", ">secret-pw", "~*", "&*", "+@all"}
	for _, r := range rules {
		args = append(args, r)
	}
	srv.Do(args...)
	b, err := Open(context.Background(), Config{URL: "redis://limited:secret-pw@" + srv.Addr + "/0"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func TestARestoreThatLacksARightChangesNothing(t *testing.T) {
	srv := redistest.Start(t)
	c, admin, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	addSource(t, c)
	keys := append(readJob(t, admin, testJob), sourceKeys(t, admin)...)
	disturb(t, c, testJob)
	before := digests(t, c)
	groups := c.XInfoGroups(ctx, testStream).Val()
	refused := []string{
		"eval", "hset", "hdel", "hget", "rpush", "sadd", "zadd", "set", "get", "restore", "rename", "unlink", "pexpireat",
		"exists", "lrange", "llen", "sscan", "smismember", "time", "scard", "hgetall", "hscan", "smembers", "zrange", "dump", "multi",
		"xgroup|setid", "xgroup|create", "xack", "xclaim", "xpending", "xinfo|groups", "hlen", "zcard",
	}
	for _, cmd := range refused {
		t.Run(strings.ReplaceAll(cmd, "|", "_"), func(t *testing.T) {
			b := limitedUser(t, srv, "-"+cmd)
			req := testRequest("denied", 3)
			req.Plain = cmd != "hlen" && cmd != "zcard" // which ask for the size of what went as a payload
			req.Positions = testPositions()
			_, err := restore(ctx, b, req, keys)
			require.ErrorIs(t, err, statebackend.ErrPermission)
			require.NotContains(t, err.Error(), "secret-pw")
			word, _, _ := strings.Cut(cmd, "|")
			require.Contains(t, strings.ToLower(err.Error()), word, "the right is named")
			if word == "xgroup" || word == "xinfo" {
				require.ErrorContains(t, err, "+"+cmd)
				require.ErrorContains(t, err, strconv.Quote(testStream))
			}
			// What this user can't clean, another one can.
			flipped, err := admin.Resolve(ctx, testJob, "denied")
			require.NoError(t, err)
			require.False(t, flipped)
			noTraces(t, c, testJob)
			requireSame(t, before, digests(t, c), "without "+cmd)
			require.Equal(t, groups, c.XInfoGroups(ctx, testStream).Val())
		})
	}
}

func TestARestoreThatMayNotWriteOneKeyChangesNothing(t *testing.T) {
	mayNotWriteOneKey(t)
}

// Before 7.0 a script can't ask for rights, nor count common members.
func TestTheSameOnAServerThatCannotTellRights(t *testing.T) {
	asBefore7(t)
	mayNotWriteOneKey(t)
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	keys := readJob(t, b, testJob)
	_, want := apart(digests(t, c), testJob)
	disturb(t, c, testJob)
	_, err := restore(ctx, b, testRequest("old", 3), keys)
	require.NoError(t, err)
	_, got := apart(digests(t, c), testJob)
	requireSame(t, want, got, "restored")
}

// asBefore7 takes from the script what 7.0 brought.
func asBefore7(t *testing.T) {
	t.Helper()
	was := flipScript
	flipScript = strings.ReplaceAll(was, "redis.acl_check_cmd", "redis.no_such_function")
	require.NotEqual(t, was, flipScript)
	t.Cleanup(func() { flipScript = was })
}

func mayNotWriteOneKey(t *testing.T) {
	t.Helper()
	srv := redistest.Start(t)
	c, admin, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	keys := readJob(t, admin, testJob)
	disturb(t, c, testJob)
	before := digests(t, c)
	for _, hidden := range []string{"big", "later", "missing"} {
		// All keys of the job but one: later is only in the live index,
		// missing only a name in the checkpoint.
		root := aclPattern(testJob.Root())
		rules := []string{"resetkeys", "~" + root + ":[^c]*", "~" + root + ":coordinator*"}
		allow := func(name string) {
			if strings.HasPrefix(name, testJob.Root()+":cg:") && name != testJob.Root()+":cg:"+hidden {
				rules = append(rules, "~"+aclPattern(name))
			}
		}
		for k := range before {
			allow(k)
		}
		for _, k := range keys {
			allow(string(k.key.Name))
		}
		b := limitedUser(t, srv, rules...)
		_, err := restore(ctx, b, testRequest("hidden", 3), keys)
		require.ErrorIs(t, err, statebackend.ErrPermission, hidden)
		noTraces(t, c, testJob)
		requireSame(t, before, digests(t, c), "hidden "+hidden)
	}
}

// aclPattern matches one name, as far as a rule can say it.
func aclPattern(name string) string {
	name = strings.NewReplacer(" ", "?", "\x00", "?", "*", "?", "[", "?").Replace(name)
	if len(name) > 1000 {
		name = name[:1000] + "*"
	}
	return name
}

func TestEveryRefusalIsTold(t *testing.T) {
	srv := redistest.Start(t)
	c, ctx := srv.Client(), context.Background()
	b := limitedUser(t, srv, "-zadd")
	var keys []staged
	for i := range 20 {
		k := staged{
			key:      snapshot.Key{Section: snapshot.SectionKeyed, Name: fmt.Appendf(nil, "%s:zset-%d", testJob.Root(), i), Type: snapshot.TypeZSet},
			elements: []snapshot.Element{{Score: float64(i), Size: 1, Value: []byte("m")}},
		}
		k.sum()
		keys = append(keys, k)
	}
	req := testRequest("all", 0)
	req.Plain = true
	_, err := restore(ctx, b, req, keys)
	require.ErrorIs(t, err, statebackend.ErrPermission)
	require.ErrorContains(t, err, `:zset-0"`)
	require.ErrorContains(t, err, `:zset-7"`)
	require.ErrorContains(t, err, "and 12 more")
	require.Empty(t, digests(t, c))
}

// A key that the index lists is state; the job's own bookkeeping is not, and
// neither is a key of somebody else, whatever an index says.
func TestBookkeepingInTheIndexIsNeverState(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	own := []string{
		testJob.Index(), testJob.Registry(), testJob.OperatorStates(), testJob.Assignment(), testJob.Record(),
		testJob.Staging("x") + "k0",
	}
	for _, name := range own {
		k := staged{
			key:      snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(name), Type: snapshot.TypeString},
			elements: []snapshot.Element{{Size: 1, Value: []byte("v")}},
		}
		k.sum()
		sink, err := b.Stage(ctx, testRequest("own", 3))
		require.NoError(t, err)
		before := digests(t, c)
		require.NoError(t, feed(sink, []staged{k}), name)
		require.NoError(t, sink.Abort(ctx))
		delete(before, testJob.Record()) // had the mark
		after := digests(t, c)
		delete(after, testJob.Record())
		requireSame(t, before, after, name)
		noTraces(t, c, testJob)
	}
	// In the live index: they are not removed as keys that came later, nor is
	// a key outside the job's root.
	keys := readJob(t, b, testJob)
	for _, name := range own {
		require.NoError(t, c.SAdd(ctx, testJob.Index(), name).Err())
	}
	require.NoError(t, c.Set(ctx, "listed elsewhere", "v", 0).Err())
	require.NoError(t, c.Set(ctx, "not listed", "v", 0).Err())
	require.NoError(t, c.SAdd(ctx, testJob.Index(), "listed elsewhere").Err())
	res, err := restore(ctx, b, testRequest("own", 3), keys)
	require.NoError(t, err)
	require.Zero(t, res.Removed)
	require.Equal(t, int64(3), c.Exists(ctx, "not listed", "listed elsewhere", testJob.Registry()).Val())
	require.Equal(t, "7", c.HGet(ctx, testJob.Record(), "epoch").Val())
	require.Equal(t, int64(len(keys)-3), c.SCard(ctx, testJob.Index()).Val())
}

func TestKeysOfAnotherTypeWhereOursShouldBe(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	keys := readJob(t, b, testJob)
	for _, name := range []string{testJob.Index(), testJob.Record()} {
		require.NoError(t, c.Rename(ctx, name, "aside").Err())
		require.NoError(t, c.RPush(ctx, name, "a list").Err())
		before := digests(t, c)
		req := testRequest("type", 3)
		_, err := restore(ctx, b, req, keys)
		require.ErrorIs(t, err, statebackend.ErrWrongType)
		require.ErrorContains(t, err, strconv.Quote(name))
		requireSame(t, before, digests(t, c), name)
		require.NoError(t, c.Rename(ctx, "aside", name).Err())
	}
}

func TestAPayloadThatTheServerRefusesTouchesNothing(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	before := digests(t, c)
	k := staged{
		key: snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(testJob.Root() + ":cg:json"), Type: snapshot.TypeOpaque,
			TypeName: "ReJSON-RL", Server: "7.4.1"},
		elements: []snapshot.Element{{Size: 12, Value: []byte("not a dump..")}},
	}
	k.sum()
	_, err := restore(ctx, b, testRequest("opaque", 3), []staged{k})
	require.ErrorContains(t, err, `:cg:json"`)
	require.ErrorContains(t, err, "7.4.1")
	require.ErrorContains(t, err, "7.0.15")
	require.ErrorContains(t, err, "ReJSON-RL")
	noTraces(t, c, testJob)
	requireSame(t, before, digests(t, c), "after the refusal")
}

// malformedStreams push a key of which only the last call is wrong.
func malformedStreams(ctx context.Context, t *testing.T) map[string]func(s snapshot.Sink) []error {
	name := []byte(testJob.Root() + ":k")
	hash := snapshot.Key{Section: snapshot.SectionKeyed, Name: name, Type: snapshot.TypeHash}
	el := snapshot.Element{Field: []byte("f"), Size: 3, Value: []byte("abc")}
	part := snapshot.Element{Field: []byte("f"), Size: 5, Value: []byte("abc")}
	str := snapshot.Key{Section: snapshot.SectionKeyed, Name: name, Type: snapshot.TypeString}
	return map[string]func(s snapshot.Sink) []error{
		"two keys at once": func(s snapshot.Sink) []error { return []error{s.BeginKey(hash), s.BeginKey(hash)} },
		"no key":           func(s snapshot.Sink) []error { return []error{s.Element(el)} },
		"empty hash":       func(s snapshot.Sink) []error { return []error{s.BeginKey(hash), s.EndKey(snapshot.KeyEnd{})} },
		"half a value": func(s snapshot.Sink) []error {
			return []error{s.BeginKey(hash), s.Element(part), s.EndKey(snapshot.KeyEnd{})}
		},
		"too much value": func(s snapshot.Sink) []error {
			return []error{s.BeginKey(hash), s.Element(part), s.Part([]byte("defg"))}
		},
		"value in value": func(s snapshot.Sink) []error { return []error{s.BeginKey(hash), s.Element(part), s.Element(el)} },
		"fewer elements": func(s snapshot.Sink) []error {
			return []error{s.BeginKey(hash), s.Element(el), s.EndKey(snapshot.KeyEnd{Count: 2})}
		},
		"two strings": func(s snapshot.Sink) []error { return []error{s.BeginKey(str), s.Element(el), s.Element(el)} },
		"no such type": func(s snapshot.Sink) []error {
			return []error{s.BeginKey(snapshot.Key{Section: 1, Name: name, Type: 99})}
		},
		"field twice": func(s snapshot.Sink) []error {
			require.NoError(t, s.(statebackend.Staging).Prove(ctx))
			d := snapshot.Digester{}
			d.Element(el)
			d.Element(el)
			errs := []error{s.BeginKey(hash), s.Element(el), s.Element(el), s.EndKey(snapshot.KeyEnd{Count: 2, Digest: d.Sum()})}
			return errs
		},
		"name twice": func(s snapshot.Sink) []error {
			var errs []error
			d := snapshot.Digester{}
			d.Element(el)
			for range 2 {
				errs = append(errs, s.BeginKey(hash), s.Element(el), s.EndKey(snapshot.KeyEnd{Count: 1, Digest: d.Sum()}))
			}
			_, err := s.(statebackend.Staging).Flip(ctx)
			return append(errs, err)
		},
	}
}

func TestMalformedStreamsOfKeysAreRefused(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	for what, push := range malformedStreams(ctx, t) {
		s, err := b.Stage(ctx, testRequest("bad", 0))
		require.NoError(t, err)
		errs := push(s)
		last := errs[len(errs)-1]
		require.Error(t, last, what)
		for _, err := range errs[:len(errs)-1] {
			require.NoError(t, err, "%s: all but the last are right", what)
		}
		another := snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(testJob.Root() + ":k"), Type: snapshot.TypeHash}
		require.EqualError(t, s.BeginKey(another), last.Error(), "%s: the sink stays dead", what)
		require.NoError(t, s.Abort(ctx))
		require.Empty(t, digests(t, c), what)
	}
}
