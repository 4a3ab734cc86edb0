package redis

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// cutOf makes a cut into memory.
func cutOf(t testing.TB, b *Backend, req statebackend.CutRequest) (statebackend.Cut, []snapshot.RecordedKey) {
	t.Helper()
	var rec snapshot.Recorder
	cut, err := b.Cut(t.Context(), req, &rec)
	require.NoError(t, err)
	return cut, rec.Keys
}

// recorded is what readJob finds through go-redis, as a Recorder would have it.
func recorded(t testing.TB, keys []staged) []snapshot.RecordedKey {
	t.Helper()
	var rec snapshot.Recorder
	require.NoError(t, feed(&rec, keys))
	return rec.Keys
}

// allDigest is the server's digest of everything it holds.
func allDigest(t testing.TB, c *goredis.Client) string {
	t.Helper()
	d, err := c.Do(t.Context(), "DEBUG", "DIGEST").Text()
	require.NoError(t, err)
	return d
}

func TestACutHasAllThatIsThereAndChangesNothingI9(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	fillJob(t, c, testJob, "seed")
	for _, name := range uglyNames {
		fillJob(t, c, statebackend.Job{Prefix: testJob.Prefix, Name: name}, "other")
	}
	want, digest, expiries := readJob(t, b, testJob), allDigest(t, c), digests(t, c)
	before := time.Now()
	cut, keys := cutOf(t, b, statebackend.CutRequest{Job: testJob, Incarnation: "inc-seed"})
	require.Empty(t, snapshot.DiffKeys(recorded(t, want), keys))
	require.Equal(t, digest, allDigest(t, c))
	requireSame(t, expiries, digests(t, c), "after the cut")

	require.Equal(t, snapshot.GradePaused, cut.Grade)
	require.Positive(t, cut.Stall)
	require.WithinRange(t, cut.At, before.Add(-time.Second), time.Now().Add(time.Second))
	require.Equal(t, "7.0.15", cut.Server.Version)
	require.Len(t, cut.Server.RunID, 40)
	require.Equal(t, "inc-seed", cut.Record.Incarnation)
	require.EqualValues(t, 18, cut.Record.Attempt)
	require.Equal(t, 2, cut.Assigned.Parallelism)
	require.Equal(t, []snapshot.OperatorState{{Operator: "op", Name: "offsetsseed", Mode: snapshot.ModeList}}, cut.Operators)
	require.Empty(t, cut.Positions)
	requireUnpaused(t, c)
}

// requireUnpaused fails when writers are still held.
func requireUnpaused(t testing.TB, c *goredis.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	require.NoError(t, c.Del(ctx, "a key that is not there").Err(), "writers are still held")
}

// bulkWrite writes n elements of one key, many with each command.
func bulkWrite(t testing.TB, c *goredis.Client, verb, key string, n int, element func(i int) []any) {
	t.Helper()
	pipe := c.Pipeline()
	for from := 0; from < n; from += 500 {
		args := []any{verb, key}
		for i := from; i < min(n, from+500); i++ {
			args = append(args, element(i)...)
		}
		pipe.Do(t.Context(), args...)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
}

// large fills a job with keys that are read page by page.
func large(t testing.TB, c *goredis.Client, job statebackend.Job) {
	t.Helper()
	ctx := t.Context()
	bulkWrite(t, c, "HSET", job.Root()+":cg:hash", 60_000, func(i int) []any {
		return []any{fmt.Sprintf("field-%d", i), fmt.Sprintf("value-%d", i*3)}
	})
	bulkWrite(t, c, "RPUSH", job.Root()+":cg:list", 60_000, func(i int) []any { return []any{fmt.Sprintf("item-%d", i%977)} })
	bulkWrite(t, c, "SADD", job.Root()+":cg:set", 25_000, func(i int) []any { return []any{fmt.Sprintf("member-%d", i)} })
	bulkWrite(t, c, "ZADD", job.Root()+":cg:zset", 25_000, func(i int) []any {
		return []any{float64(i) * 0.1, fmt.Sprintf("scored-%d", i)}
	})
	pipe := c.Pipeline()
	for i := range 6 {
		pipe.HSet(ctx, job.Root()+":cg:wide", fmt.Sprintf("wide-%d", i), blob(5<<20, i))
	}
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	require.NoError(t, c.Set(ctx, job.Root()+":cg:string", blob(24<<20, 77), 0).Err())
	require.NoError(t, c.SAdd(ctx, job.Root()+":cg:huge members", blob(3<<20, 1), blob(2<<20, 2), "small").Err())
	require.NoError(t, c.ZAdd(ctx, job.Root()+":cg:huge scored",
		goredis.Z{Score: 1.5, Member: blob(3<<20, 1)}, goredis.Z{Score: -2, Member: blob(2<<20, 2)}, goredis.Z{Score: 7, Member: "small"}).Err())
	for _, k := range []string{"hash", "list", "set", "zset", "wide", "string", "huge members", "huge scored"} {
		require.NoError(t, c.SAdd(ctx, job.Index(), job.Root()+":cg:"+k).Err())
	}
}

// blob is n bytes that don't repeat with any power of two.
func blob(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i/251 + seed*13)
	}
	return b
}

// partSink fails when a slice is larger than the format allows.
type partSink struct {
	snapshot.Recorder
	largest int
}

func (s *partSink) Element(e snapshot.Element) error {
	s.largest = max(s.largest, len(e.Value))
	return s.Recorder.Element(e)
}

func (s *partSink) Part(b []byte) error {
	s.largest = max(s.largest, len(b))
	return s.Recorder.Part(b)
}

func TestLargeKeysAreReadWholeInPages(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	large(t, c, testJob)
	digest := allDigest(t, c)
	var sink partSink
	cut, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob}, &sink)
	require.NoError(t, err)
	require.Empty(t, snapshot.DiffKeys(recorded(t, readJob(t, b, testJob)), sink.Keys))
	require.Equal(t, digest, allDigest(t, c))
	require.Equal(t, snapshot.MaxPart, sink.largest)
	require.Less(t, cut.Stall, DefaultMaxPause)
}

func TestACutOverTLSWithAPasswordInAnotherDatabase(t *testing.T) {
	s := redistest.Start(t, redistest.TLS(), redistest.Password("se:cr@t"))
	fillJob(t, s.Client(), testJob, "seed in database 0")
	u := strings.TrimSuffix(s.URL(), "/0") + "/5"
	u = strings.Replace(u, "se:cr@t", "wrong", 1)
	b, err := Open(t.Context(), Config{URL: u, Password: "se:cr@t", CAFile: s.CAFile(), Tracking: TrackOff})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	_, err = b.Cut(t.Context(), statebackend.CutRequest{Job: testJob}, &snapshot.Recorder{})
	require.ErrorIs(t, err, statebackend.ErrNoState)
	require.ErrorContains(t, err, "database 5 is empty; database 0 has")
	require.NotContains(t, err.Error(), "se:cr@t")
	fillJob(t, b.client, testJob, "five")
	cut, keys := cutOf(t, b, statebackend.CutRequest{Job: testJob, Incarnation: "inc-five"})
	require.Equal(t, "inc-five", cut.Record.Incarnation)
	require.Empty(t, snapshot.DiffKeys(recorded(t, readJob(t, b, testJob)), keys))
}
