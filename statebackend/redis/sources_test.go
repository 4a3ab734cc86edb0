package redis

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// fillSource writes three of four partitions: group stats stands somewhere in
// 0 and 2, partition 1 has entries and no group, 3 has nothing at all.
func fillSource(t testing.TB, c *goredis.Client, topic string) {
	t.Helper()
	ctx := t.Context()
	do := func(args ...any) {
		t.Helper()
		require.NoError(t, c.Do(ctx, args...).Err())
	}
	for _, p := range []int{0, 1, 2} {
		for i := 1; i <= 2500; i++ {
			do("XADD", streamKey(topic, p), fmt.Sprintf("%d-%d", i*10, p), "flight", strconv.Itoa(i))
		}
	}
	do("XGROUP", "CREATE", streamKey(topic, 0), "stats", "0")
	do("XGROUP", "CREATE", streamKey(topic, 0), "another group", "20-0")
	do("XGROUP", "CREATE", streamKey(topic, 2), "stats", "30-2")
	do("XREADGROUP", "GROUP", "stats", "worker \x00one", "COUNT", "1200", "STREAMS", streamKey(topic, 0), ">")
	do("XREADGROUP", "GROUP", "stats", "two", "COUNT", "1100", "STREAMS", streamKey(topic, 0), ">")
	do("XACK", streamKey(topic, 0), "stats", "10-0", "50-0")
	do("XCLAIM", streamKey(topic, 0), "stats", "two", "0", "20-0")
	do("HSET", frontierName(topic, 0), "\xac\xed\x00frontier", "\x00\xffbytes", "other", "1")
	do("HSET", sourceMetaKey(topic), "partitionCount", "4")
}

func TestPositionsOfTheSourcesArePartOfTheCut(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	fillJob(t, c, testJob, "seed")
	fillSource(t, c, "flights")
	before, digest := time.Now().Add(-time.Second), allDigest(t, c)
	var rec snapshot.Recorder
	cut, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob, Sources: []statebackend.SourceRef{
		{Topic: "flights", Group: "stats"}, {Topic: "flights", Group: "another group"}, {Topic: "flights", Group: "stats"},
	}}, &rec)
	require.NoError(t, err)
	require.Equal(t, digest, allDigest(t, c))
	at := func(group string, p int) snapshot.Position {
		return snapshot.Position{Topic: "flights", Group: group, Partition: p, Stream: streamKey("flights", p), Read: -1}
	}
	want := []snapshot.Position{
		at("stats", 0), at("stats", 1), at("stats", 2), at("stats", 3),
		at("another group", 0), at("another group", 1), at("another group", 2), at("another group", 3),
	}
	want[0].LastID, want[0].Read, want[0].Pending, want[0].Frontier = "23000-0", 2300, 2298, true
	want[2].LastID = "30-2"
	want[4].LastID, want[4].Frontier = "20-0", true
	require.Equal(t, want, cut.Positions)

	pending := rec.Find(snapshot.SectionSource, string(PendingKey(streamKey("flights", 0), "stats")))
	require.Equal(t, snapshot.TypeList, pending.Key.Type)
	require.Len(t, pending.Elements, 2298)
	requirePending(t, pending.Elements, before)

	frontier := rec.Find(snapshot.SectionSource, frontierName("flights", 0))
	require.Equal(t, snapshot.TypeHash, frontier.Key.Type)
	require.Len(t, frontier.Elements, 2)
	inSource := 0
	for _, k := range rec.Keys {
		if k.Key.Section == snapshot.SectionSource {
			inSource++
		}
	}
	require.Equal(t, 2, inSource, "the frontier is carried once")
}

// requirePending looks at the entries that fillSource leaves unacknowledged.
func requirePending(t *testing.T, elements []snapshot.RecordedElement, before time.Time) {
	t.Helper()
	byID := map[string]Pending{}
	for _, e := range elements {
		p, err := DecodePending(e.Value)
		require.NoError(t, err)
		byID[p.ID] = p
		require.WithinRange(t, time.UnixMilli(p.DeliveredAt), before.Add(-time.Minute), time.Now().Add(time.Second))
	}
	require.Len(t, byID, 2298)
	require.Equal(t, "two", byID["20-0"].Consumer)
	require.EqualValues(t, 2, byID["20-0"].Deliveries)
	require.Equal(t, "worker \x00one", byID["12000-0"].Consumer)
	require.Equal(t, "two", byID["12010-0"].Consumer)
	require.NotContains(t, byID, "50-0")
}

func TestPartitionCounts(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	ctx := t.Context()
	fillJob(t, c, testJob, "seed")
	meta := sourceMetaKey("rain")
	cutPositions := func() []snapshot.Position {
		cut, _ := cutOf(t, b, statebackend.CutRequest{Job: testJob, Sources: []statebackend.SourceRef{{Topic: "rain", Group: "g"}}})
		return cut.Positions
	}
	require.Empty(t, cutPositions())
	for _, p := range []int{0, 1, 2, 4} {
		require.NoError(t, c.XAdd(ctx, &goredis.XAddArgs{Stream: streamKey("rain", p), Values: []string{"a", "b"}}).Err())
	}
	require.Len(t, cutPositions(), 3, "streams from 0 upward, without a meta hash")
	for field, value := range map[string]string{"partitionCount": "6", `"partitionCount"`: `"6"`} {
		require.NoError(t, c.Del(ctx, meta).Err())
		require.NoError(t, c.HSet(ctx, meta, field, value, "other", "9").Err())
		require.Equal(t, 6, partitionsOf(t, b, "rain"))
		require.Len(t, cutPositions(), 6)
	}
	for _, value := range []string{"", "0", "-3", "six", "\xac\xed\x00\x05", `"6`, "99999999999"} {
		require.NoError(t, c.Del(ctx, meta).Err())
		require.NoError(t, c.HSet(ctx, meta, "partitionCount", value).Err())
		_, err := b.Partitions(ctx, "rain")
		var key *statebackend.KeyError
		require.ErrorAs(t, err, &key, "%q", value)
		require.Equal(t, meta, string(key.Key))
		err = refused(t, b, statebackend.CutRequest{Job: testJob, Sources: []statebackend.SourceRef{{Topic: "rain", Group: "g"}}})
		require.ErrorAs(t, err, &key, "%q", value)
		require.Equal(t, meta, string(key.Key))
	}
	require.NoError(t, c.Del(ctx, meta).Err())
	require.Zero(t, partitionsOf(t, b, "rain"))
	require.NoError(t, c.Set(ctx, meta, "not a hash", 0).Err())
	_, err := b.Partitions(ctx, "rain")
	require.ErrorIs(t, err, statebackend.ErrWrongType)
}

func partitionsOf(t *testing.T, b *Backend, topic string) int {
	t.Helper()
	n, err := b.Partitions(t.Context(), topic)
	require.NoError(t, err)
	return n
}

func TestASourceThatIsNoStreamFailsTheCut(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	fillJob(t, c, testJob, "seed")
	require.NoError(t, c.Set(t.Context(), streamKey("rain", 0), "no stream", 0).Err())
	err := refused(t, b, statebackend.CutRequest{Job: testJob, Sources: []statebackend.SourceRef{{Topic: "rain", Group: "g"}}})
	var key *statebackend.KeyError
	require.ErrorAs(t, err, &key)
	require.Equal(t, streamKey("rain", 0), string(key.Key))
	require.ErrorIs(t, err, statebackend.ErrWrongType)
}

// What a cut carries of a source, a restore puts back.
func TestACutSourceIsRestored(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	ctx := t.Context()
	fillJob(t, c, testJob, "seed")
	fillSource(t, c, "flights")
	sources := []statebackend.SourceRef{{Topic: "flights", Group: "stats"}}
	var rec snapshot.Recorder
	cut, err := b.Cut(ctx, statebackend.CutRequest{Job: testJob, Sources: sources}, &rec)
	require.NoError(t, err)
	require.NoError(t, c.XReadGroup(ctx, &goredis.XReadGroupArgs{
		Group: "stats", Consumer: "three", Count: 50, Streams: []string{streamKey("flights", 0), ">"},
	}).Err())
	require.NoError(t, c.XAck(ctx, streamKey("flights", 0), "stats", "20-0", "30-0").Err())
	require.NoError(t, c.HSet(ctx, frontierName("flights", 0), "later", "1").Err())
	req := testRequest("source", cut.Record.Epoch)
	req.Positions = cut.Positions
	st, err := b.Stage(ctx, req)
	require.NoError(t, err)
	require.NoError(t, snapshot.Replay(rec.Keys, st))
	require.NoError(t, st.Prove(ctx))
	_, err = st.Flip(ctx)
	require.NoError(t, err)
	var again snapshot.Recorder
	after, err := b.Cut(ctx, statebackend.CutRequest{Job: testJob, Sources: sources}, &again)
	require.NoError(t, err)
	require.Equal(t, cut.Positions, after.Positions)
	for _, k := range rec.Keys {
		if k.Key.Section != snapshot.SectionSource {
			continue
		}
		got := again.Find(snapshot.SectionSource, string(k.Key.Name))
		require.NotNil(t, got, "%q", k.Key.Name)
		require.Len(t, got.Elements, len(k.Elements))
		if !strings.HasPrefix(string(k.Key.Name), pendingPrefix) {
			require.Empty(t, snapshot.DiffKeys([]snapshot.RecordedKey{k}, []snapshot.RecordedKey{*got}))
			continue
		}
		requireSamePending(t, k.Elements, got.Elements)
	}
}

// requireSamePending: times of delivery are told by age, so they come back
// nearly the same.
func requireSamePending(t *testing.T, want, got []snapshot.RecordedElement) {
	t.Helper()
	for i := range want {
		was, err := DecodePending(want[i].Value)
		require.NoError(t, err)
		is, err := DecodePending(got[i].Value)
		require.NoError(t, err)
		require.InDelta(t, was.DeliveredAt, is.DeliveredAt, 50)
		is.DeliveredAt = was.DeliveredAt
		require.Equal(t, was, is)
	}
}
