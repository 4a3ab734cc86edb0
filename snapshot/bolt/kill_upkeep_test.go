package bolt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// phaseEnv says at which phase of which task a child dies by its own hand.
const phaseEnv = "KEYFRAME_TEST_PHASE"

// childUpkeep makes a churned store and is killed in its upkeep. In phases in
// which writers go on it takes a checkpoint first, and says so.
func childUpkeep(path string) {
	ctx := context.Background()
	db, err := Open(ctx, path, Options{BatchBytes: 4 << 10})
	must(err)
	for i := range snapshot.ID(12) {
		_, err := storetest.Take(ctx, db, storetest.Attempt("flights"), storetest.Keys(seedOf(i+1), 400))
		must(err)
		if i > 0 {
			must(db.Delete(ctx, "flights", i))
		}
	}
	// An attempt that is under way all the time.
	w, err := db.Begin(ctx, storetest.Attempt("flights"))
	must(err)
	_, err = storetest.Encode(ctx, w, storetest.Keys("under way", 400))
	must(err)
	task, at, _ := strings.Cut(os.Getenv(phaseEnv), ":")
	db.opts.onCopy = func(phase string, _ *copier) {
		if phase != at {
			return
		}
		if !quietPhase[phase] {
			_, err := storetest.Take(ctx, db, storetest.Attempt("flights"), storetest.Keys(seedOf(14), 400))
			must(err)
			fmt.Println(snapshot.ID(14))
		}
		must(syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
	must(upkeeps[task](ctx, db, path+".copy"))
	must(errors.New("it was to be killed"))
}

// TestKilledAtEachPhaseOfUpkeep has the old file or the new one whole, with
// all that was committed, and no leftover after the next start.
func TestKilledAtEachPhaseOfUpkeep(t *testing.T) {
	for task := range upkeeps {
		for _, phase := range copyPhases {
			t.Run(task+"/"+phase, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "keyframe.db")
				cmd := child(t, "upkeep", path)
				cmd.Env = append(cmd.Env, phaseEnv+"="+task+":"+phase)
				last := snapshot.ID(12)
				for out := lines(t, cmd); out.Scan(); {
					id, err := snapshot.ParseID(out.Text())
					require.NoError(t, err)
					last = id
				}
				require.Error(t, cmd.Wait())
				require.Equal(t, -1, cmd.ProcessState.ExitCode(), "it was killed")
				checkAfterUpkeep(t, path, last)
				finishBackup(t, path, task == "backup" && (phase == "renamed" || phase == "done"))
			})
		}
	}
}

func checkAfterUpkeep(t *testing.T, path string, last snapshot.ID) {
	t.Helper()
	ctx := context.Background()
	db, err := Open(ctx, path, Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	storetest.MustBeSwept(t, db)
	storetest.MustBeClean(t, db)
	found := false
	all, err := db.List(ctx, "flights")
	require.NoError(t, err)
	for _, c := range all {
		require.NotEqual(t, snapshot.StateInProgress, c.State)
		if c.State == snapshot.StateCompleted {
			storetest.MustHold(t, db, "flights", c.ID, storetest.Keys(seedOf(c.ID), 400))
			found = found || c.ID == last
		}
	}
	require.True(t, found, "checkpoint %s was committed and is not there", last)
	for _, name := range names(t, filepath.Dir(path)) {
		require.NotContains(t, name, compactSuffix, "what a compaction left is removed")
	}
}

// finishBackup holds a backup that was killed to being whole or not there, and
// makes it again where it is not.
func finishBackup(t *testing.T, path string, whole bool) {
	t.Helper()
	ctx := context.Background()
	file := path + ".copy"
	_, err := os.Stat(file)
	require.Equal(t, whole, err == nil, "%v", err)
	if !whole {
		db, err := Open(ctx, path, Options{})
		require.NoError(t, err)
		_, err = db.Backup(ctx, file, nil)
		require.NoError(t, err)
		require.NoError(t, db.Close())
		_, err = os.Stat(file + tmpSuffix)
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	checkAfterUpkeep(t, file, 12)
}

// childChurn is childTake with compactions, backups and rewrites beside it.
func childChurn(path string) {
	ctx := context.Background()
	db, err := Open(ctx, path, Options{BatchBytes: 4 << 10})
	must(err)
	go func() {
		for n := 0; ; n++ {
			_, err := db.Compact(ctx, nil)
			must(err)
			file := fmt.Sprintf("%s.copy-%d", path, n%2)
			_, err = db.Backup(ctx, file, nil)
			must(err)
			must(os.Remove(file))
		}
	}()
	go func() {
		for {
			must(rewriteNewest(ctx, db))
		}
	}()
	takeForEver(ctx, db)
}

func rewriteNewest(ctx context.Context, db *DB) error {
	all, err := db.List(ctx, "flights")
	if err != nil {
		return err
	}
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].State == snapshot.StateCompleted {
			_, err := storetest.Rewrite(ctx, db, "flights", all[i].ID, 1<<(10+all[i].ID%4))
			if errors.Is(err, snapshot.ErrNoCheckpoint) || errors.Is(err, snapshot.ErrNoChunk) {
				return nil // deleted meanwhile: nobody holds it
			}
			return err
		}
	}
	return nil
}

// TestKilledAtRandomMomentsOfUpkeep is TestKilledAtRandomMoments with upkeep.
func TestKilledAtRandomMomentsOfUpkeep(t *testing.T) {
	const kills = 12
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	path := filepath.Join(t.TempDir(), "keyframe.db")
	var last snapshot.ID
	for range kills {
		for n := range 2 {
			require.NoError(t, os.RemoveAll(fmt.Sprintf("%s.copy-%d", path, n)))
		}
		cmd := child(t, "churn", path)
		out := lines(t, cmd)
		wait := rng.IntN(6)
		for n := 0; out.Scan(); n++ {
			id, err := snapshot.ParseID(out.Text())
			require.NoError(t, err)
			require.Greater(t, id, last)
			if last = id; n == wait {
				// It may be dead already.
				time.AfterFunc(time.Duration(rng.IntN(60_000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
			}
		}
		require.Error(t, cmd.Wait(), "it does not end by itself")
		require.Equal(t, -1, cmd.ProcessState.ExitCode(), "it was killed, and did not fail")
		checkAfterUpkeep(t, path, last)
		checkAfterKill(t, path, last)
	}
}
