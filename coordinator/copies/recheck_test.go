package copies

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

// checking begins again with a keeper that reads copies again.
func (w *world) checking(every time.Duration, rate int64) {
	w.close()
	w.every, w.rate = every, rate
	w.open()
}

// file is where a checkpoint's copy lies.
func (w *world) file(m *snapshot.Manifest) string { return filepath.Join(w.path, nameOf(m)) }

// spoil changes one byte in the middle of a file.
func (w *world) spoil(path string) {
	w.t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(w.t, err)
	b[len(b)/2] ^= 4
	require.NoError(w.t, os.WriteFile(path, b, 0o600))
}

func (w *world) status() Status { return w.k.Status()[0] }

func TestADamagedCopyIsFoundAndMadeAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.checking(time.Hour, 0)
		first := w.take("flights", "one")
		w.pass(time.Minute)
		second := w.take("flights", "two")
		w.spoil(w.file(second))
		w.pass(time.Hour)
		require.Empty(t, w.seen(Bad), "one in an hour, the oldest first")
		require.EqualValues(t, 1, w.status().SinceStart.Checks)
		w.pass(time.Hour)
		bad := w.seen(Bad)
		require.Len(t, bad, 1)
		require.Equal(t, "flights", bad[0].Job)
		require.Equal(t, second.Checkpoint.ID, bad[0].ID)
		require.Contains(t, bad[0].Message, "SHA-256")
		require.Len(t, w.seen(Made), 3, "the new one too")
		w.whole(first)
		w.whole(second)
		require.Len(t, w.files(), 2, "the damaged one is gone")
		s := w.status()
		require.Zero(t, s.Bad)
		require.Equal(t, Counts{Made: 3, MadeBytes: s.SinceStart.MadeBytes, Checks: 2, ChecksBad: 1}, s.SinceStart)
		require.Greater(t, s.SinceStart.MadeBytes, uint64(s.Bytes))
		require.Empty(t, w.k.Warnings("flights"))
		w.pass(10 * time.Hour)
		require.Len(t, w.seen(Bad), 1)
		require.EqualValues(t, 12, w.status().SinceStart.Checks)
	})
}

// While no new one can be made the damage is a warning of the job, also after a
// restart, and the bytes that are left stay.
func TestADamagedCopyIsToldUntilThereIsANewOne(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.checking(time.Hour, 0)
		m := w.take("flights", "one")
		w.take("other", "two")
		w.spoil(w.file(m))
		for ref := range m.AllChunks() {
			w.bad.Store(ref.ID, true)
		}
		w.pass(2 * time.Hour)
		require.Len(t, w.seen(Bad), 1)
		check := func() {
			require.Equal(t, 1, w.status().Bad)
			all := w.k.Warnings("flights")
			require.Contains(t, all[len(all)-1], "1 damaged copies in "+w.path)
			require.Empty(t, w.k.Warnings("other"))
			require.FileExists(t, w.file(m)+asideSuffix)
		}
		check()
		w.close()
		w.open()
		check()
		w.bad.Clear()
		w.disk.set(syscall.ENOSPC)
		w.close()
		w.open()
		check()
		w.disk.set(nil)
		w.pass(lastRetry)
		w.whole(m)
		require.NoFileExists(t, w.file(m)+asideSuffix)
		require.Zero(t, w.status().Bad)
		require.Empty(t, w.k.Warnings("flights"))
	})
}

// What could not be replaced is never touched; a sound file in its place ends
// the warning.
func TestADamagedCopyThatTheStoreLacksIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		m := w.take("flights", "one")
		sound, err := os.ReadFile(w.file(m))
		require.NoError(t, err)
		w.spoil(w.file(m))
		w.close()
		require.NoError(t, os.Remove(filepath.Join(w.base, "keyframe.db")))
		w.every = time.Hour
		w.open()
		w.pass(3 * time.Hour)
		require.Len(t, w.seen(Bad), 1, "told once")
		require.Equal(t, CopyDamaged, w.k.Of(m)[0].State)
		require.Equal(t, 1, w.status().Bad)
		require.Len(t, w.files(), 1)
		require.NoError(t, os.WriteFile(w.file(m), sound, 0o600))
		w.pass(time.Hour)
		require.Zero(t, w.status().Bad)
		require.Equal(t, CopyMade, w.k.Of(m)[0].State)
	})
}

// A sound archive under another's name is no copy of what the name says.
func TestACopyOfAnotherCheckpointIsADamagedOne(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.checking(time.Hour, 0)
		first, second := w.take("flights", "one"), w.take("flights", "two")
		b, err := os.ReadFile(w.file(second))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(w.file(first), b, 0o600))
		w.pass(2 * time.Hour)
		require.Len(t, w.seen(Bad), 1)
		require.Contains(t, w.seen(Bad)[0].Message, `it holds checkpoint 2 of job "flights"`)
		w.whole(first)
	})
}

func TestCopiesAreReadAgainSlowlyAndInTurnAcrossRestarts(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.take("flights", "one")
		bytes := w.status().Bytes
		w.checking(time.Hour, bytes/60)
		begin := time.Now()
		w.pass(time.Hour + 59*time.Second)
		require.Zero(t, w.status().SinceStart.Checks, "a whole reading takes more than a minute")
		w.pass(5 * time.Minute)
		require.EqualValues(t, 1, w.status().SinceStart.Checks)
		at := *w.status().CheckedAt
		require.Greater(t, at.Sub(begin), time.Hour+time.Minute)
		w.pass(30 * time.Minute)
		w.close()
		w.open()
		require.Equal(t, at, *w.status().CheckedAt)
		w.pass(26 * time.Minute)
		require.Zero(t, w.status().SinceStart.Checks)
		w.pass(8 * time.Minute)
		require.EqualValues(t, 1, w.status().SinceStart.Checks, "an hour after the one before the restart")
		w.close() // a reading under way ends with a stop
		w.rate = 1
		w.open()
		w.pass(2 * time.Hour)
	})
}
