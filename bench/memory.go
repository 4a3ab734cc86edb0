package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"keyframe/snapshot"
)

// memory measures the peak memory of the real coordinator, run as a child, over
// a full checkpoint, incremental ones and a restore, which are asked for by its
// own command line.
func (l *lab) memory(ctx context.Context, r *Report) error {
	binary, err := l.coordinator(ctx)
	if err != nil {
		return err
	}
	var all []peaks
	for range l.Pairs {
		p, err := l.peak(ctx, binary)
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	mid := func(of func(peaks) float64) float64 {
		var values []float64
		for _, p := range all {
			values = append(values, of(p))
		}
		return median(values)
	}
	var ends []float64
	for _, p := range all {
		ends = append(ends, p.restore)
	}
	last := all[len(all)-1]
	r.add("memory", Figure{Name: "peak memory of the coordinator", Data: l.data.name, Unit: "MiB",
		Note: fmt.Sprintf("VmHWM after restore, of which without pages of files %.0f; %.0f after a full checkpoint (%s), %.0f after %d more with 1 %% changed, %d of them incremental",
			mid(func(p peaks) float64 { return p.anonymous }), mid(func(p peaks) float64 { return p.full }), how(last.first),
			mid(func(p peaks) float64 { return p.over }), increasing, last.incremental),
	}.measured(ends, limits{must: 128, goal: 64}))
	return nil
}

// increasing is how many checkpoints follow the full one. They come to so many
// layers that merging begins.
const increasing = 5

// peaks are the coordinator's largest sizes so far, in MiB, after each step.
type peaks struct {
	full, over, restore float64
	anonymous           float64 // of all steps, as it was seen now and then
	first               snapshot.Checkpoint
	incremental         int // checkpoints among those after the full one
}

// coordinator is the program to measure: the one that was given, or one that
// is built once.
func (l *lab) coordinator(ctx context.Context) (string, error) {
	if l.Coordinator != "" {
		return l.Coordinator, nil
	}
	path := filepath.Join(l.Dir, "coordinator")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	out, err := exec.CommandContext(ctx, "go", "build", "-o", path, "keyframe/cmd/coordinator").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the coordinator (run the bench inside its module): %w: %s", err, out)
	}
	return path, nil
}

// peak runs one coordinator with a new store.
func (l *lab) peak(ctx context.Context, binary string) (p peaks, err error) {
	if err := l.adopt(ctx); err != nil {
		return p, err
	}
	d, err := l.startDaemon(ctx, binary)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	if p.first, err = d.checkpoint(ctx); err != nil {
		return p, err
	}
	if p.full, err = d.peak(); err != nil {
		return p, err
	}
	for n := range increasing {
		if _, err := l.change(ctx, n); err != nil {
			return p, err
		}
		c, err := d.checkpoint(ctx)
		if err != nil {
			return p, err
		}
		if c.Incremental {
			p.incremental++
		}
	}
	if p.over, err = d.peak(); err != nil {
		return p, err
	}
	if _, err := d.call(ctx, "restore", job.Name, "--yes", "--no-undo"); err != nil {
		return p, err
	}
	p.anonymous = d.watch.end()
	p.restore, err = d.peak()
	return p, err
}

// daemon is a coordinator in a folder of its own.
type daemon struct {
	binary, dir string
	cmd         *exec.Cmd
	log         logBuffer
	done        chan error
	watch       *anonymous
}

// anonymous watches how much memory of a process isn't pages of files: the
// store's file is mapped, and the system may drop its pages at any time.
type anonymous struct {
	stop, done chan struct{}
	most       uint64 // KiB
}

func watchAnonymous(pid int) *anonymous {
	a := &anonymous{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(a.done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-a.stop:
				return
			case <-tick.C:
			}
			kib, err := procField(fmt.Sprintf("/proc/%d/status", pid), "RssAnon")
			if err != nil {
				return // it has ended
			}
			a.most = max(a.most, kib)
		}
	}()
	return a
}

// end gives the most that was seen, in MiB. It may be called again.
func (a *anonymous) end() float64 {
	select {
	case <-a.stop:
	default:
		close(a.stop)
	}
	<-a.done
	return float64(a.most) / 1024
}

// logBuffer keeps what a child says, for the error when it fails.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (l *lab) startDaemon(ctx context.Context, binary string) (*daemon, error) {
	dir, err := os.MkdirTemp(l.Dir, "daemon-")
	if err != nil {
		return nil, fmt.Errorf("folder of the coordinator: %w", err)
	}
	d := &daemon{binary: binary, dir: dir, done: make(chan error, 1)}
	file := filepath.Join(dir, "keyframe.yaml")
	text := fmt.Sprintf("redis: {url: %q}\nstore: {path: %q}\napi: {listen: %q}\njobs:\n"+
		"  - name: %s\n    parallelism: %d\n    maxParallelism: %d\n    checkpoint: {timeout: 15m, maxPause: 2m}\n",
		l.server.url(), filepath.Join(dir, "keyframe.db"), d.addr(), job.Name, l.spec.Parallelism, maxParallelism)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("configuration of the coordinator: %w", err)
	}
	d.cmd = exec.Command(binary, "run", "-c", file)
	d.cmd.Stderr = &d.log
	d.cmd.SysProcAttr = dieWithParent()
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the coordinator: %w", err)
	}
	d.watch = watchAnonymous(d.cmd.Process.Pid)
	go func() { d.done <- d.cmd.Wait() }()
	if err := d.await(ctx); err != nil {
		return nil, errors.Join(err, d.stop())
	}
	return d, nil
}

func (d *daemon) addr() string { return "unix:" + filepath.Join(d.dir, "api.sock") }

// await waits until the coordinator answers.
func (d *daemon) await(ctx context.Context) error {
	deadline := time.After(30 * time.Second)
	for {
		_, err := d.call(ctx, "job", "show", job.Name)
		if err == nil {
			return nil
		}
		select {
		case cause := <-d.done:
			d.done <- cause
			return fmt.Errorf("the coordinator ended at once (%w): %s", errors.Join(cause, err), d.log.String())
		case <-deadline:
			return fmt.Errorf("the coordinator does not answer: %w: %s", err, d.log.String())
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// call runs one command of the coordinator's command line against the daemon
// and gives its output.
func (d *daemon) call(ctx context.Context, args ...string) ([]byte, error) {
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, d.binary, append(args, "--addr", d.addr())...)
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("coordinator %s: %w: %s%s", strings.Join(args, " "), err, out.Bytes(), said.Bytes())
	}
	return out.Bytes(), nil
}

// checkpoint has the daemon take one.
func (d *daemon) checkpoint(ctx context.Context) (c snapshot.Checkpoint, err error) {
	out, err := d.call(ctx, "checkpoint", "create", job.Name, "-o", "json")
	if err == nil {
		err = json.Unmarshal(out, &c)
	}
	if err != nil {
		return c, fmt.Errorf("checkpoint: %w", err)
	}
	return c, nil
}

// peak is the daemon's largest resident size so far, in MiB.
func (d *daemon) peak() (float64, error) {
	kib, err := procField(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid), "VmHWM")
	return float64(kib) / 1024, err
}

// stop ends the daemon and frees its folder.
func (d *daemon) stop() error {
	d.watch.end()
	_ = d.cmd.Process.Kill() // its store goes with it
	<-d.done
	return os.RemoveAll(d.dir)
}
