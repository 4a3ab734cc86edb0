package copies

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/snapshot"
	"keyframe/snapshot/archive"
	"keyframe/snapshot/storetest"
)

func TestEveryCompletedCheckpointHasACopy(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		first := w.take("flights", "one")
		second := w.take("flights", "two")
		odd := w.take("../a:b/*", "three")
		for _, m := range []*snapshot.Manifest{first, second, odd} {
			w.whole(m)
		}
		require.Len(t, w.seen(Made), 3)
		require.Empty(t, w.seen(Failed))
		s := w.k.Status()[0]
		require.True(t, s.OK)
		require.Equal(t, 3, s.Copies)
		require.Zero(t, s.Waiting)
		require.Zero(t, s.OnlyHere)
		require.Positive(t, s.Bytes)
	})
}

// What was missed while the keeper was away is made when it is back, the newest
// first.
func TestWhatWasMissedIsMadeLater(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.end()
		for _, seed := range []string{"one", "two", "three"} {
			w.take("flights", seed)
		}
		require.Empty(t, w.copies())
		w.close()
		w.open()
		require.Equal(t, []snapshot.ID{1, 2, 3}, w.copies())
		made := w.seen(Made)
		require.Len(t, made, 3)
		require.EqualValues(t, 3, made[0].ID)
	})
}

func TestACopyGoesWithItsCheckpoint(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.take("flights", "one")
		w.take("flights", "two")
		require.NoError(t, w.k.Store().Delete(t.Context(), "flights", 1))
		w.pass(time.Second)
		require.Equal(t, []snapshot.ID{2}, w.copies())
		require.Len(t, w.seen(Removed), 1)
		require.ErrorIs(t, w.k.Store().Delete(t.Context(), "flights", 1), snapshot.ErrNoCheckpoint)
	})
}

// A deletion while the directory is away is made up for, also after a restart;
// one that was refused leaves the copy.
func TestADeletionIsRememberedUntilTheDirectoryIsBack(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.take("flights", "one")
		w.take("flights", "two")
		away := w.path + "-away"
		require.NoError(t, os.Rename(w.path, away))
		release, err := w.k.Store().Hold(t.Context(), "flights", 2)
		require.NoError(t, err)
		require.ErrorIs(t, w.k.Store().Delete(t.Context(), "flights", 2), snapshot.ErrInUse)
		release()
		require.NoError(t, w.k.Store().Delete(t.Context(), "flights", 1))
		w.pass(time.Second)
		require.Contains(t, w.k.Status()[0].Error, "mount")
		w.close()
		w.open()
		require.NoError(t, os.Rename(away, w.path))
		w.pass(lastRetry)
		require.Equal(t, []snapshot.ID{2}, w.copies())
		require.True(t, w.k.Status()[0].OK)
	})
}

// A store file that is lost takes no copy with it, whatever the new one deletes
// and whatever ids it gives (I10).
func TestCopiesOutliveTheirStore(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.take("flights", "one")
		w.take("flights", "two")
		w.close()
		require.NoError(t, os.Remove(filepath.Join(w.base, "keyframe.db")))
		w.open()
		found := w.seen(Found)
		require.Len(t, found, 1)
		require.EqualValues(t, 2, found[0].ID)
		require.Contains(t, found[0].Message, `2 checkpoints of job "flights"`)
		require.Equal(t, 2, w.k.Status()[0].OnlyHere)
		m := w.take("flights", "three")
		require.EqualValues(t, 3, m.Checkpoint.ID, "above all copies")
		require.NoError(t, w.k.Store().Delete(t.Context(), "flights", 3))
		w.pass(lookEvery)
		require.Equal(t, []snapshot.ID{1, 2}, w.copies())
	})
}

func TestAFullDiskIsTriedAgainAndLeavesNothingBroken(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.take("flights", "one")
		w.disk.set(syscall.ENOSPC)
		m := w.take("flights", "two")
		require.Equal(t, []snapshot.ID{1}, w.copies())
		require.Len(t, w.seen(Failed), 1)
		s := w.k.Status()[0]
		require.False(t, s.OK)
		require.Equal(t, 1, s.Waiting)
		require.Contains(t, s.Error, "no space left")
		require.Contains(t, w.k.Warnings("flights")[0], "1 checkpoints have no copy in "+w.path)
		require.Empty(t, w.k.Warnings("other"))
		c := w.k.Of(m)[0]
		require.Equal(t, CopyFailed, c.State)
		require.Contains(t, c.Error, "no space left")

		w.pass(time.Minute)
		tries := len(w.seen(Failed))
		require.Greater(t, tries, 3)
		require.Less(t, tries, 9, "later and later")
		w.disk.set(nil)
		w.pass(lastRetry)
		w.whole(m)
		require.Len(t, w.files(), 2)
		require.Empty(t, w.k.Warnings("flights"))
	})
}

// The coordinator may be killed between any two steps on the copy's disk: no
// file under a copy's name is ever broken, and the next start makes what lacks.
func TestAKillAtAnyStepOfACopyIsMadeUpFor(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.take("flights", "zero")
		kills := 0
		for n := 0; ; n++ {
			w.end()
			w.disk.killAfter(n)
			m := w.take("flights", "seed-"+strings.Repeat("x", n))
			ctx, cancel := context.WithCancel(t.Context())
			err := w.k.dirs[0].pass(ctx)
			cancel()
			if err == nil {
				break
			}
			require.ErrorIs(t, err, errKilled)
			kills++
			w.copies() // each is whole
			w.disk.set(nil)
			require.NoError(t, w.db.Close())
			w.open()
			w.whole(m)
		}
		require.Greater(t, kills, 4)
		w.disk.set(nil)
		w.pass(2 * staleAfter)
		w.close()
		w.open()
	})
}

// An empty mount point is not taken for the directory: it would fill the disk
// that is to be protected from.
func TestAnEmptyMountPointIsNotWrittenTo(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.take("flights", "one")
		away := w.path + "-away"
		require.NoError(t, os.Rename(w.path, away))
		require.NoError(t, os.Mkdir(w.path, 0o700))
		m := w.take("flights", "two")
		entries, err := os.ReadDir(w.path)
		require.NoError(t, err)
		require.Empty(t, entries)
		require.Contains(t, w.k.Status()[0].Error, "is not the directory of before")
		// A new disk, and a person says so.
		require.NoError(t, os.WriteFile(filepath.Join(w.path, markerFile), nil, 0o600))
		w.pass(lastRetry)
		w.whole(m)
		require.Equal(t, []snapshot.ID{1, 2}, w.copies(), "what the old disk had is made again")
	})
}

// Retention may be ahead of a directory that was away: its only copy stays until
// a newer one is there.
func TestTheLastCopyStaysUntilThereIsANewerOne(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.take("flights", "one")
		w.disk.set(syscall.ENOSPC)
		second := w.take("flights", "two")
		require.NoError(t, w.k.Store().Delete(t.Context(), "flights", 1))
		w.pass(10 * time.Minute)
		require.Equal(t, []snapshot.ID{1}, w.copies())
		w.disk.set(nil)
		w.pass(lastRetry)
		w.whole(second)
		require.Equal(t, []snapshot.ID{2}, w.copies())
		// All of a job's gone on request: so are the copies.
		require.NoError(t, w.k.Store().Delete(t.Context(), "flights", 2))
		w.pass(time.Second)
		require.Empty(t, w.copies())
	})
}

func TestACheckpointMarkedBadIsNotCopied(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.end()
		bad := "a test says so"
		m := w.take("flights", "one")
		_, err := w.db.Edit(t.Context(), "flights", m.Checkpoint.ID, snapshot.Change{Bad: &bad})
		require.NoError(t, err)
		w.take("flights", "two")
		w.close()
		w.open()
		require.Equal(t, []snapshot.ID{2}, w.copies())
		require.Zero(t, w.k.Status()[0].Waiting)
	})
}

func TestAnImportFromACopyHasItsIDAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var old []*snapshot.Manifest
		for _, seed := range []string{"one", "two", "three"} {
			old = append(old, w.take("flights", seed))
		}
		w.close()
		require.NoError(t, os.Remove(filepath.Join(w.base, "keyframe.db")))
		w.open()
		a := storetest.Attempt("flights")
		begin := func(m *snapshot.Manifest) snapshot.ID {
			wr, err := w.k.BeginImport(t.Context(), a, m)
			require.NoError(t, err)
			defer wr.Abort()
			return wr.ID()
		}
		require.EqualValues(t, 2, begin(old[1]))
		require.EqualValues(t, 4, begin(old[0]), "1 is too late: above all copies")
		require.EqualValues(t, 5, begin(old[2]))
		foreign := *old[0]
		foreign.CutAt = foreign.CutAt.Add(time.Second)
		require.EqualValues(t, 6, begin(&foreign))
	})
}

// Whatever a job is called, its copy lies two steps below the directory, under
// a name that a scan knows again.
func TestNoNameLeadsOutOfTheDirectory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := storetest.ManifestOf(storetest.Attempt(string(rapid.SliceOfN(rapid.Byte(), 1, 400).Draw(rt, "job"))),
			snapshot.ID(rapid.Uint64Min(1).Draw(rt, "id")), snapshot.Summary{})
		name := nameOf(m)
		require.True(rt, filepath.IsLocal(name))
		require.Len(rt, strings.Split(name, string(filepath.Separator)), 2)
		for part := range strings.SplitSeq(name, string(filepath.Separator)) {
			require.LessOrEqual(rt, len(part), 255)
			require.NotEqual(rt, byte('.'), part[0])
		}
		id, ok := idOf(filepath.Base(name))
		require.True(rt, ok)
		require.Equal(rt, m.Checkpoint.ID, id)
		require.False(rt, archive.Unfinished(name))
	})
}

// A directory that hangs in the system holds no stop up.
func TestAHangingDirectoryHoldsNoStopUp(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		hang := make(chan struct{})
		w.disk.mu.Lock()
		w.disk.hang = hang
		w.disk.mu.Unlock()
		w.take("flights", "one")
		began := time.Now()
		w.end()
		require.Equal(t, leaveAfter, time.Since(began))
		close(hang)
		w.pass(time.Second)
		require.Empty(t, w.copies(), "it was given up")
		w.end = func() {}
	})
}

// A checkpoint that can't be read is told of once and holds no other up; while
// it has no copy, the newest copy of its job stays.
func TestAnUnreadableCheckpointHoldsNoOtherUp(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.take("flights", "one")
		w.end()
		broken := w.take("flights", "two")
		w.bad.Store(broken.Chunks[2].ID, true)
		w.close()
		w.open()
		other := w.take("other", "three")
		w.whole(other)
		failed := w.seen(Failed)
		require.Len(t, failed, 1)
		require.EqualValues(t, 2, failed[0].ID)
		require.Contains(t, failed[0].Message, "can't be read")
		s := w.k.Status()[0]
		require.True(t, s.OK, "the directory is not at fault")
		require.Equal(t, 1, s.Unreadable)
		require.Equal(t, CopyFailed, w.k.Of(broken)[0].State)
		require.Len(t, w.k.Warnings("flights"), 1)
		require.NoError(t, w.k.Store().Delete(t.Context(), "flights", 1))
		w.pass(time.Hour)
		require.Equal(t, []snapshot.ID{1, 1}, w.copies(), "the only copy of flights, and other's")
		require.Len(t, w.seen(Failed), 1)
		require.NoError(t, w.k.Store().Delete(t.Context(), "flights", 2))
		w.pass(time.Second)
		require.Equal(t, []snapshot.ID{1}, w.copies())
	})
}
