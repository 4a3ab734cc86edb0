package monkey

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
)

// patience bounds every wait for a state: far above what it ever takes.
const patience = 60 * time.Second

// leaseTTL is short, so that who leads changes within a round.
const leaseTTL = 2 * time.Second

// daemon is one coordinator with its configuration and its store file, which
// outlive its processes.
type daemon struct {
	t     *testing.T
	name  string
	addr  string
	store string
	conf  string
	log   string
	http  *http.Client

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	own  bool          // its end was asked for
	peak uint64        // bytes of memory that its processes have had at most
}

// jobConfig is the job's definition. Retention is as tight as it can be.
const jobConfig = `
  - name: flights
    parallelism: 2
    maxParallelism: 16
    checkpoint: {schedule: "@every 1s", timeout: 20s, maxPause: 2s, selfCheckEvery: 20}
    retention: {keep: 1}
`

// newDaemon writes a configuration; disk is the folder of the store's file.
func newDaemon(t *testing.T, name, redisAddr, passwordFile, disk string) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{t: t, name: name, addr: redistest.FreeAddr(t), store: filepath.Join(disk, "keyframe.db"),
		conf: filepath.Join(dir, "config.yaml"), log: filepath.Join(dir, "log"),
		http: &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{}}}
	text := fmt.Sprintf("redis: {url: %q, passwordFile: %q}\nstore: {path: %q}\napi: {listen: %q}\nlease: {ttl: %s}\naudit: {path: %q}\njobs:%s",
		"redis://keyframe@"+redisAddr+"/0", passwordFile, d.store, d.addr, leaseTTL, filepath.Join(dir, "audit"), jobConfig)
	require.NoError(t, os.WriteFile(d.conf, []byte(text), 0o600))
	t.Cleanup(func() {
		d.kill()
		d.http.CloseIdleConnections()
		if t.Failed() {
			t.Logf("the log of coordinator %s ends with:\n%s", name, d.tail(12000))
		}
	})
	return d
}

// start starts a process and doesn't wait for anything. It does nothing when
// one runs.
func (d *daemon) start() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd != nil {
		return nil
	}
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(binary, "run", "-c", d.conf)
	cmd.Stderr = log
	// It ends with the test process, however that ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := errors.Join(cmd.Start(), log.Close()); err != nil {
		return fmt.Errorf("start coordinator %s: %w", d.name, err)
	}
	done := make(chan struct{})
	d.cmd, d.done, d.own = cmd, done, false
	go func() {
		_ = cmd.Wait() // how it ended is looked at where that matters
		close(done)
	}()
	return nil
}

// signal sends a signal to the process, when there is one.
func (d *daemon) signal(s syscall.Signal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd != nil {
		_ = d.cmd.Process.Signal(s) // it may have ended
	}
}

// kill ends the process at once. Safe to call when none runs.
func (d *daemon) kill() { d.end(syscall.SIGKILL) }

// stop ends the process gracefully, and says how it ended.
func (d *daemon) stop() error {
	if state := d.end(syscall.SIGTERM); state != nil && state.ExitCode() != 0 {
		return fmt.Errorf("coordinator %s: a stop ended with %s", d.name, state)
	}
	return nil
}

func (d *daemon) end(s syscall.Signal) *os.ProcessState {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd == nil {
		return nil
	}
	d.measureLocked()
	d.own = true
	_ = d.cmd.Process.Signal(s)
	_ = d.cmd.Process.Signal(syscall.SIGCONT) // one that stands still doesn't hear a SIGTERM
	select {
	case <-d.done:
	case <-time.After(patience):
		_ = d.cmd.Process.Kill()
		<-d.done
	}
	state := d.cmd.ProcessState
	d.cmd = nil
	d.http.CloseIdleConnections()
	return state
}

// gone tells whether the process has ended without being asked to; it is then
// taken for stopped.
func (d *daemon) gone() (string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd == nil {
		return "", false
	}
	select {
	case <-d.done:
		state := d.cmd.ProcessState.String()
		d.cmd = nil
		return state, true
	default:
		return "", false
	}
}

// measureLocked reads the peak of the process's memory.
func (d *daemon) measureLocked() {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		return // it has ended
	}
	for line := range strings.Lines(string(data)) {
		var kb uint64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kb); n == 1 {
			d.peak = max(d.peak, kb<<10)
		}
	}
}

// memory is the most that its processes have had, in bytes.
func (d *daemon) memory() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd != nil {
		d.measureLocked()
	}
	return d.peak
}

// tail is the end of the log.
func (d *daemon) tail(n int) string {
	data, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	return string(data[len(data)-min(len(data), n):])
}

// call sends a request to the API; out gets the answer.
func (d *daemon) call(method, path string, out any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+d.addr+"/v1"+path, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := d.http.Do(req)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s %s", method, path, resp.Status, body)
	}
	return json.Unmarshal(body, out)
}

// outcome is how a command of the binary ended.
type outcome struct {
	code int // -1 when it had to be ended
	out  string
	err  string
}

// why is the code of the error that it told, "" when it told none.
func (o outcome) why() string {
	var told struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal([]byte(o.err), &told) != nil || told.Error.Code == "" {
		return ""
	}
	return ", " + told.Error.Code
}

// run runs a command of the binary.
func (d *daemon) run(limit time.Duration, args ...string) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append(args, "--addr", "http://"+d.addr, "-o", "json")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the exit code is the answer
	if cmd.ProcessState == nil {
		return outcome{code: -1, err: "it did not start"}
	}
	return outcome{code: cmd.ProcessState.ExitCode(), out: stdout.String(), err: stderr.String()}
}
