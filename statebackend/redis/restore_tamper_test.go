package redis

import (
	"context"
	"errors"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/statebackend"
)

func TestATamperedStagedKeyIsNamed(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	keys := readJob(t, b, testJob)
	before := digests(t, c)
	for _, plain := range []bool{false, true} {
		for name, change := range tampers(c) {
			if change.unseen && !plain {
				continue
			}
			req := testRequest("tamper", 3)
			req.Plain = plain
			s, err := b.Stage(ctx, req)
			require.NoError(t, err)
			require.NoError(t, feed(s, onlyKey(keys, name)))
			st := s.(*staging)
			require.NoError(t, errors.Join(st.sendMapped(), st.sendCoded(), st.pipe.finish())) // not compared yet
			require.NoError(t, change.do(t, stagedNameOf(t, c, name)))
			err = s.Prove(ctx)
			require.ErrorIs(t, err, statebackend.ErrMismatch, name)
			var ke *statebackend.KeyError
			require.ErrorAs(t, err, &ke)
			require.Equal(t, testJob.Root()+":cg:"+name, string(ke.Key))
			_, err = s.Flip(ctx)
			require.ErrorIs(t, err, statebackend.ErrMismatch, name)
			require.NoError(t, s.Abort(ctx))
			requireSame(t, before, digests(t, c), "tampered "+name)
		}
	}
}

// onlyKey is one key of the job, behind one that is read back as the first of
// a sample.
func onlyKey(all []staged, name string) []staged {
	var first, only []staged
	for _, k := range all {
		switch string(k.key.Name) {
		case testJob.Root() + ":cg:" + name:
			only = append(only, k)
		case testJob.Root() + ":cg:empty string":
			first = append(first, k)
		}
	}
	return append(first, only...)
}

type tampering struct {
	do func(t *testing.T, key string) error
	// unseen when the key went as a payload, whose content the server has
	// compared itself.
	unseen bool
}

func tampers(c *goredis.Client) map[string]tampering {
	ctx := context.Background()
	return map[string]tampering{
		"big":          {func(_ *testing.T, key string) error { return c.HSet(ctx, key, "field-9", "x").Err() }, true},
		"small":        {func(_ *testing.T, key string) error { return c.HDel(ctx, key, "\xff").Err() }, true},
		"string":       {func(_ *testing.T, key string) error { return c.Append(ctx, key, "x").Err() }, false},
		"long\xfflist": {func(_ *testing.T, key string) error { return c.LSet(ctx, key, 1500, "x").Err() }, true},
		"zset": {func(_ *testing.T, key string) error {
			return c.ZAdd(ctx, key, goredis.Z{Score: 6.5, Member: "z-2"}).Err()
		}, true},
		"scores": {func(_ *testing.T, key string) error {
			return c.ZAdd(ctx, key, goredis.Z{Score: 6.5, Member: "m2\x00"}).Err()
		}, true},
		"set:s:k": {func(_ *testing.T, key string) error { return c.SRem(ctx, key, "member-7").Err() }, false},
		"ints":    {func(_ *testing.T, key string) error { return c.Del(ctx, key).Err() }, true},
		"list": {func(t *testing.T, key string) error {
			require.NoError(t, c.Del(ctx, key).Err())
			return c.Set(ctx, key, "another type", 0).Err()
		}, true},
		"stream": {func(_ *testing.T, key string) error {
			return c.XAdd(ctx, &goredis.XAddArgs{Stream: key, Values: []string{"a", "b"}}).Err()
		}, false},
	}
}

// stagedNameOf finds the staged key of a state key by the mapping.
func stagedNameOf(t *testing.T, c *goredis.Client, name string) string {
	t.Helper()
	prefix := testJob.Staging("tamper")
	entries, err := c.LRange(context.Background(), prefix+stageMap, 0, -1).Result()
	require.NoError(t, err)
	for i, e := range entries {
		if e == testJob.Root()+":cg:"+name {
			return string(numbered(prefix+stageKeys, uint64(i)))
		}
	}
	t.Fatalf("no staged key for %q", name)
	return ""
}

// What each staged key is to become is compared too, and when it expires.
func TestATamperedMappingIsNamed(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	keys := readJob(t, b, testJob)
	before := digests(t, c)
	mapping, odd := testJob.Staging("map")+stageMap, testJob.Staging("map")+stageOdd
	for says, change := range map[string]func() error{
		"is to become":  func() error { return c.LSet(ctx, mapping, 3, testJob.Root()+":cg:another").Err() },
		"expiry":        func() error { return c.LSet(ctx, odd, 0, "7s1").Err() },
		"16 of 17 keys": func() error { return c.RPop(ctx, mapping).Err() },
		"wrong":         func() error { return c.Rename(ctx, testJob.Staging("map")+stageIndex, mapping).Err() },
	} {
		req := testRequest("map", 3)
		req.Plain = true
		s, err := b.Stage(ctx, req)
		require.NoError(t, err)
		require.NoError(t, feed(s, keys))
		st := s.(*staging)
		require.NoError(t, errors.Join(st.sendMapped(), st.sendNames(&st.index), st.pipe.finish()))
		require.NoError(t, change())
		err = s.Prove(ctx)
		require.ErrorContains(t, err, says)
		_, err = s.Flip(ctx)
		require.ErrorContains(t, err, says)
		require.NoError(t, s.Abort(ctx))
		requireSame(t, before, digests(t, c), says)
	}
}
