package redis

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// generated feeds keys that never exist in memory as a whole.
type generated struct {
	keys     int
	elements int
	size     int // bytes of a value, in parts of 64 KiB
	kind     snapshot.KeyType
}

func (g generated) feed(sink snapshot.Sink) error {
	part := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	for k := range g.keys {
		key := snapshot.Key{Section: snapshot.SectionKeyed, Name: fmt.Appendf(nil, "%s:cg:gen-%d", testJob.Root(), k), Type: g.kind}
		if err := sink.BeginKey(key); err != nil {
			return err
		}
		var d snapshot.Digester
		d.Reset(g.kind)
		for i := range g.elements {
			e := snapshot.Element{Size: uint64(g.size), Value: part[:min(g.size, len(part))]}
			switch g.kind {
			case snapshot.TypeHash:
				e.Field = fmt.Appendf(nil, "field-%d", i)
			case snapshot.TypeSet, snapshot.TypeZSet, snapshot.TypeList:
				e.Score = map[bool]float64{true: float64(i) / 3}[g.kind == snapshot.TypeZSet]
				e.Value = append(fmt.Appendf(nil, "%12d", i), e.Value...)
				e.Size = uint64(g.size + 12)
			}
			if err := feedElement(sink, &d, e, part); err != nil {
				return err
			}
		}
		if err := sink.EndKey(snapshot.KeyEnd{Count: d.Count(), Digest: d.Sum()}); err != nil {
			return err
		}
	}
	return nil
}

func feedElement(sink snapshot.Sink, d *snapshot.Digester, e snapshot.Element, part []byte) error {
	d.Element(e)
	if err := sink.Element(e); err != nil {
		return err
	}
	for left := e.Size - uint64(len(e.Value)); left > 0; {
		p := part[:min(left, uint64(len(part)))]
		d.Part(p)
		if err := sink.Part(p); err != nil {
			return err
		}
		left -= uint64(len(p))
	}
	return nil
}

// restoreGenerated restores and gives the time of the flip.
func restoreGenerated(t *testing.T, b *Backend, req statebackend.RestoreRequest, g generated) time.Duration {
	t.Helper()
	ctx := context.Background()
	s, err := b.Stage(ctx, req)
	require.NoError(t, err)
	require.NoError(t, g.feed(s))
	require.NoError(t, s.Prove(ctx))
	began := time.Now()
	res, err := s.Flip(ctx)
	require.NoError(t, err)
	took := time.Since(began)
	require.Equal(t, uint64(g.keys), res.Keys)
	return took
}

func TestLargeKeysAndManyKeys(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	for i, g := range []generated{
		{keys: 1, elements: 300_000, size: 10, kind: snapshot.TypeHash},
		{keys: 1, elements: 120_000, size: 3, kind: snapshot.TypeList},
		{keys: 1, elements: 120_000, size: 3, kind: snapshot.TypeZSet},
		{keys: 1, elements: 120_000, size: 3, kind: snapshot.TypeSet},
		{keys: 20_000, elements: 5, size: 20, kind: snapshot.TypeHash},
		{keys: 1, elements: 2, size: 8 << 20, kind: snapshot.TypeZSet},
	} {
		req := testRequest("large"+strconv.Itoa(i), 0)
		require.NoError(t, c.FlushAll(ctx).Err())
		took := restoreGenerated(t, b, req, g)
		t.Logf("%d keys of %d %s elements: flipped in %v", g.keys, g.elements, g.kind, took)
		require.Equal(t, int64(g.keys), c.SCard(ctx, testJob.Index()).Val())
		noMarkLeft(t, b)
	}
}

func noMarkLeft(t *testing.T, b *Backend) {
	t.Helper()
	left, err := b.client.Keys(context.Background(), globEscape(testJob.Root())+":coordinator:stage:*").Result()
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestAHugeValueDoesNotSitInMemory(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	for i, kind := range []snapshot.KeyType{snapshot.TypeHash, snapshot.TypeString, snapshot.TypeList, snapshot.TypeZSet} {
		require.NoError(t, c.FlushAll(ctx).Err())
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		restoreGenerated(t, b, testRequest("huge"+strconv.Itoa(i), 0), generated{keys: 1, elements: 1, size: 64 << 20, kind: kind})
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20), "allocated in all for a %s", kind)
		name := testJob.Root() + ":cg:gen-0"
		switch kind {
		case snapshot.TypeHash:
			require.Equal(t, int64(64<<20), c.Do(ctx, "HSTRLEN", name, "field-0").Val())
		case snapshot.TypeString:
			require.Equal(t, int64(64<<20), c.StrLen(ctx, name).Val())
		}
	}
}

// The flip isn't refused for want of memory, wherever that begins; the
// staging is, and leaves the server as it was.
func TestMemoryThatEndsInMidRestore(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	addSource(t, c)
	keys := append(readJob(t, b, testJob), sourceKeys(t, b)...)
	want := digests(t, c)
	disturb(t, c, testJob)
	disturbed := digests(t, c)
	limit := func(bytes string) { require.NoError(t, c.ConfigSet(ctx, "maxmemory", bytes).Err()) }

	req := testRequest("oom1", 3)
	req.Positions = testPositions()
	used, err := b.info(ctx, "memory")
	require.NoError(t, err)
	now, err := infoNumber(used, "used_memory")
	require.NoError(t, err)
	s, err := b.Stage(ctx, req)
	require.NoError(t, err)
	limit(strconv.FormatUint(now+(500<<10), 10))
	_, err = stageProveFlip(ctx, s, append(keys, bigState()))
	require.ErrorIs(t, err, statebackend.ErrNoRoom)
	limit("1")
	require.NoError(t, s.Abort(ctx), "cleaning needs no memory")
	limit("0")
	noTraces(t, c, testJob)
	requireSame(t, disturbed, digests(t, c), "after running out of memory")

	require.NoError(t, c.XGroupDestroy(ctx, testStream, testGroup).Err())
	req.ID = "oom2"
	s, err = b.Stage(ctx, req)
	require.NoError(t, err)
	require.NoError(t, feed(s, keys))
	require.NoError(t, s.Prove(ctx))
	st := s.(*staging)
	require.NoError(t, st.prepareFlip())
	limit("1")
	_, err = st.runFlip(ctx)
	require.NoError(t, err)
	limit("0")
	_, wantRest := apart(want, testJob)
	_, gotRest := apart(digests(t, c), testJob)
	delete(wantRest, testStream)
	delete(gotRest, testStream)
	requireSame(t, wantRest, gotRest, "flipped without any memory to spare")
	require.Equal(t, "7", c.HGet(ctx, testJob.Record(), "epoch").Val())
	noTraces(t, c, testJob)
}

func bigState() staged {
	k := staged{key: snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(testJob.Root() + ":big one"), Type: snapshot.TypeList}}
	for i := range 40 {
		v := []byte(strings.Repeat(strconv.Itoa(i), 50<<10))
		k.elements = append(k.elements, snapshot.Element{Size: uint64(len(v)), Value: v})
	}
	k.sum()
	return k
}

// The estimate of Room is on the safe side of what staging takes, and not so
// far that it would refuse what fits easily.
func TestRoomEstimatesWhatStagingTakes(t *testing.T) {
	srv := redistest.Start(t)
	b, ctx := openTest(t, srv), context.Background()
	memory := func() uint64 {
		info, err := b.info(ctx, "memory")
		require.NoError(t, err)
		n, err := infoNumber(info, "used_memory")
		require.NoError(t, err)
		return n
	}
	for i, g := range []generated{
		{keys: 20_000, elements: 1, size: 10, kind: snapshot.TypeString},
		{keys: 20_000, elements: 5, size: 60, kind: snapshot.TypeHash},
		{keys: 4, elements: 62_500, size: 60, kind: snapshot.TypeHash},
		{keys: 2, elements: 50_000, size: 20, kind: snapshot.TypeZSet},
		{keys: 2, elements: 50_000, size: 20, kind: snapshot.TypeSet},
		{keys: 2, elements: 50_000, size: 60, kind: snapshot.TypeList},
		{keys: 10, elements: 1, size: 4 << 20, kind: snapshot.TypeString},
	} {
		srv.Do("FLUSHALL", "SYNC")
		require.Eventually(t, func() bool { // what the last round unlinked is freed in the background
			info, err := b.info(ctx, "memory")
			return err == nil && info["lazyfree_pending_objects"] == "0"
		}, 10*time.Second, time.Millisecond)
		before := memory()
		s, err := b.Stage(ctx, testRequest("room"+strconv.Itoa(i), 0))
		require.NoError(t, err)
		require.NoError(t, g.feed(s))
		require.NoError(t, s.(*staging).finishStaging())
		took := memory() - before
		require.NoError(t, s.Abort(ctx))
		keys, elements := uint64(g.keys), uint64(g.keys*g.elements)
		need := roomNeeded(keys, elements, keys*30+elements*uint64(g.size+12))
		t.Logf("%d keys, %d %s elements: took %d, estimate %d (%.2f)", keys, elements, g.kind, took, need, float64(need)/float64(took))
		require.GreaterOrEqual(t, need, took)
		require.Less(t, need, 4*took)
	}
}

func TestRoomTellsAllNumbers(t *testing.T) {
	srv := redistest.Start(t, redistest.Setting("maxmemory 64mb"))
	b, ctx := openTest(t, srv), context.Background()
	require.NoError(t, b.Room(ctx, 1000, 10_000, 1<<20))
	err := b.Room(ctx, 1000, 200_000, 50<<20)
	require.ErrorIs(t, err, statebackend.ErrNoRoom)
	for _, part := range []string{"1000 keys", "200000 elements", "52428800 bytes", "67108864 (maxmemory)", "raise maxmemory"} {
		require.ErrorContains(t, err, part)
	}
	srv.Do("CONFIG", "SET", "maxmemory", "0")
	require.NoError(t, b.Room(ctx, 1000, 200_000, 50<<20))
	err = b.Room(ctx, 1, 1, 1<<50)
	require.ErrorIs(t, err, statebackend.ErrNoRoom)
	require.ErrorContains(t, err, "memory of its machine")
	srv.Kill()
	require.ErrorIs(t, b.Room(ctx, 1, 1, 1), statebackend.ErrUnreachable)
}
