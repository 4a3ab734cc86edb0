package track

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
)

// runSuite is the conformance suite of trackers: what both levels promise.
// make is the constructor; every part runs on servers of its own.
func runSuite(t *testing.T, name string, make func(Options) Tracker, level Level) {
	for _, p := range suiteParts {
		t.Run(name+"/"+p.name, func(t *testing.T) { p.run(t, make, level) })
	}
}

var suiteParts = []struct {
	name string
	run  func(*testing.T, func(Options) Tracker, Level)
}{
	{"attach", suiteAttach},
	{"every command", suiteCommands},
	{"take begins anew", suiteTake},
	{"scopes", suiteScopes},
	{"extra names", suiteExtra},
	{"expiry and eviction", suiteExpiry},
	{"scripts and transactions", suiteScripts},
	{"moved between servers", suiteMigrate},
	{"everything", suiteEverything},
	{"cut link", suiteCutLink},
	{"restarted empty", suiteRestartedEmpty},
	{"unreachable", suiteUnreachable},
	{"denied", suiteDenied},
	{"password and TLS", suiteSecure},
	{"stopped server", suiteStopped},
	{"bytes", suiteBytes},
	{"too much", suiteTooMuch},
	{"closed", suiteClosed},
	{"concurrent", suiteConcurrent},
}

func suiteAttach(t *testing.T, make func(Options) Tracker, level Level) {
	s := redistest.Start(t)
	tr := start(t, s, make)
	require.Equal(t, level, tr.Level())
	w := watch(t, tr, Scope{Root: "p:job"})
	keys, fields := w.Size()
	require.Zero(t, keys+fields)
	m := settled(t, s, w)
	require.False(t, m.All, m.Reason)
	require.Empty(t, m.Keys)
}

// suiteCommands runs each kind of write once. The names after the arrow are
// the keys that must be marked; one that ends with "=x" has to cover field x.
func suiteCommands(t *testing.T, make func(Options) Tracker, level Level) {
	s := redistest.Start(t)
	for _, line := range []string{
		"HSET j:h0 a 1 b 2", "SADD j:s0 m n o", "ZADD j:z0 1 x 2 y 3 z", "RPUSH j:l0 1 2 3 4 5 6", "SET j:v0 1", "SET j:v1 2",
		"XADD j:x0 1-1 f v", "XADD j:x0 2-1 f v", "XGROUP CREATE j:x0 g 0", "PFADD j:p0 1 2", "GEOADD j:g0 1 2 rome",
		"SET j:d0 1", "SET j:d1 1", "SET j:d2 1", "SET j:d3 1", "SET j:d4 1 EX 1000", "SET j:d5 1 EX 1000", "RPUSH j:l1 3 1 2", "SADD j:s1 m q",
	} {
		s.Do(args(line)...)
	}
	w := watch(t, start(t, s, make), Scope{Root: "j"})
	lines := suiteLines
	if level == LevelFields {
		lines = slices.Concat(lines, groupLines)
	}
	for _, line := range lines {
		command, want, ok := strings.Cut(line, " -> ")
		require.True(t, ok, line)
		s.Do(args(command)...)
		m := settled(t, s, w)
		require.False(t, m.All, "%s: %s", command, m.Reason)
		for name := range strings.FieldsSeq(want) {
			key, field, fine := strings.Cut(name, "=")
			require.True(t, touched(m, key), "%s: %s is not marked", command, key)
			require.True(t, !fine || covers(m, key, field), "%s: %s of %s is not marked", command, field, key)
			require.True(t, fine || strings.HasPrefix(key, "j:t") || whole(m, key), "%s: %s is not whole", command, key)
		}
	}
}

func args(line string) (all []any) {
	for word := range strings.FieldsSeq(line) {
		all = append(all, word)
	}
	return all
}

var suiteLines = []string{
	"HSET j:h0 a 7 c 8 -> j:h0=a j:h0=c", "hset j:h1 k v -> j:h1=k", "HMSET j:h0 d 1 e 2 -> j:h0=d j:h0=e", "HSETNX j:h0 f 1 -> j:h0=f",
	"HDEL j:h0 d e -> j:h0=d j:h0=e", "HINCRBY j:h0 n 3 -> j:h0=n", "HINCRBYFLOAT j:h0 n 0.5 -> j:h0=n",
	"SADD j:s0 u v -> j:s0=u j:s0=v", "SREM j:s0 u -> j:s0=u", "SMOVE j:s0 j:s2 v -> j:s0=v j:s2=v",
	"SINTERSTORE j:s3 j:s0 j:s1 -> j:s3", "SUNIONSTORE j:s3 j:s0 j:s1 -> j:s3", "SDIFFSTORE j:s3 j:s1 j:s0 -> j:s3",
	"ZADD j:z0 CH GT 9 x 1 w -> j:z0=x j:z0=w", "ZADD j:z0 INCR 2 nx -> j:z0=nx", "ZREM j:z0 w -> j:z0=w", "ZINCRBY j:z0 2 y -> j:z0=y",
	"ZRANGESTORE j:z1 j:z0 0 -1 -> j:z1", "ZUNIONSTORE j:z2 2 j:z0 j:z1 -> j:z2", "ZREMRANGEBYRANK j:z2 0 0 -> j:z2",
	"ZPOPMIN j:z1 -> j:z1", "ZMPOP 1 j:z2 MAX -> j:z2", "BZPOPMIN j:z1 1 -> j:z1", "GEOADD j:g0 3 4 oslo -> j:g0=oslo",
	"GEOSEARCHSTORE j:g1 j:g0 FROMLONLAT 1 2 BYRADIUS 9999 km -> j:g1",
	"SET j:v0 5 -> j:v0", "SETEX j:v2 1000 x -> j:v2", "MSET j:v3 1 j:v4 2 -> j:v3 j:v4", "MSETNX j:v5 1 j:v6 2 -> j:v5 j:v6",
	"APPEND j:v0 1 -> j:v0", "INCR j:v0 -> j:v0", "INCRBYFLOAT j:v0 0.5 -> j:v0", "SETRANGE j:v3 2 x -> j:v3", "SETBIT j:v3 4 1 -> j:v3",
	"BITFIELD j:v7 SET u8 0 255 -> j:v7", "BITOP NOT j:v8 j:v3 -> j:v8", "GETSET j:v1 9 -> j:v1", "GETDEL j:v8 -> j:v8",
	"LPUSH j:l0 0 -> j:l0", "LPOP j:l0 -> j:l0", "LSET j:l0 0 9 -> j:l0", "LINSERT j:l0 BEFORE 9 8 -> j:l0", "LREM j:l0 1 8 -> j:l0",
	"LTRIM j:l0 0 3 -> j:l0", "LMOVE j:l0 j:l2 LEFT LEFT -> j:l0 j:l2", "RPOPLPUSH j:l0 j:l2 -> j:l0 j:l2", "LMPOP 1 j:l2 LEFT -> j:l2",
	"BLPOP j:l0 1 -> j:l0", "SORT j:l1 STORE j:l3 -> j:l3",
	"XADD j:x0 3-1 f v -> j:x0", "XDEL j:x0 1-1 -> j:x0", "XTRIM j:x0 MAXLEN 1 -> j:x0", "PFADD j:p0 7 8 9 -> j:p0", "PFMERGE j:p1 j:p0 -> j:p1",
	"COPY j:h0 j:c0 -> j:c0", "COPY j:h0 j:h0 DB 3 -> j:h0", "RENAME j:d0 j:d9 -> j:d0 j:d9", "RENAMENX j:d9 j:d8 -> j:d9 j:d8",
	"MOVE j:d1 4 -> j:d1", "DEL j:d2 -> j:d2", "UNLINK j:d3 -> j:d3", "DEL j:h0 -> j:h0",
	"SET j:t0 1 -> j:t0", "EXPIRE j:t0 1000 -> j:t0", "PEXPIREAT j:t0 99999999999999 -> j:t0", "GETEX j:t0 EX 90 -> j:t0", "PERSIST j:t0 -> j:t0",
	"EXPIRE j:d4 -1 -> j:d4", "PEXPIREAT j:d5 12345 -> j:d5", "SPOP j:s3 -> j:s3=q",
}

// groupLines change consumer groups of streams. The server sends no
// invalidation for that, so only LevelFields can promise it.
var groupLines = []string{
	"XADD j:y 1-1 f v -> j:y", "XADD j:y 2-1 f v -> j:y", "XGROUP CREATE j:y g 0 -> j:y", "XGROUP CREATECONSUMER j:y g d -> j:y",
	"XREADGROUP GROUP g c COUNT 1 STREAMS j:y > -> j:y", "XCLAIM j:y g d 0 1-1 -> j:y", "XAUTOCLAIM j:y g c 0 0 -> j:y",
	"XACK j:y g 1-1 -> j:y", "XREADGROUP GROUP g d NOACK STREAMS j:y > -> j:y", "XGROUP SETID j:y g 0 -> j:y",
	"XGROUP DELCONSUMER j:y g d -> j:y", "XGROUP DESTROY j:y g -> j:y",
}

func suiteTake(t *testing.T, make func(Options) Tracker, level Level) {
	s := redistest.Start(t)
	w := watch(t, start(t, s, make), Scope{Root: "j"})
	s.Do("HSET", "j:h", "f1", "v1")
	s.Do("SET", "j:v", "1")
	m := settled(t, s, w)
	require.True(t, covers(m, "j:h", "f1"))
	require.True(t, whole(m, "j:v"))
	require.Len(t, m.Keys, 2)
	require.Equal(t, level == LevelFields, !m.Keys["j:h"].Whole)

	s.Do("HSET", "j:h", "f2", "v2")
	require.NoError(t, w.Barrier(patient(t), position(t, s)))
	keys, fields := w.Size()
	require.Equal(t, 1, keys)
	require.LessOrEqual(t, fields, 1)
	require.False(t, covers(m, "j:h", "f2") && level == LevelFields, "the marks are the caller's")
	m = w.Take()
	require.True(t, covers(m, "j:h", "f2"))
	require.Len(t, m.Keys, 1)
	require.Empty(t, settled(t, s, w).Keys)
}

func suiteScopes(t *testing.T, make func(Options) Tracker, _ Level) {
	s := redistest.Start(t)
	tr := start(t, s, make)
	roots := []string{"a", "a:b", "ab", "a*", "[x]", `a\b`, "a?", "a b", "", "é\x00\xff"}
	ws := map[string]Watch{}
	for _, r := range roots {
		ws[r] = watch(t, tr, Scope{Root: r})
	}
	for _, r := range roots {
		s.Do("HSET", r+":k", "f", r)
		s.Do("SET", r+":v", r)
		s.Do("SET", r, r) // not below the root
	}
	for _, r := range roots {
		m := settled(t, s, ws[r])
		require.False(t, m.All)
		want := 0
		for _, other := range roots {
			for _, key := range []string{other + ":k", other + ":v", other} {
				if strings.HasPrefix(key, r+":") {
					want++
					require.True(t, touched(m, key), "%q of %q", key, r)
				}
			}
		}
		require.Len(t, m.Keys, want, "%q", r)
	}
}

func suiteExtra(t *testing.T, make func(Options) Tracker, _ Level) {
	s := redistest.Start(t)
	tr := start(t, s, make)
	w := watch(t, tr, Scope{Root: "j", Extra: [][]byte{[]byte("out:1"), []byte("out:2")}})
	other := watch(t, tr, Scope{Root: "k"})
	s.Do("HSET", "out:1", "f", "v")
	s.Do("RENAME", "out:1", "out:2")
	s.Do("SET", "out:3", "v")
	m := settled(t, s, w)
	require.True(t, whole(m, "out:1") && whole(m, "out:2"))
	require.False(t, touched(m, "out:3"))

	// A name that is new is whole at once: it may have been written between
	// the caller's look at the index and this call.
	w.Extra([][]byte{[]byte("out:2"), []byte("out:3")})
	m = settled(t, s, w)
	require.True(t, whole(m, "out:3"))
	require.False(t, touched(m, "out:2"))
	for _, key := range []string{"out:1", "out:2", "out:3"} {
		s.Do("DEL", key)
		s.Do("ZADD", key, 1, "m")
	}
	m = settled(t, s, w)
	require.True(t, whole(m, "out:2") && whole(m, "out:3"))
	require.False(t, touched(m, "out:1"))
	require.Empty(t, settled(t, s, other).Keys)
}

func suiteExpiry(t *testing.T, make func(Options) Tracker, _ Level) {
	s := redistest.Start(t, redistest.Setting("maxmemory-policy allkeys-lru"))
	w := watch(t, start(t, s, make), Scope{Root: "j"})
	s.Do("DEBUG", "SET-ACTIVE-EXPIRE", "0")
	s.Do("HSET", "j:lazy", "f", "v")
	s.Do("PEXPIRE", "j:lazy", "3")
	require.False(t, settled(t, s, w).All)
	require.Eventually(t, func() bool { return s.Do("EXISTS", "j:lazy") == int64(0) }, patience, time.Millisecond)
	require.True(t, whole(settled(t, s, w), "j:lazy"))

	s.Do("DEBUG", "SET-ACTIVE-EXPIRE", "1")
	s.Do("SADD", "j:active", "m")
	s.Do("PEXPIRE", "j:active", "3")
	require.True(t, touched(settled(t, s, w), "j:active"))
	var m Marks
	require.Eventually(t, func() bool { m.Merge(settled(t, s, w)); return touched(m, "j:active") }, patience, time.Millisecond)
	require.True(t, whole(m, "j:active"))

	for i := range 200 {
		s.Do("SET", fmt.Sprintf("j:evict:%d", i), strings.Repeat("x", 1000))
	}
	require.False(t, settled(t, s, w).All)
	s.Do("CONFIG", "SET", "maxmemory", "1")
	require.Eventually(t, func() bool { return s.Do("DBSIZE") == int64(0) }, patience, time.Millisecond)
	m = settled(t, s, w)
	for i := range 200 {
		require.True(t, whole(m, fmt.Sprintf("j:evict:%d", i)), "%d", i)
	}
}

func suiteScripts(t *testing.T, make func(Options) Tracker, _ Level) {
	s := redistest.Start(t)
	w := watch(t, start(t, s, make), Scope{Root: "j"})
	s.Do("EVAL", `redis.call('hset', KEYS[1], 'f', 'v'); redis.call('set', 'j:hidden', '1')`, 1, "j:h")
	m := settled(t, s, w)
	require.False(t, m.All, m.Reason)
	require.True(t, covers(m, "j:h", "f"))
	require.True(t, whole(m, "j:hidden"), "a key that the script didn't declare")

	s.Do("FUNCTION", "LOAD", "#!lua name=l\nredis.register_function('fn', function(k) return redis.call('ZADD', k[1], 1, 'm') end)")
	s.Do("FCALL", "fn", 1, "j:z")
	m = settled(t, s, w)
	require.False(t, m.All, m.Reason)
	require.True(t, covers(m, "j:z", "m"))

	c := s.Client()
	pipe := c.TxPipeline()
	pipe.HSet(t.Context(), "j:h", "g", "v")
	pipe.RPush(t.Context(), "j:l", "1")
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	m = settled(t, s, w)
	require.True(t, covers(m, "j:h", "g") && whole(m, "j:l"))
}

func suiteMigrate(t *testing.T, make func(Options) Tracker, _ Level) {
	from, to := redistest.Start(t), redistest.Start(t)
	from.Do("HSET", "j:h", "f", "v")
	from.Do("HSET", "j:copied", "f", "v")
	from.Do("SET", "j:v", "1")
	source := watch(t, start(t, from, make), Scope{Root: "j"})
	target := watch(t, start(t, to, make), Scope{Root: "j"})
	host, port, ok := strings.Cut(to.Addr, ":")
	require.True(t, ok)
	from.Do("MIGRATE", host, port, "", 0, 10000, "KEYS", "j:h", "j:v")
	from.Do("MIGRATE", host, port, "j:copied", 0, 10000, "COPY")
	m := settled(t, from, source)
	require.True(t, whole(m, "j:h") && whole(m, "j:v"))
	m = settled(t, to, target)
	require.True(t, whole(m, "j:h") && whole(m, "j:v") && whole(m, "j:copied"))

	payload := to.Do("DUMP", "j:h")
	to.Do("RESTORE", "j:restored", 0, payload)
	require.True(t, whole(settled(t, to, target), "j:restored"))
}

func suiteEverything(t *testing.T, make func(Options) Tracker, _ Level) {
	s := redistest.Start(t)
	w := watch(t, start(t, s, make), Scope{Root: "j"})
	for _, command := range []string{"FLUSHALL", "FLUSHDB", "FLUSHALL ASYNC"} {
		s.Do("SET", "j:v", "1")
		require.True(t, touched(settled(t, s, w), "j:v"))
		s.Do(args(command)...)
		m := settled(t, s, w)
		require.True(t, m.All, command)
		require.NotEmpty(t, m.Reason)
		keys, _ := w.Size()
		require.Zero(t, keys)
		require.False(t, settled(t, s, w).All, "it begins anew")
	}
	s.Do("FLUSHALL")
	require.NoError(t, w.Barrier(patient(t), position(t, s)))
	keys, _ := w.Size()
	require.Equal(t, -1, keys)
}
