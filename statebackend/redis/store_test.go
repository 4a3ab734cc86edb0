package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

func TestDoLooksAtEveryReply(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	replies, err := b.Do(ctx,
		statebackend.Command(statebackend.OpHSet, "h\x00\xff", "f\r\n", "v\xfe"),
		statebackend.Command(statebackend.OpHGet, "h\x00\xff", "none"),
		statebackend.Command(statebackend.OpHGet, "h\x00\xff", "f\r\n"),
		statebackend.Command(statebackend.OpSet, "s", ""),
		statebackend.Command(statebackend.OpGet, "s"),
		statebackend.Command(statebackend.OpType, "nothing"),
	)
	require.NoError(t, err)
	require.Equal(t, []statebackend.Reply{{Int: 1}, {Nil: true}, {Bytes: []byte("v\xfe")}, {}, {Bytes: []byte{}}, {Bytes: []byte("none")}}, replies)

	_, err = b.Do(ctx,
		statebackend.Command(statebackend.OpSAdd, "set", "m"),
		statebackend.Command(statebackend.OpHGet, "set", "f"),
		statebackend.Command(statebackend.OpSAdd, "set", "after"))
	require.ErrorIs(t, err, statebackend.ErrWrongType)
	var ke *statebackend.KeyError
	require.ErrorAs(t, err, &ke)
	require.Equal(t, "set", string(ke.Key))
	require.Equal(t, "HGET", ke.Op)

	// Refused while it is queued: none of it is done, and the cause is told.
	limited := limitedUser(t, srv, "-hset")
	_, err = limited.Do(ctx,
		statebackend.Command(statebackend.OpSAdd, "before", "m"),
		statebackend.Command(statebackend.OpHSet, "h2", "f", "v"))
	require.ErrorIs(t, err, statebackend.ErrPermission)
	require.ErrorContains(t, err, "hset")
	require.Zero(t, c.Exists(ctx, "before").Val())
	_, err = b.Do(ctx, statebackend.Cmd{Op: 99, Key: "k"})
	require.ErrorIs(t, err, statebackend.ErrUnsupported)
	replies, err = b.Do(ctx)
	require.NoError(t, err)
	require.Empty(t, replies)
}

// A command whose answer was lost is sent once (cases 39).
func TestALostAnswerIsNotSentAgain(t *testing.T) {
	srv := redistest.Start(t)
	c, ctx := srv.Client(), context.Background()
	for _, cmds := range [][]statebackend.Cmd{
		{statebackend.Command(statebackend.OpRPush, "l1", "item")},
		{statebackend.Command(statebackend.OpRPush, "l2", "item"), statebackend.Command(statebackend.OpRPush, "l2", "item")},
	} {
		b, err := Open(ctx, Config{URL: srv.URL(), Lazy: true})
		require.NoError(t, err)
		healthy := &fault{left: 1 << 30}
		b.setWrap(healthy.wrap)
		_, err = b.Do(ctx, statebackend.Command(statebackend.OpGet, "warm up the connection"))
		require.NoError(t, err)
		greeting := healthy.seen - 1
		require.NoError(t, b.Close())

		b, err = Open(ctx, Config{URL: srv.URL(), Lazy: true})
		require.NoError(t, err)
		wrapped := map[int]int{1: 1, 2: 4}[len(cmds)] // MULTI and EXEC around two
		b.setWrap((&fault{left: greeting + wrapped, silent: true}).wrap)
		_, err = b.Do(ctx, cmds...)
		require.ErrorIs(t, err, statebackend.ErrUnreachable)
		require.NoError(t, b.Close())
		require.Equal(t, int64(len(cmds)), c.LLen(ctx, cmds[0].Key).Val())
	}
}

func TestEachGivesEveryElementOnce(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	counts := map[string]int{"big": 3000, "long\xfflist": 2500, "set:s:k": 2500, "zset": 2500, "string": 1, "empty string": 1, "missing": 0}
	for name, n := range counts {
		k := readKey(t, b, testJob.Root()+":cg:"+name, snapshot.SectionKeyed)
		require.Len(t, k.elements, n, name)
		seen := map[string]bool{}
		for i, e := range k.elements {
			require.Equal(t, uint64(len(e.Value)), e.Size)
			if k.key.Type == snapshot.TypeList {
				require.Equal(t, fmt.Sprintf("item-%d-mine", i%1700), string(e.Value))
				continue
			}
			id := string(e.Field) + "\x00" + string(e.Value)
			require.False(t, seen[id], "%s: %q twice", name, id)
			seen[id] = true
		}
	}
	stop := errors.New("enough")
	calls := 0
	err := b.Each(ctx, testJob.Root()+":cg:big", snapshot.TypeHash, func(snapshot.Element) error {
		calls++
		return stop
	})
	require.Equal(t, stop, err)
	require.Equal(t, 1, calls)
	never := func(snapshot.Element) error { return errors.New("called") }
	for _, kt := range []snapshot.KeyType{snapshot.TypeString, snapshot.TypeHash, snapshot.TypeList, snapshot.TypeZSet} {
		require.ErrorIs(t, b.Each(ctx, testJob.Root()+":cg:ints", kt, never), statebackend.ErrWrongType)
		require.NoError(t, b.Each(ctx, "not there", kt, never))
	}
	require.ErrorIs(t, b.Each(ctx, "k", snapshot.TypeOpaque, never), statebackend.ErrUnsupported)
}

// A table that shrinks during a scan repeats elements (cases 1).
func TestEachSkipsWhatAScanRepeats(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	pipe := c.Pipeline()
	for i := range 40_000 {
		pipe.HSet(ctx, "h", fmt.Sprintf("f%d", i), strings.Repeat("v", i%70))
	}
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	seen := map[string]int{}
	require.NoError(t, b.Each(ctx, "h", snapshot.TypeHash, func(e snapshot.Element) error {
		seen[string(e.Field)]++
		if len(seen) == 20_000 {
			pipe := c.Pipeline()
			for i := 1000; i < 40_000; i++ {
				pipe.HDel(ctx, "h", fmt.Sprintf("f%d", i))
			}
			_, err := pipe.Exec(ctx)
			return err
		}
		return nil
	}))
	for i := range 1000 {
		require.Equal(t, 1, seen[fmt.Sprintf("f%d", i)])
	}
	for f, n := range seen {
		require.Equal(t, 1, n, f)
	}
}

func TestAnEvictedOrRenamedKeyIsNotAnEmptyOne(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	require.NoError(t, c.ZAdd(ctx, "z", goredis.Z{Score: 1.5, Member: "m"}).Err())
	replies, err := b.Do(ctx, statebackend.Command(statebackend.OpType, "z"), statebackend.Command(statebackend.OpDel, "z"), statebackend.Command(statebackend.OpType, "z"))
	require.NoError(t, err)
	require.Equal(t, "zset", string(replies[0].Bytes))
	require.Equal(t, "none", string(replies[2].Bytes))
}
