package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/examples/flights"
	"keyframe/keygroups"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

// age makes every key of a job's state look unused for that long.
func age(t testing.TB, c *goredis.Client, p *patient, seconds int) {
	for _, key := range raw(t, c, "SMEMBERS", p.job.Index()).([]any) {
		dump := raw(t, c, "DUMP", key)
		raw(t, c, "RESTORE", key, 0, dump, "REPLACE", "IDLETIME", seconds)
	}
}

// TestAJobThatNobodyWritesIsFound, with the way in which that was judged.
func TestAJobThatNobodyWritesIsFound(t *testing.T) {
	c := open(t, "appendonly yes")
	client := c.srv.Client()
	tracking := storeOf(t, redis.Config{URL: c.srv.URL(), Tracking: redis.TrackFields})
	require.NoError(t, tracking.StartTracking())
	require.NoError(t, tracking.AwaitTracking(t.Context()))

	t.Run("no key was used", func(t *testing.T) {
		p := admit(t, c.store, "still")
		age(t, client, p, 7200)
		f := only(t, p.examine(), CodeIdle, Warning)
		require.Regexp(t, `for 2h0m\ds or longer, by OBJECT IDLETIME; the server executed no write while watched, by its own count`, f.What)
		// Looking is no use of a key, where nothing but its elements was read.
		for _, key := range []string{p.job.KeyedKey(p.at(1), "last", string(airport(1))), p.job.KeyedKey(p.at(2), "to", string(airport(2)))} {
			require.GreaterOrEqual(t, raw(t, client, "OBJECT", "IDLETIME", key), int64(7200))
		}
		age(t, client, p, 7200)
		f = only(t, p.by(tracking), CodeIdle, Warning)
		require.Contains(t, f.What, "none of its keys was written while watched, by the tracking of writes")
		age(t, client, p, 3500)
		unhurt(t, p.examine())
	})
	t.Run("input waits", func(t *testing.T) {
		p := admit(t, c.store, "stuck")
		for n := range 2 {
			stream := fmt.Sprint("stream:topic:flights:p:", n)
			raw(t, client, "XADD", stream, "5-1", "f", "v")
			raw(t, client, "XGROUP", "CREATE", stream, "stats", "0")
		}
		sources := func(r *Request) { r.Sources = []statebackend.SourceRef{{Topic: "flights", Group: "stats"}} }
		f := only(t, p.examine(sources), CodeIdle, Warning)
		require.Contains(t, f.What, "input waits and no consumer took any while watched")
		require.Equal(t, []string{"stream:topic:flights:p:0 (group stats)", "stream:topic:flights:p:1 (group stats)"}, f.Where)
		raw(t, client, "XREADGROUP", "GROUP", "stats", "me", "STREAMS", "stream:topic:flights:p:0", "stream:topic:flights:p:1", ">", ">")
		unhurt(t, p.examine(sources))
	})
	t.Run("what is written is seen", func(t *testing.T) {
		p := admit(t, c.store, "busy")
		age(t, client, p, 7200)
		key := p.job.KeyedKey(p.at(1), "to", string(airport(1)))
		writing := &whileInspected{Store: tracking, do: func() {
			for i := range 200 {
				p.cmd(statebackend.OpHSet, key, strconv.Quote(fmt.Sprint("SFO", i)), "1")
			}
		}}
		f := only(t, p.by(writing, func(r *Request) { r.Limits.HotWrites = 200 }), CodeHotKey, Info)
		require.Equal(t, []string{key}, f.Where)
		require.Contains(t, f.What, "by the tracking of writes")
		require.False(t, writing.pending)
	})
}

// whileInspected does something when the first key has been seen.
type whileInspected struct {
	Store
	do      func()
	pending bool
}

func (w *whileInspected) Inspect(ctx context.Context, req statebackend.InspectRequest, to statebackend.InspectSink) (statebackend.Inspection, error) {
	w.pending = true
	return w.Store.Inspect(ctx, req, interrupting{to, w})
}

type interrupting struct {
	statebackend.InspectSink
	w *whileInspected
}

func (i interrupting) Key(k statebackend.KeyFacts) (bool, error) {
	if i.w.pending {
		i.w.pending = false
		i.w.do()
	}
	return i.InspectSink.Key(k)
}

// TestTheFlightsJobIsHealthy: what a real job writes, while it runs and after.
func TestTheFlightsJobIsHealthy(t *testing.T) {
	c := open(t, "appendonly yes")
	p := &patient{t: t, store: c.store, job: statebackend.Job{Prefix: "streaming:runtime", Name: "flights"}}
	rule := keygroups.Rule{MaxParallelism: 128}.WithDefaults()
	o := flights.Options{Store: c.store, Job: p.job, Rule: rule, Parallelism: 2, Limit: 2000}
	examine := func(r *Request) { r.Rule = rule }
	o.Progress = func(done, _ int) {
		if done == 1000 {
			unhurt(t, p.examine(examine))
		}
	}
	s, err := flights.Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, 2000, s.Done)
	r := p.examine(examine)
	unhurt(t, r)
	require.Greater(t, r.Elements, uint64(300))
	require.Greater(t, r.Indexed, uint64(300))
}

// reading are the commands that an examination may run.
var reading = []string{
	"client|setname", "client|no-touch", "info", "time", "config|get", "multi", "discard", "acl|whoami", "acl|dryrun", "hgetall", "scard", "get",
	"scan", "type", "pexpiretime", "memory|usage", "object|idletime", "sismember", "sscan", "hscan", "zscan", "exists", "hget", "hexists", "zscore", "xinfo|groups",
}

// TestADoctorChangesNothing (I9): the data, the expiries and the counts of
// commands say so.
func TestADoctorChangesNothing(t *testing.T) {
	c := open(t, "appendonly yes")
	client := c.srv.Client()
	p := admit(t, c.store, "untouched")
	for _, h := range harms {
		h.do(p, 3)
	}
	raw(t, client, "PEXPIRE", p.job.KeyedKey(p.at(5), "last", string(airport(5))), 3600_000)
	raw(t, client, "XADD", "stream:topic:flights:p:0", "5-1", "f", "v")
	seen := func() []any {
		var all []any
		for _, key := range raw(t, client, "KEYS", "*").([]any) {
			all = append(all, fmt.Sprint(key, raw(t, client, "PEXPIRETIME", key), raw(t, client, "DEBUG", "DIGEST-VALUE", key)))
		}
		slices.SortFunc(all, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
		// avg_ttl is an estimate that goes down by itself.
		return append(all, raw(t, client, "DEBUG", "DIGEST"), strings.Split(infoOf(t, client, "keyspace", "db0"), ",avg_ttl")[0],
			infoOf(t, client, "persistence", "rdb_changes_since_last_save"))
	}
	store := storeOf(t, redis.Config{URL: c.srv.URL()})
	before := seen()
	raw(t, client, "CONFIG", "RESETSTAT")
	r := p.by(store, func(r *Request) { r.Sources = []statebackend.SourceRef{{Topic: "flights", Group: "stats"}} })
	ran := raw(t, client, "INFO", "commandstats").(string)
	require.Greater(t, len(r.Findings), 10)
	for line := range strings.SplitSeq(strings.TrimSpace(ran), "\r\n") {
		name, stats, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		if ok && !strings.Contains(stats, "calls=0,") && name != "config|resetstat" {
			require.Contains(t, reading, name, line)
		}
	}
	require.Contains(t, ran, "cmdstat_scan:")
	require.Equal(t, before, seen())
}

// TestReadingIsBounded: a slow rate takes the time that it should.
func TestReadingIsBounded(t *testing.T) {
	c := open(t, "appendonly yes")
	p := admit(t, c.store, "gentle")
	began := time.Now()
	unhurt(t, p.examine())
	fast := time.Since(began)
	began = time.Now()
	unhurt(t, p.examine(func(r *Request) { r.MaxReadRate = 100_000 }))
	require.Greater(t, time.Since(began), fast+200*time.Millisecond)
	began = time.Now()
	unhurt(t, p.examine(func(r *Request) { r.Watch = 300 * time.Millisecond }))
	require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
}

// TestAnySetOfHarmsIsFoundExactly: whatever is done to a job, all of it is
// found, and nothing else.
func TestAnySetOfHarmsIsFoundExactly(t *testing.T) {
	c := open(t, "appendonly yes")
	job := 0
	rapid.Check(t, func(rt *rapid.T) {
		job++
		p := admitOf(t, c.store, fmt.Sprint("any-", job), 4*smallKeys)
		want := map[Code][]string{}
		chosen := rapid.SliceOfNDistinct(rapid.IntRange(0, len(harms)*smallKeys-1), 0, 12, rapid.ID[int]).Draw(rt, "harms")
		for _, n := range chosen {
			for code, where := range harms[n%len(harms)].do(p, n/len(harms)) {
				want[code] = append(want[code], where...)
			}
		}
		r := p.examine(func(r *Request) { r.Limits.Where = 1000 })
		sameFindings(rt, want, r)
		for _, f := range r.Findings {
			require.EqualValues(rt, len(f.Where), f.Count)
		}
		raw(t, c.srv.Client(), "FLUSHALL")
		require.Equal(rt, len(chosen) == 0, len(r.Findings) == 0, slices.Collect(maps.Keys(want)))
	})
}
