package redis

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// signedZeros fills sorted sets that hold -0 in every place, each of a kind
// that keeps it on the server: made large by a member that came first.
func signedZeros(t testing.TB, c *goredis.Client, job statebackend.Job) {
	t.Helper()
	ctx := context.Background()
	long := strings.Repeat("x", 65)
	sets := map[string][]any{
		"first":    {"1", long, "-0", "n"},
		"only":     {"-0", long},
		"last":     {"-5", long, "-0", "n"},
		"both":     {"1", long, "0", "plus", "-0", "minus", "0", "zero", "-0", "nought"},
		"streamed": {"1", long, "-0", "n", "-0", strings.Repeat("y", 2*stageWhole), "-0", "o"},
	}
	many := []any{"7", long, "-0", "a", "-0", "z"}
	for i := range 1500 {
		many = append(many, fmt.Sprint(i-700), fmt.Sprintf("m%d", i))
	}
	sets["many"] = many
	for name, args := range sets {
		key := job.Root() + ":cg:signed " + name
		require.NoError(t, c.Do(ctx, append([]any{"ZADD", key}, args...)...).Err())
		require.NoError(t, c.SAdd(ctx, job.Index(), key).Err())
	}
}

func restoresSigns(t *testing.T, settings ...redistest.Option) {
	t.Helper()
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	signedZeros(t, c, testJob)
	text, err := c.Do(ctx, "ZMSCORE", testJob.Root()+":cg:signed both", "plus", "minus").Slice()
	require.NoError(t, err)
	require.Equal(t, "[0 -0]", fmt.Sprint(text), "the fixture has what it is for")
	want := digests(t, c)
	keys := readJob(t, b, testJob)
	there := redistest.Start(t, settings...)
	_, err = restore(ctx, openTest(t, there), testRequest("signs", 0), keys)
	require.NoError(t, err)
	_, got := apart(digests(t, there.Client()), testJob)
	requireSame(t, want, got, "restored")
	noTraces(t, there.Client(), testJob)
}

func TestASortedSetKeepsTheSignOfZeroI3(t *testing.T) {
	t.Run("default", func(t *testing.T) { restoresSigns(t) })
	t.Run("high limits", func(t *testing.T) {
		restoresSigns(t, redistest.Setting("zset-max-listpack-value 100000"), redistest.Setting("zset-max-listpack-entries 100000"))
	})
}

func TestASignThatTheServerCannotKeepIsRefusedByName(t *testing.T) {
	was := fillerSizes
	fillerSizes = []int{10, 20}
	t.Cleanup(func() { fillerSizes = was })
	srv := redistest.Start(t, redistest.Setting("zset-max-listpack-value 10000"))
	b, ctx := openTest(t, srv), context.Background()
	k := staged{key: snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(testJob.Root() + ":cg:z"), Type: snapshot.TypeZSet}}
	for i, m := range []string{"a", "b", "c"} {
		k.elements = append(k.elements, snapshot.Element{Score: []float64{-1, math.Copysign(0, -1), 3}[i], Size: 1, Value: []byte(m)})
	}
	k.sum()
	_, err := restore(ctx, b, testRequest("cannot", 0), []staged{k})
	require.ErrorIs(t, err, statebackend.ErrUnsupported)
	require.ErrorContains(t, err, "zset-max-listpack-value")
	require.ErrorContains(t, err, `:cg:z"`)
	require.Empty(t, digests(t, srv.Client()))
	b = limitedUser(t, srv, "-zrem")
	fillerSizes = was
	_, err = restore(ctx, b, testRequest("denied", 0), []staged{k})
	require.ErrorIs(t, err, statebackend.ErrPermission)
	require.ErrorContains(t, err, "+zrem")

	// A key that expires while it is read leaves nothing, filler and all.
	b = openTest(t, srv)
	k.end.Expired = true
	res, err := restore(ctx, b, testRequest("expired", 0), []staged{k})
	require.NoError(t, err)
	require.Zero(t, res.Keys)
	noTraces(t, srv.Client(), testJob)
}

// fillNumbers writes bytes that a server may take for numbers, in state of each
// type, and lists the keys.
func fillNumbers(t *testing.T, c *goredis.Client) {
	t.Helper()
	ctx := t.Context()
	texts := []string{"7", "007", "+7", " 7", "7 ", "-7", "-07", "-0", "0", "00", "7.0", "7e0", "0x7", "1e3", "inf", "nan", "",
		"9223372036854775807", "9223372036854775808", "-9223372036854775808", "18446744073709551615", "4095", "4096", "8388607", "2147483648"}
	var names []any
	do := func(verb, name string, args ...any) {
		t.Helper()
		key := testJob.Root() + ":cg:" + name
		names = append(names, key)
		require.NoError(t, c.Do(ctx, append([]any{verb, key}, args...)...).Err())
	}
	var members, pairs, scored []any
	for i, s := range texts {
		members = append(members, s)
		pairs = append(pairs, s, texts[len(texts)-1-i])
		scored = append(scored, fmt.Sprint(i*3), s)
		do("SET", "string "+s, s)
		do("SADD", "one "+s, s)
	}
	do("SADD", "set", members...)
	do("SADD", "integers", "1", "-1", "32767", "32768", "2147483647", "9223372036854775807")
	do("RPUSH", "list", members...)
	do("HSET", "hash", pairs...)
	do("ZADD", "zset", scored...)
	do("ZADD", "scores", "9007199254740993", "a", "0.1", "b", "1e21", "c", "123456789012345678", "d", "5e-324", "e", "1.7976931348623157e308", "f", "-inf", "g")
	do("SETRANGE", "ranged", 5, "tail")
	do("APPEND", "appended", "12")
	do("APPEND", "appended", "34")
	do("SET", "counted", "41")
	do("INCR", "counted")
	do("SETBIT", "bits", 100, 1)
	do("HINCRBYFLOAT", "floats", "f", "0.1")
	do("HINCRBYFLOAT", "floats", "f", "0.2")
	do("INCRBYFLOAT", "float", "3.0e3")
	require.NoError(t, c.Do(ctx, append([]any{"SADD", testJob.Index()}, names...)...).Err())
}

// TestBytesThatLookLikeNumbersStayBytesI3: the server keeps small integers as
// such, and only those whose text is exactly theirs.
func TestBytesThatLookLikeNumbersStayBytesI3(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillNumbers(t, c)
	want := digests(t, c)
	keys := readJob(t, b, testJob)
	require.NoError(t, c.FlushAll(ctx).Err())
	_, err := restore(ctx, b, testRequest("bytes", 0), keys)
	require.NoError(t, err)
	_, got := apart(digests(t, c), testJob)
	requireSame(t, want, got, "restored")
}
