package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

func init() { children["brim"] = childBrim }

// inNamespaces has a child run with mounts of its own.
func inNamespaces(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
	return cmd
}

// brim fills a disk to its last byte.
func brim(path string) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(err)
	for _, n := range []int{64 << 10, 4096, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, n))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		must(err)
	}
	must(f.Close())
}

// childBrim has somebody else fill the disk at a moment that the file's own
// growth did not choose, and then deletes every checkpoint.
func childBrim(path string) {
	ctx, dir := context.Background(), filepath.Dir(path)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		fmt.Println("nothing may be mounted")
		return
	}
	for _, n := range []int{1, 2, 5, 9, 20} {
		for _, keys := range []int{130, 3000} {
			must(brimOnce(ctx, filepath.Join(dir, fmt.Sprintf("%d-%d.db", n, keys)), n, keys))
		}
	}
	fmt.Println("done")
}

func brimOnce(ctx context.Context, path string, n, keys int) error {
	what := fmt.Sprintf("%d checkpoints of %d keys", n, keys)
	ballast := path + ".somebody-else's"
	db, err := Open(ctx, path, Options{BatchBytes: 16 << 10})
	must(err)
	var done []snapshot.ID
	for i := range n {
		m, err := storetest.Take(ctx, db, storetest.Attempt("flights"), storetest.Keys(fmt.Sprint("brim-", i), keys))
		must(err)
		done = append(done, m.Checkpoint.ID)
	}
	brim(ballast)
	for i, id := range done {
		if err := db.Delete(ctx, "flights", id); err != nil {
			return fmt.Errorf("%s: delete the %d-th: %w", what, i+1, err)
		}
		swept(&db.sweeper)
	}
	problems, err := db.Check(ctx)
	must(err)
	if len(problems) > 0 {
		return fmt.Errorf("%s: %s", what, problems[0])
	}
	if _, err := storetest.Take(ctx, db, storetest.Attempt("flights"), storetest.Keys("again", keys)); n > 1 && err != nil {
		return fmt.Errorf("%s: take another in what is free: %w", what, err)
	}
	must(db.Close())
	return errors.Join(os.Remove(ballast), os.Remove(path))
}

// swept returns when the sweeper has done what it can.
func swept(s *sweeper) {
	for done := false; !done; runtime.Gosched() {
		s.mu.Lock()
		done = s.served == s.asked
		s.mu.Unlock()
	}
}

// TestOnADiskThatIsFullCheckpointsCanBeDeleted: to free pages takes a
// transaction, which takes pages.
func TestOnADiskThatIsFullCheckpointsCanBeDeleted(t *testing.T) {
	out, err := inNamespaces(child(t, "brim", filepath.Join(t.TempDir(), "keyframe.db"))).Output()
	require.NoError(t, err, string(out))
	t.Log(strings.TrimSpace(string(out)))
}
