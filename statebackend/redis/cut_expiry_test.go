package redis

import (
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// elementSink runs do once, at the first element.
type elementSink struct {
	snapshot.Recorder
	do func()
}

func (s *elementSink) Element(e snapshot.Element) error {
	if s.do != nil {
		s.do()
		s.do = nil
	}
	return s.Recorder.Element(e)
}

// pagedKeys write a key of each type that is read in many pages.
func pagedKeys(t *testing.T, c *goredis.Client) map[string]func(key string) {
	const n = 60_000
	of := func(verb string, element func(i int) []any) func(string) {
		return func(key string) { bulkWrite(t, c, verb, key, n, element) }
	}
	return map[string]func(key string){
		"hash":   of("HSET", func(i int) []any { return []any{fmt.Sprintf("f%d", i), "value"} }),
		"list":   of("RPUSH", func(i int) []any { return []any{fmt.Sprintf("item %d", i)} }),
		"set":    of("SADD", func(i int) []any { return []any{fmt.Sprintf("member %d", i)} }),
		"zset":   of("ZADD", func(i int) []any { return []any{i, fmt.Sprintf("scored %d", i)} }),
		"string": func(key string) { require.NoError(t, c.Set(t.Context(), key, blob(30<<20, 3), 0).Err()) },
	}
}

// A key that expires while its pages are read is whole up to then, marked, and
// the keys beside it are untouched by it (cases 3, 20).
func TestAKeyThatExpiresWhileItIsRead(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	ctx := t.Context()
	for name, fill := range pagedKeys(t, c) {
		t.Run(name, func(t *testing.T) {
			job := statebackend.Job{Prefix: "p", Name: name}
			key := job.Root() + ":cg:expiring"
			fill(key)
			require.NoError(t, c.SAdd(ctx, job.Index(), key).Err())
			at := time.Now().Add(1200 * time.Millisecond)
			require.NoError(t, c.PExpireAt(ctx, key, at).Err())
			sink := &elementSink{do: func() {
				require.Eventually(t, func() bool { return c.Exists(ctx, key).Val() == 0 }, 10*time.Second, time.Millisecond)
			}}
			_, err := b.Cut(ctx, statebackend.CutRequest{Job: job}, sink)
			require.NoError(t, err)
			require.Len(t, sink.Keys, 1)
			got := sink.Keys[0]
			require.True(t, got.End.Expired)
			require.Equal(t, at.UnixMilli(), got.Key.ExpireAt)
			require.NotEmpty(t, got.Elements)
			require.Equal(t, name, got.Key.Type.String())
		})
	}
}

// cutWhileExpiring cuts a job of which 100 keys expire after so long, once the
// first key has been read.
func cutWhileExpiring(t *testing.T, b *Backend, c *goredis.Client, after time.Duration) (missing, whole int) {
	t.Helper()
	ctx := t.Context()
	pipe := c.Pipeline()
	for i := range 100 {
		key := fmt.Sprintf("%s:cg:soon:%d", testJob.Root(), i)
		pipe.SAdd(ctx, testJob.Index(), key)
		pipe.Set(ctx, key, blob(200<<10, i), 0)
	}
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	at := time.Now().Add(after)
	for i := range 100 {
		pipe.PExpireAt(ctx, fmt.Sprintf("%s:cg:soon:%d", testJob.Root(), i), at)
	}
	_, err = pipe.Exec(ctx)
	require.NoError(t, err)
	sink := &elementSink{do: func() {
		require.Eventually(t, func() bool { return c.Exists(ctx, testJob.Root()+":cg:soon:7").Val() == 0 }, 20*time.Second, time.Millisecond)
	}}
	_, err = b.Cut(ctx, statebackend.CutRequest{Job: testJob, MaxPause: time.Minute}, sink)
	require.NoError(t, err)
	require.NotNil(t, sink.Find(snapshot.SectionKeyed, testJob.Root()+":cg:kept"))
	for _, k := range sink.Keys {
		switch {
		case k.Key.Type == snapshot.TypeMissing:
			missing++
			require.Zero(t, k.Key.ExpireAt)
		case string(k.Key.Name) == testJob.Root()+":cg:kept":
			require.Zero(t, k.Key.ExpireAt)
		default:
			whole++
			require.False(t, k.End.Expired)
			require.Len(t, k.Elements[0].Value, 200<<10)
		}
	}
	return missing, whole
}

// Small keys that expire between the question what they are and the question
// what they hold become names without a key.
func TestKeysThatExpireBeforeTheyAreReadAreMissing(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	kept := testJob.Root() + ":cg:kept"
	require.NoError(t, c.SAdd(t.Context(), testJob.Index(), kept).Err())
	require.NoError(t, c.HSet(t.Context(), kept, "stays", "here").Err())
	for after := 300 * time.Millisecond; ; after *= 2 {
		missing, whole := cutWhileExpiring(t, b, c, after)
		require.Equal(t, 100, missing+whole)
		require.Positive(t, missing)
		if whole > 0 {
			return
		}
		require.Less(t, after, 5*time.Second, "the machine is so busy that all had expired before the cut began")
	}
}

// Servers before 7.0 don't know PEXPIRETIME.
func TestExpiriesOfAnOlderServer(t *testing.T) {
	s := redistest.Start(t, redistest.Setting(`rename-command PEXPIRETIME ""`))
	b, c := openTest(t, s), s.Client()
	ctx := t.Context()
	at := time.Now().Add(time.Hour)
	for name, expire := range map[string]bool{"with": true, "without": false, "gone": true} {
		key := testJob.Root() + ":cg:" + name
		require.NoError(t, c.HSet(ctx, key, "f", name).Err())
		require.NoError(t, c.SAdd(ctx, testJob.Index(), key).Err())
		if expire {
			require.NoError(t, c.PExpireAt(ctx, key, at).Err())
		}
	}
	require.NoError(t, c.Del(ctx, testJob.Root()+":cg:gone").Err())
	var rec snapshot.Recorder
	_, err := b.Cut(ctx, statebackend.CutRequest{Job: testJob}, &rec)
	require.NoError(t, err)
	require.InDelta(t, at.UnixMilli(), rec.Find(snapshot.SectionKeyed, testJob.Root()+":cg:with").Key.ExpireAt, 5)
	require.Zero(t, rec.Find(snapshot.SectionKeyed, testJob.Root()+":cg:without").Key.ExpireAt)
	require.Equal(t, snapshot.TypeMissing, rec.Find(snapshot.SectionKeyed, testJob.Root()+":cg:gone").Key.Type)
}

// Every encoding that the server has for a type, read by pages and whole.
func TestPagesAndWholeRepliesGiveTheSame(t *testing.T) {
	s := redistest.Start(t, redistest.Setting("hash-max-listpack-entries 600"), redistest.Setting("hash-max-listpack-value 100"))
	b, c := openTest(t, s), s.Client()
	fillJob(t, c, testJob, "seed")
	ctx := t.Context()
	packed := testJob.Root() + ":cg:packed"
	for i := range 500 {
		require.NoError(t, c.HSet(ctx, packed, fmt.Sprintf("f%d", i), fmt.Sprintf("v%d", i*5)).Err())
	}
	require.NoError(t, c.SAdd(ctx, testJob.Index(), packed).Err())
	require.Equal(t, "listpack", c.ObjectEncoding(ctx, packed).Val())
	require.Equal(t, "intset", c.ObjectEncoding(ctx, testJob.Root()+":cg:ints").Val())
	_, whole := cutOf(t, b, statebackend.CutRequest{Job: testJob})
	setFor(t, &wholeLimit, 0)
	_, paged := cutOf(t, b, statebackend.CutRequest{Job: testJob})
	require.Empty(t, snapshot.DiffKeys(whole, paged))
	require.Empty(t, snapshot.DiffKeys(recorded(t, readJob(t, b, testJob)), paged))
}
