package monkey

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// crew is the worker processes.
type crew struct {
	t    *testing.T
	addr string // of Redis, as workers reach it
	hand [parts]*hand
}

// hand is one worker as its parent knows it. A process that was killed is
// followed by another one.
type hand struct {
	t    *testing.T
	part int
	addr string

	cmd  *exec.Cmd
	in   io.WriteCloser
	done chan struct{} // closed when its output has ended

	mu     sync.Mutex
	acked  int    // newest position that Redis has confirmed
	acks   uint64 // how many
	most   int    // the highest of them since the last forget
	errors uint64
	lately string // the newest error
	held   chan struct{}
}

func newCrew(t *testing.T, addr string) *crew {
	c := &crew{t: t, addr: addr}
	for q := range c.hand {
		c.hand[q] = &hand{t: t, part: q, addr: addr}
		c.hand[q].start()
	}
	t.Cleanup(func() {
		for _, h := range c.hand {
			h.kill()
		}
	})
	return c
}

func (h *hand) start() {
	h.t.Helper()
	self, err := os.Executable()
	require.NoError(h.t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envWorker+"="+strconv.Itoa(h.part), envRedis+"="+h.addr)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	h.in, err = cmd.StdinPipe()
	require.NoError(h.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(h.t, err)
	require.NoError(h.t, cmd.Start())
	h.cmd, h.done = cmd, make(chan struct{})
	go h.listen(cmd, out, h.done)
}

// listen reads what the process says until it ends.
func (h *hand) listen(cmd *exec.Cmd, out io.Reader, done chan struct{}) {
	defer close(done)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		h.mu.Lock()
		switch word {
		case "ack":
			pos, _, _ := strings.Cut(rest, " ")
			if n, err := strconv.Atoi(pos); err == nil {
				h.acked, h.most = n, max(h.most, n)
				h.acks++
			}
		case "held":
			if h.held != nil {
				close(h.held)
				h.held = nil
			}
		default:
			h.errors++
			h.lately = lines.Text()
		}
		h.mu.Unlock()
	}
	_ = cmd.Wait() // it is killed, or its parent's end ends it
}

// signal sends a signal to the process.
func (h *hand) signal(s syscall.Signal) {
	_ = h.cmd.Process.Signal(s) // it may have been killed
}

// kill ends the process at once.
func (h *hand) kill() {
	_ = h.cmd.Process.Kill() // it may have ended
	<-h.done
}

// hold waits until no worker writes any more.
func (c *crew) hold() error {
	for _, h := range c.hand {
		if err := h.hold(); err != nil {
			return err
		}
	}
	return nil
}

func (h *hand) hold() error {
	held := make(chan struct{})
	h.mu.Lock()
	h.held = held
	h.mu.Unlock()
	if _, err := fmt.Fprintln(h.in, "hold"); err != nil {
		return fmt.Errorf("worker %d: hold: %w", h.part, err)
	}
	select {
	case <-held:
		return nil
	case <-h.done:
		return fmt.Errorf("worker %d has ended by itself", h.part)
	case <-time.After(patience):
		return fmt.Errorf("worker %d does not hold still: %s", h.part, h.lastError())
	}
}

// release lets workers write again after hold.
func (c *crew) release() error {
	for _, h := range c.hand {
		if _, err := fmt.Fprintln(h.in, "go"); err != nil {
			return fmt.Errorf("worker %d: go: %w", h.part, err)
		}
	}
	return nil
}

func (h *hand) lastError() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lately
}

// acked gives what each worker was told last, the most that each was told since
// forget, and how many confirmations there were in all.
func (c *crew) acked() (last, most positions, acks [parts]uint64) {
	for q, h := range c.hand {
		h.mu.Lock()
		last[q], most[q], acks[q] = h.acked, h.most, h.acks
		h.mu.Unlock()
	}
	return last, most, acks
}

// errors is how many failed writes the workers have seen.
func (c *crew) errors() (n uint64) {
	for _, h := range c.hand {
		h.mu.Lock()
		n += h.errors
		h.mu.Unlock()
	}
	return n
}

// forget begins to look for the most anew, at what is live.
func (c *crew) forget(at positions) {
	for q, h := range c.hand {
		h.mu.Lock()
		h.acked, h.most = at[q], at[q]
		h.mu.Unlock()
	}
}
