package doctor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

// finding gives the one finding of a code.
func finding(t testing.TB, r Report, code Code) Finding {
	t.Helper()
	var all []Finding
	for _, f := range r.Findings {
		if f.Code == code {
			all = append(all, f)
		}
	}
	require.Len(t, all, 1, "%s in %+v", code, r.Findings)
	return all[0]
}

// only requires that a report has this finding and nothing else.
func only(t testing.TB, r Report, code Code, severity Severity) Finding {
	t.Helper()
	require.Len(t, r.Findings, 1, "%+v", r.Findings)
	f := finding(t, r, code)
	require.Equal(t, severity, f.Severity)
	return f
}

// TestEachHarmOfAJobIsFound: what is wrong with a job as a whole, or by a
// threshold.
func TestEachHarmOfAJobIsFound(t *testing.T) {
	c := open(t, "appendonly yes")
	client := c.srv.Client()
	admitted := 0
	admit := func(t testing.TB) *patient {
		admitted++
		return admit(t, c.store, fmt.Sprint("whole-", admitted))
	}
	t.Run("expiry among sisters", func(t *testing.T) {
		p := admit(t)
		key := p.job.KeyedKey(p.at(5), "last", string(airport(5)))
		raw(t, client, "PEXPIRE", key, 3600_000)
		f := only(t, p.examine(), CodeExpiry, Warning)
		require.Equal(t, []string{key}, f.Where)
		require.EqualValues(t, 1, f.Count)
		require.Contains(t, f.What, fmt.Sprintf("1 keys of state delays:last (group stats, topic flights) expire, and %d have no expiry", smallKeys-1))
		for i := range smallKeys {
			raw(t, client, "PEXPIRE", p.job.KeyedKey(p.at(i), "last", string(airport(i))), 3600_000)
		}
		unhurt(t, p.examine()) // all sisters alike
	})
	t.Run("bookkeeping expires", func(t *testing.T) {
		p := admit(t)
		raw(t, client, "PEXPIRE", p.job.Index(), 3600_000)
		require.Equal(t, []string{p.job.Index()}, only(t, p.examine(), CodeExpiry, Error).Where)
	})
	t.Run("big key", func(t *testing.T) {
		p := admit(t)
		key := p.job.KeyedKey(p.at(1), "to", string(airport(1)))
		p.cmd(statebackend.OpHSet, key, `"SFO"`, strings.Repeat("x", 1<<20))
		f := only(t, p.examine(func(r *Request) { r.Limits.BigBytes = 1 << 19 }), CodeBigKey, Warning)
		require.EqualValues(t, 1, f.Count)
		require.Regexp(t, `^`+key+` \(1\d{6} bytes\)$`, f.Where[0])
		unhurt(t, p.examine())
	})
	t.Run("hot key of a checkpoint", func(t *testing.T) {
		p := admit(t)
		last := &snapshot.Checkpoint{ID: 7, Hot: []snapshot.HotKey{{Key: "k1", Elements: 900}}}
		f := only(t, p.examine(func(r *Request) { r.Last = last }), CodeHotKey, Warning)
		require.Equal(t, []string{"k1"}, f.Where)
		require.Contains(t, f.What, "checkpoint 7")
	})
	t.Run("no state", func(t *testing.T) {
		p := &patient{t: t, store: c.store, job: statebackend.Job{Prefix: "nobody", Name: "here"}}
		require.Equal(t, []string{"nobody:here:stateKeys"}, only(t, p.examine(), CodeNoState, Warning).Where)
	})
	t.Run("restore in progress", func(t *testing.T) {
		p := admit(t)
		p.cmd(statebackend.OpHSet, p.job.Record(), statebackend.FieldRestore, `{"id":"r1","kind":"restore","checkpoint":4,"startedAt":"2026-01-02T03:04:05Z"}`)
		p.cmd(statebackend.OpSet, p.job.Staging("r1")+"k0", "being staged")
		only(t, p.examine(), CodeMarked, Warning)
	})
	t.Run("bookkeeping damaged", func(t *testing.T) {
		p := admit(t)
		p.cmd(statebackend.OpHSet, p.job.Record(), statebackend.FieldEpoch, "x")
		require.Contains(t, only(t, p.examine(), CodeBookkeeping, Error).What, "field epoch")
	})
	t.Run("shards beside none", func(t *testing.T) {
		p := admit(t)
		key := p.job.StateKey(p.in(2), "count")
		p.register(key)
		p.cmd(statebackend.OpHSet, key, string(airportIn(2)), "1")
		require.Equal(t, []string{key}, only(t, p.examine(), CodeShard, Error).Where)
	})
	t.Run("another job under the root", func(t *testing.T) {
		p := admit(t)
		other := admitNamed(t, c.store, p.job.Name+":nested")
		require.True(t, strings.HasPrefix(other.job.Root(), p.job.Root()+":"))
		unhurt(t, p.examine())
		unhurt(t, other.examine())
	})
	t.Run("bounds are told", func(t *testing.T) {
		p := admit(t)
		for i := range 5 {
			p.cmd(statebackend.OpHSet, p.job.StateKey(p.wrong(i), "mean"), string(airport(i)), "1")
		}
		r := p.examine(func(r *Request) { r.Limits = Limits{Misplaced: 2, Where: 3, States: 3, Sample: 9} })
		groups := finding(t, r, CodeKeyGroup)
		require.EqualValues(t, 5, groups.Count)
		require.Len(t, groups.Where, 3)
		require.EqualValues(t, 2, finding(t, r, CodeDuplicate).Count)
		told := fmt.Sprint(r.Findings)
		require.Contains(t, told, "duplicate-key: the same key in two partitions was looked for among the first 2 misplaced elements only")
		require.Contains(t, told, "odd-expiry: keys of more than 3 states were not compared")
		require.Contains(t, told, "shard: fields were not checked")
	})
}

func admitNamed(t testing.TB, store statebackend.Backend, name string) *patient {
	return admit(t, store, name)
}

// airportIn is a key of a group.
func airportIn(group int) statebackend.Key {
	for i := 0; ; i++ {
		if groupOf(i) == group {
			return airport(i)
		}
	}
}

// TestEachHarmOfAServerIsFound: settings, room, roles and rights of a real
// server.
func TestEachHarmOfAServerIsFound(t *testing.T) {
	c := open(t, "appendonly yes")
	client := c.srv.Client()
	p := admit(t, c.store, "server")
	set := func(t *testing.T, name, value string) {
		before := raw(t, client, "CONFIG", "GET", name).(map[any]any)[name]
		raw(t, client, "CONFIG", "SET", name, value)
		t.Cleanup(func() { raw(t, client, "CONFIG", "SET", name, before) })
	}
	t.Run("eviction of any key", func(t *testing.T) {
		set(t, "maxmemory", "10gb")
		unhurt(t, p.examine())
		set(t, "maxmemory-policy", "allkeys-lru")
		require.Contains(t, only(t, p.examine(), CodeEviction, Error).What, "allkeys-lru")
	})
	t.Run("eviction of keys that expire", func(t *testing.T) {
		set(t, "maxmemory", "10gb")
		set(t, "maxmemory-policy", "volatile-ttl")
		unhurt(t, p.examine())
		for i := range smallKeys {
			key := p.job.KeyedKey(p.at(i), "seen", string(airport(i)))
			raw(t, client, "PEXPIRE", key, 3600_000)
			defer raw(t, client, "PERSIST", key)
		}
		only(t, p.examine(), CodeEviction, Warning)
	})
	t.Run("no room", func(t *testing.T) {
		var used uint64
		_, err := fmt.Sscan(infoOf(t, client, "memory", "used_memory"), &used)
		require.NoError(t, err)
		set(t, "maxmemory", fmt.Sprint(used+used/20))
		require.Contains(t, only(t, p.examine(), CodeMaxMemory, Warning).What, "which is maxmemory")
	})
	t.Run("nothing on disk", func(t *testing.T) {
		set(t, "appendonly", "no")
		only(t, p.examine(), CodePersistence, Warning)
		set(t, "save", "3600 1")
		unhurt(t, p.examine())
	})
	t.Run("hot by its frequency", func(t *testing.T) {
		// While a child saves, accesses are not counted.
		require.Eventually(t, func() bool {
			return infoOf(t, client, "persistence", "aof_rewrite_in_progress") == "0" && infoOf(t, client, "persistence", "rdb_bgsave_in_progress") == "0"
		}, 10*time.Second, 5*time.Millisecond)
		set(t, "maxmemory-policy", "allkeys-lfu") // without maxmemory nothing is evicted
		set(t, "lfu-log-factor", "0")
		warm := admit(t, c.store, "warm") // its counts begin under the policy
		unhurt(t, warm.examine(func(r *Request) { r.Limits.HotFreq = 250 }))
		key := warm.job.StateKey(warm.in(0), "mean")
		pipe := client.Pipeline()
		for range 300 {
			pipe.HGet(context.Background(), key, "s:x")
		}
		_, err := pipe.Exec(context.Background())
		require.ErrorIs(t, err, goredis.Nil)
		f := only(t, warm.examine(func(r *Request) { r.Limits.HotFreq = 250 }), CodeHotKey, Info)
		require.Len(t, f.Where, 1)
		require.Regexp(t, `^`+key+` \(25\d\)$`, f.Where[0]) // it goes down by one each minute
	})
	t.Run("evicted", func(t *testing.T) {
		raw(t, client, "SET", "victim", strings.Repeat("x", 1<<20), "EX", "1000")
		set(t, "maxmemory-policy", "volatile-ttl")
		set(t, "maxmemory", "1")
		require.Error(t, client.Set(context.Background(), "more", "x", 0).Err())
		raw(t, client, "CONFIG", "SET", "maxmemory", "0")
		require.EqualValues(t, 1, only(t, p.examine(), CodeEvicted, Warning).Count)
		raw(t, client, "CONFIG", "RESETSTAT")
	})
	t.Run("rights", func(t *testing.T) { testRights(t, c, p) })
	t.Run("replica", func(t *testing.T) {
		host, port, _ := strings.Cut(c.srv.Addr, ":")
		second := open(t, "appendonly yes", "replicaof "+host+" "+port)
		replica := second.srv.Client()
		require.Eventually(t, func() bool { return infoOf(t, replica, "replication", "master_link_status") == "up" }, 10*time.Second, 5*time.Millisecond)
		require.Contains(t, only(t, p.by(second.store), CodeRole, Error).What, "role slave")
	})
}

func testRights(t *testing.T, c clinic, p *patient) {
	as := func(t *testing.T, tracking string, rules ...any) *redis.Backend {
		c.srv.Do(append([]any{"ACL", "SETUSER", "keyframe", "reset", "on", ">secret", "~*", "&*", "+@all"}, rules...)...)
		return storeOf(t, redis.Config{URL: strings.Replace(c.srv.URL(), "redis://", "redis://keyframe:secret@", 1), Tracking: tracking})
	}
	unhurt(t, p.by(as(t, redis.TrackAuto)))
	t.Run("of a cut", func(t *testing.T) {
		f := only(t, p.by(as(t, redis.TrackOff, "-client|pause")), CodeRights, Error)
		require.Equal(t, []string{"+client|pause"}, f.Where)
	})
	t.Run("of a restore", func(t *testing.T) {
		f := only(t, p.by(as(t, redis.TrackOff, "-rename")), CodeRights, Error)
		require.Equal(t, []string{"+rename"}, f.Where)
		require.Contains(t, f.What, "restored")
	})
	t.Run("of precopy", func(t *testing.T) {
		require.Equal(t, []string{"+zmscore"}, only(t, p.by(as(t, redis.TrackOff, "-zmscore")), CodeRights, Warning).Where)
	})
	t.Run("to follow writes", func(t *testing.T) {
		f := only(t, p.by(as(t, redis.TrackAuto, "-psync")), CodeRights, Warning)
		require.Contains(t, f.What, "may not use PSYNC")
		unhurt(t, p.by(as(t, redis.TrackKeys, "-psync"))) // not wanted there
	})
	t.Run("that can't be asked for", func(t *testing.T) {
		f := only(t, p.by(as(t, redis.TrackOff, "-multi")), CodeUntold, Info)
		require.Contains(t, f.What, "rights: ")
	})
	t.Run("to be told sizes", func(t *testing.T) {
		r := p.by(as(t, redis.TrackOff, "-memory|usage", "-object", "-config"))
		told := fmt.Sprint(r.Findings)
		require.Contains(t, told, "not known: sizes of keys: ")
		require.Contains(t, told, "not known: when keys were used: ")
		require.Contains(t, told, "not known: save points: ")
		require.NotContains(t, told, "secret")
	})
	t.Run("to look at all", func(t *testing.T) {
		_, err := Examine(t.Context(), as(t, redis.TrackOff, "-scan"), Request{Job: p.job, Rule: rule})
		require.ErrorIs(t, err, statebackend.ErrPermission)
		require.ErrorContains(t, err, "scan")
	})
}

// TestServersThatCannotBeStartedHereAreJudged: old versions, clusters, fields
// that expire and disks that fail, by what a server would say.
func TestServersThatCannotBeStartedHereAreJudged(t *testing.T) {
	c := open(t, "appendonly yes")
	p := admit(t, c.store, "odd")
	for name, x := range map[string]struct {
		change   func(*statebackend.ServerFacts)
		code     Code
		severity Severity
	}{
		"too old":       {func(s *statebackend.ServerFacts) { s.Version = "6.0.16" }, CodeVersion, Error},
		"old":           {func(s *statebackend.ServerFacts) { s.Version = "6.2.7" }, CodeVersion, Warning},
		"cluster":       {func(s *statebackend.ServerFacts) { s.Cluster = true }, CodeRole, Error},
		"field expiry":  {func(s *statebackend.ServerFacts) { s.FieldExpires = 3 }, CodeFieldExpiry, Warning},
		"disk":          {func(s *statebackend.ServerFacts) { s.Durable.Fault = "the last save failed" }, CodePersistence, Error},
		"untold saves":  {func(s *statebackend.ServerFacts) { *s.Durable = statebackend.Persistence{} }, CodePersistence, Info},
		"machine full":  {func(s *statebackend.ServerFacts) { s.SystemMemory = s.UsedMemory + 1 }, CodeMaxMemory, Warning},
		"no tracking":   {func(s *statebackend.ServerFacts) { s.Tracking = "it says no" }, CodeRights, Warning},
		"untold at all": {func(s *statebackend.ServerFacts) { *s = statebackend.ServerFacts{} }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := p.by(altered{c.store, func(in *statebackend.Inspection) { x.change(&in.Server) }})
			if x.code == "" {
				unhurt(t, r)
				return
			}
			only(t, r, x.code, x.severity)
		})
	}
}
