package drill

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyframe/coordinator/config"
	"keyframe/coordinator/cut"
	"keyframe/coordinator/restore"
	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a job with a checkpoint of its state on a real Redis.
type world struct {
	srv     *redistest.Server
	db      *bolt.DB
	backend *redis.Backend
	job     config.Job
	runner  *Runner
	id      snapshot.ID
}

func newWorld(t *testing.T, seed func(srv *redistest.Server, job statebackend.Job)) *world {
	w := &world{srv: redistest.Start(t), job: config.Job{Name: "fli:g*ts", Parallelism: 2,
		Sources: []config.Source{{Topic: "in", Group: "stats"}}}.WithDefaults()}
	var err error
	w.backend, err = redis.Open(t.Context(), redis.Config{URL: w.srv.URL()})
	require.NoError(t, err)
	w.db, err = bolt.Open(t.Context(), filepath.Join(t.TempDir(), "keyframe.db"), bolt.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(w.backend.Close(), w.db.Close())) })
	var ids atomic.Int64
	w.runner = &Runner{Store: w.db, Target: w.backend, Now: time.Now, NewID: func() string { return fmt.Sprint("d", ids.Add(1)) }}
	seed(w.srv, w.job.Key())
	ranges, err := w.job.Rule().Assign(w.job.Parallelism)
	require.NoError(t, err)
	rec, err := w.backend.Adopt(t.Context(), w.job.Key(), "0123456789abcdef", statebackend.Assignment{
		MaxParallelism: w.job.MaxParallelism, Parallelism: 2, Hash: w.job.Rule().Hash, Ranges: ranges})
	require.NoError(t, err)
	out, err := cut.Taker{Store: w.db, Backend: w.backend, Now: time.Now}.Take(t.Context(), cut.Request{
		Job: w.job, Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerManual, Incarnation: rec.Incarnation})
	require.NoError(t, err)
	w.id = out.Checkpoint.ID
	return w
}

// everything is state of every type, with names and values that are awkward.
func everything(srv *redistest.Server, job statebackend.Job) {
	at := func(i int) statebackend.Scope {
		return statebackend.Scope{Group: "g", Topic: "in", Partition: i, Operator: "op"}
	}
	put := func(key string, args ...any) {
		srv.Do(append([]any{args[0], key}, args[1:]...)...)
		srv.Do("SADD", job.Index(), key)
		srv.Do("HSET", job.Registry(), key, "java.lang.String|1")
	}
	big := []any{"HSET"}
	for i := range 1500 {
		big = append(big, "f"+strconv.Itoa(i), "v"+strconv.Itoa(i*7))
	}
	put(job.StateKey(at(1), "big"), big...)
	for i := range 300 {
		put(job.KeyedKey(at(i%128), "small", "s:k"+strconv.Itoa(i)), "HSET", "f", "value "+strconv.Itoa(i), "", "\xff\x00")
	}
	put(job.KeyedKey(at(2), "list", "s:\xff\n"), "RPUSH", "b", "a", "", "b")
	put(job.KeyedKey(at(3), "set", "s:s"), "SADD", "m1", "m2", "")
	put(job.WindowDueKey(at(4), "win"), "ZADD", "inf", "last", "-inf", "first", "0.1", "m")
	put(job.KeyedKey(at(5), "text", "s:t"), "SET", strings.Repeat("long ", 40_000))
	put(job.KeyedKey(at(6), "stream", "s:x"), "XADD", "5-1", "f", "v")
	put(job.KeyedKey(at(7), "lives", "s:long"), "SET", "soon gone", "PX", "3600000")
	srv.Do("SADD", job.Index(), job.KeyedKey(at(8), "none", "s:none"), "elsewhere:key")
	srv.Do("SET", "elsewhere:key", "of somebody else")
	srv.Do("HSET", "streaming:mq:topic:in:meta", "partitionCount", "1")
	srv.Do("XADD", "stream:topic:in:p:0", "1-1", "f", "v")
	srv.Do("XGROUP", "CREATE", "stream:topic:in:p:0", "stats", "0")
}

func (w *world) request() Request {
	return Request{Job: w.job, Checkpoint: w.id, Scratch: ScratchJob(w.job.Key(), "abc")}
}

func (w *world) digest() string { return w.srv.Do("DEBUG", "DIGEST").(string) }

func TestADrillRestoresComparesAndLeavesNothing(t *testing.T) {
	w := newWorld(t, everything)
	before := w.digest()
	var phases []string
	res, err := w.runner.Run(t.Context(), w.request(), func(phase string, _, _, _ uint64) {
		if len(phases) == 0 || phases[len(phases)-1] != phase {
			phases = append(phases, phase)
		}
	})
	require.NoError(t, err)
	require.True(t, res.Equal, "%+v", res.Differences)
	require.Empty(t, res.Differences)
	require.Equal(t, uint64(307+1), res.Keys, "state keys, and the registry")
	require.Equal(t, uint64(1500+2*300+4+3+3+1+1+1+307), res.Elements)
	require.Positive(t, res.RestoreMs+res.AgeMs)
	require.Equal(t, []string{restore.PhaseStage, restore.PhaseProve, restore.PhaseFlip, restore.PhaseClean, PhaseCompare, PhaseRemove}, phases)
	require.Equal(t, before, w.digest(), "the server is as it was: sources and other jobs too")
}

func TestADrillInAnotherServer(t *testing.T) {
	w := newWorld(t, everything)
	other := redistest.Start(t)
	target, err := redis.Open(t.Context(), redis.Config{URL: other.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, target.Close()) })
	w.runner.Target = target
	res, err := w.runner.Run(t.Context(), w.request(), nil)
	require.NoError(t, err)
	require.True(t, res.Equal, "%+v", res.Differences)
	require.Equal(t, target.Server(), res.Server)
	require.Equal(t, int64(0), other.Do("DBSIZE"))
}

// spoiler changes what was restored before it is read back.
type spoiler struct {
	*redis.Backend
	spoil func(root string)
	once  sync.Once
}

func (s *spoiler) ReadAll(ctx context.Context, job statebackend.Job, sink snapshot.Sink) (string, error) {
	s.once.Do(func() { s.spoil(job.Root()) })
	return s.Backend.ReadAll(ctx, job, sink)
}

// Whatever came back as something else is told by its name in the checkpoint.
func TestADrillFindsEveryDifference(t *testing.T) {
	w := newWorld(t, everything)
	at := func(i int) statebackend.Scope {
		return statebackend.Scope{Group: "g", Topic: "in", Partition: i, Operator: "op"}
	}
	j := w.job.Key()
	for name, c := range map[string]struct {
		key   string
		spoil func(do func(...any) any, key string)
	}{
		"a value":             {j.StateKey(at(1), "big"), func(do func(...any) any, k string) { do("HSET", k, "f77", "other") }},
		"a field too many":    {j.StateKey(at(1), "big"), func(do func(...any) any, k string) { do("HSET", k, "more", "v") }},
		"a field too few":     {j.KeyedKey(at(0), "small", "s:k0"), func(do func(...any) any, k string) { do("HDEL", k, "f") }},
		"the order of a list": {j.KeyedKey(at(2), "list", "s:\xff\n"), func(do func(...any) any, k string) { do("LSET", k, "0", "a"); do("LSET", k, "1", "b") }},
		"a score":             {j.WindowDueKey(at(4), "win"), func(do func(...any) any, k string) { do("ZADD", k, "0.2", "m") }},
		"a type":              {j.KeyedKey(at(3), "set", "s:s"), func(do func(...any) any, k string) { do("DEL", k); do("SET", k, "m1") }},
		"an expiry too many":  {j.KeyedKey(at(3), "set", "s:s"), func(do func(...any) any, k string) { do("EXPIRE", k, "1000") }},
		"an expiry too few":   {j.KeyedKey(at(7), "lives", "s:long"), func(do func(...any) any, k string) { do("PERSIST", k) }},
		"a key that is gone":  {j.KeyedKey(at(7), "lives", "s:long"), func(do func(...any) any, k string) { do("DEL", k) }},
		"a stream":            {j.KeyedKey(at(6), "stream", "s:x"), func(do func(...any) any, k string) { do("XADD", k, "6-1", "f", "v") }},
		"the registry":        {j.Registry(), func(do func(...any) any, k string) { do("HSET", k, "x", "y") }},
		"a key for a name without one": {j.KeyedKey(at(8), "none", "s:none"),
			func(do func(...any) any, k string) { do("SET", k, "there") }},
	} {
		t.Run(name, func(t *testing.T) {
			before := w.digest()
			r := *w.runner
			r.Target = &spoiler{Backend: w.backend, spoil: func(root string) {
				c.spoil(w.srv.Do, strings.Replace(c.key, j.Root()+":", root+":", 1))
			}}
			res, err := r.Run(t.Context(), w.request(), nil)
			require.NoError(t, err)
			require.False(t, res.Equal)
			require.Equal(t, uint64(1), res.Differing)
			require.Equal(t, c.key, res.Differences[0].Key)
			require.NotEqual(t, res.Differences[0].Want, res.Differences[0].Got)
			require.Equal(t, before, w.digest())
		})
	}
	t.Run("a name that the index lacks", func(t *testing.T) {
		r := *w.runner
		r.Target = &spoiler{Backend: w.backend, spoil: func(root string) {
			w.srv.Do("SREM", root+":stateKeys", strings.Replace(j.StateKey(at(1), "big"), j.Root()+":", root+":", 1))
		}}
		res, err := r.Run(t.Context(), w.request(), nil)
		require.NoError(t, err)
		require.Equal(t, j.StateKey(at(1), "big"), res.Differences[0].Key)
		require.Equal(t, "nothing", res.Differences[0].Got)
	})
}

// A key whose time comes during the drill is no difference.
func TestAKeyMayExpireDuringADrill(t *testing.T) {
	w := newWorld(t, everything)
	key := w.job.Key().KeyedKey(statebackend.Scope{Group: "g", Topic: "in", Partition: 7, Operator: "op"}, "lives", "s:long")
	v := verdict{now: time.UnixMilli(5000)}
	short := entry{section: snapshot.SectionKeyed, typ: snapshot.TypeString, expireAt: 5000, count: 1, digest: 7}
	gone := entry{section: snapshot.SectionKeyed, typ: snapshot.TypeMissing}
	require.True(t, v.equal(short, gone), key)
	short.expireAt = 5001
	require.False(t, v.equal(short, gone))
}

func TestWhateverEndsADrillItsKeysGo(t *testing.T) {
	w := newWorld(t, everything)
	before := w.digest()
	for _, phase := range []string{restore.PhaseStage, restore.PhaseProve, restore.PhaseFlip, PhaseCompare} {
		t.Run("stopped at "+phase, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			stopped := errors.New("stopped by the test")
			_, err := w.runner.Run(ctx, w.request(), func(at string, _, _, _ uint64) {
				if at == phase {
					cancel(stopped)
				}
			})
			if phase != restore.PhaseFlip { // it is not cut short, and then nothing is left to be stopped but the comparison
				require.Error(t, err)
			}
			require.Equal(t, before, w.digest())
		})
	}
	t.Run("of no such checkpoint", func(t *testing.T) {
		req := w.request()
		req.Checkpoint = 99
		_, err := w.runner.Run(t.Context(), req, nil)
		require.ErrorIs(t, err, snapshot.ErrNoCheckpoint)
		require.Equal(t, before, w.digest())
	})
	t.Run("by a user who may not remove", func(t *testing.T) {
		w.srv.Do("ACL", "SETUSER", "noscan", "on", ">secret-of-noscan", "~*", "+@all", "-scan")
		target, err := redis.Open(t.Context(), redis.Config{URL: strings.Replace(w.srv.URL(), "redis://", "redis://noscan@", 1), Password: "secret-of-noscan"})
		require.NoError(t, err)
		defer func() { require.NoError(t, target.Close()) }()
		r := *w.runner
		r.Target = target
		_, err = r.Run(t.Context(), w.request(), nil)
		require.ErrorIs(t, err, statebackend.ErrPermission)
		require.ErrorContains(t, err, "nothing was made")
		require.Equal(t, before, w.digest())
	})
	t.Run("killed", func(t *testing.T) {
		// What a process that died left behind: a job with staged and live keys.
		req := w.request()
		w.srv.Do("HSET", req.Scratch.Record(), "incarnation", "x")
		w.srv.Do("SADD", req.Scratch.Index(), "a")
		w.srv.Do("SET", req.Scratch.Root()+":restore:x:k0", "v")
		require.NoError(t, w.runner.Remove(t.Context(), req.Scratch))
		require.Equal(t, before, w.digest())
	})
}

func TestScratchNamesAreTheJobsOwn(t *testing.T) {
	job := statebackend.Job{Prefix: "streaming:runtime", Name: "flights"}
	s := ScratchJob(job, "0f")
	require.Equal(t, "streaming:runtime:keyframe-drill-0f:flights", s.Root())
	require.False(t, job.Owns([]byte(s.Root()+":state:x")))
	require.False(t, s.Owns([]byte(job.Root()+":state:x")))
}

func TestNotesAreAJournal(t *testing.T) {
	ctx, n := t.Context(), &notes{}
	_, ok, err := n.Get(ctx, "b", "k")
	require.NoError(t, err)
	require.False(t, ok)
	for _, k := range []string{"z", "a", "m"} {
		require.NoError(t, n.Put(ctx, "b", k, []byte(k)))
		require.NoError(t, n.Put(ctx, "other", k, []byte("no")))
	}
	var seen []string
	require.NoError(t, n.Each(ctx, "b", func(k string, v []byte) error {
		require.Equal(t, k, string(v))
		seen = append(seen, k)
		return n.Delete(ctx, "b", k)
	}))
	require.Equal(t, []string{"a", "m", "z"}, seen)
	stop := errors.New("stop")
	require.ErrorIs(t, n.Each(ctx, "other", func(string, []byte) error { return stop }), stop)
}
