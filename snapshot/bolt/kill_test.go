package bolt

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// TestKilledAtRandomMoments (I1) kills a process that takes, fails and deletes
// checkpoints, again and again on the same file, so that the sweep at its
// start is hit as well.
func TestKilledAtRandomMoments(t *testing.T) {
	const kills = 24
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	path := filepath.Join(t.TempDir(), "keyframe.db")
	var last snapshot.ID // the newest that was said to be committed
	var startup time.Duration
	for i := range kills {
		begun := time.Now()
		cmd := child(t, "take", path)
		out := lines(t, cmd)
		kill := func() { _ = cmd.Process.Kill() } // it may be dead already
		// Every other one is killed while it starts (the first tells how long
		// that takes), the others in the middle of their work.
		wait, after := 0, rng.IntN(5)
		if i%2 == 1 {
			time.AfterFunc(time.Duration(rng.Int64N(int64(startup))), kill)
		}
		for out.Scan() {
			id, err := snapshot.ParseID(out.Text())
			require.NoError(t, err)
			require.Greater(t, id, last)
			last = id
			if i == 0 && wait == 0 {
				startup = time.Since(begun)
			}
			if i%2 == 0 && wait == after {
				time.AfterFunc(time.Duration(rng.IntN(10_000))*time.Microsecond, kill)
			}
			wait++
		}
		require.Error(t, cmd.Wait(), "it does not end by itself")
		require.Equal(t, -1, cmd.ProcessState.ExitCode(), "it was killed, and did not fail")
		checkAfterKill(t, path, last)
	}
	require.Greater(t, last, snapshot.ID(kills/2))
}

func checkAfterKill(t *testing.T, path string, last snapshot.ID) {
	t.Helper()
	ctx := context.Background()
	db, err := Open(ctx, path, Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	storetest.MustBeClean(t, db)
	all, err := db.List(ctx, "flights")
	require.NoError(t, err)
	found := last == 0
	for _, c := range all {
		require.NotEqual(t, snapshot.StateInProgress, c.State)
		if c.State == snapshot.StateCompleted {
			storetest.MustHold(t, db, "flights", c.ID, storetest.Keys(seedOf(c.ID), 400))
			found = found || c.ID == last
		}
	}
	require.True(t, found, "checkpoint %s was committed and is not there", last)
	b, ok, err := db.Journal().Get(ctx, "progress", "flights")
	require.NoError(t, err)
	if last == 0 {
		return
	}
	require.True(t, ok)
	id, err := snapshot.ParseID(string(b))
	require.NoError(t, err)
	require.GreaterOrEqual(t, id, last, "what was said to be kept is there")
}

func TestKilledRightAfterCreation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keyframe.db")
	require.Error(t, child(t, "create", path).Run())
	db, err := Open(context.Background(), path, Options{})
	require.NoError(t, err)
	storetest.MustBeClean(t, db)
	require.NoError(t, db.Close())
}

// TestInterruptedCreation has what a kill in the middle of a creation leaves:
// a file under its first name, or the store under both.
func TestInterruptedCreation(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "keyframe.db")
	half := path + newSuffix + "123"
	require.NoError(t, os.WriteFile(half, []byte("half"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "keyframe.db.newest"), []byte("mine"), 0o600))
	db, err := Open(context.Background(), path, Options{})
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, db.Close())
	require.NoError(t, os.Link(path, half))
	db, err = Open(context.Background(), path, Options{})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	require.Equal(t, []string{"keyframe.db", "keyframe.db.newest"}, names(t, dir))

	// Where the file system has no links, an empty file is made and laid down
	// in place. Open does so only in the call that made it.
	empty := filepath.Join(dir, "empty.db")
	require.NoError(t, linkFailed(empty, syscall.EPERM))
	require.NoError(t, linkFailed(empty, syscall.EPERM), "someone else made it at the same time")
	f, err := os.Open(empty)
	require.NoError(t, err)
	require.NoError(t, (&DB{}).inspect(context.Background(), f, true))
	require.ErrorContains(t, (&DB{}).inspect(context.Background(), f, false), "remove the file")
	require.NoError(t, f.Close())
	require.ErrorIs(t, linkFailed(filepath.Join(dir, "no", "folder"), syscall.EPERM), syscall.EPERM)
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestLimitOfTheFilesSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keyframe.db")
	out, err := child(t, "limit", path).Output()
	require.NoError(t, err)
	said := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Contains(t, said[0], "file too large")
	require.Contains(t, said[0], "free space on its disk")
	require.Greater(t, len(said), 2)
	require.Contains(t, said[len(said)-1], "failed", "the attempt that hit the limit is in the history")
	db, err := Open(context.Background(), path, Options{})
	require.NoError(t, err)
	all, err := db.List(context.Background(), "flights")
	require.NoError(t, err)
	require.Len(t, all, len(said))
	require.Equal(t, snapshot.StateCompleted, all[len(all)-1].State, "with room again the next one works")
	for i, c := range all[:len(all)-1] {
		require.Equal(t, said[i+1], c.ID.String()+" "+string(c.State))
		if c.State == snapshot.StateCompleted {
			storetest.MustHold(t, db, "flights", c.ID, storetest.Keys("big-"+c.ID.String(), 4000))
		}
	}
	storetest.MustBeClean(t, db)
	require.NoError(t, db.Close())
}
