package torture

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/api"
	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
)

// patience bounds every wait for a state: far above what it ever takes.
const patience = 60 * time.Second

// daemon is the built binary with its configuration and store file, which
// outlive its processes.
type daemon struct {
	t      *testing.T
	addr   string
	config string
	store  string
	log    string
	api    *api.Client

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// newDaemon writes a configuration; jobs is its jobs section.
func newDaemon(t *testing.T, server *redistest.Server, jobs string) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{
		t: t, addr: redistest.FreeAddr(t), config: filepath.Join(dir, "config.yaml"),
		store: filepath.Join(dir, "keyframe.db"), log: filepath.Join(dir, "log"),
	}
	text := fmt.Sprintf("redis: {url: %q}\nstore: {path: %q}\napi: {listen: %q}\njobs:\n%s", server.URL(), d.store, d.addr, jobs)
	require.NoError(t, os.WriteFile(d.config, []byte(text), 0o600))
	var err error
	d.api, err = api.NewClient("http://"+d.addr, "")
	require.NoError(t, err)
	t.Cleanup(func() {
		d.kill()
		d.api.Close()
		if strings.Contains(d.tail(1<<30), "panic") {
			t.Errorf("the coordinator panicked")
		}
		if t.Failed() {
			t.Logf("the coordinator's log ends with:\n%s", d.tail(6000))
		}
	})
	return d
}

// begin starts a process and doesn't wait for anything.
func (d *daemon) begin() {
	d.t.Helper()
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(d.t, err)
	d.cmd = exec.Command(binary, "run", "-c", d.config)
	d.cmd.Stderr = log
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

// start begins a process and waits until every job has been looked at.
func (d *daemon) start() {
	d.t.Helper()
	d.begin()
	d.ready()
}

func (d *daemon) ready() {
	d.t.Helper()
	d.until("readiness", func() (string, bool) {
		resp, err := http.Get("http://" + d.addr + "/readyz")
		if err != nil {
			return err.Error(), false
		}
		text, err := io.ReadAll(resp.Body)
		if err := resp.Body.Close(); err != nil {
			return err.Error(), false
		}
		return fmt.Sprintf("%d %s %v", resp.StatusCode, text, err), err == nil && resp.StatusCode == http.StatusOK
	})
	http.DefaultClient.CloseIdleConnections()
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

// stop ends the process gracefully and demands that it ends well.
func (d *daemon) stop() {
	d.t.Helper()
	cmd := d.cmd
	require.NoError(d.t, cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-d.done:
	case <-time.After(patience):
		require.Fail(d.t, "it does not stop")
	}
	d.cmd = nil
	d.api.Close()
	require.Zero(d.t, cmd.ProcessState.ExitCode(), "exit code of a stop")
}

// tail is the end of the log.
func (d *daemon) tail(n int) string {
	data, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	return string(data[len(data)-min(len(data), n):])
}

// until waits for a state; what says how far it is.
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
			require.Fail(d.t, "no "+name+" within "+patience.String(), "last: %s", what)
		case <-d.done:
			require.Fail(d.t, "the coordinator ended by itself", d.tail(3000))
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// get and post call the API; an answer that is an error fails the test.
func get[T any](d *daemon, path string) T {
	d.t.Helper()
	var out T
	require.NoError(d.t, d.api.Call(d.t.Context(), http.MethodGet, path, nil, &out), "GET %s", path)
	return out
}

func post[T any](d *daemon, path string, in any) T {
	d.t.Helper()
	var out T
	require.NoError(d.t, d.api.Call(d.t.Context(), http.MethodPost, path, in, &out), "POST %s", path)
	return out
}

func jobPath(name string) string { return "/jobs/" + api.Segment(name) }

// follow waits for an operation that must succeed.
func (d *daemon) follow(op api.Operation) api.Operation {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Minute)
	defer cancel()
	op, err := d.api.Follow(ctx, op, nil)
	require.NoError(d.t, err, "%s of job %q", op.Kind, op.Job)
	return op
}

// healthy waits until a job is well.
func (d *daemon) healthy(name string) {
	d.t.Helper()
	d.until("health of "+name, func() (string, bool) {
		j := get[api.Job](d, jobPath(name))
		return fmt.Sprintf("%s: %s", j.Health.State, j.Health.Message), j.Health.State == coordinator.HealthOK
	})
}

// quiet stops a job's schedule and waits until it does nothing.
func (d *daemon) quiet(name string) api.Job {
	d.t.Helper()
	post[api.Job](d, jobPath(name)+"/pause", nil)
	var j api.Job
	since := time.Now() // a tick that was due just now shows only after its look at the state
	d.until("rest of "+name, func() (string, bool) {
		j = get[api.Job](d, jobPath(name))
		running := 0
		for _, op := range get[api.List[api.Operation]](d, "/operations?job="+api.Segment(name)).Items {
			if !op.Final() {
				running++
			}
		}
		if running > 0 || j.Operation != nil {
			since = time.Now()
		}
		return fmt.Sprintf("%d operations", running), time.Since(since) > restTime
	})
	return j
}

// restTime is for how long nothing must happen before a job counts as at rest.
const restTime = 100 * time.Millisecond

// history is a job's list of checkpoints.
func (d *daemon) history(name string) []snapshot.Checkpoint {
	d.t.Helper()
	return get[api.List[snapshot.Checkpoint]](d, jobPath(name)+"/checkpoints").Items
}

// run runs a command of the binary and gives its exit code and output.
func (d *daemon) run(args ...string) (code int, out, errout string) {
	d.t.Helper()
	cmd := exec.Command(binary, append(args, "--addr", "http://"+d.addr, "-o", "json")...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		require.NoError(d.t, err, "run %v", args)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// must runs a command that has to succeed and decodes what it prints.
func must[T any](d *daemon, args ...string) T {
	d.t.Helper()
	code, out, errout := d.run(args...)
	require.Zero(d.t, code, "coordinator %s: %s%s", strings.Join(args, " "), errout, out)
	var v T
	require.NoError(d.t, json.Unmarshal([]byte(out), &v), "coordinator %s printed %q", strings.Join(args, " "), out)
	return v
}

// withStore opens a copy of the store file beside the daemon, so that nothing
// of the running process is trusted. The file must be at rest. The copy is
// checked whole.
func (d *daemon) withStore(fn func(db *bolt.DB)) {
	d.t.Helper()
	dir, err := os.MkdirTemp(d.t.TempDir(), "copy")
	require.NoError(d.t, err)
	data, err := os.ReadFile(d.store)
	require.NoError(d.t, err)
	path := filepath.Join(dir, "copy.db")
	require.NoError(d.t, os.WriteFile(path, data, 0o600))
	db, err := bolt.Open(d.t.Context(), path, bolt.Options{})
	require.NoError(d.t, err)
	problems, err := db.Check(d.t.Context())
	require.NoError(d.t, err)
	require.Empty(d.t, problems)
	fn(db)
	require.NoError(d.t, db.Close())
	require.NoError(d.t, os.RemoveAll(dir))
}

// reading walks a checkpoint of an opened store.
func reading(t *testing.T, db *bolt.DB, id snapshot.ID) (content, *snapshot.Manifest) {
	t.Helper()
	m, err := db.Manifest(t.Context(), job.Name, id)
	require.NoError(t, err)
	var r snapshot.Recorder
	require.NoError(t, snapshot.Walk(t.Context(), db, m, &r), "checkpoint %d", id)
	c := recorded(&r, job.Registry(), job.OperatorStates())
	c.epoch = m.Checkpoint.Epoch
	return c, m
}
