package alarm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"keyframe/coordinator/config"
)

const (
	// maxOutput bounds what is kept of a command's output, in bytes.
	maxOutput = 2 << 10
	// pipeTime is how long something that a command has left behind may hold
	// its output open.
	pipeTime = time.Second
)

// basicEnv are the variables that commands get. Others may hold passwords of
// the coordinator: those that a command needs are named by passEnv.
var basicEnv = []string{"PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR"}

// command is a hook that is a program.
type command struct {
	words []string
	env   []string // names
}

var _ sender = command{}

func newCommand(h config.Hook) command {
	return command{words: h.Command, env: append(append([]string(nil), basicEnv...), h.PassEnv...)}
}

func (c command) target() string { return c.words[0] }

// send runs the program with the notice on its standard input. Exit code 0 is
// a delivery. At the deadline it is killed with all that it has started.
func (c command) send(ctx context.Context, body []byte) error {
	cmd := exec.CommandContext(ctx, c.words[0], c.words[1:]...)
	cmd.Env = []string{}
	for _, name := range c.env {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	out := &head{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(body), out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = pipeTime
	err := cmd.Run()
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil: // it ended well, and left something behind
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	if text := strings.TrimSpace(out.String()); text != "" {
		return fmt.Errorf("%w: it wrote %q", err, cutText(text, maxReason/2))
	}
	return err
}

// head keeps the beginning of what is written. The buffer is no embedded one:
// its ReadFrom would take everything.
type head struct{ kept bytes.Buffer }

// Write takes everything and keeps what there is room for.
func (h *head) Write(p []byte) (int, error) {
	if room := maxOutput - h.kept.Len(); room > 0 {
		h.kept.Write(p[:min(room, len(p))]) // never fails
	}
	return len(p), nil
}

func (h *head) String() string { return h.kept.String() }
