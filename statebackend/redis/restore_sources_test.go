package redis

import (
	"context"
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

const (
	testStream   = "stream:topic:flights:p:1"
	testGroup    = "st\x00ats"
	testFrontier = "streaming:mq:commit:flights:p:1"
)

// addSource makes a stream of 40 entries of which the group has read 12 and
// acknowledged three, and a commit frontier.
func addSource(t testing.TB, c *goredis.Client) {
	t.Helper()
	ctx := context.Background()
	for i := 1; i <= 40; i++ {
		require.NoError(t, c.XAdd(ctx, &goredis.XAddArgs{Stream: testStream, ID: fmt.Sprintf("%d-7", i), Values: []string{"n", fmt.Sprint(i)}}).Err())
	}
	require.NoError(t, c.XGroupCreate(ctx, testStream, testGroup, "0").Err())
	readGroup(t, c, "one", 5)
	readGroup(t, c, "two two", 7)
	require.NoError(t, c.XAck(ctx, testStream, testGroup, "2-7", "3-7", "9-7").Err())
	require.NoError(t, c.HSet(ctx, testFrontier, "\x00java", "\xacfrontier").Err())
}

func readGroup(t testing.TB, c *goredis.Client, consumer string, n int64) {
	t.Helper()
	require.NoError(t, c.XReadGroup(context.Background(), &goredis.XReadGroupArgs{
		Group: testGroup, Consumer: consumer, Streams: []string{testStream, ">"}, Count: n,
	}).Err())
}

func testPositions() []snapshot.Position {
	return []snapshot.Position{{
		Topic: "flights", Group: testGroup, Partition: 1, Stream: testStream,
		LastID: "12-7", Read: 12, Pending: 9, Frontier: true,
	}}
}

// sourceKeys reads what a checkpoint carries of the source.
func sourceKeys(t testing.TB, b *Backend) []staged {
	t.Helper()
	pending := staged{key: snapshot.Key{Section: snapshot.SectionSource, Name: PendingKey(testStream, testGroup), Type: snapshot.TypeList}}
	for i, p := range pendingNow(t, b.client) {
		item, err := EncodePending(Pending{ID: p.ID, Consumer: p.Consumer, DeliveredAt: 1700000000000 + int64(i), Deliveries: p.RetryCount + 3})
		require.NoError(t, err)
		pending.elements = append(pending.elements, snapshot.Element{Size: uint64(len(item)), Value: item})
	}
	pending.sum()
	return []staged{pending, readKey(t, b, testFrontier, snapshot.SectionSource)}
}

func pendingNow(t testing.TB, c *goredis.Client) []goredis.XPendingExt {
	t.Helper()
	all, err := c.XPendingExt(context.Background(), &goredis.XPendingExtArgs{Stream: testStream, Group: testGroup, Start: "-", End: "+", Count: 1000}).Result()
	require.NoError(t, err)
	return all
}

func requirePendings(t *testing.T, want []staged, got []goredis.XPendingExt) {
	t.Helper()
	require.Len(t, got, len(want[0].elements))
	for i, e := range want[0].elements {
		p, err := DecodePending(e.Value)
		require.NoError(t, err)
		require.Equal(t, p.ID, got[i].ID)
		require.Equal(t, p.Consumer, got[i].Consumer)
		require.Equal(t, p.Deliveries, got[i].RetryCount)
		age := time.Since(time.UnixMilli(p.DeliveredAt))
		require.InDelta(t, age.Seconds(), got[i].Idle.Seconds(), 60)
	}
}

func TestSourcesGoBackToTheirPositions(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	addSource(t, c)
	sources := sourceKeys(t, b)
	keys := append(readJob(t, b, testJob), sources...)
	require.Len(t, sources[0].elements, 9)

	// The group reads on, acknowledges old and new entries; a reader waits.
	readGroup(t, c, "one", 10)
	require.NoError(t, c.XAck(ctx, testStream, testGroup, "1-7", "12-7", "13-7", "20-7").Err())
	require.NoError(t, c.HSet(ctx, testFrontier, "\x00java", "later", "more", "x").Err())
	require.NoError(t, c.XGroupCreate(ctx, testStream, "another group", "33-7").Err())
	req := testRequest("src", 3)
	req.Positions = testPositions()
	res, err := restore(ctx, b, req, keys)
	require.NoError(t, err)
	require.Empty(t, res.Unclaimed)

	requirePendings(t, sources, pendingNow(t, c))
	groups, err := c.XInfoGroups(ctx, testStream).Result()
	require.NoError(t, err)
	require.Len(t, groups, 2)
	byName := map[string]goredis.XInfoGroup{groups[0].Name: groups[0], groups[1].Name: groups[1]}
	require.Equal(t, "12-7", byName[testGroup].LastDeliveredID)
	require.Equal(t, int64(12), byName[testGroup].EntriesRead)
	require.Equal(t, "33-7", byName["another group"].LastDeliveredID)
	require.Equal(t, map[string]string{"\x00java": "\xacfrontier"}, c.HGetAll(ctx, testFrontier).Val())
	require.Equal(t, int64(40), c.XLen(ctx, testStream).Val())
	noTraces(t, c, testJob)
}

func TestSourcesThatAreGoneAreMadeAgain(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	addSource(t, c)
	sources := sourceKeys(t, b)
	require.NoError(t, c.XGroupDestroy(ctx, testStream, testGroup).Err())
	req := testRequest("grp", 0)
	req.Positions = testPositions()
	_, err := restore(ctx, b, req, sources)
	require.NoError(t, err)
	requirePendings(t, sources, pendingNow(t, c))

	require.NoError(t, c.FlushAll(ctx).Err())
	req = testRequest("str", 0)
	req.Positions = testPositions()
	res, err := restore(ctx, b, req, sources)
	require.NoError(t, err)
	require.Equal(t, []statebackend.Unclaimed{{Stream: testStream, Group: testGroup, Entries: 9}}, res.Unclaimed)
	groups, err := c.XInfoGroups(ctx, testStream).Result()
	require.NoError(t, err)
	require.Len(t, groups, 1)
	require.Equal(t, "12-7", groups[0].LastDeliveredID)
	require.Empty(t, pendingNow(t, c), "entries that are gone can't be pending")
}

func TestPendingEntriesThatWereTrimmedAreCounted(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	addSource(t, c)
	sources := sourceKeys(t, b)
	require.NoError(t, c.XTrimMinID(ctx, testStream, "6-7").Err()) // of the 9, 1, 4 and 5 go
	require.NoError(t, c.XDel(ctx, testStream, "11-7").Err())
	req := testRequest("trim", 0)
	req.Positions = append(testPositions(), snapshot.Position{Topic: "flights", Group: "stats", Partition: 2, Stream: "stream:topic:flights:p:2", LastID: "0-0"})
	res, err := restore(ctx, b, req, sources)
	require.NoError(t, err)
	require.Equal(t, []statebackend.Unclaimed{{Stream: testStream, Group: testGroup, Entries: 4}}, res.Unclaimed)
	require.Len(t, pendingNow(t, c), 5)
}

func TestStreamsTellsWhatIsThere(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	addSource(t, c)
	require.NoError(t, c.XTrimMinID(ctx, testStream, "6-7").Err())
	require.NoError(t, c.XDel(ctx, testStream, "40-7").Err())
	require.NoError(t, c.XAdd(ctx, &goredis.XAddArgs{Stream: "emptied", ID: "5-1", Values: []string{"f", "v"}}).Err())
	require.NoError(t, c.XDel(ctx, "emptied", "5-1").Err())
	var ids []string
	for i := range 300 {
		ids = append(ids, fmt.Sprintf("%d-7", i))
	}
	now, err := b.Streams(ctx, []statebackend.StreamAsk{{Stream: testStream, IDs: ids}, {Stream: "emptied", IDs: []string{"5-1"}}, {Stream: "no stream", IDs: ids}, {Stream: testStream}})
	require.NoError(t, err)
	whole := statebackend.StreamNow{Exists: true, Length: 34, First: "6-7", Last: "40-7", Added: 40}
	asked := whole
	asked.Gone = 300 - 34
	require.Equal(t, []statebackend.StreamNow{asked, {Exists: true, Last: "5-1", Added: 1, Gone: 1}, {Added: -1, Gone: 300}, whole}, now)

	require.NoError(t, c.Set(ctx, "a string", "v", 0).Err())
	_, err = b.Streams(ctx, []statebackend.StreamAsk{{Stream: "a string"}})
	require.ErrorIs(t, err, statebackend.ErrWrongType)
	for _, right := range []string{"xinfo|stream", "xrange"} {
		_, err = limitedUser(t, srv, "-"+right).Streams(ctx, []statebackend.StreamAsk{{Stream: testStream, IDs: ids[:3]}})
		require.ErrorIs(t, err, statebackend.ErrPermission)
		require.ErrorContains(t, err, right)
	}
}

func TestAGroupThatTheCheckpointLacksReadsFromTheBeginning(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	addSource(t, c)
	req := testRequest("none", 0)
	req.Positions = testPositions()
	req.Positions[0].LastID, req.Positions[0].Read, req.Positions[0].Frontier = "", -1, false
	_, err := restore(ctx, b, req, nil)
	require.NoError(t, err)
	groups, err := c.XInfoGroups(ctx, testStream).Result()
	require.NoError(t, err)
	require.Equal(t, "0-0", groups[0].LastDeliveredID)
	require.Empty(t, pendingNow(t, c))
	require.Zero(t, c.Exists(ctx, testFrontier).Val())

	// And one that isn't there stays away.
	require.NoError(t, c.Del(ctx, testStream).Err())
	req.ID, req.Epoch, req.NewEpoch = "none2", 4, 5
	_, err = restore(ctx, b, req, nil)
	require.NoError(t, err)
	require.Zero(t, c.Exists(ctx, testStream).Val())
}

func TestManyPendingEntriesAreMerged(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	pipe := c.Pipeline()
	for i := 1; i <= 5000; i++ {
		pipe.XAdd(ctx, &goredis.XAddArgs{Stream: testStream, ID: fmt.Sprintf("%d-%d", 1+i/700, i), Values: []string{"n", "v"}})
	}
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	require.NoError(t, c.XGroupCreate(ctx, testStream, testGroup, "0").Err())
	readGroup(t, c, "one", 4000)
	for i := 1; i <= 4000; i += 3 {
		pipe.XAck(ctx, testStream, testGroup, fmt.Sprintf("%d-%d", 1+i/700, i))
	}
	_, err = pipe.Exec(ctx)
	require.NoError(t, err)
	first := pendingAll(t, c)
	pending := staged{key: snapshot.Key{Section: snapshot.SectionSource, Name: PendingKey(testStream, testGroup), Type: snapshot.TypeList}}
	for _, p := range first {
		item, err := EncodePending(Pending{ID: p.ID, Consumer: p.Consumer, DeliveredAt: 1700000000000, Deliveries: p.RetryCount})
		require.NoError(t, err)
		pending.elements = append(pending.elements, snapshot.Element{Size: uint64(len(item)), Value: item})
	}
	pending.sum()
	for i := 2; i <= 4000; i += 3 {
		pipe.XAck(ctx, testStream, testGroup, fmt.Sprintf("%d-%d", 1+i/700, i))
	}
	_, err = pipe.Exec(ctx)
	require.NoError(t, err)
	readGroup(t, c, "two", 1000)
	req := testRequest("merge", 0)
	req.Positions = testPositions()
	req.Positions[0].LastID = first[len(first)-1].ID
	_, err = restore(ctx, b, req, []staged{pending})
	require.NoError(t, err)
	now := pendingAll(t, c)
	require.Len(t, now, len(first))
	for i := range first {
		require.Equal(t, first[i].ID, now[i].ID)
		require.Equal(t, first[i].Consumer, now[i].Consumer)
	}
}

func pendingAll(t testing.TB, c *goredis.Client) []goredis.XPendingExt {
	t.Helper()
	all, err := c.XPendingExt(context.Background(), &goredis.XPendingExtArgs{Stream: testStream, Group: testGroup, Start: "-", End: "+", Count: 100000}).Result()
	require.NoError(t, err)
	return all
}

func TestSourceKeysMustBelongToAPosition(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	addSource(t, c)
	before := digests(t, c)
	sources := sourceKeys(t, b)
	// Without positions the sources stay as they are.
	_, err := restore(ctx, b, testRequest("without", 0), sources)
	require.NoError(t, err)
	require.NoError(t, c.Del(ctx, testJob.Record(), testJob.Assignment()).Err())
	requireSame(t, before, digests(t, c), "without positions")
	req := testRequest("other", 0)
	req.Positions = testPositions()
	req.Positions[0].Group = "someone else"
	_, err = restore(ctx, b, req, sources[:1])
	require.ErrorContains(t, err, "no position")
	req.Positions[0].Group, req.Positions[0].LastID = testGroup, "12"
	_, err = restore(ctx, b, req, sources[:1])
	require.ErrorContains(t, err, `"12"`)
	// A key of another type where a stream should be.
	require.NoError(t, c.Del(ctx, testStream).Err())
	require.NoError(t, c.Set(ctx, testStream, "string", 0).Err())
	before = digests(t, c)
	req.Positions = testPositions()
	_, err = restore(ctx, b, req, sources)
	require.ErrorContains(t, err, "stream is needed")
	requireSame(t, before, digests(t, c), "wrong type of stream")
}
