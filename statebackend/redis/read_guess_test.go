package redis

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// readerOf is a reader of the test job's keys, for state that stands still.
func readerOf(t testing.TB, b *Backend, sink snapshot.Sink) *cutReader {
	t.Helper()
	dial := func() (*resp.Conn, error) { return b.dial(t.Context()) }
	conn, err := dial()
	require.NoError(t, err)
	r := &cutReader{stream: stream{conn: conn, sink: sink, check: func() error { return nil }},
		b: b, job: testJob, version: "7.0.15", exactTTL: true, bounded: true, dial: dial}
	t.Cleanup(func() {
		r.hangUp()
		require.NoError(t, conn.Close())
	})
	return r
}

func stateKey(i int) string {
	scope := statebackend.Scope{Group: "g", Topic: "t", Partition: i % 7, Operator: "op"}
	return testJob.KeyedKey(scope, "mixed", fmt.Sprintf("s:%d", i))
}

// mixed fills one state with many small hashes and, behind them, keys of all
// types: whoever goes by the first ones guesses wrong.
func mixed(t testing.TB, c *goredis.Client) (names [][]byte, types []snapshot.KeyType) {
	t.Helper()
	ctx := t.Context()
	pipe := c.Pipeline()
	add := func(kt snapshot.KeyType, fill func(key string)) {
		key := stateKey(len(names))
		if fill != nil {
			fill(key)
		}
		names, types = append(names, []byte(key)), append(types, kt)
	}
	hash := func(key string) { pipe.HSet(ctx, key, "field of "+key, "value", "other", len(names)) }
	for range 2 * infosMost {
		add(snapshot.TypeHash, hash)
	}
	for range 3 {
		add(snapshot.TypeList, func(key string) { pipe.RPush(ctx, key, "b", "a", "b") })
		add(snapshot.TypeString, func(key string) { pipe.Set(ctx, key, "text", 0) })
		add(snapshot.TypeString, func(key string) { pipe.Set(ctx, key, blob(3<<20, len(names)), 0) })
		add(snapshot.TypeSet, func(key string) { pipe.SAdd(ctx, key, "x", "y") })
		add(snapshot.TypeZSet, func(key string) { pipe.ZAdd(ctx, key, goredis.Z{Score: 1.5, Member: "m"}) })
		add(snapshot.TypeOpaque, func(key string) { pipe.XAdd(ctx, &goredis.XAddArgs{Stream: key, Values: []string{"k", "v"}}) })
		add(snapshot.TypeMissing, nil)
		add(snapshot.TypeZSet, func(key string) {
			for i := range 9000 {
				pipe.ZAdd(ctx, key, goredis.Z{Score: float64(i), Member: fmt.Sprintf("a member that makes the key large %d", i)})
			}
		})
		add(snapshot.TypeHash, hash)
	}
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	return names, types
}

// A wrong guess costs a question and never a key, its type or its place.
func TestWrongGuessesAreMadeUpFor(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	names, types := mixed(t, c)
	later := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	expiring := len(names) - 9 // a list
	require.NoError(t, c.PExpireAt(t.Context(), string(names[expiring]), later).Err())
	var rec snapshot.Recorder
	r := readerOf(t, b, &rec)
	require.NoError(t, r.keys(&listNames{job: testJob, left: names}))
	require.Len(t, rec.Keys, len(names))
	for i, k := range rec.Keys {
		require.Equal(t, string(names[i]), string(k.Key.Name), "in the order of the source")
		require.Equal(t, types[i], k.Key.Type, "key %d", i)
		require.Equal(t, i == expiring, k.Key.ExpireAt == later.UnixMilli(), "key %d expires at %d", i, k.Key.ExpireAt)
	}
	require.Len(t, r.types, 1)
	require.Equal(t, noGuess, r.types[":state:op:mixed:"].typ, "and the state is not guessed again")
	require.Empty(t, snapshot.DiffKeys(recorded(t, readJobKeys(t, b, names)), rec.Keys))
}

// readJobKeys reads keys through go-redis.
func readJobKeys(t testing.TB, b *Backend, names [][]byte) []staged {
	t.Helper()
	require.NoError(t, b.client.Del(t.Context(), testJob.Index()).Err())
	all := make([]any, len(names))
	for i := range names {
		all[i] = names[i]
	}
	require.NoError(t, b.client.SAdd(t.Context(), testJob.Index(), all...).Err())
	return readJob(t, b, testJob)
}

// calls gives how often the server has run a command since its statistics were
// reset.
func calls(t testing.TB, c *goredis.Client, command string) int {
	t.Helper()
	stats := c.InfoMap(t.Context(), "commandstats").Item("Commandstats", "cmdstat_"+command)
	var n int
	if stats != "" {
		_, err := fmt.Sscanf(stats, "calls=%d,", &n)
		require.NoError(t, err)
	}
	return n
}

// What is known is not asked for: one question for each small key, or two when
// keys of the database expire.
func TestWhatIsKnownIsNotAskedFor(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	const n = 5 * infosMost
	for i := range n {
		require.NoError(t, c.HSet(t.Context(), stateKey(i), "f", i).Err())
		require.NoError(t, c.SAdd(t.Context(), testJob.Index(), stateKey(i)).Err())
	}
	for _, expiring := range []bool{false, true} {
		if expiring {
			require.NoError(t, c.Set(t.Context(), "somebody else's", "v", time.Hour).Err())
		}
		require.NoError(t, c.ConfigResetStat(t.Context()).Err())
		_, keys := cutOf(t, b, statebackend.CutRequest{Job: testJob})
		require.Len(t, keys, n)
		// A page of the index may bring a few names more than it was asked for.
		const first = 2*infosMost + 10
		for _, command := range []string{"type", "memory|usage", "hgetall"} {
			require.LessOrEqual(t, calls(t, c, command), first, "%s: after the first batches a state is known", command)
		}
		require.GreaterOrEqual(t, calls(t, c, "hrandfield"), n-first)
		if expiring {
			require.GreaterOrEqual(t, calls(t, c, "pexpiretime"), n)
		} else {
			require.Less(t, calls(t, c, "pexpiretime"), 10)
		}
	}
}

func TestExpiriesOfADatabase(t *testing.T) {
	for line, want := range map[string]bool{
		"keys=3,expires=0,avg_ttl=0": true, "keys=3,expires=0,avg_ttl=0,subexpiry=0": true, "": false,
		"keys=3,expires=1,avg_ttl=0": false, "keys=3,expires=01": false, "keys=0": false, "expires=00,keys=1": false,
	} {
		require.Equal(t, want, expiresNothing(line), line)
	}
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	conn := readerOf(t, b, nil).conn
	ask := func(db int) bool {
		none, err := askNoExpiry(conn, db)
		require.NoError(t, err)
		return none
	}
	require.False(t, ask(0), "nothing is known of an empty database")
	require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
	require.True(t, ask(0))
	require.False(t, ask(1))
	require.NoError(t, c.Expire(t.Context(), "k", time.Hour).Err())
	require.False(t, ask(0))
	require.NoError(t, c.Persist(t.Context(), "k").Err())
	require.True(t, ask(0))
}

func TestStatesAreToldByTheirNames(t *testing.T) {
	for name, want := range map[string]string{
		"p:j:cg:g:topic:t:p:3:state:op:count":             ":state:op:count",
		"p:j:cg:g:topic:t:p:3:state:op:count:s:key:x":     ":state:op:count:",
		"p:j:cg:g:topic:t:p:3:state:op:count:shard:4":     ":state:op:count:",
		"p:j:cg:g:topic:t:p:3:windowDue:op:name:x":        ":windowDue:",
		"p:j:cg:g:topic:t:p:3:opstate:op:offsets":         ":opstate:op:offsets",
		"p:j:cg:g:topic:t:p:3:state:":                     ":state:",
		"p:j:something else":                              "",
		"p:j:cg:g:topic:t:p:3:state::":                    ":state::",
		"p:j:cg:g:topic:windowDue:p:3:state:op:a:t:x:st:": ":state:op:a:",
	} {
		require.Equal(t, want, string(stateOf([]byte(name))), name)
	}
	g := guesses{}
	for i := range 2 * mostGuesses {
		g.saw(fmt.Appendf(nil, "x:state:op:%d:", i), snapshot.TypeSet)
	}
	require.Len(t, g, mostGuesses, "strange names can't eat the memory")
	guesses(nil).saw([]byte("x:state:op:a"), snapshot.TypeSet)
	require.Nil(t, guesses(nil).of([]byte("x:state:op:a")))
	require.False(t, (*guess)(nil).small())
}

// wrongGuess answers as a server in which every key is a hash but one, which is
// of another type when it is read first, and then what typ and again say.
func wrongGuess(typ, again string) func(args []string) string {
	var wrong atomic.Bool
	gone := strings.HasPrefix(typ, "+none")
	return func(args []string) string {
		odd := len(args) > 1 && args[len(args)-1] == stateKey(infosMost+5)
		switch {
		case args[0] == "MEMORY" && odd && wrong.Load() && gone:
			return "$-1\r\n"
		case args[0] == "MEMORY":
			return ":90\r\n"
		case args[0] == "TYPE" && odd:
			return typ
		case args[0] == "TYPE":
			return "+hash\r\n"
		case args[0] == "PEXPIRETIME" && odd && wrong.Load() && gone:
			return ":-2\r\n"
		case args[0] == "HGETALL" && odd && wrong.Load():
			return again
		case args[0] == "HGETALL" && odd:
			wrong.Store(true)
			return "-WRONGTYPE Operation against a key\r\n"
		case args[0] == "HGETALL":
			return bulks("f", "v")
		}
		return ""
	}
}

// Keys that turn out wrong once more when they are read anew end the cut, by
// name.
func TestAGuessThatStaysWrongIsAnError(t *testing.T) {
	for name, c := range map[string]struct {
		typ, again string
		is         error
	}{
		"another type again": {"+hash\r\n", "-WRONGTYPE Operation against a key\r\n", statebackend.ErrWrongType},
		"vanished":           {"+none\r\n", "*0\r\n", statebackend.ErrChanged},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, nil)
			f.answer = wrongGuess(c.typ, c.again)
			var rec snapshot.Recorder
			r := readerOf(t, f.open(t), &rec)
			var names [][]byte
			for i := range 2 * infosMost {
				names = append(names, []byte(stateKey(i)))
			}
			err := r.keys(&listNames{job: testJob, left: names})
			require.ErrorIs(t, err, c.is)
			var key *statebackend.KeyError
			require.ErrorAs(t, err, &key)
			require.Equal(t, stateKey(infosMost+5), string(key.Key))
		})
	}
}
