//go:build clocks && linux

// make clocks: the built command with a wall clock that the test sets. It takes
// minutes to build, since package time is another one for it.

package main

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
)

// clockEnv names a file of eight bytes: by how many seconds the process's wall
// clock is ahead. Its monotonic clock is the machine's.
const clockEnv = "KEYFRAME_CLOCK_FILE"

// stepSource goes into package time of the command that is built for this test.
const stepSource = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

var wallStep = func() *int64 {
	path, ok := syscall.Getenv("` + clockEnv + `")
	if !ok {
		return new(int64)
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err != nil {
		panic("open the clock: " + err.Error())
	}
	b, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("map the clock: " + err.Error())
	}
	return (*int64)(unsafe.Pointer(&b[0]))
}()

func wallAhead() int64 { return atomic.LoadInt64(wallStep) }
`

// buildWithClock builds the command with such a clock.
func buildWithClock(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	at := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	source, err := os.ReadFile(filepath.Join(at, "time.go"))
	require.NoError(t, err)
	const now = "	sec, nsec, mono := runtimeNow()\n	if mono == 0 {"
	require.Equal(t, 1, strings.Count(string(source), now), "time.Now of this version of Go")
	patched := strings.Replace(string(source), now, strings.Replace(now, "\n", "\n	sec += wallAhead()\n", 1), 1)
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(at, "time.go"):       write(t, "time.go", patched),
		filepath.Join(at, "wall_ahead.go"): write(t, "wall_ahead.go", stepSource),
	}})
	require.NoError(t, err)
	program := filepath.Join(dir, "coordinator")
	out, err := exec.Command("go", "build", "-overlay", write(t, "overlay.json", string(overlay)), "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// stepped is a coordinator as a process whose wall clock can be set.
type stepped struct {
	*process
	file string
}

// step puts its wall clock that far ahead of the machine's, at once.
func (s *stepped) step(d time.Duration) {
	s.t.Helper()
	f, err := os.OpenFile(s.file, os.O_WRONLY, 0)
	require.NoError(s.t, err)
	_, err = f.Write(binary.NativeEndian.AppendUint64(nil, uint64(int64(d/time.Second))))
	require.NoError(s.t, err)
	require.NoError(s.t, f.Close())
}

// TestWallClocksOfTheBuiltCommandThatJump: an hour forward and back, on the
// leader and on the standby: nobody else leads, and the standby writes nothing.
func TestWallClocksOfTheBuiltCommandThatJump(t *testing.T) {
	program := buildWithClock(t)
	r := startRedis(t)
	put(t, r.URL(), "flights", 130, "v")
	start := func(name string) *stepped {
		file := write(t, name, strings.Repeat("\x00", 8))
		return &stepped{launchAs(t, program, besideConfig(t, r, filepath.Join(t.TempDir(), name+".db"), "2s"), clockEnv+"="+file), file}
	}
	a := start("a")
	a.health("flights", "ok")
	b := start("b")
	b.health("flights", "standby")
	term := a.leader()
	for _, step := range [][2]time.Duration{{time.Hour, 0}, {-time.Hour, 0}, {0, time.Hour}, {0, -time.Hour}, {time.Hour, -time.Hour}, {-time.Hour, time.Hour}} {
		a.step(step[0])
		b.step(step[1])
		before := kept(t, r)
		require.Never(t, func() bool { return b.leader()["me"] == true || a.leader()["token"] != term["token"] }, 5*time.Second, 100*time.Millisecond, "%v", step)
		require.Equal(t, before, kept(t, r), "%v", step)
		require.Equal(t, fault.Refused, b.refused(exitRefused, "checkpoint", "create", "flights").Code)
		began, err := time.Parse(time.RFC3339, a.object("checkpoint", "create", "flights")["startedAt"].(string))
		require.NoError(t, err)
		require.InDelta(t, step[0].Seconds(), time.Until(began).Seconds(), 60, "the clock has jumped")
	}
	require.NotContains(t, a.log.String(), "deposed")
	a.signal(syscall.SIGKILL)
	died := time.Now()
	b.health("flights", "ok")
	require.Less(t, time.Since(died), 10*time.Second, "the TTL is two seconds, whatever the clock says")
	require.InDelta(t, 2, b.leader()["token"], 0)
	b.ok("checkpoint", "create", "flights")
}
