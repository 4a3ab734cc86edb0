package torture

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/api"
	"keyframe/coordinator/restore"
	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Names that a careless pattern, split or path would mix up (cases.md 15). The
// state of heldJob is left to a person.
const heldJob = "[x]"

var oddNames = []string{"a", "a:b", "ab", "a*", heldJob, `a\b`, "a?", "a b", "é\u2028\"'"}

func oddJobs() string {
	var b strings.Builder
	for _, name := range oddNames {
		policy := "restore"
		if name == heldJob {
			policy = "hold"
		}
		fmt.Fprintf(&b, "  - {name: %q, prefix: \"p:*\", parallelism: 2, maxParallelism: 16, recovery: {onStateLoss: %s}}\n", name, policy)
	}
	return b.String()
}

func oddJob(name string) statebackend.Job { return statebackend.Job{Prefix: "p:*", Name: name} }

// odd are byte strings that text formats mangle (cases.md 13, 14).
var odd = []string{"", "\x00", "\n", `"`, "\xff", "\xfe", "\xc3\x28", "1.0", "1", "a\r\n$3\r\nabc", strings.Repeat("long ", 9000), "null", "{}", "\u2028<&>"}

// oddScores are scores that don't survive a lossy text (cases.md 13).
var oddScores = []string{"inf", "-inf", "0.1", "3.0000000000000004", "9007199254740993", "9.9999999999999694e-310", "-0", "1.7976931348623157e308", "5e-324"}

// fillOdd writes a job that has cases 13, 14, 15, 19 and 20 in it; seed makes
// every job's values its own.
func fillOdd(t *testing.T, c *redis.Client, j statebackend.Job, seed string) {
	t.Helper()
	pipe := c.Pipeline()
	do := func(words ...any) { pipe.Do(t.Context(), words...) }
	state := func(p int, operator, name string, words ...any) string {
		key := j.StateKey(statebackend.Scope{Group: "g", Topic: "t:*", Partition: p, Operator: operator}, name)
		do("SADD", j.Index(), key)
		do("HSET", j.Registry(), key, "java.lang.String|"+seed[:1])
		return key
	}
	hash, list, set, zset := state(0, "x:y", "z"), state(1, "x", "y:z:s:k"), state(2, "o", "set:s:\x00\xff"), state(3, "o", "zset:s:k")
	for i, v := range odd {
		do("HSET", hash, v, odd[len(odd)-1-i]+seed)
		do("RPUSH", list, v+seed, v, v)
		do("SADD", set, v, v+seed)
		do("ZADD", zset, oddScores[i%len(oddScores)], v+seed)
	}
	for i := range 700 {
		do("HSET", hash, fmt.Sprintf("f%d", i), fmt.Sprintf("%s %d", seed, i*3))
		do("RPUSH", list, fmt.Sprintf("%s %d", seed, i%5))
		do("ZADD", zset, fmt.Sprintf("%d.1", i), fmt.Sprintf("m%d%s", i, seed))
	}
	do("SET", state(4, "o", "empty"), "")
	do("SET", state(4, "o", "text"), strings.Repeat(seed+"\x00", 5000))
	do("HSET", state(5, "o", strings.Repeat("n", 40<<10)), "f", seed)
	do("HSET", state(6, "o\n\xff", "key \x00\xff"), "f", seed)
	do("XADD", state(7, "o", "stream"), "7-3", "f", seed)
	state(8, "o", "registered and not there")
	// Neighbours with and without an expiry, in ms, soon and far (19, 20).
	for i := range 400 {
		key := state(9, "ttl", fmt.Sprintf("s:%d", i))
		do("HSET", key, "f", seed)
		if i%3 == 0 {
			do("PEXPIREAT", key, farAway+int64(i)*1001+7)
		}
		if i%5 == 0 {
			do("PEXPIREAT", key, time.Now().Add(time.Hour).UnixMilli()+int64(i))
		}
	}
	do("SET", state(10, "ttl", "soon"), seed, "PX", 2500)
	do("HSET", j.OperatorStates(), "src\x01offsets", `{"mode":"list"}`)
	for p := range 2 {
		key := j.OperatorKey("g", "t:*", p, "src", "offsets")
		do("SADD", j.Index(), key)
		do("HSET", j.Registry(), key, "java.lang.Long|1")
		do("RPUSH", key, fmt.Sprint(p), seed)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
}

// everything is the digest and the exact expiry of every key, by name, but for
// leases, which are renewed at any time.
func everything(t *testing.T, c *redis.Client) map[string]string {
	t.Helper()
	return digests(t, c, slices.DeleteFunc(allKeys(t, c), func(name string) bool { return strings.HasSuffix(name, ":coordinator:lease") }))
}

// own are the keys that a coordinator writes beside a job's state.
func own() map[string]bool {
	all := map[string]bool{}
	for _, name := range oddNames {
		all[oddJob(name).Record()], all[oddJob(name).Assignment()] = true, true
	}
	return all
}

// changed are the names whose content or expiry differs, but for those that
// expired by themselves.
func changed(before, after map[string]string) []string {
	var out []string
	for name, was := range before {
		if is, there := after[name]; is != was && (there || !strings.HasSuffix(name, ":soon")) {
			out = append(out, name)
		}
	}
	for name := range after {
		if _, there := before[name]; !there {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// without leaves out keys that a restore makes anew.
func without(all map[string]string, keys map[string]bool) map[string]string {
	out := maps.Clone(all)
	maps.DeleteFunc(out, func(name, _ string) bool { return keys[name] })
	return out
}

// oddWorld is all odd jobs in one Redis, with one coordinator.
type oddWorld struct {
	t *testing.T
	c *redis.Client
	d *daemon
}

// TestEveryByteComesBackAfterALoss: checkpoint, FLUSHALL, recovery, with every
// digest and every expiry as before (I3, I9).
func TestEveryByteComesBackAfterALoss(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	w := &oddWorld{t: t, c: patient(server)}
	for i, name := range oddNames {
		fillOdd(t, w.c, oddJob(name), fmt.Sprintf("%d of %s", i, name))
	}
	populateForeign(t, w.c)
	w.d = newDaemon(t, server, oddJobs())
	w.d.start()
	for _, name := range oddNames {
		w.d.healthy(name)
	}
	before := w.checkpointAll()

	require.NoError(t, w.c.FlushAll(t.Context()).Err())
	populateForeign(t, w.c)
	for _, name := range oddNames {
		if name != heldJob {
			w.d.healthyAfterLoss(name)
		}
	}
	w.heldJobWaits()
	held := oddJob(heldJob).Root() + ":"
	isHeld := func(name, _ string) bool { return strings.HasPrefix(name, held) }
	most, now := without(before, own()), without(everything(t, w.c), own())
	maps.DeleteFunc(most, isHeld)
	require.Empty(t, changed(most, now))

	w.otherTypesInTheWay()
	must[restore.Result](w.d, "restore", heldJob, "--yes")
	require.Empty(t, changed(without(before, own()), without(everything(t, w.c), own())))
	w.oneLeavesTheOthersAlone()
	w.d.stop()
}

// checkpointAll takes a checkpoint of each job, and sees that each has changed
// its own record and nothing else. It gives everything as it is then.
func (w *oddWorld) checkpointAll() map[string]string {
	w.t.Helper()
	before := everything(w.t, w.c)
	for _, name := range oddNames {
		cp := must[snapshot.Checkpoint](w.d, "checkpoint", "create", name)
		require.Positive(w.t, cp.Missing, "%q has a name without a key", name)
		after := everything(w.t, w.c)
		require.Equal(w.t, []string{oddJob(name).Record()}, changed(before, after), "a checkpoint of %q", name)
		before = after
	}
	return before
}

// heldJobWaits: the job that is left to a person has nothing, says so, and
// refuses to be checkpointed.
func (w *oddWorld) heldJobWaits() {
	w.t.Helper()
	w.d.until("loss of the held job", func() (string, bool) {
		h := get[api.Job](w.d, jobPath(heldJob)).Health
		return string(h.State), h.State == coordinator.HealthLost
	})
	code, _, errout := w.d.run("checkpoint", "create", heldJob)
	require.Equal(w.t, 5, code, errout)
	require.Contains(w.t, errout, "state_lost")
	for _, name := range allKeys(w.t, w.c) {
		require.False(w.t, strings.HasPrefix(name, oddJob(heldJob).Root()+":") && name != oddJob(heldJob).Lease(), "%q was brought back by itself", name)
	}
}

// otherTypesInTheWay puts other types, other elements and other expiries under
// names that the restore will write (cases.md 16).
func (w *oddWorld) otherTypesInTheWay() {
	w.t.Helper()
	j := oddJob(heldJob)
	fillOdd(w.t, w.c, j, "0 somebody began anew")
	key := func(p int, operator, name string) string {
		return j.StateKey(statebackend.Scope{Group: "g", Topic: "t:*", Partition: p, Operator: operator}, name)
	}
	pipe := w.c.Pipeline()
	for _, words := range [][]any{
		{"DEL", key(0, "x:y", "z")}, {"RPUSH", key(0, "x:y", "z"), "a list where a hash was"},
		{"RPUSH", key(1, "x", "y:z:s:k"), "doubled", "doubled"}, {"SADD", key(2, "o", "set:s:\x00\xff"), "too much"},
		{"PEXPIREAT", key(3, "o", "zset:s:k"), farAway}, {"PERSIST", key(9, "ttl", "s:3")}, {"DEL", key(4, "o", "text")},
		{"SADD", j.Index(), key(11, "o", "later")}, {"SET", key(11, "o", "later"), "made since"},
	} {
		pipe.Do(w.t.Context(), words...)
	}
	_, err := pipe.Exec(w.t.Context())
	require.NoError(w.t, err)
}

// oneLeavesTheOthersAlone changes every job and restores one.
func (w *oddWorld) oneLeavesTheOthersAlone() {
	t := w.t
	t.Helper()
	before := everything(t, w.c)
	for _, name := range oddNames {
		require.NoError(t, w.c.HSet(t.Context(), oddJob(name).StateKey(statebackend.Scope{Group: "g", Topic: "t:*", Partition: 0, Operator: "x:y"}, "z"), "\xff", "changed").Err())
	}
	between := everything(t, w.c)
	const one = "a*"
	must[restore.Result](w.d, "restore", one, "--yes", "--no-undo")
	after := everything(t, w.c)
	mine := func(name, _ string) bool { return strings.HasPrefix(name, oddJob(one).Root()+":") }
	others := func(all map[string]string) map[string]string {
		out := maps.Clone(all)
		maps.DeleteFunc(out, mine)
		return out
	}
	require.Empty(t, changed(others(between), others(after)), "what isn't the job's")
	notMine := func(name, v string) bool { return !mine(name, v) || own()[name] }
	maps.DeleteFunc(before, notMine)
	maps.DeleteFunc(after, notMine)
	require.NotEmpty(t, before)
	require.Empty(t, changed(before, after), "what is the job's")
}

// healthyAfterLoss waits until a loss was noticed and mended.
func (d *daemon) healthyAfterLoss(name string) {
	d.t.Helper()
	d.until("recovery of "+name, func() (string, bool) {
		var events api.List[event]
		err := d.api.Call(d.t.Context(), http.MethodGet, "/events?job="+url.QueryEscape(name), nil, &events)
		require.NoError(d.t, err)
		return fmt.Sprint(events.Items), slices.Contains(events.Items, event{Kind: "recovered"})
	})
	d.healthy(name)
}
