package redis

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

func TestRestoreMakesEqualAndTouchesNothingElseI3(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	for _, n := range uglyNames {
		fillJob(t, c, statebackend.Job{Prefix: testJob.Prefix, Name: n}, "other-"+n)
	}
	require.NoError(t, c.Set(ctx, "foreign", "key", time.Hour).Err())
	want := digests(t, c)
	keys := readJob(t, b, testJob)

	disturb(t, c, testJob)
	res, err := restore(ctx, b, testRequest("r1", 3), keys)
	require.NoError(t, err)
	got := digests(t, c)
	_, wantRest := apart(want, testJob)
	_, gotRest := apart(got, testJob)
	requireSame(t, wantRest, gotRest, "after restore")
	noTraces(t, c, testJob)

	require.Equal(t, uint64(7), res.Epoch)
	require.Equal(t, uint64(2), res.Removed, "'later', and 'missing' which the checkpoint has as a name only")
	require.Equal(t, uint64(len(keys)-1-3), res.Keys, "all but the missing one and three of the meta section")
	record, err := c.HGetAll(ctx, testJob.Record()).Result()
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"incarnation": "new-incarnation", "epoch": "7", "attempt": "21", "cut": "21", "flipped": "r1",
		"checkpoint": "17", "checkpointAt": "2024-05-06T07:08:09Z",
	}, record)
	assigned, err := c.Get(ctx, testJob.Assignment()).Bytes()
	require.NoError(t, err)
	a, err := statebackend.DecodeAssignment(assigned)
	require.NoError(t, err)
	require.Equal(t, uint64(7), a.Epoch)
	require.Equal(t, 3, a.Parallelism)
}

func TestRestoreIntoAnEmptyServer(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	want := digests(t, c)
	keys := readJob(t, b, testJob)
	require.NoError(t, c.FlushAll(ctx).Err())

	req := testRequest("fresh", 0)
	req.NewEpoch = 9
	res, err := restore(ctx, b, req, keys)
	require.NoError(t, err)
	require.Zero(t, res.Removed)
	_, wantRest := apart(want, testJob)
	_, gotRest := apart(digests(t, c), testJob)
	requireSame(t, wantRest, gotRest, "after FLUSHALL")
	checkpoint, err := c.HGet(ctx, testJob.Record(), "checkpoint").Result()
	require.NoError(t, err)
	require.Equal(t, "12", checkpoint, "the checkpoint that was restored is the newest known")
}

func TestAnEmptyCheckpointEmptiesTheJob(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	other := statebackend.Job{Prefix: testJob.Prefix, Name: "ab"}
	fillJob(t, c, other, "other")
	req := testRequest("empty", 3)
	req.Assignment = nil
	_, err := restore(ctx, b, req, nil)
	require.NoError(t, err)
	left, err := c.Keys(ctx, `run?time:a:*`).Result()
	require.NoError(t, err)
	require.Equal(t, []string{testJob.Record()}, left)
	require.NotZero(t, c.SCard(ctx, other.Index()).Val())
}

func TestExpiredKeysStayNamesOnly(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	now := time.Now()
	key := func(name string, at int64, end snapshot.KeyEnd) staged {
		k := staged{
			key:      snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(testJob.Root() + ":cg:" + name), Type: snapshot.TypeList, ExpireAt: at},
			elements: []snapshot.Element{{Size: 2, Value: []byte("i1")}, {Size: 2, Value: []byte("i2")}},
		}
		k.sum()
		k.end.Expired = end.Expired
		return k
	}
	soon := now.UnixMilli() - 5
	req := testRequest("exp", 0)
	req.AsOf = now.Add(-time.Second)
	keys := []staged{
		key("asof", req.AsOf.UnixMilli(), snapshot.KeyEnd{}), // at AsOf: not staged
		key("while read", 0, snapshot.KeyEnd{Expired: true}), // partial: dropped
		key("before the flip", soon, snapshot.KeyEnd{}),      // staged, past at the flip
		key("later", now.Add(time.Hour).UnixMilli(), snapshot.KeyEnd{}),
		key("never", 0, snapshot.KeyEnd{}),
	}
	require.NoError(t, c.Set(ctx, string(keys[2].key.Name), "old", 0).Err())
	s, err := b.Stage(ctx, req)
	require.NoError(t, err)
	res, err := stageProveFlip(ctx, s, keys)
	require.NoError(t, err)
	require.Equal(t, uint64(2), s.Expired())
	require.Equal(t, uint64(3), res.Expired)
	require.Equal(t, uint64(2), res.Keys)
	require.Equal(t, int64(5), c.SCard(ctx, testJob.Index()).Val(), "the index is the checkpoint's, whole")
	for i, k := range keys {
		require.Equal(t, map[bool]int64{true: 1, false: 0}[i >= 3], c.Exists(ctx, string(k.key.Name)).Val(), "%s", k.key.Name)
	}
	at, err := c.Do(ctx, "PEXPIRETIME", string(keys[3].key.Name)).Int64()
	require.NoError(t, err)
	require.Equal(t, keys[3].key.ExpireAt, at)
	noTraces(t, c, testJob)
}

func TestScoresAreExact(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	name := testJob.Root() + ":cg:scores"
	want := readKey(t, b, name, snapshot.SectionKeyed)
	_, err := restore(ctx, b, testRequest("scores", 3), []staged{want})
	require.NoError(t, err)
	got := readKey(t, b, name, snapshot.SectionKeyed)
	require.Equal(t, len(want.elements), len(got.elements))
	for i := range want.elements {
		require.True(t, sameScore(want.elements[i].Score, got.elements[i].Score), "%v", want.elements[i])
	}
}

func TestFlippingTwiceAndAbortingAfterIsHarmless(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	keys := readJob(t, b, testJob)
	s, err := b.Stage(ctx, testRequest("twice", 3))
	require.NoError(t, err)
	first, err := stageProveFlip(ctx, s, keys)
	require.NoError(t, err)
	was := digests(t, c)
	again, err := s.Flip(ctx)
	require.NoError(t, err)
	require.Equal(t, first, again)

	// The script itself, as if its first answer had been lost.
	st := s.(*staging)
	v, err := st.runFlip(ctx)
	require.NoError(t, err)
	require.Equal(t, "already", part(v, 0))
	require.NoError(t, s.Abort(ctx))
	require.NoError(t, s.Abort(ctx))
	flipped, err := b.Resolve(ctx, testJob, "twice")
	require.NoError(t, err)
	require.True(t, flipped)
	requireSame(t, was, digests(t, c), "after the second flip")
	_, err = b.Stage(ctx, testRequest("twice", 7))
	require.ErrorContains(t, err, "an id of its own")
}

func TestOneRestoreAtATime(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	before := digests(t, c)
	_, err := b.Stage(ctx, testRequest("stale", 2))
	require.ErrorIs(t, err, statebackend.ErrFenced)
	require.ErrorContains(t, err, "it is 3")
	requireSame(t, before, digests(t, c), "a refused restore")

	one, err := b.Stage(ctx, testRequest("one", 3))
	require.NoError(t, err)
	_, err = b.Stage(ctx, testRequest("two", 3))
	require.ErrorIs(t, err, statebackend.ErrMarked)
	require.ErrorContains(t, err, `"id":"one"`)
	flipped, err := b.Resolve(ctx, testJob, "two")
	require.NoError(t, err)
	require.False(t, flipped)
	require.True(t, c.HExists(ctx, testJob.Record(), "restore").Val(), "somebody else's mark stays")

	keys := readJob(t, b, testJob)
	require.NoError(t, feed(one, keys))
	require.NoError(t, c.HSet(ctx, testJob.Record(), "epoch", "4").Err())
	_, err = one.Flip(ctx)
	require.ErrorIs(t, err, statebackend.ErrFenced)
	require.NoError(t, one.Abort(ctx))
	require.NoError(t, one.Abort(ctx))
	require.Error(t, one.BeginKey(keys[0].key))
	noTraces(t, c, testJob)
	require.NoError(t, c.HSet(ctx, testJob.Record(), "epoch", "3").Err())
	requireSame(t, before, digests(t, c), "after the abort")
}

func TestAFlipWhoseMarkIsBeingResolvedDoesNothing(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	keys := readJob(t, b, testJob)
	s, err := b.Stage(ctx, testRequest("late", 3))
	require.NoError(t, err)
	require.NoError(t, feed(s, keys))
	require.NoError(t, s.(*staging).finishStaging())
	conn, err := b.dial(ctx)
	require.NoError(t, err)
	r := newResolver(testJob, "late", statebackend.Lease{Job: testJob})
	r.conn = conn
	for range 2 {
		flipped, _, err := r.script("stop")
		require.NoError(t, err)
		require.False(t, flipped)
	}
	require.NoError(t, conn.Close())
	_, err = s.Flip(ctx)
	require.ErrorIs(t, err, statebackend.ErrMarked)
	require.NoError(t, s.Abort(ctx))
	noTraces(t, c, testJob)
}
