package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/api"
	"keyframe/coordinator/fault"
	"keyframe/keygroups"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend"
)

func TestStrangeNamesOnTheCommandLine(t *testing.T) {
	r := startRedis(t)
	d := start(t, yaml(t, r.URL()))
	names := []string{"help", "h", "list", "a/b", "..", ".", "a b", "a:b", "a%2Fb", "a*", "[x]", `a\b`, "a?b", "日本", "-x", "--yes", "-5", "a\nb"}
	for _, name := range names {
		put(t, r.URL(), name, 2, "of "+name)
		d.in = strings.NewReader(fmt.Sprintf("name: %q\nmaxParallelism: 10\n", name))
		d.ok("job", "apply", "-f", "-")
	}
	d.in = nil
	for i, name := range names {
		d.health2(name, "ok")
		cp := d.object("checkpoint", "create", "--name", "sp "+name, "--", name)
		require.Equal(t, name, cp["job"])
		require.InDelta(t, 20, cp["elements"], 0)
		require.Equal(t, cp["id"], d.object("checkpoint", "show", "--", name, "sp "+name)["id"], name)
		require.Len(t, d.object("checkpoint", "list", "--", name)["items"], 1)
		var places []map[string]any
		one(t, d.ok("keygroup", "-o", "json", "--", name, name), &places)
		require.Equal(t, name, places[0]["key"])
		require.Len(t, d.object("job", "list")["items"], len(names)-i)
		d.ok("job", "delete", "--purge", "--yes", "--", name)
	}
	for line := range strings.Lines(d.log.String()) {
		require.NotContains(t, line[:len(line)-1], "\n")
	}
}

// health2 is health for a name that may begin with a dash.
func (d *service) health2(job, want string) {
	d.t.Helper()
	require.Eventually(d.t, func() bool {
		return d.object("job", "show", "--", job)["health"].(map[string]any)["state"] == want
	}, 20*time.Second, 10*time.Millisecond)
}

func TestManyKeysAtOnce(t *testing.T) {
	d, _ := withFlights(t)
	args := []string{"keygroup", "flights"}
	for i := range 2500 {
		args = append(args, fmt.Sprintf("key-%d %s", i, strings.Repeat("&ü", i%40)))
	}
	var places []api.KeyPlace
	one(t, d.ok(append(args, "-o", "json")...), &places)
	require.Len(t, places, 2500)
	rule := keygroups.Rule{MaxParallelism: 10}.WithDefaults()
	for i, p := range places {
		require.Equal(t, args[i+2], p.Key)
		_, group, err := rule.GroupOfText(p.Key)
		require.NoError(t, err)
		require.Equal(t, group, p.Group)
	}
	require.Equal(t, 1, fitting([]string{strings.Repeat("x", 1<<20), "y"}), "a key that is too long alone goes alone")
	require.Equal(t, api.MaxKeys, fitting(make([]string, 5000)))
}

func TestRestoreIntoAnotherJob(t *testing.T) {
	d, r := withFlights(t)
	d.ok("checkpoint", "create", "flights")
	d.in = strings.NewReader("name: copy\nmaxParallelism: 10\nparallelism: 2\n")
	d.ok("job", "apply", "-f", "-")
	d.in = nil
	d.health("copy", "waiting")
	require.Equal(t, fault.NoJob, d.refused(exitAbsent, "restore", "flights", "--as", "nobody", "--yes").Code)
	plan := d.object("restore", "flights", "--as", "copy", "--dry-run")
	require.Equal(t, "copy", plan["job"])
	require.Equal(t, "flights", plan["from"])
	res := d.object("restore", "flights", "--as", "copy", "--yes")
	require.Equal(t, "copy", res["job"])
	require.InDelta(t, 1300, res["elements"], 0)
	require.Equal(t, field(r, "s:key-9"), r.Do("HGET", "streaming:runtime:copy:cg:stats:topic:flights:p:3:state:count:total", "s:key-9"))
	d.health("copy", "ok")
	d.ok("checkpoint", "create", "copy")
}

func TestAMarkThatNobodyKnows(t *testing.T) {
	d, r := withFlights(t)
	d.ok("checkpoint", "create", "flights")
	require.Contains(t, d.refused(exitAbsent, "job", "unmark", "flights", "--yes").Message, "no restore in progress")
	// A coordinator of a version without leases begins a restore, and is never seen again.
	mark, err := statebackend.EncodeMark(statebackend.Mark{ID: "0a1b2c3d4e5f6a7b", Kind: "restore", Checkpoint: 9, StartedAt: time.Now()})
	require.NoError(t, err)
	r.Do("HSET", "streaming:runtime:flights:coordinator", "restore", string(mark))
	d.health("flights", "marked")
	require.Contains(t, d.ok("job", "show", "flights"), "0a1b2c3d4e5f6a7b")
	for _, line := range []string{"checkpoint create flights", "rescale flights -p 3 --yes", "restore flights --yes"} {
		require.Equal(t, fault.Refused, d.refused(exitRefused, strings.Fields(line)...).Code, line)
	}
	require.Contains(t, d.refused(exitUsage, "job", "unmark", "flights").Hint, "--yes")
	d.in, d.terminal = strings.NewReader("n\n"), true
	require.Equal(t, exitFailed, d.run("job", "unmark", "flights").code)
	d.in, d.terminal = nil, false
	require.Contains(t, d.ok("job", "unmark", "flights", "--yes"), "the mark is gone")
	d.health("flights", "ok")
	d.ok("checkpoint", "create", "flights")
}

func TestSourcesInTheDetail(t *testing.T) {
	r := startRedis(t)
	put(t, r.URL(), "flights", 3, "v")
	r.Do("HSET", "streaming:mq:topic:flights:meta", "partitionCount", "2")
	for p := range 2 {
		stream := "stream:topic:flights:p:" + strconv.Itoa(p)
		for range 3 {
			r.Do("XADD", stream, "*", "k", "v")
		}
		r.Do("XGROUP", "CREATE", stream, "stats", "0")
		r.Do("XREADGROUP", "GROUP", "stats", "worker", "COUNT", 1+p, "STREAMS", stream, ">")
	}
	d := start(t, yaml(t, r.URL(), "jobs: [{name: flights, parallelism: 2, maxParallelism: 10, sources: [{topic: flights, group: stats}]}]"))
	d.health("flights", "ok")
	cp := d.object("checkpoint", "create", "flights")
	require.Len(t, cp["sources"], 2)
	require.InDelta(t, 2, cp["sources"].([]any)[1].(map[string]any)["pending"], 0)
	text := d.ok("checkpoint", "show", "flights")
	require.Regexp(t, `(?m)^ SOURCE +CONSUMER GROUP +PARTITION +LAST DELIVERED +PENDING `, text)
	require.Regexp(t, `(?m)^ flights +stats +1 +\d+-\d+ +2 `, text)
	require.Contains(t, d.refused(exitRefused, "rescale", "flights", "-p", "3", "--dry-run").Message, "2")
	require.InDelta(t, 3, d.object("rescale", "flights", "-p", "3", "--dry-run", "--allow-idle")["to"], 0)
}

func TestVerifyFindsDamage(t *testing.T) {
	r := startRedis(t)
	put(t, r.URL(), "flights", 130, "v")
	config := yaml(t, r.URL(), flightsJob)
	d := start(t, config)
	d.health("flights", "ok")
	d.ok("checkpoint", "create", "flights")
	path := d.object("store", "stats")["path"].(string)
	require.Equal(t, exitDone, d.end())

	db, err := bolt.Open(t.Context(), path, bolt.Options{})
	require.NoError(t, err)
	m, err := db.Manifest(t.Context(), "flights", 1)
	require.NoError(t, err)
	chunk, err := db.Chunk(t.Context(), m.Chunks[0].ID)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	other := bytes.Clone(chunk)
	other[len(chunk)/2] ^= 0x10
	damaged := bytes.ReplaceAll(file, chunk, other) // also where the file has it no more
	require.NotEqual(t, file, damaged)
	require.NoError(t, os.WriteFile(path, damaged, 0o600))

	d = start(t, config)
	d.health("flights", "ok")
	for _, line := range []string{"checkpoint verify flights", "checkpoint verify flights 1", "store verify"} {
		res := d.run(strings.Fields(line)...)
		require.Equal(t, exitProblems, res.code, "%s: %s", line, res.err)
		require.Empty(t, res.err, "what was found is the output")
		require.Contains(t, res.out, "problems", line)
		if line == "checkpoint verify flights" {
			require.Contains(t, res.out, m.Chunks[0].ID.String())
			// From now on it is not the newest restorable one.
			require.Equal(t, fault.NoCheckpoint, d.refused(exitAbsent, "restore", "flights", "--dry-run").Code)
		}
	}
	res := d.run("checkpoint", "verify", "flights", "1", "-o", "json")
	require.Equal(t, exitProblems, res.code)
	var v struct {
		OK       bool
		Problems []snapshot.Problem
	}
	one(t, res.out, &v)
	require.False(t, v.OK)
	require.NotEmpty(t, v.Problems)
	require.Contains(t, d.ok("checkpoint", "list", "flights"), "BAD: ")
	require.Contains(t, d.ok("job", "show", "flights"), "; BAD: ")
	require.Equal(t, fault.Corrupt, d.refused(exitFailed, "restore", "flights", "--checkpoint", "1", "--yes").Code)
	require.Equal(t, `"v-7"`, field(r, "s:key-7"))
}
