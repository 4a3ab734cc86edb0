package restore

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/internal/redistest"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

// newRedisWorld is a world on a real Redis, with a source of two partitions.
func newRedisWorld(t *testing.T, settings ...redistest.Option) (*world, *redistest.Server) {
	t.Helper()
	srv := redistest.Start(t, settings...)
	b, err := redis.Open(context.Background(), redis.Config{URL: srv.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	c := &clock{}
	c.at.Store(time.Now().UnixMilli())
	job := testJob("fli:g*ts")
	job.Sources = []config.Source{{Topic: "in", Group: "stats"}}
	return assemble(openStore(t), b, c, job), srv
}

// digests are what the server says of each key but the coordinator's own two,
// which have the epoch in them.
func digests(t *testing.T, w *world, srv *redistest.Server) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, k := range srv.Do("KEYS", "*").([]any) {
		key := k.(string)
		if key == w.job.Key().Record() || key == w.job.Key().Assignment() {
			continue
		}
		d := srv.Do("DEBUG", "DIGEST-VALUE", key).([]any)
		all[key] = fmt.Sprint(d[0], " expires ", srv.Do("PEXPIRETIME", key), " ", srv.Do("TYPE", key))
	}
	return all
}

// seedRedis is seed with sources, other jobs and the names of cases 13 to 16.
func seedRedis(t *testing.T, w *world, srv *redistest.Server) {
	t.Helper()
	w.seed(t)
	j := w.job.Key()
	odd := j.KeyedKey(w.scope(1), "odd", "s:\xff\x00\"\n")
	w.put(t, odd, "java.lang.String|1", cmd(statebackend.OpHSet, "", "empty field"))
	w.put(t, odd, "", cmd(statebackend.OpHSet, "\xff", ""))
	w.put(t, odd, "", cmd(statebackend.OpHSet, "\xfe", "\x00"))
	scores := j.WindowDueKey(w.scope(6), "win")
	for i, s := range []string{"inf", "-inf", "0.1", "3.0000000000000004", "9007199254740993", "9.9999999999999694e-310"} {
		w.put(t, scores, "", cmd(statebackend.OpZAdd, s, fmt.Sprintf("m%d", i)))
	}
	w.expire(t, j.StateKey(w.scope(2), "short"), time.Now().Add(time.Hour))
	srv.Do("HSET", "streaming:mq:topic:in:meta", "partitionCount", "2")
	for p := range 2 {
		stream := fmt.Sprintf("stream:topic:in:p:%d", p)
		for i := range 20 {
			srv.Do("XADD", stream, fmt.Sprintf("%d-%d", 1000+i, p), "f", fmt.Sprint("v", i))
		}
		srv.Do("XGROUP", "CREATE", stream, "stats", "0")
		srv.Do("XREADGROUP", "GROUP", "stats", "c1", "COUNT", fmt.Sprint(5+p), "STREAMS", stream, ">")
		srv.Do("XACK", stream, "stats", fmt.Sprintf("1000-%d", p))
		srv.Do("HSET", fmt.Sprintf("streaming:mq:commit:in:p:%d", p), "stats", fmt.Sprint("\x01raw", p))
	}
	for _, other := range []string{"fli", "fli:g", "fli:g*ts2", "fli:gXts", "[x]", `a\b`} {
		root := w.job.Prefix + ":" + other
		srv.Do("SADD", root+":stateKeys", root+":k")
		srv.Do("SET", root+":k", "of "+other)
	}
}

// groups is where the consumer group stands in each partition. How many
// consumers it knows is left out: one that came later stays, with nothing
// pending.
var consumers = regexp.MustCompile(`consumers:\d+`)

func groups(srv *redistest.Server) string {
	var all []string
	for p := range 2 {
		stream := fmt.Sprintf("stream:topic:in:p:%d", p)
		info := consumers.ReplaceAllString(fmt.Sprint(srv.Do("XINFO", "GROUPS", stream)), "")
		all = append(all, info, fmt.Sprint(srv.Do("XPENDING", stream, "stats")),
			fmt.Sprint(srv.Do("HGET", fmt.Sprintf("streaming:mq:commit:in:p:%d", p), "stats")))
	}
	return strings.Join(all, "\n")
}

func TestI3OnARealRedis(t *testing.T) {
	ctx := context.Background()
	w, srv := newRedisWorld(t)
	seedRedis(t, w, srv)
	m := w.take(t)
	require.Len(t, m.Checkpoint.Sources, 2)
	before, at := digests(t, w, srv), groups(srv)

	w.dirty(t)
	for p := range 2 {
		stream := fmt.Sprintf("stream:topic:in:p:%d", p)
		srv.Do("XREADGROUP", "GROUP", "stats", "c2", "COUNT", "7", "STREAMS", stream, ">")
		srv.Do("XACK", stream, "stats", fmt.Sprintf("1003-%d", p))
		srv.Do("HSET", fmt.Sprintf("streaming:mq:commit:in:p:%d", p), "stats", "later")
	}
	require.NotEqual(t, at, groups(srv))
	plan, err := w.exec.Plan(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID, AcceptSchema: true}, nil)
	require.NoError(t, err)
	require.Equal(t, uint64(1), plan.Removed)
	require.EqualValues(t, m.Checkpoint.Sources, plan.Positions)

	res, err := w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID, AcceptSchema: true, Undo: 7}, nil)
	require.NoError(t, err)
	require.Equal(t, before, digests(t, w, srv), "every key, byte for byte, with its expiry; foreign ones too")
	require.Equal(t, at, groups(srv), "the sources are where they were")
	require.Equal(t, Result{Job: w.job.Name, Checkpoint: m.Checkpoint.ID, Keys: m.Checkpoint.Keys, Elements: m.Checkpoint.Elements,
		Removed: 1, Epoch: m.Checkpoint.Epoch + 1, Undo: 7}, res)
	w.noTraces(t)
	require.Empty(t, srv.Do("KEYS", "*:stage:*"))
}

func TestI3OnARealRedisAfterFlushall(t *testing.T) {
	ctx := context.Background()
	w, srv := newRedisWorld(t)
	w.seed(t)
	w.job.Sources = nil
	m := w.take(t)
	before := digests(t, w, srv)
	srv.Do("FLUSHALL")
	_, err := w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID, Recovery: true}, nil)
	require.NoError(t, err)
	require.Equal(t, before, digests(t, w, srv))
	_, c := w.cut(t)
	require.Equal(t, m.Incarnation, c.Record.Incarnation)
	w.noTraces(t)
}

func TestExpiredKeysOnARealRedis(t *testing.T) {
	ctx := context.Background()
	w, srv := newRedisWorld(t)
	w.seed(t)
	w.job.Sources = nil
	gone := w.job.Key().StateKey(w.scope(2), "short")
	w.expire(t, gone, time.Now().Add(time.Second))
	m := w.take(t)
	require.Eventually(t, func() bool { return srv.Do("EXISTS", gone) == int64(0) }, 5*time.Second, time.Millisecond)
	// The coordinator's clock is an hour behind: only the server's counts.
	w.now.advance(-time.Hour)
	plan, err := w.exec.Plan(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, nil)
	require.NoError(t, err)
	require.Equal(t, uint64(1), plan.Expired)
	res, err := w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, nil)
	require.NoError(t, err)
	require.Equal(t, uint64(1), res.Expired)
	require.Equal(t, m.Checkpoint.Keys-1, res.Keys)
	require.Equal(t, int64(0), srv.Do("EXISTS", gone))
}

// TestI3FailAnyCallOnARealRedis is TestI3FailAnyCall where an answer is lost
// and the store is gone from then on, on a real server.
func TestI3FailAnyCallOnARealRedis(t *testing.T) {
	ctx := context.Background()
	w, srv := newRedisWorld(t)
	w.job.Sources = nil
	outcomes := map[bool]int{}
	for k := 1; ; k++ {
		srv.Do("FLUSHALL")
		m, older, newer := small(t, w)
		in := &injector{k: k, dead: true, lost: true}
		exec := w.executor(&badStore{w.store, in}, &badJournal{w.store.Journal(), in}, &badBackend{w.backend, in})
		_, err := exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, nil)
		resumed, rerr := w.exec.Resume(ctx, w.job)
		require.NoError(t, rerr)
		flipped := err == nil || slices.ContainsFunc(resumed, func(r Resumed) bool { return r.Flipped })
		outcomes[flipped]++
		want := older
		if flipped {
			want = newer
		}
		requireState(t, want, w.live(t))
		w.noTraces(t)
		require.Empty(t, srv.Do("KEYS", "*:stage:*"), "call %d %v", k, in.failed)
		if len(in.failed) == 0 {
			require.NoError(t, err)
			break
		}
	}
	require.NotZero(t, outcomes[false])
	require.Greater(t, outcomes[true], 1, "a flip whose answer was lost")
}

func TestAServerThatIsGoneIsUnreachable(t *testing.T) {
	ctx := context.Background()
	w, srv := newRedisWorld(t)
	w.seed(t)
	w.job.Sources = nil
	m := w.take(t)
	srv.Kill()
	_, err := w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, nil)
	require.Equal(t, fault.Unreachable, fault.CodeOf(err))
	entry, err := GetEntry(ctx, w.store.Journal(), w.job.Name)
	require.NoError(t, err)
	require.Nil(t, entry, "nothing was begun")
}

func TestAReplicaAndAMissingRightAreRefused(t *testing.T) {
	ctx := context.Background()
	w, srv := newRedisWorld(t)
	w.seed(t)
	w.job.Sources = nil
	m := w.take(t)
	before := digests(t, w, srv)
	srv.Do("REPLICAOF", "127.0.0.1", strings.Split(redistest.FreeAddr(t), ":")[1])
	_, err := w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, nil)
	require.ErrorIs(t, err, statebackend.ErrReadOnly, "%v", err)
	require.Equal(t, fault.Refused, fault.CodeOf(err), "%v", err)
	require.Contains(t, fault.As(err).Hint, "primary")
	srv.Do("REPLICAOF", "NO", "ONE")
	srv.Do("ACL", "SETUSER", "default", "-zadd", "-restore")
	_, err = w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, nil)
	require.ErrorIs(t, err, statebackend.ErrPermission)
	require.Equal(t, fault.Permission, fault.CodeOf(err))
	require.ErrorContains(t, err, "nothing was changed")
	srv.Do("ACL", "SETUSER", "default", "+zadd", "+restore")
	require.Equal(t, before, digests(t, w, srv))
	w.noTraces(t)
}
