package bolt

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// lostPaths are the ways in which a path stops leading to the open file. Each
// gives where the file is now, "" when it has no name.
var lostPaths = map[string]struct {
	lose func(t *testing.T, path string) (now string)
	says string
}{
	"removed": {func(t *testing.T, path string) string {
		require.NoError(t, os.Remove(path))
		return ""
	}, "it was removed"},
	"moved": {func(t *testing.T, path string) string {
		require.NoError(t, os.Rename(path, path+".old"))
		return path + ".old"
	}, "moved away"},
	"its folder moved": {func(t *testing.T, path string) string {
		dir := filepath.Dir(path)
		require.NoError(t, os.Rename(dir, dir+"-moved"))
		return filepath.Join(dir+"-moved", filepath.Base(path))
	}, "moved away with its folder"},
	"its folder replaced by a file": {func(t *testing.T, path string) string {
		dir := filepath.Dir(path)
		require.NoError(t, os.Rename(dir, dir+"-moved"))
		require.NoError(t, os.WriteFile(dir, []byte("mine"), 0o600))
		return filepath.Join(dir+"-moved", filepath.Base(path))
	}, "moved away"},
	"replaced": {func(t *testing.T, path string) string {
		require.NoError(t, os.WriteFile(path+".copy", storeFile(t), 0o600))
		require.NoError(t, os.Rename(path+".copy", path))
		return ""
	}, "another file was put in its place"},
}

// inFolder is a fixture in a folder of its own, which can be moved.
func inFolder(t *testing.T) *fixture {
	dir := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.Mkdir(dir, 0o700))
	f := &fixture{t: t, path: filepath.Join(dir, "keyframe.db"), opts: Options{BatchBytes: 1 << 10}}
	f.open()
	t.Cleanup(func() { require.NoError(t, f.db.Close()) })
	return f
}

// TestAPathThatIsLostStopsWriting loses it at each moment of an attempt.
// Nothing is ever called completed that the path does not lead to.
func TestAPathThatIsLostStopsWriting(t *testing.T) {
	ctx := context.Background()
	for name, test := range lostPaths {
		for _, when := range []string{"begin a checkpoint", "store chunks", "commit", "record a failed attempt"} {
			t.Run(name+"/"+when, func(t *testing.T) {
				f := inFolder(t)
				storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys("kept", 200))
				lost := false
				f.db.opts.beforeCommit = func(what string) {
					if what == when && !lost {
						lost = true
						test.lose(t, f.path)
					}
				}
				err := attempts(ctx, f.db)
				require.True(t, lost)
				require.ErrorContains(t, err, f.path)
				require.ErrorContains(t, err, test.says)
				require.ErrorContains(t, f.db.Err(), test.says)
				_, err = f.db.Begin(ctx, storetest.Attempt("flights"))
				require.Equal(t, f.db.Err(), err, "and it stays")
				require.Equal(t, f.db.Err(), f.db.Journal().Put(ctx, "b", "k", []byte("v")))
				storetest.MustHold(t, f.db, "flights", 1, storetest.Keys("kept", 200))
				all, err := f.db.List(ctx, "flights")
				require.NoError(t, err)
				for _, c := range all[1:] {
					require.NotEqual(t, snapshot.StateCompleted, c.State)
				}
				_, err = f.db.Stats(ctx)
				require.NoError(t, err)
				problems, err := f.db.Check(ctx)
				require.NoError(t, err)
				require.NotEmpty(t, problems)
				require.Contains(t, problems[len(problems)-1].Detail, test.says)
			})
		}
	}
}

// attempts makes one that fails, and one that is committed.
func attempts(ctx context.Context, db *DB) error {
	w, err := db.Begin(ctx, storetest.Attempt("flights"))
	if err != nil {
		return err
	}
	if err := w.Fail(ctx, snapshot.Failure{Reason: snapshot.FailTimeout, Message: "too slow"}); err != nil {
		return err
	}
	_, err = storetest.Take(ctx, db, storetest.Attempt("flights"), storetest.Keys("new", 300))
	return err
}

var copyCommand = regexp.MustCompile(`cp (/proc/\d+/fd/\d+) `)

// TestALostFileCanBeRescued does what the error says.
func TestALostFileCanBeRescued(t *testing.T) {
	for name, test := range lostPaths {
		t.Run(name, func(t *testing.T) {
			f := inFolder(t)
			storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys("kept", 300))
			now := test.lose(t, f.path)
			_, err := f.db.Begin(context.Background(), storetest.Attempt("flights"))
			require.Error(t, err)
			safe := filepath.Join(t.TempDir(), "keyframe.db")
			if runtime.GOOS == "linux" {
				found := copyCommand.FindStringSubmatch(err.Error())
				require.NotNil(t, found, "%v", err)
				b, err := os.ReadFile(found[1])
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(safe, b, 0o600))
				mustOpenWith(t, safe)
			}
			if now != "" {
				require.NoError(t, f.db.Close())
				mustOpenWith(t, now)
			}
		})
	}
}

func mustOpenWith(t *testing.T, path string) {
	t.Helper()
	db, err := Open(context.Background(), path, Options{})
	require.NoError(t, err)
	storetest.MustHold(t, db, "flights", 1, storetest.Keys("kept", 300))
	storetest.MustBeClean(t, db)
	require.NoError(t, db.Close())
}

// TestAFileThatReplacesTheStoreIsLeftAlone is for the one that came in between.
func TestAFileThatReplacesTheStoreIsLeftAlone(t *testing.T) {
	f := inFolder(t)
	storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys("s", 200))
	lostPaths["replaced"].lose(t, f.path)
	before, err := os.ReadFile(f.path)
	require.NoError(t, err)
	_, err = storetest.Take(context.Background(), f.db, storetest.Attempt("flights"), storetest.Keys("t", 200))
	require.Error(t, err)
	require.NoError(t, f.db.Close())
	after, err := os.ReadFile(f.path)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// TestAnotherNameOfTheFileIsNoLoss is a link, as a backup by links makes one.
func TestAnotherNameOfTheFileIsNoLoss(t *testing.T) {
	f := inFolder(t)
	require.NoError(t, os.Link(f.path, f.path+".link"))
	require.NoError(t, os.Remove(f.path))
	require.NoError(t, os.Symlink(f.path+".link", f.path))
	storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys("s", 200))
	storetest.MustBeClean(t, f.db)
}

// TestAPathThatIsLostIsNoticedWithoutAWrite: who asks how the store is learns
// it, and reads go on.
func TestAPathThatIsLostIsNoticedWithoutAWrite(t *testing.T) {
	for name, test := range lostPaths {
		t.Run(name, func(t *testing.T) {
			f := inFolder(t)
			require.NoError(t, f.db.Journal().Put(t.Context(), "b", "k", []byte("v")))
			require.NoError(t, f.db.Err())
			test.lose(t, f.path)
			require.ErrorContains(t, f.db.Err(), test.says)
			stats, err := f.db.Stats(t.Context())
			require.NoError(t, err)
			require.Contains(t, stats.Stopped, test.says)
			value, ok, err := f.db.Journal().Get(t.Context(), "b", "k")
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, "v", string(value))
		})
	}
}
