package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/snapshot/bolt"
)

// files are the names in a folder.
func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// config writes a configuration into a folder of its own.
func configFile(t *testing.T, text string) (path string) {
	t.Helper()
	return write(t, "keyframe.yaml", strings.ReplaceAll(text, "$DIR", t.TempDir()))
}

func TestBadConfigurations(t *testing.T) {
	s := newShell(t, "")
	job := func(fields string) string { return "jobs:\n  - {name: flights, " + fields + "}\n" }
	for text, message := range map[string]string{
		"redis: {uri: x}\n":                                                 "line 1: redis.uri: unknown field",
		"nothing: 1\n":                                                      "line 1: nothing: unknown field",
		job("paralelism: 2"):                                                "line 2: jobs[0].paralelism: unknown field",
		job("checkpoint: {schedul: x}"):                                     "jobs[0].checkpoint.schedul: unknown field",
		job("parallelism: two"):                                             "jobs[0].parallelism: two: want a whole number",
		job("parallelism: 2.5"):                                             "want a whole number",
		job("retention: 5"):                                                 "jobs[0].retention: want fields",
		job("checkpoint: {timeout: 5}"):                                     `duration "5"`,
		job("checkpoint: {schedule: TZ=0}"):                                 `jobs[0].checkpoint.schedule: "TZ=0"`,
		job("checkpoint: {schedule: CRON_TZ=UTC}"):                          `"CRON_TZ=UTC"`,
		job(`checkpoint: {schedule: "0 0 30 2 *"}`):                         `"0 0 30 2 *"`,
		job(`checkpoint: {schedule: "@every 500ms"}`):                       `"@every 500ms"`,
		job(`checkpoint: {schedule: "@every -5m"}`):                         `"@every -5m"`,
		job(`checkpoint: {schedule: "0 0 1 1 * *"}`):                        `"0 0 1 1 * *"`,
		job("parallelism: 11, maxParallelism: 10"):                          "it is above maxParallelism 10",
		job("parallelism: 0"):                                               "give at least 1 subtask",
		job("maxParallelism: 32769"):                                        "give at most 32768",
		job("keyGroups: {hash: md5}"):                                       `"md5"`,
		job("prefix: ''"):                                                   "jobs[0].prefix",
		"jobs: [{name: ''}]\n":                                              "give the job a name",
		"jobs: [{parallelism: 2}]\n":                                        "give the job a name",
		"jobs: [{name: a}, {name: a}]\n":                                    "jobs[0] has the same name",
		"jobs: [{name: 'b:c'}, {name: c, prefix: 'streaming:runtime:b'}]\n": "its state would lie under",
		job("sources: [{topic: '', group: g}]"):                             "jobs[0].sources[0].topic",
		job("sources: [{topic: t}]"):                                        "jobs[0].sources[0].group",
		"api: {listen: 0.0.0.0:7070}\n":                                     "set api.tokenFile or api.tokenEnv",
		"api: {listen: nowhere}\n":                                          "api.listen",
		"api: {listen: 127.0.0.1:0, certFile: /no}\n":                       "api.keyFile",
		"store: {path: ''}\n":                                               "store.path",
		"log: {level: loud}\n":                                              "log.level",
		"redis: {url: 'http://h'}\n":                                        `scheme "http"`,
		"redis: {url: 'redis://u:" + testPassword + "@h:x'}\n":              "redis.url",
		"redis: {passwordFile: /no/such/file}\n":                            "redis.passwordFile",
		"redis: {passwordEnv: KEYFRAME_NO_SUCH}\n":                          "redis.passwordEnv",
		"jobs: [\n": "line ",
	} {
		path := configFile(t, text)
		before := files(t, filepath.Dir(path))
		for _, args := range [][]string{{"config", "check", path}, {"run", "-c", path}, {"run", "--config=" + path}} {
			f := s.refused(exitUsage, args...)
			require.Equal(t, fault.Config, f.Code, text)
			require.Contains(t, f.Message, message, text)
			require.Contains(t, f.Message, path)
			require.NotEmpty(t, f.Hint)
			require.NotContains(t, f.Message+f.Hint, testPassword)
		}
		require.Equal(t, before, files(t, filepath.Dir(path)), "nothing is written")
	}
	require.Equal(t, fault.Config, s.refused(exitUsage, "run", "-c", "/no/such/file").Code)
	require.Equal(t, fault.Config, s.refused(exitUsage, "config", "check", t.TempDir()).Code)
	require.Contains(t, s.refused(exitUsage, "run", "now").Message, `unexpected argument "now"`)
}

func TestAllProblemsOfAConfigurationAtOnce(t *testing.T) {
	s := newShell(t, "")
	path := configFile(t, "log: {level: loud}\njobs: [{name: '', parallelism: 0}, {name: a, checkpoint: {schedule: 'TZ=0'}}]\n")
	f := s.refused(exitUsage, "config", "check", path)
	for _, part := range []string{"4 problems", "log.level", "jobs[0].name", "jobs[0].parallelism", "jobs[1].checkpoint.schedule"} {
		require.Contains(t, f.Message, part)
	}
}

func TestAGoodConfiguration(t *testing.T) {
	s := newShell(t, "")
	token := write(t, "token", testToken+"\n")
	require.NoError(t, os.Chmod(token, 0o644))
	path := configFile(t, "redis: {url: 'redis://:"+testPassword+"@127.0.0.1:1/3'}\napi: {listen: '0.0.0.0:0', tokenFile: "+token+"}\n"+flightsJob)
	out := s.ok("config", "check", path)
	require.Contains(t, out, path+" is right: 1 job, state at redis://127.0.0.1:1/3")
	require.Contains(t, out, "warning: api.tokenFile")
	v := s.object("config", "check", path)
	require.Equal(t, true, v["ok"])
	require.Equal(t, []any{"flights"}, v["jobs"])
	require.Len(t, v["warnings"], 2)
}

func TestBadJobsAreNotApplied(t *testing.T) {
	d, _ := withFlights(t)
	for text, message := range map[string]string{
		"":                            "empty",
		"{}":                          "give the job a name",
		"name: ''":                    "give the job a name",
		"name: x\nparalelism: 2":      "paralelism",
		`{"name":"x","paralelism":2}`: "paralelism",
		"name: x\nparallelism: 200\nmaxParallelism: 128":        "above maxParallelism",
		"name: x\ncheckpoint: {schedule: '@every 500ms'}":       "@every 500ms",
		"name: flights\nprefix: streaming\nmaxParallelism: [1]": "maxParallelism",
		"name: 'runtime:flights'\nprefix: streaming":            "same root",
		"a: &a [*a]": "",
	} {
		d.in = strings.NewReader(text)
		plain := d.run("job", "apply", "-f", "-")
		require.Equal(t, exitUsage, plain.code, "%q: %s%s", text, plain.out, plain.err)
		require.Contains(t, plain.err, message, text)
		f := d.refused(exitUsage, "job", "apply", "--file", write(t, "job.yaml", text))
		require.Contains(t, f.Message, message, text)
	}
	d.in = nil
	require.Contains(t, d.refused(exitUsage, "job", "apply", "-f", "/no/such").Message, "/no/such")
	require.Contains(t, d.refused(exitUsage, "job", "apply", "-f", write(t, "big", strings.Repeat("# x\n", maxJobText/3))).Message, "larger than")
	require.Len(t, d.object("job", "list")["items"], 1)

	// Key groups are fixed once there is a checkpoint.
	d.ok("checkpoint", "create", "flights")
	f := d.refused(exitRefused, "job", "apply", "-f", write(t, "job.yaml", "name: flights\nmaxParallelism: 20\n"))
	require.Contains(t, f.Message, "20")
	d.in = strings.NewReader("name: second\n")
	require.Contains(t, d.ok("job", "apply", "-f", "-"), "job second applied")
}

func TestAStoreThatCantBeOpened(t *testing.T) {
	s := newShell(t, "")
	run := func(store string, code int) fault.Error {
		t.Helper()
		path := write(t, "keyframe.yaml", fmt.Sprintf("redis: {url: 'redis://127.0.0.1:1'}\nstore: {path: %q, onDamage: refuse}\napi: {listen: 127.0.0.1:0}\n", store))
		before, err := os.ReadFile(store)
		beforeErr := err
		f := s.refused(code, "run", "-c", path)
		require.Contains(t, f.Message, store)
		after, err := os.ReadFile(store)
		require.Equal(t, beforeErr == nil, err == nil)
		require.Equal(t, before, after, "it is left as it is")
		return f
	}
	good := filepath.Join(t.TempDir(), "good.db")
	db, err := bolt.Open(t.Context(), good, bolt.Options{})
	require.NoError(t, err)
	held := run(good, exitRefused)
	require.Equal(t, fault.Busy, held.Code)
	require.Contains(t, held.Message, "holds it")
	require.NoError(t, db.Close())
	content, err := os.ReadFile(good)
	require.NoError(t, err)

	f := run(write(t, "text.db", strings.Repeat("not a store\n", 1000)), exitFailed)
	require.Contains(t, f.Message, "not a Keyframe store")
	f = run(write(t, "short.db", "short"), exitFailed)
	require.NotEmpty(t, f.Message)
	f = run(write(t, "truncated.db", string(content[:len(content)/2])), exitFailed)
	require.Equal(t, fault.Corrupt, f.Code)
	f = run(write(t, "newer.db", strings.Replace(string(content), "format\x00\x00\x00\x01", "format\x00\x00\x00\x02", 1)), exitFailed)
	require.Contains(t, f.Message, "format 2")
	f = run(t.TempDir(), exitUsage)
	require.Contains(t, f.Message, "it is a directory")
	missing := filepath.Join(t.TempDir(), "no")
	r := s.run("run", "-c", write(t, "keyframe.yaml", fmt.Sprintf("store: {path: %q}\napi: {listen: 127.0.0.1:0}\n", filepath.Join(missing, "such.db"))))
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.err, "its folder "+missing+" does not exist: make it first")
}

func TestAnAddressThatIsTaken(t *testing.T) {
	s := newShell(t, "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	dir := t.TempDir()
	at := func(listen string) string {
		return write(t, "keyframe.yaml", fmt.Sprintf("redis: {url: 'redis://127.0.0.1:1'}\nstore: {path: %q}\napi: {listen: %q}\n", filepath.Join(dir, "keyframe.db"), listen))
	}
	f := s.refused(exitRefused, "run", "-c", at(l.Addr().String()))
	require.Contains(t, f.Message, l.Addr().String())
	require.Contains(t, f.Hint, "another coordinator")

	socket := filepath.Join(t.TempDir(), "k.sock")
	live, err := net.Listen("unix", socket)
	require.NoError(t, err)
	f = s.refused(exitRefused, "run", "-c", at("unix:"+socket))
	require.Contains(t, f.Message, "another coordinator serves it")
	require.NoError(t, live.Close())

	file := write(t, "file", "precious")
	f = s.refused(exitUsage, "run", "-c", at("unix:"+file))
	require.Contains(t, f.Message, "no socket")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "precious", string(text))
	s.refused(exitUsage, "run", "-c", at("unix:"+filepath.Join(t.TempDir(), "no", "k.sock")))
	s.refused(exitUsage, "run", "-c", at("127.0.0.1:0x"))
	require.Empty(t, files(t, dir), "the store file was not made")
}

func TestDiscoverNeedsAServer(t *testing.T) {
	s := newShell(t, "")
	f := s.refused(exitFailed, "discover", "--redis", "redis://:"+testPassword+"@"+freeAddr(t))
	require.Equal(t, fault.Unreachable, f.Code)
	r := startRedis(t)
	f = s.refused(exitFailed, "discover", "--redis", "redis://"+r.Addr)
	require.Equal(t, fault.Permission, f.Code)
	require.Contains(t, f.Hint, "password")
	f = s.refused(exitFailed, "discover", "--redis", "redis://:wrong-"+testPassword[:5]+"@"+r.Addr)
	require.Equal(t, fault.Permission, f.Code)
	require.NotContains(t, f.Message, "wrong-")
	for _, url := range []string{"http://h", "redis://", "nothing", "redis://h/x", "redis://a:" + testPassword + "#@h"} {
		f = s.refused(exitUsage, "discover", "--redis", url)
		require.Equal(t, fault.Config, f.Code)
		require.NotContains(t, f.Message, testPassword)
	}
	require.Contains(t, s.ok("discover", "--redis", r.URL()), "no jobs at redis://"+r.Addr)
	require.Equal(t, []any{}, s.object("discover", "--redis", r.URL())["jobs"])

	put(t, r.URL(), "flights", 3, "v")
	s.env = map[string]string{"REDIS_PASSWORD": testPassword}
	found := s.object("discover", "--redis", "redis://"+r.Addr, "--password-env", "REDIS_PASSWORD")
	require.Equal(t, []any{map[string]any{"prefix": "streaming:runtime", "name": "flights", "stateKeys": 10.0, "record": false}}, found["jobs"])
	require.Equal(t, "redis://"+r.Addr+"/0", found["server"])
	require.Regexp(t, `streaming:runtime +flights +10 `, s.ok("discover", "--redis", r.URL()))
}

func TestAServerThatAnswersBadly(t *testing.T) {
	r := startRedis(t)
	r.Do("SET", "streaming:runtime:wrong:stateKeys", "no set")
	d := start(t, yaml(t, "redis://"+r.Addr, "jobs: [{name: flights}]"))
	d.health("flights", "denied")
	d.logged("password")
	f := d.refused(exitFailed, "checkpoint", "create", "flights")
	require.Equal(t, fault.Permission, f.Code, f.Message)
	require.Equal(t, exitDone, d.end())

	d = start(t, yaml(t, r.URL(), "jobs: [{name: wrong}]"))
	d.health("wrong", "damaged")
	f = d.refused(exitFailed, "checkpoint", "create", "wrong")
	require.Equal(t, fault.Failed, f.Code)
	require.Contains(t, f.Message, "streaming:runtime:wrong:stateKeys")
	require.Equal(t, "no set", r.Do("GET", "streaming:runtime:wrong:stateKeys"))
}

func TestADeadServerDoesntKeepTheCoordinatorFromStarting(t *testing.T) {
	r := startRedis(t)
	put(t, r.URL(), "flights", 130, "v")
	r.Kill()
	d := start(t, yaml(t, r.URL(), flightsJob))
	d.health("flights", "unreachable")
	d.logged("starting → unreachable")
	require.Contains(t, d.log.String(), "[WARN]")
	require.Equal(t, fault.Unreachable, d.refused(exitFailed, "checkpoint", "create", "flights").Code)
	r.Restart() // with what it had: nothing was saved
	d.health("flights", "waiting")
	put(t, r.URL(), "flights", 130, "v")
	d.health("flights", "ok")
	d.ok("checkpoint", "create", "flights")
}

func TestTheCommandNeverWaitsForAFullPipe(t *testing.T) {
	s := newShell(t, "")
	var errs record
	code := s.app(brokenWriter{}, &errs).run(context.Background(), []string{"coordinator", "version", "-o", "json"})
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs.String(), "write output")
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
