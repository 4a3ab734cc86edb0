package alarm

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
)

// ran runs one script as a hook; its $0 is a file of the test.
func ran(t *testing.T, timeout time.Duration, script string, passEnv ...string) (path string, err error) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "out")
	ctx, cancel := context.WithTimeoutCause(t.Context(), timeout, context.DeadlineExceeded)
	defer cancel()
	err = newCommand(config.Hook{Command: []string{"sh", "-c", script, path}, PassEnv: passEnv}).send(ctx, []byte("{\"a\": 1}\n"))
	return path, err
}

const patience = 20 * time.Second

func written(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}

func TestACommandGetsTheNotice(t *testing.T) {
	path, err := ran(t, patience, `cat > "$0"`)
	require.NoError(t, err)
	require.Equal(t, "{\"a\": 1}\n", written(t, path))
	_, err = ran(t, patience, "exit 0") // that reads nothing
	require.NoError(t, err)
}

// A coordinator's environment holds passwords that are no business of a hook.
func TestACommandGetsNoMoreOfTheEnvironmentThanNamed(t *testing.T) {
	t.Setenv("REDIS_PASSWORD", "geheim")
	t.Setenv("PAGER_KEY", "a b")
	path, err := ran(t, patience, `env > "$0"`, "PAGER_KEY", "NOT_SET_ANYWHERE")
	require.NoError(t, err)
	require.NotContains(t, written(t, path), "geheim")
	require.NotContains(t, written(t, path), "NOT_SET_ANYWHERE")
	require.Contains(t, written(t, path), "PAGER_KEY=a b\n")
	require.Contains(t, written(t, path), "PATH=")
}

func TestACommandThatFails(t *testing.T) {
	_, err := ran(t, patience, "echo no such pager >&2; exit 3")
	require.EqualError(t, err, `exit status 3: it wrote "no such pager"`)
	_, err = ran(t, patience, "exit 4")
	require.EqualError(t, err, "exit status 4")
	_, err = ran(t, patience, "kill -9 $$")
	require.ErrorContains(t, err, "killed")
	err = newCommand(config.Hook{Command: []string{"/no/such/program"}}).send(t.Context(), nil)
	require.ErrorContains(t, err, "/no/such/program")
}

func TestACommandThatFloodsIsBounded(t *testing.T) {
	_, err := ran(t, patience, "head -c 50000000 /dev/zero | tr '\\0' x; exit 5")
	require.ErrorContains(t, err, "exit status 5")
	require.Less(t, len(err.Error()), 1000)
	out := &head{}
	for range 100 {
		n, err := out.Write(make([]byte, 999))
		require.NoError(t, err)
		require.Equal(t, 999, n)
	}
	require.Len(t, out.String(), maxOutput)
}

// At the deadline everything that a command has started is killed, also what
// doesn't listen to signals and what holds its output open.
func TestACommandThatHangsIsKilledWithItsChildren(t *testing.T) {
	began := time.Now()
	path, err := ran(t, 500*time.Millisecond, `trap "" TERM INT HUP; sh -c 'trap "" TERM; echo $$ > "$0"; sleep 1000' "$0" & echo waiting; wait`)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, `it wrote "waiting"`)
	require.Less(t, time.Since(began), patience)
	pid, err := strconv.Atoi(strings.TrimSpace(written(t, path)))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return gone(pid) }, patience, 5*time.Millisecond, "process %d", pid)
}

// gone reports whether a process runs no more; one that nobody has collected
// yet doesn't run.
func gone(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return syscall.Kill(pid, 0) != nil || err != nil || strings.Contains(string(b), ") Z ")
}

// What a command leaves behind on purpose doesn't make it a failure, and holds
// nothing up for long.
func TestACommandThatLeavesSomethingBehind(t *testing.T) {
	began := time.Now()
	path, err := ran(t, patience, `sleep 1000 & echo $! > "$0"`)
	require.NoError(t, err)
	require.Less(t, time.Since(began), patience)
	pid, err := strconv.Atoi(strings.TrimSpace(written(t, path)))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL), "it still runs")
}
