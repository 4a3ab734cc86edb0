package audit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
)

const fullEnv = "KEYFRAME_TEST_FULL"

// TestOnAFullDiskThereIsRoomForAThousandLines fills a small disk of its own, in a
// namespace of its own.
func TestOnAFullDiskThereIsRoomForAThousandLines(t *testing.T) {
	if dir := os.Getenv(fullEnv); dir != "" {
		onAFullDisk(t, dir)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), fullEnv+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Logf("no namespaces here: %v", err)
		return
	}
	require.NoError(t, err, string(out))
	t.Log(string(out))
}

func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, f.Close())
}

func onAFullDisk(t *testing.T, dir string) {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Logf("nothing may be mounted here: %v", err)
		return
	}
	path, ballast := filepath.Join(dir, "k.audit"), filepath.Join(dir, "somebody-else's")
	l := newLog(t, path, Options{})
	fill(t, l, 1, 3)
	fillDisk(t, ballast)
	require.NoError(t, l.Check())
	n := 3
	var err error
	for ; err == nil; n++ {
		_, err = l.Append(entry(n + 1))
	}
	n--
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Equal(t, fault.Store, fault.CodeOf(err))
	require.Greater(t, n, 1000)
	require.ErrorIs(t, l.Check(), syscall.ENOSPC)
	r := verified(t, path)
	require.EqualValues(t, n, r.Last)

	// A restart on the full disk changes nothing of that, and room ends it.
	require.NoError(t, l.Close())
	l = newLog(t, path, Options{})
	require.ErrorIs(t, l.Check(), syscall.ENOSPC)
	require.NoError(t, os.Truncate(ballast, 0))
	require.NoError(t, l.Check())
	fill(t, l, n+1, n+5)
	fillDisk(t, ballast)
	fill(t, l, n+6, n+900)
	require.True(t, verified(t, path).OK)
	fmt.Println("lines on the full disk:", n-3)
}
