package bolt

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

func TestProbeOfAGoodStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keyframe.db")
	require.NoError(t, os.WriteFile(path, storeFile(t), 0o400))
	require.NoError(t, Probe(path))
	require.NoError(t, probeInChild(context.Background(), path))
	require.ErrorContains(t, Probe(path+"x"), "no such file")
}

// TestProbeChild gives the child files that the walk by plain reads would not
// let through, to see that the child finds them, or falls, and both are told.
func TestProbeChild(t *testing.T) {
	good := storeFile(t)
	path := filepath.Join(t.TempDir(), "keyframe.db")
	for name, test := range map[string]struct {
		content []byte
		says    string
	}{
		"no bbolt":  {[]byte("text"), "invalid database"},
		"cut short": {good[:3*os.Getpagesize()], ""},
	} {
		require.NoError(t, os.WriteFile(path, test.content, 0o600))
		err := probeInChild(context.Background(), path)
		require.ErrorIs(t, err, snapshot.ErrCorrupt, name)
		require.ErrorContains(t, err, test.says, name)
		require.ErrorContains(t, err, "left as it is", name)
	}
	require.NoError(t, os.WriteFile(path, good, 0o600))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, probeInChild(ctx, path), context.Canceled)
}

// TestProbeChildsExitCodes runs the child as Open does, and looks at its end.
func TestProbeChildsExitCodes(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good"), filepath.Join(dir, "bad")
	require.NoError(t, os.WriteFile(good, storeFile(t), 0o600))
	require.NoError(t, os.WriteFile(bad, []byte("no store"), 0o600))
	for path, code := range map[string]int{good: 0, bad: probeDamaged} {
		self, err := os.Executable()
		require.NoError(t, err)
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), probeEnv+"="+path)
		// An error here is the exit code that is looked at.
		_ = cmd.Run()
		require.Equal(t, code, cmd.ProcessState.ExitCode())
	}
}

func TestWithoutRegistrationOpenProbesInProcess(t *testing.T) {
	probeRegistered.Store(false)
	defer probeRegistered.Store(true)
	path := filepath.Join(t.TempDir(), "keyframe.db")
	b := storeFile(t)
	require.NoError(t, os.WriteFile(path, b, 0o600))
	db, err := Open(context.Background(), path, Options{})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	require.NoError(t, os.WriteFile(path, b[:len(b)/2], 0o600))
	_, err = Open(context.Background(), path, Options{})
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
}

func TestHeadKeepsTheFirstBytes(t *testing.T) {
	var h head
	for range 3 {
		n, err := h.Write(make([]byte, 3000))
		require.NoError(t, err)
		require.Equal(t, 3000, n)
	}
	require.Len(t, h.data, 4096)
	require.Equal(t, "one", firstLine([]byte("\none\ntwo")))
}
