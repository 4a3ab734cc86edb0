package track

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
)

// keyUnannounced change only a stream's consumer groups or its last id. The
// server doesn't announce that, which NewKeys says.
var keyUnannounced = []string{
	"xack", "xautoclaim", "xclaim", "xgroup|create", "xgroup|createconsumer", "xgroup|delconsumer", "xgroup|destroy",
	"xgroup|setid", "xreadgroup", "xsetid",
}

// notForKeys are commands of the class write that change no single key, or
// that other tests run.
var notForKeys = []string{
	"flushall", "flushdb", "swapdb", "function|delete", "function|flush", "function|load", "function|restore",
	"migrate", "restore-asking", "pfdebug",
}

// keyWrites has a line, or a few, for each command of the class write. A line
// that changes nothing when its turn comes fails the test.
const keyWrites = `
SET j:s 1|APPEND j:s 2|INCR j:s|DECR j:s|INCRBY j:s 3|DECRBY j:s 5|INCRBYFLOAT j:s 0.5|GETSET j:s abc|SETRANGE j:s 1 x
SETBIT j:s 700 1|BITFIELD j:bf SET u8 0 255|BITOP NOT j:bo j:s|SETEX j:se 1000 x|PSETEX j:pse 100000 x|SETNX j:nx x|MSET j:m1 a j:m2 b
MSETNX j:m3 a j:m4 b|GETEX j:s EX 900|PERSIST j:s|EXPIRE j:s 800|PEXPIRE j:s 700000|EXPIREAT j:s 9999999999|PEXPIREAT j:s 9999999998000|GETDEL j:bo
HSET j:h a 1 b 2|HSETNX j:h c 3|HMSET j:h d 4|HINCRBY j:h a 5|HINCRBYFLOAT j:h b 0.25|HDEL j:h a
RPUSH j:l a b c d e f g h|LPUSH j:l z|RPUSHX j:l y|LPUSHX j:l x|LSET j:l 1 q|LINSERT j:l BEFORE q p|LREM j:l 1 p|LTRIM j:l 0 8|LPOP j:l|RPOP j:l
LMOVE j:l j:l2 LEFT RIGHT|BLMOVE j:l j:l2 LEFT RIGHT 1|RPOPLPUSH j:l j:l2|BRPOPLPUSH j:l j:l2 1|LMPOP 1 j:l2 LEFT|BLMPOP 1 1 j:l2 LEFT
BLPOP j:l2 1|RPUSH j:l2 1 2|BRPOP j:l2 1|RPUSH j:num 3 1 2|SORT j:num STORE j:sorted
SADD j:set a b c d|SREM j:set a|SADD j:set2 b x|SMOVE j:set2 j:set x|SPOP j:set|SINTERSTORE j:si j:set2 j:set2|SUNIONSTORE j:su j:set j:set2
SDIFFSTORE j:sd j:set j:set3|SINTERSTORE j:su j:set j:nothing
ZADD j:z 1 a 2 b 3 c 4 d 5 e 6 f 7 g 8 h|ZINCRBY j:z 3 a|ZREM j:z a|ZPOPMIN j:z|ZPOPMAX j:z|BZPOPMIN j:z 1|BZPOPMAX j:z 1|ZMPOP 1 j:z MIN
ZADD j:z2 0 a 0 b 0 c 0 d 5 e 6 f|BZMPOP 1 1 j:z2 MAX|ZRANGESTORE j:zr j:z2 0 -1|ZREMRANGEBYLEX j:z2 [a [a|ZREMRANGEBYRANK j:z2 0 0|ZREMRANGEBYSCORE j:z2 5 5
ZUNIONSTORE j:zu 1 j:z2|ZINTERSTORE j:zi 1 j:z2|ZDIFFSTORE j:zd 1 j:z2|GEOADD j:g 1 2 rome 3 4 oslo
GEORADIUS j:g 1 2 999 km STORE j:g1|GEORADIUSBYMEMBER j:g rome 999 km STOREDIST j:g2|GEOSEARCHSTORE j:g3 j:g FROMLONLAT 1 2 BYRADIUS 999 km
PFADD j:p a b c|PFADD j:p2 d|PFMERGE j:p3 j:p j:p2
XADD j:x 1-1 f v|XADD j:x 2-1 f v|XADD j:x 3-1 f v|XDEL j:x 1-1|XGROUP CREATE j:x g 0|XGROUP CREATECONSUMER j:x g c0|XREADGROUP GROUP g c1 COUNT 2 STREAMS j:x >
XCLAIM j:x g c2 0 2-1|XAUTOCLAIM j:x g c3 0 0|XACK j:x g 2-1|XGROUP DELCONSUMER j:x g c2|XGROUP SETID j:x g 1-1|XGROUP DESTROY j:x g|XSETID j:x 9-9
XTRIM j:x MAXLEN 1|XGROUP CREATE j:xnew g $ MKSTREAM
COPY j:h j:copy|COPY j:h j:copied DB 1|RENAME j:h j:h2|RENAMENX j:h2 j:h3|MOVE j:nx 1|RESTORE j:r 0 DUMP|DEL j:m1 j:m2|UNLINK j:m3 j:m4
EXPIRE j:set -1|PEXPIREAT j:se 1|SET j:z over|SUNIONSTORE j:l j:set2|RENAME j:g j:s`

// Whatever changes a key is announced, except what NewKeys says: each write
// command of the server, by its own list, with every key's bytes before and
// after.
func TestKeysEveryWriteCommandIsAnnounced(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	w := watch(t, start(t, s, NewKeys), Scope{Root: "j"})
	payload := keyDumped(t, c, "src")
	seen := keyNameSet(slices.Concat(notForKeys)...)
	before := keyDumpAll(t, c)
	for line := range strings.FieldsFuncSeq(keyWrites, func(r rune) bool { return r == '|' || r == '\n' }) {
		args := args(line)
		if args[0] == "RESTORE" {
			args[3] = payload
		}
		command := keyCommandName(args)
		seen[command] = struct{}{}
		s.Do(args...)
		now := keyDumpAll(t, c)
		changed := keyChanges(before, now)
		before = now
		if !strings.HasSuffix(line, "DB 1") {
			require.NotEmpty(t, changed, "%s changes nothing", line)
		}
		m := settled(t, s, w)
		require.False(t, m.All, line)
		silent := slices.Contains(keyUnannounced, command) && !strings.Contains(line, "MKSTREAM")
		for _, key := range changed {
			require.Equal(t, !silent, whole(m, key), "%s: %s", line, key)
		}
	}
	for _, name := range c.CommandList(t.Context(), &redis.FilterBy{ACLCat: "write"}).Val() {
		require.Contains(t, seen, name, "no line for a command of the server")
	}
}

// keyCommandName is a command as COMMAND LIST has it.
func keyCommandName(args []any) string {
	name := strings.ToLower(fmt.Sprint(args[0]))
	if name == "xgroup" {
		name += "|" + strings.ToLower(fmt.Sprint(args[1]))
	}
	return name
}

func keyDumped(t *testing.T, c *redis.Client, key string) string {
	require.NoError(t, c.HSet(t.Context(), key, "field", "value").Err())
	payload, err := c.Dump(t.Context(), key).Result()
	require.NoError(t, err)
	return payload
}

// keyDumpAll is each key's content and expiry.
func keyDumpAll(t *testing.T, c *redis.Client) map[string]string {
	all := map[string]string{}
	for _, key := range c.Keys(t.Context(), "j:*").Val() {
		payload, err := c.Dump(t.Context(), key).Result()
		require.NoError(t, err)
		all[key] = payload + fmt.Sprint(c.PExpireTime(t.Context(), key).Val())
	}
	return all
}

func keyChanges(before, now map[string]string) (keys []string) {
	for key, was := range before {
		if is, ok := now[key]; !ok || is != was {
			keys = append(keys, key)
		}
	}
	for key := range now {
		if _, ok := before[key]; !ok {
			keys = append(keys, key)
		}
	}
	return keys
}

// Keys that a client waits for are written by whoever brings the element.
func TestKeysBlockedClientsWritesAreMarked(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	w := watch(t, start(t, s, NewKeys), Scope{Root: "j"})
	done := inBackground(func() error { return c.BLMove(t.Context(), "j:from", "j:to", "LEFT", "LEFT", 0).Err() })
	require.Eventually(t, func() bool {
		return strings.Contains(fmt.Sprint(s.Do("INFO", "clients")), "blocked_clients:1")
	}, patience, time.Millisecond)
	s.Do("RPUSH", "other", "x")
	s.Do("RPUSH", "j:from", "element")
	require.NoError(t, <-done)
	m := settled(t, s, w)
	require.Equal(t, []string{"j:from", "j:to"}, keyNames(m))
}

func keyNames(m Marks) []string {
	all := make([]string, 0, len(m.Keys))
	for name := range m.Keys {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// SWAPDB brings other keys under the same names without a word. Each way to
// call it is found by the next Barrier, once.
func TestKeysSwapDB(t *testing.T) {
	s := redistest.Start(t)
	tr := start(t, s, NewKeys)
	w := watch(t, tr, Scope{Root: "j"})
	s.Do("SET", "j:a", "1")
	require.Equal(t, []string{"j:a"}, keyNames(settled(t, s, w)))
	for name, swap := range map[string]func(){
		"plain":  func() { s.Do("SWAPDB", 0, 1) },
		"script": func() { s.Do("EVAL", "return redis.call('swapdb', 0, 2)", 0) },
		"transaction": func() {
			pipe := s.Client().TxPipeline()
			pipe.Do(t.Context(), "SWAPDB", 0, 3)
			_, err := pipe.Exec(t.Context())
			require.NoError(t, err)
		},
		"hidden by RESETSTAT":       func() { s.Do("SWAPDB", 0, 1); s.Do("CONFIG", "RESETSTAT") },
		"hidden by RESETSTAT again": func() { s.Do("SWAPDB", 0, 1); s.Do("CONFIG", "RESETSTAT") },
	} {
		swap()
		m := settled(t, s, w)
		require.True(t, m.All, name)
		require.Regexp(t, "SWAPDB|RESETSTAT|statistics", m.Reason, name)
		s.Do("SET", "j:b", name)
		require.Equal(t, []string{"j:b"}, keyNames(settled(t, s, w)), name)
	}
	late := watch(t, tr, Scope{Root: "j"})
	require.False(t, settled(t, s, late).All, "what happened before the watch")
}

// An emptied database is everything, whichever it is; the marks begin anew
// after it.
func TestKeysFlushOfAnotherDatabase(t *testing.T) {
	s := redistest.Start(t)
	w := watch(t, start(t, s, NewKeys), Scope{Root: "j"})
	pipe := s.Client().TxPipeline()
	pipe.Do(t.Context(), "SELECT", 5)
	pipe.FlushDB(t.Context())
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	m := settled(t, s, w)
	require.True(t, m.All)
	require.Contains(t, m.Reason, "FLUSH")
	s.Do("EVAL", "redis.call('flushall'); redis.call('set', KEYS[1], '1')", 1, "j:a")
	require.True(t, settled(t, s, w).All)
	s.Do("DEBUG", "RELOAD")
	require.True(t, settled(t, s, w).All, "a reload is a database that was emptied")
	require.Empty(t, keyNames(settled(t, s, w)))
}
