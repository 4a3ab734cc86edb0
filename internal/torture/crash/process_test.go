package crash

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/api"
	"keyframe/internal/crashpoint"
)

// patience bounds every wait for a state: far above what it ever takes.
const patience = 60 * time.Second

// daemon is a configuration, a store file and the process that is at work on
// them, if any.
type daemon struct {
	t      *testing.T // of the case under way
	addr   string
	config string
	store  string
	log    string
	api    *api.Client
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process has ended
}

// begin starts a process: the ordinary one, or one that dies at a point.
func (d *daemon) begin(point string) {
	d.t.Helper()
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(d.t, err)
	program := binary
	if point != "" {
		program = dying
	}
	d.cmd = exec.Command(program, "run", "-c", d.config)
	d.cmd.Stderr = log
	d.cmd.Env = append(os.Environ(), crashpoint.Env+"="+point)
	// It ends with the test process, however that ends.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(d.t, d.cmd.Start())
	require.NoError(d.t, log.Close())
	done, cmd := make(chan struct{}), d.cmd
	d.done = done
	go func() {
		_ = cmd.Wait() // how it ended is the test's business
		close(done)
	}()
}

// dead reports whether the process has ended.
func (d *daemon) dead() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// died demands that the process ends at the point, killed by its own hand.
func (d *daemon) died(point string) {
	d.t.Helper()
	d.ended()
	name, _, _ := strings.Cut(point, ":")
	require.Contains(d.t, d.tail(1<<30), "crashpoint "+name+" reached\n", "it has to come there")
	status, ok := d.cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(d.t, ok && status.Signaled() && status.Signal() == syscall.SIGKILL, "it died of %v", d.cmd.ProcessState)
	d.buried()
}

// ended waits for the end.
func (d *daemon) ended() {
	d.t.Helper()
	select {
	case <-d.done:
	case <-time.After(patience):
		require.Fail(d.t, "it doesn't end", d.tail(3000))
	}
}

// buried forgets a process that has ended, and its log.
func (d *daemon) buried() {
	d.cmd = nil
	d.api.Close()
	require.NoError(d.t, os.Rename(d.log, d.log+".old"))
}

// kill ends the process at once. Safe to call when none runs.
func (d *daemon) kill() {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Kill() // it may have ended by itself
	<-d.done
	d.cmd = nil
	d.api.Close()
}

// tail is the end of the log.
func (d *daemon) tail(n int) string {
	data, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	return string(data[len(data)-min(len(data), n):])
}

// until waits for a state; what says how far it is. A process that ends by
// itself fails the test.
func (d *daemon) until(name string, reached func() (what string, ok bool)) {
	d.t.Helper()
	deadline := time.After(patience)
	for {
		what, ok := reached()
		if ok {
			return
		}
		select {
		case <-deadline:
			require.Fail(d.t, "no "+name+" within "+patience.String(), "last: %s\n%s", what, d.tail(3000))
		case <-d.done:
			require.Fail(d.t, "the coordinator ended by itself", "waiting for %s, last: %s\n%s", name, what, d.tail(3000))
		case <-time.After(3 * time.Millisecond):
		}
	}
}

// ready waits until every job has been looked at.
func (d *daemon) ready() {
	d.t.Helper()
	d.until("readiness", func() (string, bool) {
		status, text := d.readiness()
		return text, status == http.StatusOK
	})
}

// readiness is what /readyz answers; 0 for nothing.
func (d *daemon) readiness() (status int, text string) {
	resp, err := http.Get("http://" + d.addr + "/readyz")
	if err != nil {
		return 0, err.Error()
	}
	defer http.DefaultClient.CloseIdleConnections()
	body, err := io.ReadAll(resp.Body)
	if closeErr := resp.Body.Close(); err != nil || closeErr != nil {
		return 0, fmt.Sprint(err, closeErr)
	}
	return resp.StatusCode, string(body)
}

// get, post and call the API; an answer that is an error fails the test.
func get[T any](d *daemon, path string) T { return call[T](d, http.MethodGet, path, nil) }

func post[T any](d *daemon, path string, in any) T { return call[T](d, http.MethodPost, path, in) }

func call[T any](d *daemon, method, path string, in any) T {
	d.t.Helper()
	var out T
	require.NoError(d.t, d.api.Call(d.t.Context(), method, path, in, &out), "%s %s", method, path)
	return out
}

// ask calls the API of a process that dies meanwhile: any answer will do.
func (d *daemon) ask(method, path string, in any) {
	var out any
	_ = d.api.Call(d.t.Context(), method, path, in, &out)
}

// follow waits for an operation that must succeed.
func (d *daemon) follow(op api.Operation) api.Operation {
	d.t.Helper()
	op, err := d.api.Follow(d.t.Context(), op, nil)
	require.NoError(d.t, err, "%s of job %q", op.Kind, op.Job)
	return op
}

// run runs a command of a binary beside the daemon.
func (d *daemon) command(program string, env string, args ...string) (state *os.ProcessState, out string) {
	d.t.Helper()
	cmd := exec.Command(program, append(args, "--addr", "http://"+d.addr)...)
	cmd.Env = append(os.Environ(), crashpoint.Env+"="+env)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		require.NoError(d.t, err, "run %v", args)
	}
	return cmd.ProcessState, string(text)
}

// healthy waits until a job is well. A job that is marked is never well.
func (d *daemon) healthy(job string, marked func() bool) {
	d.t.Helper()
	d.until("health of "+job, func() (string, bool) {
		j := get[api.Job](d, "/jobs/"+job)
		ok := j.Health.State == coordinator.HealthOK
		require.False(d.t, ok && marked(), "it is marked, and said to be well")
		return fmt.Sprintf("%s: %s", j.Health.State, j.Health.Message), ok
	})
}
