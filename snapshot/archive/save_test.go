package archive

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func names(t testing.TB, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// faulty is the host's file system up to step n, which fails; dead says that
// nothing happens after it either, as after a kill.
type faulty struct {
	OS
	n, at  int
	dead   bool
	fault  error
	before bool // the step fails before it did anything
}

func (d *faulty) step(do func() error) error {
	d.at++
	switch {
	case d.at > d.n && d.dead:
		return d.fault
	case d.at != d.n:
		return do()
	case d.before:
		return d.fault
	}
	return errors.Join(do(), d.fault)
}

func (d *faulty) Create(path string) (f File, err error) {
	err = d.step(func() (err error) { f, err = d.OS.Create(path); return err })
	return &faultyFile{f, d}, err
}
func (d *faulty) Publish(from, to string) error {
	return d.step(func() error { return d.OS.Publish(from, to) })
}
func (d *faulty) Replace(from, to string) error {
	return d.step(func() error { return d.OS.Replace(from, to) })
}
func (d *faulty) Remove(path string) error { return d.step(func() error { return d.OS.Remove(path) }) }
func (d *faulty) SyncDir(dir string) error { return d.step(func() error { return d.OS.SyncDir(dir) }) }

type faultyFile struct {
	File
	d *faulty
}

func (f *faultyFile) Write(b []byte) (n int, err error) {
	err = f.d.step(func() error { n, err = f.File.Write(b); return err })
	return n, err
}
func (f *faultyFile) Sync() error { return f.d.step(f.File.Sync) }

// Close always closes: the test must not run out of descriptors.
func (f *faultyFile) Close() error {
	real := f.File.Close()
	return errors.Join(f.d.step(func() error { return nil }), real)
}

// A fault or a kill between any two steps leaves no file of the name, or the
// whole one; after a fault that isn't a kill nothing else is left either.
func TestAFaultBetweenAnyTwoStepsLeavesNoBrokenArchive(t *testing.T) {
	chunks, m := made(t, "faults", 900)
	for _, dead := range []bool{false, true} {
		for _, before := range []bool{false, true} {
			steps := 0
			for n := 1; ; n++ {
				dir := t.TempDir()
				path := filepath.Join(dir, "a.kfa")
				d := &faulty{n: n, dead: dead, before: before, fault: syscall.ENOSPC}
				_, err := SaveCheckpoint(t.Context(), d, path, chunks, m)
				if d.at < n {
					require.NoError(t, err)
					break
				}
				steps++
				require.ErrorIs(t, err, syscall.ENOSPC, "step %d", n)
				leftWhole(t, path, dead || !before)
			}
			require.Greater(t, steps, 4, "create, write, sync, close, publish, sync of the directory")
		}
	}
}

// leftWhole requires that what stands under the name is whole, and that there
// is nothing else that looks like an archive.
func leftWhole(t *testing.T, path string, rest bool) {
	t.Helper()
	for _, name := range names(t, filepath.Dir(path)) {
		if name != filepath.Base(path) {
			require.True(t, rest && Unfinished(name), name)
			continue
		}
		a, err := Open(path)
		require.NoError(t, err)
		problems, err := a.Verify(t.Context())
		require.NoError(t, err)
		require.Empty(t, problems)
		require.NoError(t, a.Close())
	}
}

func TestWhatTheDiskHasNotKeptIsNotPublished(t *testing.T) {
	chunks, m := made(t, "lost", 300)
	path := filepath.Join(t.TempDir(), "a.kfa")
	err := Save(t.Context(), OS{}, path, func(w io.Writer) error {
		_, err := Write(t.Context(), &dropping{w: w}, chunks, m)
		return err
	})
	require.ErrorContains(t, err, "SHA-256")
	require.Empty(t, names(t, filepath.Dir(path)))
}

// dropping writes one byte in the middle wrong and says nothing of it.
type dropping struct {
	w  io.Writer
	at int
}

func (d *dropping) Write(b []byte) (int, error) {
	c := append([]byte(nil), b...)
	if d.at <= 2000 && 2000 < d.at+len(b) {
		c[2000-d.at] ^= 8
	}
	d.at += len(b)
	return d.w.Write(c)
}

func TestAFileThatIsThereIsNeverReplaced(t *testing.T) {
	chunks, m := made(t, "there", 200)
	path := filepath.Join(t.TempDir(), "a.kfa")
	require.NoError(t, os.WriteFile(path, []byte("somebody's"), 0o600))
	_, err := SaveCheckpoint(t.Context(), OS{}, path, chunks, m)
	require.ErrorIs(t, err, fs.ErrExist)
	// One that appears while the archive is written isn't either.
	second := filepath.Join(filepath.Dir(path), "b.kfa")
	err = Save(t.Context(), OS{}, second, func(w io.Writer) error {
		_, err := Write(t.Context(), w, chunks, m)
		return errors.Join(err, os.WriteFile(second, []byte("quicker"), 0o600))
	})
	require.ErrorIs(t, err, fs.ErrExist)
	require.Equal(t, []string{"a.kfa", "b.kfa"}, names(t, filepath.Dir(path)))
	b, err := os.ReadFile(second)
	require.NoError(t, err)
	require.Equal(t, "quicker", string(b))
}

func TestASaveThatIsEndedLeavesNothing(t *testing.T) {
	chunks, m := made(t, "ended", 300)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(t.TempDir(), "a.kfa")
	_, err := SaveCheckpoint(ctx, OS{}, path, chunks, m)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, names(t, filepath.Dir(path)))
	require.True(t, Unfinished("7-ab.kfa.tmp-0123456789abcdef"))
	require.False(t, Unfinished("7-ab.kfa.tmp-0123"))
	require.False(t, Unfinished("7-ab.kfa"))
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	_, err := Open(t.TempDir())
	require.ErrorContains(t, err, "it is no file")
	_, err = Open(filepath.Join(t.TempDir(), "absent.kfa"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// What a process that was killed has left goes with the next Save of the name,
// when nobody has touched it for an hour.
func TestAPartOfAKilledSaveIsRemovedLater(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "flights.kfa")
	for end, age := range map[string]time.Duration{"0000000000000001": 2 * time.Hour, "0000000000000002": time.Minute} {
		part := path + tmpMark + end
		require.NoError(t, os.WriteFile(part, []byte("a part"), 0o600))
		at := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(part, at, at))
	}
	old := time.Now().Add(-2 * time.Hour)
	for _, other := range []string{"flights.kfa.tmp-mine", "flights.kfa2" + tmpMark + "0000000000000003"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, other), nil, 0o600))
		require.NoError(t, os.Chtimes(filepath.Join(dir, other), old, old))
	}
	chunks, m := made(t, "again", 300)
	_, err := SaveCheckpoint(t.Context(), OS{}, path, chunks, m)
	require.NoError(t, err)
	require.Equal(t, []string{"flights.kfa", "flights.kfa" + tmpMark + "0000000000000002", "flights.kfa.tmp-mine", "flights.kfa2" + tmpMark + "0000000000000003"}, names(t, dir))
}
