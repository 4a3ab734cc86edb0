package rescaler

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/internal/redistest"
	"keyframe/rescale"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

func newRedisWorld(t *testing.T) (*world, *redistest.Server) {
	t.Helper()
	srv := redistest.Start(t)
	b, err := redis.Open(context.Background(), redis.Config{URL: srv.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	at := &atomic.Int64{}
	at.Store(time.Now().UnixMilli())
	return assemble(openStore(t), b, at, testJob("flights", 2)), srv
}

// TestI4AllPairsOnARealRedis is TestI4AllPairs on a server.
func TestI4AllPairsOnARealRedis(t *testing.T) {
	first, srv := newRedisWorld(t)
	for from := 1; from <= 8; from++ {
		for to := 1; to <= 8; to++ {
			if from == to {
				continue
			}
			split := []rescale.Split{rescale.SplitEven, rescale.SplitEach}[(from+to)%2]
			t.Run(fmt.Sprintf("%d to %d %s", from, to, split), func(t *testing.T) {
				w := first.again(fmt.Sprintf("job-%d-%d", from, to), from)
				w.seed(t)
				res := rescaleAndCheck(t, w, to, split)
				require.Len(t, res.Ranges, to)
				require.Empty(t, srv.Do("KEYS", "*:stage:*"))
			})
		}
	}
}

func TestSourcesAndPositionsStayOnARealRedis(t *testing.T) {
	ctx := context.Background()
	w, srv := newRedisWorld(t)
	w.job.Sources = []config.Source{{Topic: "in", Group: "stats"}}
	w.seed(t)
	srv.Do("HSET", "streaming:mq:topic:in:meta", "partitionCount", "3")
	for p := range 3 {
		stream := fmt.Sprintf("stream:topic:in:p:%d", p)
		for i := range 9 {
			srv.Do("XADD", stream, fmt.Sprintf("%d-%d", 500+i, p), "f", fmt.Sprint("v", i))
		}
		srv.Do("XGROUP", "CREATE", stream, "stats", "0")
		srv.Do("XREADGROUP", "GROUP", "stats", "c1", "COUNT", fmt.Sprint(2+p), "STREAMS", stream, ">")
	}
	base := w.take(t)
	require.Len(t, base.Checkpoint.Sources, 3)
	_, err := w.exec.Run(ctx, Request{Job: w.job, To: 4, Base: base.Checkpoint.ID}, nil)
	require.Equal(t, fault.Refused, fault.CodeOf(err))
	require.ErrorContains(t, err, `source "in" has 3 partitions, which is below the new parallelism 4`)
	// Read on after the base: a rescale doesn't take the sources back.
	srv.Do("XREADGROUP", "GROUP", "stats", "c1", "COUNT", "1", "STREAMS", "stream:topic:in:p:1", ">")
	at := fmt.Sprint(srv.Do("XINFO", "GROUPS", "stream:topic:in:p:1"))
	res, err := w.exec.Run(ctx, Request{Job: w.job, To: 4, Base: base.Checkpoint.ID, AllowIdle: true}, nil)
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(res.Warnings), "1 subtasks will be idle")
	require.Equal(t, at, fmt.Sprint(srv.Do("XINFO", "GROUPS", "stream:topic:in:p:1")))
	_, m := w.content(t, res.Checkpoint)
	require.Equal(t, base.Checkpoint.Sources, m.Checkpoint.Sources, "the checkpoint's positions go with its keyed state")
}

func TestI4AWriteMeanwhileOnARealRedis(t *testing.T) {
	w, _ := newRedisWorld(t)
	w.seed(t)
	base := w.take(t)
	_, err := w.exec.Run(context.Background(), Request{Job: w.job, To: 3, Base: base.Checkpoint.ID},
		func(p string, _, _, _ uint64) {
			if p == PhaseFlip {
				w.put(t, w.opKey(1, "positions"), "", statebackend.OpRPush, "4712")
			}
		})
	require.ErrorIs(t, err, statebackend.ErrChanged)
	require.Equal(t, fault.Busy, fault.CodeOf(err))
	after, _ := w.live(t)
	require.Equal(t, []string{"4712"}, after.items[w.opKey(1, "positions")])
	require.Equal(t, []snapshot.ID{base.Checkpoint.ID}, w.completed(t))
	w.noTraces(t)
}
