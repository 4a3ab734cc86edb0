package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/statebackend"
)

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
