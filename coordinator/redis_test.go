package coordinator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/cut"
	"keyframe/coordinator/fault"
	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

// redisWorld is a coordinator on a real Redis and a real store file.
type redisWorld struct {
	*world
	srv     *redistest.Server
	backend *redis.Backend
	hiding  *hiding
}

func newRedisWorld(t *testing.T, tracking string, with ...func(*redisWorld, *Options)) *redisWorld {
	srv := redistest.Start(t, redistest.Setting("repl-diskless-sync-delay 0"))
	b, err := redis.Open(t.Context(), redis.Config{URL: srv.URL(), Tracking: tracking})
	require.NoError(t, err)
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "keyframe.db"), bolt.Options{})
	require.NoError(t, err)
	w := &redisWorld{world: &world{t: t, db: db}, srv: srv, backend: b, hiding: &hiding{Backend: b}}
	o := Options{Store: db, Journal: db.Journal(), Backend: w.hiding, Listener: w}
	for _, f := range with {
		f(w, &o)
	}
	w.c = New(o)
	require.NoError(t, w.c.Start(t.Context()))
	t.Cleanup(func() {
		w.close()
		require.NoError(t, b.Close())
	})
	return w
}

// hiding is a Redis store whose tracker misses one key.
type hiding struct {
	*redis.Backend
	key string
}

func (h *hiding) Cut(ctx context.Context, req statebackend.CutRequest, sink snapshot.Sink) (statebackend.Cut, error) {
	if h.key != "" && req.Since != "" && !req.Check {
		sink = &without{LayerSink: sink.(snapshot.LayerSink), key: h.key}
	}
	c, err := h.Backend.Cut(ctx, req, sink)
	delete(c.Marked.Keys, h.key)
	return c, err
}

// without keeps one key out of the layers.
type without struct {
	snapshot.LayerSink
	key string
	in  bool
}

func (w *without) BeginKey(k snapshot.Key) error {
	if w.in = string(k.Name) == w.key; w.in {
		return nil
	}
	return w.LayerSink.BeginKey(k)
}

func (w *without) Element(e snapshot.Element) error {
	if w.in {
		return nil
	}
	return w.LayerSink.Element(e)
}

func (w *without) Part(b []byte) error {
	if w.in {
		return nil
	}
	return w.LayerSink.Part(b)
}

func (w *without) EndKey(e snapshot.KeyEnd) error {
	if w.in {
		w.in = false
		return nil
	}
	return w.LayerSink.EndKey(e)
}

// now is the state, read while nobody writes.
func (w *redisWorld) now(job string) []snapshot.RecordedKey {
	var r snapshot.Recorder
	_, err := w.backend.Cut(w.t.Context(), statebackend.CutRequest{Job: testJob(job).Key(), Grade: snapshot.GradePaused}, &r)
	require.NoError(w.t, err)
	return restorable(r.Keys)
}

// stirRedis changes a job's state at random, of every type.
func (w *redisWorld) stirRedis(job string, rng *rand.Rand, n int) {
	root := testJob(job).Key()
	for range n {
		g := rng.IntN(10)
		name := func(kind string) string {
			return root.StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: g, Operator: kind}, fmt.Sprintf("s%d", rng.IntN(3)))
		}
		kind := []string{"hash", "set", "list", "zset", "string"}[rng.IntN(5)]
		key, value := name(kind), fmt.Sprintf("value %d of some length", rng.IntN(1e6))
		member := fmt.Sprintf("s:%d", rng.IntN(200))
		w.srv.Do("SADD", root.Index(), key)
		switch rng.IntN(10) {
		case 0:
			w.srv.Do("DEL", key)
		case 1:
			w.srv.Do("PEXPIREAT", key, 4_102_444_800_000+rng.IntN(1000))
		case 2:
			w.srv.Do("SREM", root.Index(), key)
		default:
			switch kind {
			case "hash":
				w.srv.Do("HSET", key, member, value)
				w.srv.Do("HDEL", key, fmt.Sprintf("s:%d", rng.IntN(200)))
			case "set":
				w.srv.Do("SADD", key, member, value)
				w.srv.Do("SREM", key, fmt.Sprintf("s:%d", rng.IntN(200)))
			case "list":
				w.srv.Do("RPUSH", key, value)
			case "zset":
				w.srv.Do("ZADD", key, rng.Float64(), member)
			default:
				w.srv.Do("SET", key, value)
			}
		}
	}
}

// seed writes what mostly stays: hashes of more than 128 fields.
func (w *redisWorld) seed(job string) {
	for g := range 10 {
		args := []any{"HSET", hashState(job, g)}
		for i := range 300 {
			args = append(args, fmt.Sprintf("s:key-%d", i), fmt.Sprintf("steady value %d of group %d", i*7919, g))
		}
		w.srv.Do(args...)
		w.srv.Do("SADD", testJob(job).Key().Index(), hashState(job, g))
	}
}

func (w *redisWorld) begin(job string) {
	_, err := w.c.Apply(w.t.Context(), testJob(job))
	require.NoError(w.t, err)
	require.Eventually(w.t, func() bool {
		s, err := w.c.Job(job)
		return err == nil && s.Health.State == HealthOK
	}, 20*time.Second, 5*time.Millisecond)
}

func TestAChainOfIncrementalsOnARealRedis(t *testing.T) {
	for _, tracking := range []string{redis.TrackFields, redis.TrackKeys} {
		t.Run(tracking, func(t *testing.T) {
			w := newRedisWorld(t, tracking)
			rng := rand.New(rand.NewPCG(11, 12))
			w.seed("flights")
			w.stirRedis("flights", rng, 300)
			w.begin("flights")
			want := map[snapshot.ID][]snapshot.RecordedKey{}
			incremental := 0
			for range 30 {
				w.stirRedis("flights", rng, 20)
				cp := w.checkpoint("flights")
				require.Equal(t, snapshot.GradePrecopy, cp.Grade, cp.GradeReason)
				require.Equal(t, tracking, cp.Tracking)
				if cp.Incremental {
					incremental++
				}
				want[cp.ID] = w.now("flights")
				for _, kept := range w.history("flights") {
					same(t, want[kept.ID], restorable(w.content("flights", kept.ID)))
				}
			}
			require.GreaterOrEqual(t, incremental, 25)
			require.True(t, w.done(w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{VerifyLive: true})).Checkpoint.SelfChecked)
			require.Eventually(t, func() bool { return len(w.seen(EventCheckpointMerged)) > 0 }, 10*time.Second, 5*time.Millisecond)
			for _, kept := range w.history("flights")[:3] {
				w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{Checkpoint: kept.ID.String(), NoUndo: true}))
				same(t, want[kept.ID], w.now("flights"))
			}
			w.stirRedis("flights", rng, 20)
			cp := w.checkpoint("flights")
			require.Contains(t, cp.FullReason, "replaced (restore)")
			same(t, w.now("flights"), restorable(w.content("flights", cp.ID)))
		})
	}
}

func TestASabotagedTrackerIsFoundOnARealRedis(t *testing.T) {
	w := newRedisWorld(t, redis.TrackAuto)
	rng := rand.New(rand.NewPCG(13, 14))
	w.seed("flights")
	w.begin("flights")
	w.checkpoint("flights")
	hidden := hashState("flights", 4)
	w.hiding.key = hidden
	for range 3 {
		w.srv.Do("HSET", hidden, "s:key-17", fmt.Sprint("unseen ", rng.Uint64()))
		w.stirRedis("flights", rng, 30)
		require.True(t, w.checkpoint("flights").Incremental)
	}
	s := w.failed(w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{VerifyLive: true}))
	require.Equal(t, fault.Problems, s.Error.Code)
	require.Contains(t, s.Error.Message, fmt.Sprintf("key %q since checkpoint 4 is wrong", hidden))
	require.Equal(t, snapshot.FailTracking, s.Checkpoint.Failure.Reason)
	var bad []snapshot.ID
	for _, cp := range w.history("flights") {
		if cp.Bad != "" {
			bad = append(bad, cp.ID)
		}
	}
	require.Equal(t, []snapshot.ID{2, 3, 4}, bad)
	w.hiding.key = ""
	cp := w.checkpoint("flights")
	require.Equal(t, snapshot.GradePaused, cp.Grade)
	require.False(t, cp.Incremental)
	same(t, w.now("flights"), restorable(w.content("flights", cp.ID)))
}

// TestStateLossAmongIncrementals: what was tracked before the loss is no base
// for what came after it.
func TestStateLossAmongIncrementalsOnARealRedis(t *testing.T) {
	w := newRedisWorld(t, redis.TrackAuto)
	rng := rand.New(rand.NewPCG(15, 16))
	w.seed("flights")
	w.begin("flights")
	w.checkpoint("flights")
	w.stirRedis("flights", rng, 30)
	cp := w.checkpoint("flights")
	require.True(t, cp.Incremental)
	before := w.now("flights")
	w.srv.Do("FLUSHALL")
	require.Eventually(t, func() bool { return len(w.seen(EventRecovered)) == 1 }, 20*time.Second, 5*time.Millisecond)
	same(t, before, w.now("flights"))
	w.stirRedis("flights", rng, 30)
	cp = w.checkpoint("flights")
	require.False(t, cp.Incremental)
	require.Contains(t, cp.FullReason, "(recovery)")
	same(t, w.now("flights"), restorable(w.content("flights", cp.ID)))
	require.True(t, slices.Contains(FullReasons(), string(cut.FullState)))
}
