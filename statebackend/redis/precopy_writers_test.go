package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// scribbler writes random commands of all kinds to a job's keys: what they
// are, whether they are there and whether the index lists them changes all
// the time.
type scribbler struct {
	job  statebackend.Job
	rng  *rand.Rand
	keys int
	next int
}

func (w *scribbler) key(kind string) string {
	return fmt.Sprintf("%s:cg:g:topic:t:p:%d:state:op:%s:s:%d", w.job.Root(), w.rng.IntN(8), kind, w.rng.IntN(w.keys))
}

func (w *scribbler) field() string { return "f" + strconv.Itoa(w.rng.IntN(200)) }

// command is one random command, in most cases with the name's registration.
func (w *scribbler) commands() [][]any {
	w.next++
	n := w.next
	v := fmt.Sprintf("value %d of %d", w.rng.IntN(1<<30), n)
	kind := []string{"hash", "list", "set", "zset", "string", "any"}[w.rng.IntN(6)]
	k, other := w.key(kind), w.key(kind)
	reg := []any{"SADD", w.job.Index(), k}
	with := func(args ...any) [][]any { return [][]any{reg, args} }
	if w.rng.IntN(12) == 0 {
		return w.rare(k, other)
	}
	if kind == "any" {
		kind = []string{"hash", "list", "set", "zset", "string"}[w.rng.IntN(5)]
	}
	switch kind {
	case "hash":
		if w.rng.IntN(3) == 0 {
			return with("HDEL", k, w.field(), w.field(), w.field())
		}
		return with("HSET", k, w.field(), v, w.field(), v)
	case "list":
		if w.rng.IntN(3) == 0 {
			return with("LPOP", k)
		}
		return with("RPUSH", k, v)
	case "set":
		if w.rng.IntN(3) == 0 {
			return with("SREM", k, w.field(), w.field(), w.field())
		}
		return with("SADD", k, w.field(), w.field())
	case "zset":
		if w.rng.IntN(3) == 0 {
			return with("ZREM", k, w.field(), w.field(), w.field())
		}
		return with("ZADD", k, strconv.Itoa(w.rng.IntN(99)), w.field(), "-0.5", w.field())
	}
	return with("SET", k, v)
}

func (w *scribbler) rare(k, other string) [][]any {
	switch w.rng.IntN(9) {
	case 0:
		return [][]any{{"DEL", k}}
	case 1:
		return [][]any{{"SADD", w.job.Index(), other}, {"RENAME", k, other}}
	case 2:
		return [][]any{{"PEXPIRE", k, strconv.Itoa(1 + w.rng.IntN(1500))}}
	case 3:
		return [][]any{{"PEXPIRE", k, "7200000"}}
	case 4:
		return [][]any{{"PERSIST", k}}
	case 5:
		return [][]any{{"SREM", w.job.Index(), k}}
	case 6:
		return [][]any{{"SREM", w.job.Index(), k}, {"DEL", k}}
	case 7:
		return [][]any{{"SADD", w.job.Index(), other}, {"COPY", k, other, "REPLACE"}}
	}
	return [][]any{{"HSET", w.job.Registry(), k, "java.lang.String|1"}, {"SADD", w.job.Index(), k}}
}

// patient is a client that waits longer than any pause lasts, also on a machine
// that has much else to do.
func patient(s *redistest.Server) *goredis.Client { return s.Client().WithTimeout(30 * time.Second) }

// scribbling writes until it is stopped, as fast as can be or with a pause
// between batches: with each few random commands two counters in one
// transaction.
func scribbling(t testing.TB, s *redistest.Server, job statebackend.Job, writers, keys int, seed uint64, pause time.Duration) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for i := range writers {
		c := patient(s)
		w := &scribbler{job: job, rng: rand.New(rand.NewPCG(seed, uint64(i))), keys: keys}
		wg.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				errs[i] = scribble(c, w)
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
		require.NoError(t, errors.Join(errs...), "a writer was disturbed")
	}
}

// scribble sends a batch. Commands that meet another type, or no key, are
// refused: that is part of it.
func scribble(c *goredis.Client, w *scribbler) error {
	ctx := context.Background()
	pipe := c.Pipeline()
	for range 10 {
		for _, cmd := range w.commands() {
			pipe.Do(ctx, cmd...)
		}
	}
	_, _ = pipe.Exec(ctx) // refusals of single commands
	_, err := c.TxPipelined(ctx, func(p goredis.Pipeliner) error {
		one, two := counterNames(w.job)
		p.SAdd(ctx, w.job.Index(), one, two)
		p.HIncrBy(ctx, one, "count", 1)
		p.HIncrBy(ctx, two, "count", 1)
		return nil
	})
	return err
}

func counterNames(job statebackend.Job) (one, two string) {
	return job.Root() + ":cg:one", job.Root() + ":cg:two"
}

func requireCounters(t testing.TB, job statebackend.Job, keys []snapshot.RecordedKey) {
	t.Helper()
	one, two := counterNames(job)
	got := map[string]string{}
	for _, k := range keys {
		if name := string(k.Key.Name); name == one || name == two {
			require.Len(t, k.Elements, 1)
			got[name] = string(k.Elements[0].Value)
		}
	}
	require.Len(t, got, 2)
	require.Equal(t, got[one], got[two], "counters that are always equal")
}

// TestLayersUnderWritersEqualACopyI2: whatever is written, each checkpoint
// equals what a second connection reads in the same pause.
func TestLayersUnderWritersEqualACopyI2(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		s := redistest.Start(t, redistest.Setting("hz 50"))
		b, c := tracked(t, s, mode), s.Client()
		fillJob(t, c, testJob, "seed")
		manyKeys(t, c, testJob, 400)
		w := &scribbler{job: testJob, rng: rand.New(rand.NewPCG(seed, 9)), keys: 40}
		require.NoError(t, scribble(c, w))
		line := &series{b: b}
		// So fast that most of them are full, and so that most are incremental.
		cutWhileWriting(t, line, mode, 9, scribbling(t, s, testJob, 2, 40, seed, time.Millisecond))
		n := cutWhileWriting(t, line, mode, 12, scribbling(t, s, testJob, 3, 40, seed+1, 100*time.Millisecond))
		require.Greater(t, n, 6)
	})
}

// cutWhileWriting makes cuts of a line, and tells how many were incremental.
func cutWhileWriting(t *testing.T, line *series, mode string, cuts int, stop func()) (increments int) {
	t.Helper()
	defer stop()
	p := watchPauses(t, line.b, testJob)
	for i := range cuts {
		req := statebackend.CutRequest{Job: testJob, MaxStall: time.Second}
		if i%8 == 7 {
			req.Grade = snapshot.GradePaused
		}
		cut, keys := line.take(t, req)
		require.Equal(t, i+1, p.n)
		requireCounters(t, testJob, keys)
		requireCopy(t, p, cut, keys)
		require.Equal(t, mode, cut.Tracking)
		if cut.Incremental {
			increments++
		} else {
			require.True(t, i == 0 || cut.FullReason != "", i)
		}
	}
	return increments
}
