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

// smalls are the states of crowd: a command that writes n elements of a key.
var smalls = map[string]func(p goredis.Pipeliner, t testing.TB, key string, n int){
	"hash": small("HSET", func(key string, i int) []any {
		return []any{fmt.Sprintf("field %d", i), fmt.Sprintf("value %d of %s", i*3, key)}
	}),
	"list": small("RPUSH", func(_ string, i int) []any { return []any{fmt.Sprintf("item %d", i%7)} }),
	"zset": small("ZADD", func(_ string, i int) []any { return []any{float64(i) / 3, fmt.Sprintf("member %d", i)} }),
	"set":  small("SADD", func(_ string, i int) []any { return []any{fmt.Sprintf("one %d", i)} }),
}

func small(verb string, element func(key string, i int) []any) func(p goredis.Pipeliner, t testing.TB, key string, n int) {
	return func(p goredis.Pipeliner, t testing.TB, key string, n int) {
		args := []any{verb, key}
		for i := range n {
			args = append(args, element(key, i)...)
		}
		p.Do(t.Context(), args...)
	}
}

func crowdKey(kind string, i int) string {
	scope := statebackend.Scope{Group: "g", Topic: "t", Partition: i % 5, Operator: "op"}
	return testJob.KeyedKey(scope, kind, fmt.Sprintf("s:%d", i))
}

// crowd fills four states with small keys, mixed in the order of names, and
// keys of the sizes of odd among them, every 100th key from the 2,000th on.
func crowd(t testing.TB, c *goredis.Client, keys int, odd ...int) (names [][]byte) {
	t.Helper()
	pipe := c.Pipeline()
	for i := range keys {
		for _, kind := range []string{"hash", "list", "zset", "set"} {
			n := 1 + i%4
			if len(odd) > 0 && i >= 2000 && i%100 == 7 {
				n = odd[i/100%len(odd)]
			}
			smalls[kind](pipe, t, crowdKey(kind, i), n)
			names = append(names, []byte(crowdKey(kind, i)))
		}
		if i%100 == 0 {
			_, err := pipe.Exec(t.Context())
			require.NoError(t, err)
		}
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	return names
}

func requireNames(t testing.TB, want [][]byte, got []snapshot.RecordedKey) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, string(want[i]), string(got[i].Key.Name), "in the order of the source")
	}
}

// Keys that are exactly as large as is read directly, one element larger, and
// much larger than all before come whole and in their place, the last by pages.
func TestKeysLargerThanTheirState(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	names := crowd(t, c, 2800, directElements, directElements+1, 9000)
	require.NoError(t, c.ConfigResetStat(t.Context()).Err())
	var rec snapshot.Recorder
	r := readerOf(t, b, &rec)
	r.noExpiry = true
	require.NoError(t, r.keys(&listNames{job: testJob, left: names}))
	require.Less(t, calls(t, c, "hgetall")+calls(t, c, "hscan"), 1500, "the others were read directly")
	require.Positive(t, calls(t, c, "hscan"))
	requireNames(t, names, rec.Keys)
	require.Empty(t, snapshot.DiffKeys(recorded(t, readJobKeys(t, b, names)), rec.Keys))
	for _, kind := range []string{"hash", "list", "zset"} {
		require.Positive(t, r.types[":state:op:"+kind+":"].over, kind)
		require.True(t, r.types[":state:op:"+kind+":"].small(), "one in 150 is no reason to ask for all sizes")
	}
}

// Where many keys are larger their sizes are asked for again.
func TestAStateThatGrowsIsAskedAbout(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	var names [][]byte
	pipe := c.Pipeline()
	for i := range 3000 {
		n := 2
		if i >= 2000 {
			n = 600
		}
		smalls["list"](pipe, t, crowdKey("list", i), n)
		names = append(names, []byte(crowdKey("list", i)))
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	var rec snapshot.Recorder
	r := readerOf(t, b, &rec)
	require.NoError(t, r.keys(&listNames{job: testJob, left: names}))
	requireNames(t, names, rec.Keys)
	g := r.types[":state:op:list:"]
	require.False(t, g.small())
	require.Less(t, g.over, int64(directMost+100))
	for i, k := range rec.Keys {
		require.Len(t, k.Elements, map[bool]int{true: 600, false: 2}[i >= 2000])
	}
}

// Whoever reads large keys in his own way gets those that turn out large too.
func TestLargeKeysOfSmallStatesAreHandedOver(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	names := crowd(t, c, 2300, 20_000)
	var rec snapshot.Recorder
	r := readerOf(t, b, &rec)
	large := map[string]bool{}
	r.large = func(k *keyInfo) {
		require.Equal(t, planPaged, k.plan)
		large[string(k.name)] = true
	}
	require.NoError(t, r.keys(&listNames{job: testJob, left: names}))
	require.Len(t, large, 12)
	require.Len(t, rec.Keys, len(names)-12)
	for _, k := range rec.Keys {
		require.False(t, large[string(k.Key.Name)], "%s came, and was handed over", k.Key.Name)
		require.Less(t, len(k.Elements), 5)
	}
	require.Len(t, rec.Find(snapshot.SectionKeyed, crowdKey("hash", 2299)).Elements, 1+2299%4)
}

// Keys that are missing, expire later, and have expired, where others of the
// state were small.
func TestExpiriesOfKeysThatAreReadDirectly(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	ctx := t.Context()
	names := crowd(t, c, 2000)
	at := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	kinds := []string{"hash", "list", "zset"}
	for _, kind := range kinds {
		require.NoError(t, c.Del(ctx, crowdKey(kind, 1800)).Err())
		require.NoError(t, c.PExpireAt(ctx, crowdKey(kind, 1801), at).Err())
		require.NoError(t, c.PExpire(ctx, crowdKey(kind, 1802), time.Millisecond).Err())
	}
	for _, exact := range []bool{true, false} {
		var rec snapshot.Recorder
		r := readerOf(t, b, &rec)
		r.exactTTL = exact
		require.NoError(t, r.keys(&listNames{job: testJob, left: names}))
		requireNames(t, names, rec.Keys)
		for _, kind := range kinds {
			find := func(i int) snapshot.RecordedKey { return *rec.Find(snapshot.SectionKeyed, crowdKey(kind, i)) }
			require.Equal(t, snapshot.TypeMissing, find(1800).Key.Type)
			require.Equal(t, snapshot.TypeMissing, find(1802).Key.Type)
			require.Zero(t, find(1802).Key.ExpireAt)
			require.InDelta(t, at.UnixMilli(), find(1801).Key.ExpireAt, map[bool]float64{true: 0, false: 5}[exact])
			require.Len(t, find(1801).Elements, 1+1801%4)
			require.Zero(t, find(1803).Key.ExpireAt, "an expiry is its key's own")
		}
	}
}

// A user without the right reads hashes by HGETALL, and a cut doesn't need it.
func TestACutWithoutHRandField(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	names := crowd(t, c, 2000)
	want := recorded(t, readJobKeys(t, openTest(t, s), names))
	for name, setting := range map[string]string{
		"denied": "user default on nopass ~* &* +@all -hrandfield", "not known": `rename-command HRANDFIELD ""`,
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t, redistest.Setting(setting))
			b, c := openTest(t, s), s.Client()
			crowd(t, c, 2000)
			readJobKeys(t, b, names)
			require.NoError(t, c.ConfigResetStat(t.Context()).Err())
			_, keys := cutOf(t, b, statebackend.CutRequest{Job: testJob})
			require.Empty(t, snapshot.DiffKeys(want, keys))
			require.GreaterOrEqual(t, calls(t, c, "hgetall"), 2000)
			require.Zero(t, calls(t, c, "hrandfield"))
		})
	}
}
