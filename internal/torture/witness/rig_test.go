package witness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

// rig is the product on a real server and a real store file: what makes the
// files that the witness reads.
type rig struct {
	t      *testing.T
	srv    *redistest.Server
	client *goredis.Client
	path   string
	c      *coordinator.Coordinator
	spec   config.Job
	job    statebackend.Job
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, srv: redistest.Start(t), path: filepath.Join(t.TempDir(), "keyframe.db")}
	r.client = r.srv.Client()
	r.spec = config.Job{Name: "witnessed", Parallelism: 2, MaxParallelism: 16}.WithDefaults()
	r.job = r.spec.Key()
	b, err := redis.Open(t.Context(), redis.Config{URL: r.srv.URL()})
	require.NoError(t, err)
	db, err := bolt.Open(t.Context(), r.path, bolt.Options{})
	require.NoError(t, err)
	r.c = coordinator.New(coordinator.Options{Store: db, Journal: db.Journal(), Backend: b})
	require.NoError(t, r.c.Start(t.Context()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, r.c.Stop(ctx))
		require.NoError(t, db.Close())
		require.NoError(t, b.Close())
	})
	return r
}

func (r *rig) apply() {
	r.t.Helper()
	_, err := r.c.Apply(r.t.Context(), r.spec)
	require.NoError(r.t, err)
}

// done waits for an operation, which must end well.
func (r *rig) done(op *coordinator.Operation, err error) coordinator.Status {
	r.t.Helper()
	require.NoError(r.t, err)
	s, err := op.Wait(r.t.Context())
	require.NoError(r.t, err)
	require.Equal(r.t, coordinator.OpDone, s.State, "%+v", s.Error)
	return s
}

func (r *rig) checkpoint() *snapshot.Checkpoint {
	r.t.Helper()
	return r.done(r.c.Checkpoint(r.t.Context(), r.spec.Name, coordinator.CheckpointRequest{})).Checkpoint
}

// look is what the witness sees of the server.
func (r *rig) look() Seen {
	r.t.Helper()
	s, foreign, err := Live(r.t.Context(), r.client, r.job.Root())
	require.NoError(r.t, err)
	return Seen{s, foreign}
}

// open is a copy of the store file, closed with the test.
func (r *rig) open() *Store {
	r.t.Helper()
	s, err := OpenStore(r.path, r.t.TempDir())
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, s.Close()) })
	return s
}

// stored is a checkpoint as the witness reads it.
func (r *rig) stored(id uint64) *State {
	r.t.Helper()
	s, err := r.open().State(r.spec.Name, id)
	require.NoError(r.t, err)
	return s
}

// name is a state key, whose name isn't UTF-8.
func (r *rig) name(kind string, n int) string {
	return r.job.StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: n % 16, Operator: kind}, fmt.Sprintf("s\xff%d", n))
}

func (r *rig) operator(name string, subtask int) string {
	return r.job.OperatorKey("g", "in", subtask, "src", name)
}

// pipe sends commands at once; all must succeed.
func (r *rig) pipe(commands [][]any) {
	r.t.Helper()
	p := r.client.Pipeline()
	for _, args := range commands {
		p.Do(r.t.Context(), args...)
	}
	_, err := p.Exec(r.t.Context())
	require.NoError(r.t, err)
}

// populate writes state of every type: names and fields of any bytes, empty
// fields and values, scores that are odd, keys that are read in pages.
func (r *rig) populate() {
	var all [][]any
	add := func(args ...any) {
		all = append(all, []any{"SADD", r.job.Index(), args[1]},
			[]any{"HSET", r.job.Registry(), args[1], fmt.Sprintf("java.lang.String|%d", len(all)%3)}, args)
	}
	for i := range 1500 {
		add("HSET", r.name("large", 0), fmt.Sprintf("s:%d\x00", i), fmt.Sprintf("value %d", i*i))
		add("ZADD", r.name("largezset", 1), fmt.Sprint(float64(i)/3), fmt.Sprintf("m\xfe%d", i))
		add("SADD", r.name("largeset", 2), fmt.Sprintf("member %d", i))
		add("RPUSH", r.name("largelist", 3), fmt.Sprintf("item %d", i%7))
	}
	add("ZADD", r.name("largezset", 1), "inf", "above", "-inf", "below", "-0", "minus zero", "0", "zero", "9.9999999999999694e-310", "tiny", "3.0000000000000004", "x")
	add("HSET", r.name("hash", 4), "", "of the empty field", "empty value", "", "\xff", "a", "\xfe", "b")
	add("SADD", r.name("set", 5), "", "1.0", "1", "\n")
	add("RPUSH", r.name("list", 6), "same", "", "same", "a\x00b")
	add("SET", r.name("string", 7), "")
	add("SET", r.name("string", 8), "text\x00\xff", "PXAT", 4_102_444_800_123)
	add("XADD", r.name("stream", 9), "5-1", "f", "v")
	all = append(all, []any{"XGROUP", "CREATE", r.name("stream", 9), "readers", "0"},
		[]any{"SADD", r.job.Index(), r.name("nothing", 10)}, []any{"SET", "elsewhere", "foreign"}, []any{"XADD", "a log", "7-1", "k", "v"})
	for name, mode := range map[string]string{"offsets": "list", "seen": "union", "rules": "broadcast"} {
		all = append(all, []any{"HSET", r.job.OperatorStates(), "src\x01" + name, `{"mode":"` + mode + `"}`})
		for p := range 2 {
			switch mode {
			case "broadcast":
				add("HSET", r.operator(name, p), "limit", "15")
			default:
				for i := range 7 {
					add("RPUSH", r.operator(name, p), fmt.Sprintf("%q", fmt.Sprintf("%s %d of %d", name, i%5, p)))
				}
			}
		}
	}
	r.pipe(all)
}

// stir changes the state at random, every type of it.
func (r *rig) stir(rng *rand.Rand, n int) {
	var all [][]any
	for range n {
		i := rng.IntN(16)
		member, value := fmt.Sprintf("s:%d\x00", rng.IntN(2000)), fmt.Sprintf("stirred to %d", rng.IntN(1e9))
		kind := []string{"hash", "set", "list", "zset", "string", "stream", "large"}[rng.IntN(7)]
		key := r.name("stirred"+kind, i)
		if kind == "large" {
			key = r.name("large", 0)
		}
		all = append(all, []any{"SADD", r.job.Index(), key})
		switch {
		case kind == "large":
			all = append(all, []any{"HSET", key, member, value}, []any{"HDEL", key, fmt.Sprintf("s:%d\x00", rng.IntN(2000))})
		case rng.IntN(12) == 0:
			all = append(all, []any{"DEL", key})
		case rng.IntN(12) == 0:
			all = append(all, []any{"SREM", r.job.Index(), key})
		case rng.IntN(12) == 0:
			all = append(all, []any{"PEXPIREAT", key, 4_102_444_800_000 + rng.IntN(1000)})
		case kind == "hash":
			all = append(all, []any{"HSET", key, member, value}, []any{"HDEL", key, fmt.Sprintf("s:%d\x00", rng.IntN(2000))})
		case kind == "set":
			all = append(all, []any{"SADD", key, member, value}, []any{"SPOP", key})
		case kind == "list":
			all = append(all, []any{"LPUSH", key, value})
		case kind == "zset":
			all = append(all, []any{"ZADD", key, []string{"-0", "inf", "-inf", "0.1"}[rng.IntN(4)], member})
		case kind == "string":
			all = append(all, []any{"SET", key, value})
		default:
			all = append(all, []any{"XADD", key, "*", "f", value})
		}
	}
	r.pipe(all)
}

// now is the server's time.
func (r *rig) now() time.Time {
	r.t.Helper()
	at, err := r.client.Time(r.t.Context()).Result()
	require.NoError(r.t, err)
	return at
}
