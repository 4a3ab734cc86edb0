package redis

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// victimEnv makes the test program a process that wants to lead, and that is to
// be killed: the server's URL, the job's name and the process's id in it.
const victimEnv = "KEYFRAME_LEASE_VICTIM"

// victimTTL is longer than any test: a killed process holds its lease on.
const victimTTL = time.Hour

// victim calls the lease code until it is killed. Each call is told on stdout
// and begins when it has been written down, by a line of stdin with the value to
// write; its answer is told after it.
func victim(spec string) error {
	url, rest, _ := strings.Cut(spec, " ")
	name, id, _ := strings.Cut(rest, " ")
	ctx, stop := timeoutFor(time.Minute)
	defer stop()
	b, err := Open(ctx, Config{URL: url, Tracking: TrackOff})
	if err != nil {
		return err
	}
	c := newCaller(newBook(), b, statebackend.Job{Prefix: testJob.Prefix, Name: name}, id, victimTTL)
	in := bufio.NewReader(os.Stdin)
	for n := 0; ; n++ {
		what := []string{callNote, callRenew, callMark}[n%3]
		if c.held.Token == 0 {
			what = callAcquire
		}
		fmt.Printf("%s %d\n", what, c.held.Token)
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		value, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
		if err != nil {
			return err
		}
		c.value = snapshot.ID(value) - 1 // the next one is what was given
		out, err := c.do(what, c.held, "")
		if err != nil {
			return err
		}
		fmt.Printf("%s %d %s\n", out.got, out.token, out.leader)
	}
}

// raise starts a victim and kills it in the middle of its n-th call, a moment
// after that has begun.
func (c *caller) raise(t *testing.T, url string, n int, moment time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"="+url+" "+c.job.Name+" "+c.id)
	cmd.Stderr = os.Stderr
	to, err := cmd.StdinPipe()
	require.NoError(t, err)
	from, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(from)
	for i := 1; ; i++ {
		in := leaseIn{id: c.id, store: c.store, ttl: int64(victimTTL)}
		require.True(t, lines.Scan(), "the victim ended by itself")
		_, err := fmt.Sscanf(lines.Text(), "%s %d", &in.what, &in.token)
		require.NoError(t, err, lines.Text())
		in.value, in.call = c.next(), c.now()
		_, err = fmt.Fprintln(to, uint64(in.value))
		require.NoError(t, err)
		if i == n {
			for began := time.Now(); time.Since(began) < moment; {
			}
			require.NoError(t, cmd.Process.Kill())
			c.bury(t, cmd, lines, in)
			return
		}
		require.True(t, lines.Scan(), "the victim ended by itself")
		c.add(in, answer(t, lines.Text(), c.now()))
	}
}

// bury waits for the end of a killed victim and writes its last call down: with
// the answer that it still gave, or with none.
func (c *caller) bury(t *testing.T, cmd *exec.Cmd, lines *bufio.Scanner, in leaseIn) {
	t.Helper()
	out := leaseOut{got: gotNothing, ret: unknownNs}
	if lines.Scan() {
		out = answer(t, lines.Text(), c.now())
		for lines.Scan() {
			continue // a call that was told of and never allowed to begin
		}
	}
	c.add(in, out)
	var killed *exec.ExitError
	require.True(t, errors.As(cmd.Wait(), &killed))
}

func answer(t *testing.T, line string, ret int64) leaseOut {
	t.Helper()
	out := leaseOut{ret: ret}
	_, err := fmt.Sscanf(line+" -", "%s %d %s", &out.got, &out.token, &out.leader)
	require.NoError(t, err, line)
	out.leader = strings.TrimSuffix(out.leader, "-")
	return out
}

// runVictim is the whole of such a process.
func runVictim(spec string) int {
	err := victim(spec)
	if errors.Is(err, io.EOF) {
		return 0 // whoever started it is gone
	}
	fmt.Fprintln(os.Stderr, "victim:", err)
	return 1
}
