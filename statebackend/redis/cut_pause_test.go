package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// hookSink runs do once, when the n-th key begins: in the middle of the cut.
type hookSink struct {
	snapshot.Recorder
	n     int
	named string
	do    func()
}

func (s *hookSink) BeginKey(k snapshot.Key) error {
	if s.n--; s.n == 0 || s.named != "" && string(k.Name) == s.named {
		s.do()
	}
	return s.Recorder.BeginKey(k)
}

// setFor changes a variable of the package for one test.
func setFor[T any](t testing.TB, at *T, value T) {
	was := *at
	*at = value
	t.Cleanup(func() { *at = was })
}

// manyKeys writes a job of n small hashes.
func manyKeys(t testing.TB, c *goredis.Client, job statebackend.Job, n int) {
	t.Helper()
	pipe := c.Pipeline()
	for i := range n {
		key := fmt.Sprintf("%s:cg:g:topic:t:p:%d:state:o:m:s:%d", job.Root(), i%128, i)
		pipe.HSet(t.Context(), key, "field", "value "+strconv.Itoa(i*3))
		pipe.SAdd(t.Context(), job.Index(), key)
		if i%1000 == 999 || i == n-1 {
			_, err := pipe.Exec(t.Context())
			require.NoError(t, err)
		}
	}
}

// writers change two counters together, without a pause between writes, until
// they are stopped; their errors and the number of writes come back.
func writers(t testing.TB, s *redistest.Server, job statebackend.Job, n int) (stop func() (int64, error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	errs := make([]error, n)
	var done atomic.Int64
	var wg sync.WaitGroup
	for w := range n {
		c := patient(s)
		wg.Go(func() {
			for ctx.Err() == nil {
				_, err := c.TxPipelined(context.Background(), func(p goredis.Pipeliner) error {
					p.HIncrBy(context.Background(), job.Root()+":cg:one", "count", 1)
					p.HIncrBy(context.Background(), job.Root()+":cg:two", "count", 1)
					p.RPush(context.Background(), job.Root()+":cg:log:"+strconv.Itoa(w), "entry")
					return nil
				})
				if err != nil {
					errs[w] = err
					return
				}
				done.Add(1)
			}
		})
	}
	return func() (int64, error) {
		cancel()
		wg.Wait()
		return done.Load(), errors.Join(errs...)
	}
}

func TestWritersSeeNoErrorAndEachCutIsOneInstantI2(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	manyKeys(t, c, testJob, 5000)
	names := []any{testJob.Root() + ":cg:one", testJob.Root() + ":cg:two"}
	for w := range 6 {
		names = append(names, testJob.Root()+":cg:log:"+strconv.Itoa(w))
	}
	require.NoError(t, c.SAdd(t.Context(), testJob.Index(), names...).Err())
	stop := writers(t, s, testJob, 6)
	last := int64(0)
	for range 10 {
		require.Eventually(t, func() bool {
			n, err := c.HGet(t.Context(), testJob.Root()+":cg:one", "count").Int64()
			return err == nil && n > last
		}, 10*time.Second, time.Millisecond)
		var rec snapshot.Recorder
		_, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob}, &rec)
		require.NoError(t, err)
		one, two := rec.Find(snapshot.SectionKeyed, testJob.Root()+":cg:one"), rec.Find(snapshot.SectionKeyed, testJob.Root()+":cg:two")
		require.Equal(t, string(one.Elements[0].Value), string(two.Elements[0].Value))
		logged := uint64(0)
		for w := range 6 {
			logged += rec.Find(snapshot.SectionKeyed, testJob.Root()+":cg:log:"+strconv.Itoa(w)).Key.Count
		}
		n, err := strconv.ParseInt(string(one.Elements[0].Value), 10, 64)
		require.NoError(t, err)
		require.EqualValues(t, n, logged)
		require.Greater(t, n, last)
		last = n
	}
	done, err := stop()
	require.NoError(t, err, "a held writer gets no error")
	n, err := c.HGet(t.Context(), testJob.Root()+":cg:two", "count").Int64()
	require.NoError(t, err)
	require.Equal(t, done, n, "nothing is lost")
}

func endedUnderAWriter(t *testing.T, s *redistest.Server, b *Backend, c *goredis.Client) {
	stop := writers(t, s, testJob, 1)
	sink := &hookSink{n: 4000, do: func() {
		require.NoError(t, c.ClientUnpause(t.Context()).Err())
		before := c.HGet(t.Context(), testJob.Root()+":cg:one", "count").Val()
		require.Eventually(t, func() bool {
			return c.HGet(t.Context(), testJob.Root()+":cg:one", "count").Val() != before
		}, 10*time.Second, time.Millisecond)
	}}
	_, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob}, sink)
	require.ErrorIs(t, err, statebackend.ErrPauseExpired)
	require.ErrorContains(t, err, "writes were done")
	_, err = stop()
	require.NoError(t, err)
}

func TestAPauseThatSomebodyEndsFailsTheCut(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	manyKeys(t, c, testJob, 9000)
	job := statebackend.CutRequest{Job: testJob}
	t.Run("while a writer writes", func(t *testing.T) { endedUnderAWriter(t, s, b, c) })
	t.Run("while nobody writes", func(t *testing.T) {
		sink := &hookSink{n: 4000, do: func() { require.NoError(t, c.ClientUnpause(t.Context()).Err()) }}
		_, err := b.Cut(t.Context(), job, sink)
		require.ErrorIs(t, err, statebackend.ErrPauseExpired)
		require.ErrorContains(t, err, "CLIENT UNPAUSE")
	})
	for name, then := range map[string]func(key string) error{
		"is gone": func(key string) error { return c.Del(t.Context(), key).Err() },
		"is of another type": func(key string) error {
			return c.Eval(t.Context(), `redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], 'x') return 1`, []string{key}).Err()
		},
	} {
		t.Run("a key that "+name+" by it is not to blame", func(t *testing.T) { notToBlame(t, b, c, then) })
	}
	t.Run("without the canary a write still tells", func(t *testing.T) {
		blind := as(t, s, 0, "allkeys", "allcommands", "-pfcount")
		sink := &hookSink{n: 4000, do: func() {
			require.NoError(t, c.ClientUnpause(t.Context()).Err())
			require.NoError(t, c.Set(t.Context(), "foreign", "write", 0).Err())
		}}
		_, err := blind.Cut(t.Context(), job, sink)
		require.ErrorIs(t, err, statebackend.ErrPauseExpired)
	})
	t.Run("a save is no write", func(t *testing.T) {
		blind := as(t, s, 0, "allkeys", "allcommands", "-pfcount")
		setFor(t, &pauseLease, 300*time.Millisecond)
		sink := &hookSink{n: 4000, do: func() { require.NoError(t, c.Save(t.Context()).Err()) }}
		_, err := blind.Cut(t.Context(), job, sink)
		require.NoError(t, err, "a save is no write")
	})
	requireUnpaused(t, c)
}

// notToBlame ends the pause in the middle of the reading of a key, which then
// becomes another.
func notToBlame(t *testing.T, b *Backend, c *goredis.Client, then func(key string) error) {
	setFor(t, &wholeLimit, 2_000)
	key := testJob.Root() + ":cg:paged"
	require.NoError(t, c.Del(t.Context(), key).Err())
	for i := range 40 {
		words := []any{}
		for j := range 100 {
			words = append(words, fmt.Sprintf("field %d", i*100+j), j*3)
		}
		require.NoError(t, c.HSet(t.Context(), key, words...).Err())
	}
	require.NoError(t, c.SAdd(t.Context(), testJob.Index(), key).Err())
	sink := &hookSink{named: key, do: func() {
		require.NoError(t, c.ClientUnpause(t.Context()).Err())
		require.NoError(t, then(key))
	}}
	_, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob}, sink)
	require.ErrorIs(t, err, statebackend.ErrPauseExpired)
	require.ErrorContains(t, err, "writes were done")
	require.ErrorContains(t, err, fmt.Sprintf("%q", key))
}

func TestAMasterThatIsMadeAReplicaFailsTheCut(t *testing.T) {
	s, other := redistest.Start(t), redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	manyKeys(t, c, testJob, 9000)
	host, port, _ := strings.Cut(other.Addr, ":")
	sink := &hookSink{n: 4000, do: func() { require.NoError(t, c.Do(t.Context(), "REPLICAOF", host, port).Err()) }}
	_, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob}, sink)
	require.Error(t, err)
	require.True(t, errors.Is(err, statebackend.ErrReadOnly) || errors.Is(err, statebackend.ErrChanged) || errors.Is(err, statebackend.ErrUnreachable), "%v", err)
}

func TestAPauseThatIsTooShortFailsTheCut(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	manyKeys(t, c, testJob, 100_000)
	began := time.Now()
	_, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob, MaxPause: 30 * time.Millisecond}, &counter{})
	require.ErrorIs(t, err, statebackend.ErrPauseExpired)
	require.ErrorContains(t, err, "of 30ms that they may be")
	require.Less(t, time.Since(began), 5*time.Second)
	requireUnpaused(t, c)
}

// A cut may take longer than the lease that the server was given, and a dead
// one holds writers no longer than that.
func TestTheLeaseIsExtendedWhileTheCutLives(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	manyKeys(t, c, testJob, 5000)
	setFor(t, &pauseLease, 400*time.Millisecond)
	stop := writers(t, s, testJob, 2)
	sink := &slowSink{until: time.Now().Add(1500 * time.Millisecond)}
	cut, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob}, sink)
	require.NoError(t, err)
	require.Greater(t, cut.Stall, 2*pauseLease)
	_, err = stop()
	require.NoError(t, err)
	requireUnpaused(t, c)
}

// slowSink takes its time over each key, as long as there is some.
type slowSink struct {
	counter
	until time.Time
}

func (s *slowSink) BeginKey(k snapshot.Key) error {
	if time.Now().Before(s.until) {
		<-time.After(2 * time.Millisecond)
	}
	return s.counter.BeginKey(k)
}

func TestADeadCutFreesTheWritersByItself(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	manyKeys(t, c, testJob, 9000)
	setFor(t, &pauseLease, 300*time.Millisecond)
	setFor(t, &unpauseRetries, 0)
	dead := &fault{left: 1 << 30}
	b := openTest(t, s)
	b.setWrap(dead.wrap)
	sink := &hookSink{n: 4000, do: func() {
		dead.mu.Lock()
		dead.cut = true // from now on nothing of ours reaches the server
		dead.mu.Unlock()
	}}
	_, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob}, sink)
	require.Error(t, err)
	requireUnpaused(t, c)
}

func TestAServerThatDiesInMidCut(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s := redistest.Start(t)
	b, err := Open(t.Context(), Config{URL: s.URL(), Tracking: TrackOff})
	require.NoError(t, err)
	manyKeys(t, s.Client(), testJob, 20_000)
	began := time.Now()
	_, err = b.Cut(t.Context(), statebackend.CutRequest{Job: testJob}, &hookSink{n: 3000, do: s.Kill})
	require.ErrorIs(t, err, statebackend.ErrUnreachable)
	require.Less(t, time.Since(began), 10*time.Second)
	require.NoError(t, b.Close())
}

func TestACutThatIsCancelledFreesTheWritersAtOnce(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	manyKeys(t, c, testJob, 20_000)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the operator said so")
	_, err := b.Cut(ctx, statebackend.CutRequest{Job: testJob}, &hookSink{n: 3000, do: func() { cancel(why) }})
	require.ErrorIs(t, err, why)
	require.NotErrorIs(t, err, statebackend.ErrUnreachable)
	requireUnpaused(t, c)

	panicking := func() {
		defer func() { require.Equal(t, "bug", recover()) }()
		_, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob}, &hookSink{n: 3000, do: func() { panic("bug") }})
		require.NoError(t, err, "not reached")
	}
	panicking()
	requireUnpaused(t, c)
	_, err = b.Cut(t.Context(), statebackend.CutRequest{Job: testJob}, &counter{})
	require.NoError(t, err, "the gate is open again")
}

func TestCutsOfOneProcessTakeTurns(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	jobs := []statebackend.Job{{Prefix: "p", Name: "x"}, {Prefix: "p", Name: "y"}, {Prefix: "p", Name: "z"}}
	errs := make([]error, len(jobs))
	var wg sync.WaitGroup
	for i, job := range jobs {
		manyKeys(t, c, job, 5000)
		b := openTest(t, s)
		_, err := b.Adopt(t.Context(), job, "inc", statebackend.Assignment{MaxParallelism: 4, Parallelism: 2, Hash: "java"})
		require.NoError(t, err)
		wg.Go(func() {
			for n := range 5 {
				_, err := b.Cut(context.Background(), statebackend.CutRequest{Job: job, Incarnation: "inc"}, &counter{})
				errs[i] = errors.Join(errs[i], err, b.Note(context.Background(), job, "inc", statebackend.Notes{Attempt: snapshot.ID(n + 1)}))
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

func TestSomebodyElsesPauseIsNotEnded(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	manyKeys(t, c, testJob, 100)
	setFor(t, &canaryPatience, 50*time.Millisecond)
	require.NoError(t, c.Do(t.Context(), "CLIENT", "PAUSE", "60000", "WRITE").Err())
	_, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob}, &counter{})
	require.ErrorIs(t, err, statebackend.ErrGrade)
	require.ErrorContains(t, err, "somebody else pauses")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.True(t, isTimeout(b.client.Set(ctx, "still", "held", 0).Err()), "writers were freed")
	require.NoError(t, c.ClientUnpause(t.Context()).Err())
	_, err = b.Cut(t.Context(), statebackend.CutRequest{Job: testJob}, &counter{})
	require.NoError(t, err)
}

// TestACutThatIsCutAtEachCall: whichever call to the server is the last, the
// cut fails, nothing is changed, and the writers are free soon after.
func TestACutThatIsCutAtEachCall(t *testing.T) {
	setFor(t, &pauseLease, 50*time.Millisecond) // where the machine is busy a cut fails by it, which is allowed, and the next one is tried
	setFor(t, &unpauseRetries, 0)
	eachFault(t, cutsCutAtEachCall)
}

func cutsCutAtEachCall(t *testing.T, silent bool) {
	s := redistest.Start(t, redistest.Setting("hz 100"))
	c := s.Client()
	ctx := t.Context()
	manyKeys(t, c, testJob, 3)
	require.NoError(t, c.HSet(ctx, testJob.Record(), "incarnation", "inc", "epoch", "2").Err())
	require.NoError(t, c.XAdd(ctx, &goredis.XAddArgs{Stream: streamKey("rain", 0), Values: []string{"a", "b"}}).Err())
	require.NoError(t, c.XGroupCreate(ctx, streamKey("rain", 0), "g", "0").Err())
	require.NoError(t, c.XReadGroup(ctx, &goredis.XReadGroupArgs{Group: "g", Consumer: "one", Streams: []string{streamKey("rain", 0), ">"}}).Err())
	digest := allDigest(t, c)
	req := statebackend.CutRequest{Job: testJob, Incarnation: "inc", Sources: []statebackend.SourceRef{{Topic: "rain", Group: "g"}}}
	for k := 1; ; k++ {
		f := &fault{left: k, silent: silent}
		b := openTest(t, s)
		b.setWrap(f.wrap)
		var rec snapshot.Recorder
		_, err := b.Cut(ctx, req, &rec)
		require.Equal(t, digest, allDigest(t, c), "call %d", k)
		requireUnpaused(t, c)
		if err == nil && !f.isCut() {
			require.Len(t, rec.Keys, 4, "three keys and the pending entries")
			require.Greater(t, k, 50)
			return
		}
		require.Less(t, k, 1000)
		require.Error(t, err, "call %d of a cut was lost, and it succeeded", k)
		require.True(t, errors.Is(err, statebackend.ErrUnreachable) || errors.Is(err, statebackend.ErrPauseExpired), "call %d: %v", k, err)
	}
}
