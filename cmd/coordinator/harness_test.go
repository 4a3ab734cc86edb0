package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/internal/redistest"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

// result is what one run of the command gave.
type result struct {
	code     int
	out, err string
}

// shell is what a person has in front of them.
type shell struct {
	t        *testing.T
	env      map[string]string
	in       io.Reader
	terminal bool // stdin and stderr are one
}

func newShell(t *testing.T, addr string) *shell {
	return &shell{t: t, env: map[string]string{"COORDINATOR_ADDR": addr}}
}

func (s *shell) app(out, err io.Writer) *app {
	in := s.in
	if in == nil {
		in = strings.NewReader("")
	}
	return &app{
		in: in, out: io.MultiWriter(out, &recorded), err: io.MultiWriter(err, &recorded),
		getenv: func(name string) string { return s.env[name] }, inTerminal: s.terminal, errTerminal: s.terminal, stopTime: 10 * time.Second, tokenEvery: 200 * time.Millisecond,
	}
}

func (s *shell) runIn(ctx context.Context, args ...string) result {
	var out, err record
	code := s.app(&out, &err).run(ctx, append([]string{"coordinator"}, args...))
	return result{code, out.String(), err.String()}
}

func (s *shell) run(args ...string) result { return s.runIn(s.t.Context(), args...) }

// ok runs a command that must work without a word on stderr.
func (s *shell) ok(args ...string) string {
	s.t.Helper()
	r := s.run(args...)
	require.Equal(s.t, exitDone, r.code, "%v: %s", args, r.err)
	require.Empty(s.t, r.err, "%v", args)
	return r.out
}

// object runs a command with -o json and decodes its one document.
func (s *shell) object(args ...string) map[string]any {
	s.t.Helper()
	var v map[string]any
	one(s.t, s.ok(append([]string{"-o", "json"}, args...)...), &v)
	return v
}

// one decodes the one JSON document that a text is.
func one(t *testing.T, text string, v any) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	require.NoError(t, dec.Decode(v), text)
	_, err := dec.Token()
	require.ErrorIs(t, err, io.EOF, "there is more than one document: %s", text)
}

// refused runs a command that must fail, as text and as JSON, and gives the
// error; nothing goes to stdout.
func (s *shell) refused(code int, args ...string) fault.Error {
	s.t.Helper()
	plain := s.run(args...)
	require.Equal(s.t, code, plain.code, "%v: %s%s", args, plain.out, plain.err)
	require.Empty(s.t, plain.out, "%v", args)
	r := s.run(append([]string{"-o", "json"}, args...)...)
	require.Equal(s.t, code, r.code, "%v: %s", args, r.err)
	require.Empty(s.t, r.out, "%v", args)
	var answer struct {
		Error fault.Error `json:"error"`
	}
	one(s.t, r.err, &answer)
	require.NotEmpty(s.t, answer.Error.Code)
	require.NotEmpty(s.t, answer.Error.Message)
	require.Contains(s.t, plain.err, "error: "+answer.Error.Message+"\n")
	if answer.Error.Hint != "" {
		require.Contains(s.t, plain.err, "hint: "+answer.Error.Hint+"\n")
	}
	require.Equal(s.t, code, ExitCode(&answer.Error))
	return answer.Error
}

// service is a coordinator that runs inside the test.
type service struct {
	*shell
	addr string
	log  *record
	code chan int
	stop context.CancelFunc
	self *app
}

// start runs a coordinator with a configuration until the test ends.
func start(t *testing.T, yaml string) *service {
	t.Helper()
	path := write(t, "keyframe.yaml", yaml)
	d := &service{log: &record{}, code: make(chan int, 1)}
	ready := make(chan string, 1)
	s := &shell{t: t}
	a := s.app(io.Discard, d.log)
	a.ready = func(addr string) { ready <- addr }
	ctx, cancel := context.WithCancel(context.Background())
	d.stop, d.self = cancel, a
	go func() { d.code <- a.run(ctx, []string{"coordinator", "run", "-c", path}) }()
	select {
	case d.addr = <-ready:
	case code := <-d.code:
		cancel()
		require.Fail(t, "the coordinator did not start", "exit %d: %s", code, d.log)
	}
	d.shell = newShell(t, "http://"+d.addr)
	t.Cleanup(func() {
		cancel()
		if d.code != nil {
			require.Equal(t, exitDone, <-d.code, d.log)
		}
	})
	return d
}

// end stops the coordinator and gives its exit code.
func (d *service) end() int {
	d.stop()
	code := <-d.code
	d.code = nil
	return code
}

// hurry stops the coordinator without time for what is under way.
func (d *service) hurry() {
	d.self.stopTime = time.Millisecond
	d.stop()
}

// logged waits for a text in the log.
func (d *service) logged(text string) {
	d.t.Helper()
	require.Eventually(d.t, func() bool { return strings.Contains(d.log.String(), text) }, 20*time.Second, 5*time.Millisecond,
		"%q is not in the log", text)
}

// health waits for a job's health.
func (d *service) health(job, want string) {
	d.t.Helper()
	var got any
	require.Eventually(d.t, func() bool {
		got = d.object("job", "show", job)["health"]
		return got.(map[string]any)["state"] == want
	}, 20*time.Second, 10*time.Millisecond, "%v", &got)
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// yaml is a configuration for a server, with more lines to follow.
func yaml(t *testing.T, url string, more ...string) string {
	t.Helper()
	return fmt.Sprintf("redis: {url: %q}\nstore: {path: %q}\napi: {listen: 127.0.0.1:0}\n%s\n",
		url, filepath.Join(t.TempDir(), "keyframe.db"), strings.Join(more, "\n"))
}

// startRedis starts a private server that asks for the tests' password.
func startRedis(t *testing.T) *redistest.Server {
	t.Helper()
	return redistest.Start(t, redistest.Password(testPassword))
}

// put writes a job's state: n fields under each of its ten key groups.
func put(t testing.TB, url, job string, n int, value string) {
	t.Helper()
	require.NoError(t, putState(context.Background(), url, job, n, value))
}

func putState(ctx context.Context, url, job string, n int, value string) error {
	b, err := redis.Open(ctx, redis.Config{URL: url})
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // what was written was answered
	key := statebackend.Job{Prefix: statebackend.DefaultPrefix, Name: job}
	for g := range 10 {
		name := key.StateKey(statebackend.Scope{Group: "stats", Topic: "flights", Partition: g, Operator: "count"}, "total")
		cmds := []statebackend.Cmd{
			statebackend.Command(statebackend.OpSAdd, key.Index(), name),
			statebackend.Command(statebackend.OpHSet, key.Registry(), name, "java.lang.String|1"),
		}
		for i := range n {
			cmds = append(cmds, statebackend.Command(statebackend.OpHSet, name, fmt.Sprintf("s:key-%d", i), fmt.Sprintf("%q", fmt.Sprintf("%s-%d", value, i))))
		}
		if _, err := b.Do(ctx, cmds...); err != nil {
			return err
		}
	}
	return nil
}

// flightsJob is the job of most tests.
const flightsJob = "jobs:\n  - {name: flights, parallelism: 2, maxParallelism: 10}"

func freeAddr(t *testing.T) string { return redistest.FreeAddr(t) }
