package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
)

// process is a coordinator as a process of its own.
type process struct {
	*shell
	cmd  *exec.Cmd
	log  *record
	addr string
	done chan struct{}
}

// launch runs the built command on a configuration whose log is JSON, and
// waits until it serves.
func launch(t *testing.T, yaml string, env ...string) *process {
	t.Helper()
	return launchAs(t, "coordinator", yaml, env...)
}

// launchAs does so with another program.
func launchAs(t *testing.T, program, yaml string, env ...string) *process {
	t.Helper()
	p := &process{log: &record{}, done: make(chan struct{})}
	p.cmd = exec.Command(program, "run", "-c", write(t, "keyframe.yaml", yaml))
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = p.log
	require.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // the tests look at the state
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // most have ended
		<-p.done
	})
	p.shell = newShell(t, "")
	started := p.line(`"@message":"started"`)
	p.addr = started["api"].(string)
	p.env["COORDINATOR_ADDR"] = p.addr
	return p
}

// line waits for a line of the log that holds a text, and decodes it.
func (p *process) line(text string) map[string]any {
	p.t.Helper()
	var v map[string]any
	require.Eventually(p.t, func() bool {
		for line := range strings.Lines(p.log.String()) {
			if strings.Contains(line, text) && strings.HasSuffix(line, "\n") {
				return json.Unmarshal([]byte(line), &v) == nil
			}
		}
		select {
		case <-p.done:
			return true
		default:
			return false
		}
	}, 20*time.Second, 5*time.Millisecond)
	require.NotNil(p.t, v, "%s is not in the log: %s", text, p.log)
	return v
}

// exit waits for the end and gives the exit code.
func (p *process) exit() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		require.Fail(p.t, "it doesn't end", p.log.String())
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// behindGate is a process beside a gated Redis that holds state.
func behindGate(t *testing.T, more ...string) (*process, *gate, string) {
	t.Helper()
	r := startRedis(t)
	put(t, r.URL(), "flights", 130, "v")
	g := newGate(t, r.Addr)
	password := write(t, "password", testPassword+"\n")
	store := filepath.Join(t.TempDir(), "keyframe.db")
	p := launch(t, fmt.Sprintf("redis: {url: 'redis://%s/0', passwordFile: %q}\nstore: {path: %q}\napi: {listen: %q}\nlog: {json: true}\n%s\n%s\n",
		g.addr, password, store, freeAddr(t), flightsJob, strings.Join(more, "\n")))
	require.Eventually(t, func() bool { return strings.Contains(p.log.String(), "starting → ok") }, 20*time.Second, 5*time.Millisecond, p.log)
	return p, g, store
}

// history reads a store file that nobody holds.
func history(t *testing.T, path string) []snapshot.Checkpoint {
	t.Helper()
	db, err := bolt.Open(t.Context(), path, bolt.Options{})
	require.NoError(t, err)
	problems, err := db.Check(t.Context())
	require.NoError(t, err)
	require.Empty(t, problems)
	all, err := db.List(t.Context(), "flights")
	require.NoError(t, err)
	require.NoError(t, db.Close())
	return all
}

func TestSIGTERMStopsGracefully(t *testing.T) {
	p, _, store := behindGate(t)
	p.ok("checkpoint", "create", "flights")
	p.ok("checkpoint", "create", "flights")
	for _, name := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, name))
		require.NoError(t, err)
		require.NotContains(t, string(text), testPassword)
	}
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.exit())
	last := p.line("last good checkpoint")
	require.Equal(t, "flights", last["job"])
	require.InDelta(t, 2, last["checkpoint"], 0)
	require.Equal(t, false, p.line(`"@message":"stopped"`)["aborted"])

	completed := p.line("checkpoint 2 completed")
	require.Equal(t, "checkpoint_completed", completed["event"])
	require.Equal(t, "flights", completed["job"])
	require.InDelta(t, 2, completed["checkpoint"], 0)
	require.Regexp(t, "^op-", completed["operation"])
	lines := bufio.NewScanner(strings.NewReader(p.log.String()))
	for lines.Scan() {
		require.True(t, json.Valid(lines.Bytes()), "every line is JSON: %s", lines.Text())
	}
	require.NotContains(t, p.log.String(), testPassword)
	require.Len(t, history(t, store), 2)
}

func TestSIGTERMLetsARunningCheckpointFinish(t *testing.T) {
	p, gate, store := behindGate(t)
	reached := gate.arm("PAUSE")
	created := make(chan result, 1)
	go func() { created <- p.run("checkpoint", "create", "flights", "-o", "json") }()
	<-reached
	p.signal(syscall.SIGTERM)
	p.line(`"@message":"stopping"`)
	busy := p.run("checkpoint", "create", "flights")
	require.Equal(t, exitRefused, busy.code, busy.err)
	gate.open()
	require.Equal(t, 0, p.exit())
	r := <-created
	require.Equal(t, exitDone, r.code, "the caller gets the answer: %s", r.err)
	require.InDelta(t, 1, p.line("last good checkpoint")["checkpoint"], 0)
	require.Equal(t, snapshot.StateCompleted, history(t, store)[0].State)
}

func TestASecondSignalAbortsWhatRuns(t *testing.T) {
	p, gate, store := behindGate(t)
	p.ok("checkpoint", "create", "flights")
	reached := gate.arm("PAUSE")
	created := make(chan result, 1)
	go func() { created <- p.run("checkpoint", "create", "flights") }()
	<-reached
	p.signal(syscall.SIGTERM)
	p.line(`"@message":"stopping"`)
	p.signal(syscall.SIGINT)
	require.Equal(t, 0, p.exit(), "nothing is half done")
	r := <-created
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.err, "the coordinator is stopping")
	require.Equal(t, true, p.line(`"@message":"stopped"`)["aborted"])
	require.InDelta(t, 1, p.line("last good checkpoint")["checkpoint"], 0)
	all := history(t, store)
	require.Equal(t, snapshot.FailAborted, all[1].Failure.Reason, "it is recorded as aborted, not as interrupted")
}

func TestAfterAKillItStartsAgain(t *testing.T) {
	p, gate, store := behindGate(t)
	p.ok("checkpoint", "create", "flights")
	reached := gate.arm("PAUSE")
	killed := make(chan result, 1)
	go func() { killed <- p.run("checkpoint", "create", "flights") }()
	<-reached
	p.signal(syscall.SIGKILL)
	p.exit()
	r := <-killed
	require.Equal(t, exitNoDaemon, r.code, r.err)
	all := history(t, store)
	require.Equal(t, snapshot.FailInterrupted, all[1].Failure.Reason)
	require.Equal(t, snapshot.StateCompleted, all[0].State)
}

func TestASocketThatAKilledCoordinatorLeft(t *testing.T) {
	r := startRedis(t)
	socket := filepath.Join(t.TempDir(), "k.sock")
	config := func() string {
		return strings.Replace(yaml(t, r.URL(), "log: {json: true}"), "127.0.0.1:0", "'unix:"+socket+"'", 1)
	}
	first := launch(t, config())
	info, err := os.Stat(socket)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.Contains(t, first.ok("job", "list"), "no jobs")
	first.signal(syscall.SIGKILL)
	first.exit()
	require.FileExists(t, socket)
	require.Contains(t, first.refused(exitNoDaemon, "job", "list").Message, socket)

	second := launch(t, config())
	require.Contains(t, second.ok("job", "list", "--addr", "unix:"+socket), "no jobs")
	third := second.run("run", "-c", write(t, "keyframe.yaml", config()))
	require.Equal(t, exitRefused, third.code)
	require.Contains(t, second.ok("job", "list"), "no jobs", "it was left alone")
	second.signal(syscall.SIGTERM)
	require.Equal(t, 0, second.exit())
	require.NoFileExists(t, socket)
}

func TestTLSAndToken(t *testing.T) {
	r := startRedis(t)
	certs := redistest.NewCertificates(t)
	addr := freeAddr(t)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	token := write(t, "token", testToken+"\n")
	p := launch(t, strings.Replace(yaml(t, r.URL(), "log: {json: true, level: debug}"), "api: {listen: 127.0.0.1:0}",
		fmt.Sprintf("api: {listen: '0.0.0.0:%s', tokenFile: %q, certFile: %q, keyFile: %q}", port, token, certs.CertFile, certs.KeyFile), 1))
	require.Contains(t, p.log.String(), "API requests need a token or certificate")
	ask := func(ca, addr, token string) result {
		cmd := exec.Command("coordinator", "job", "list", "--addr", addr)
		cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+ca, "COORDINATOR_TOKEN="+token)
		var out, errs record
		cmd.Stdout, cmd.Stderr = &out, &errs
		_ = cmd.Run() // the exit code says it
		return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
	}
	good := ask(certs.CAFile, "https://127.0.0.1:"+port, testToken)
	require.Equal(t, exitDone, good.code, good.err)
	denied := ask(certs.CAFile, "https://127.0.0.1:"+port, "another")
	require.Equal(t, exitRefused, denied.code)
	require.Contains(t, denied.err, "COORDINATOR_TOKEN")
	untrusted := ask(write(t, "none.pem", ""), "https://127.0.0.1:"+port, testToken)
	require.Equal(t, exitNoDaemon, untrusted.code)
	require.Contains(t, untrusted.err, "SSL_CERT_FILE")
	plain := ask(certs.CAFile, "http://127.0.0.1:"+port, testToken)
	require.Equal(t, exitNoDaemon, plain.code)
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.exit())
	require.NotContains(t, p.log.String(), testToken)
}

func TestMetricsAndHealthOfARunningCoordinator(t *testing.T) {
	d, _ := withFlights(t)
	d.ok("checkpoint", "create", "flights")
	get := func(path string) (int, string) {
		resp, err := http.Get("http://" + d.addr + path)
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		http.DefaultClient.CloseIdleConnections()
		return resp.StatusCode, string(text)
	}
	status, text := get("/metrics")
	require.Equal(t, 200, status)
	for _, series := range []string{
		`keyframe_checkpoint_attempts_total{job="flights",outcome="completed",reason=""} 1`,
		`keyframe_checkpoint_duration_seconds_count{job="flights"} 1`,
		`keyframe_last_checkpoint_elements{job="flights"} 1300`,
		`keyframe_job_health{job="flights",state="ok"} 1`,
		`keyframe_store_up 1`,
	} {
		require.Contains(t, text, series+"\n")
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		status, _ := get(path)
		require.Equal(t, 200, status, path)
	}
}
