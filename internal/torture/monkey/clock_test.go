package monkey

import (
	bits "encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// clock is the clock of the Redis server, which can be put ahead and back. The
// coordinator's can't: its runtime asks the system itself, past any library.
type clock struct {
	file string
}

// newClock makes every redis-server that is started from now on, in this test,
// run by it: one that lies first on the path, and loads testdata/clock.c.
func newClock(t *testing.T) *clock {
	t.Helper()
	dir := t.TempDir()
	c := &clock{file: filepath.Join(dir, "clock")}
	require.NoError(t, c.set(0))
	server, err := exec.LookPath("redis-server")
	require.NoError(t, err, "run scripts/setup (make test does)")
	library := filepath.Join(dir, "clock.so")
	out, err := exec.Command("gcc", "-O1", "-shared", "-fPIC", "-o", library, filepath.Join("testdata", "clock.c")).CombinedOutput()
	require.NoError(t, err, "gcc: %s", out)
	script := fmt.Sprintf("#!/bin/sh\nLD_PRELOAD=%s MONKEY_CLOCK=%s exec %s \"$@\"\n", library, c.file, server)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "redis-server"), []byte(script), 0o700))
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	return c
}

// set puts the clock that far ahead of the system's.
func (c *clock) set(ahead time.Duration) error {
	f, err := os.OpenFile(c.file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(bits.NativeEndian.AppendUint64(nil, uint64(ahead.Microseconds())), 0); err != nil {
		return err
	}
	return f.Close()
}

// clockFaults are steps of the server's clock: what it decides about leases and
// expiry by.
func clockFaults() []fault {
	step := func(most time.Duration, sign time.Duration) func(a *act) error {
		return func(a *act) error {
			ahead := sign * (time.Second + time.Duration(a.rng.Int64N(int64(most))))
			if err := a.clock.set(ahead); err != nil {
				return err
			}
			if err := a.steppedBy(ahead); err != nil {
				return err
			}
			a.wait(300*time.Millisecond, 3*time.Second)
			return a.clock.set(0)
		}
	}
	return []fault{
		{"server's clock some seconds ahead, and back", "clock", step(5*time.Second, 1)},
		{"server's clock some seconds behind, and back", "clock", step(5*time.Second, -1)},
		{"server's clock hours ahead, and back", "clock", step(5*time.Hour, 1)},
		{"server's clock hours behind, and back", "clock", step(5*time.Hour, -1)},
	}
}

// steppedBy looks that the server really has another time.
func (a *act) steppedBy(ahead time.Duration) error {
	now, err := a.c.Time(a.ctx).Result()
	if err != nil {
		return a.excused(err)
	}
	if off := time.Until(now) - ahead; off.Abs() > 900*time.Millisecond {
		return fmt.Errorf("the server's clock is off by %s, want %s", time.Until(now), ahead)
	}
	return nil
}
