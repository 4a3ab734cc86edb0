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

// growing appends the i-th element to a key, for each type.
func growing(ctx context.Context) map[string]func(p goredis.Pipeliner, key string, i int) {
	return map[string]func(p goredis.Pipeliner, key string, i int){
		"hash": func(p goredis.Pipeliner, key string, i int) { p.HSet(ctx, key, fmt.Sprintf("f%d", i), "value") },
		"list": func(p goredis.Pipeliner, key string, i int) { p.RPush(ctx, key, fmt.Sprintf("item %d", i)) },
		"set":  func(p goredis.Pipeliner, key string, i int) { p.SAdd(ctx, key, fmt.Sprintf("member %d", i)) },
		"zset": func(p goredis.Pipeliner, key string, i int) {
			p.ZAdd(ctx, key, goredis.Z{Score: float64(i), Member: fmt.Sprintf("scored %d", i)})
		},
		"string": func(p goredis.Pipeliner, key string, i int) {
			if i%1000 == 0 {
				p.Append(ctx, key, strings.Repeat(fmt.Sprintf("%07d|", i), 64<<10))
			}
		},
	}
}

// A key that expires while its pages are read is whole up to then, marked, and
// the keys beside it are untouched by it (cases 3, 20).
func TestAKeyThatExpiresWhileItIsRead(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	ctx := t.Context()
	for name, fill := range growing(ctx) {
		t.Run(name, func(t *testing.T) {
			job := statebackend.Job{Prefix: "p", Name: name}
			key := job.Root() + ":cg:expiring"
			for from := 0; from < 60_000; from += 2000 {
				pipe := c.Pipeline()
				for i := range 2000 {
					fill(pipe, key, from+i)
				}
				_, err := pipe.Exec(ctx)
				require.NoError(t, err)
			}
			require.NoError(t, c.SAdd(ctx, job.Index(), key).Err())
			at := time.Now().Add(700 * time.Millisecond)
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

// Small keys that expire between the question what they are and the question
// what they hold become names without a key.
func TestKeysThatExpireBeforeTheyAreReadAreMissing(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	ctx := t.Context()
	at := time.Now().Add(700 * time.Millisecond)
	for i := range 100 {
		key := fmt.Sprintf("%s:cg:soon:%d", testJob.Root(), i)
		require.NoError(t, c.SAdd(ctx, testJob.Index(), key).Err())
		require.NoError(t, c.SetArgs(ctx, key, blob(200<<10, i), goredis.SetArgs{ExpireAt: time.Unix(at.Unix()+1, 0)}).Err())
	}
	kept := testJob.Root() + ":cg:kept"
	require.NoError(t, c.SAdd(ctx, testJob.Index(), kept).Err())
	require.NoError(t, c.HSet(ctx, kept, "stays", "here").Err())
	sink := &elementSink{do: func() {
		require.Eventually(t, func() bool { return c.Exists(ctx, testJob.Root()+":cg:soon:7").Val() == 0 }, 10*time.Second, time.Millisecond)
	}}
	_, err := b.Cut(ctx, statebackend.CutRequest{Job: testJob}, sink)
	require.NoError(t, err)
	missing, whole := 0, 0
	for _, k := range sink.Keys {
		switch {
		case k.Key.Type == snapshot.TypeMissing:
			missing++
			require.Zero(t, k.Key.ExpireAt)
		case string(k.Key.Name) == kept:
			require.Zero(t, k.Key.ExpireAt)
		default:
			whole++
			require.False(t, k.End.Expired)
			require.Len(t, k.Elements[0].Value, 200<<10)
		}
	}
	require.Positive(t, missing)
	require.Positive(t, whole)
	require.Equal(t, 100, missing+whole)
	require.NotNil(t, sink.Find(snapshot.SectionKeyed, kept))
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
