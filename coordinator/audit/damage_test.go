package audit

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
)

// TestALogCutAtAnyByteGoesOn is a crash in the middle of a write.
func TestALogCutAtAnyByteGoesOn(t *testing.T) {
	path := logPath(t)
	l := New(path, Options{})
	fill2(t, l, 3)
	require.NoError(t, l.Close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for n := range len(whole) {
		require.NoError(t, os.WriteFile(path, whole[:n], 0o600))
		l := New(path, Options{})
		_, err := l.Append(entry(9))
		require.NoError(t, err, "%d bytes", n)
		all := read(t, l, Query{})
		lines := bytes.Count(whole[:n], []byte("\n"))
		if n == 0 || whole[n-1] == '\n' {
			require.Len(t, all, lines+1)
		} else {
			require.Len(t, all, lines+2, "%d bytes", n)
			require.Equal(t, "audit-repaired", all[lines].Action)
		}
		require.NoError(t, l.Close())
		r := verified(t, path)
		require.True(t, r.OK, r.Problems)
	}
}

var errFull = errors.New("no space left on device")

// breakDisk makes the k-th call and the one after it fail.
func breakDisk(l *Log, how string, k int) {
	calls := 0
	fails := func() bool { calls++; return calls == k || calls == k+1 }
	l.write = func(f *os.File, b []byte) (int, error) {
		switch {
		case how == "sync" || !fails():
			return f.Write(b)
		case how == "short":
			n, _ := f.Write(b[:len(b)/2]) // the failure that counts is told below
			return n, errFull
		}
		return 0, errFull
	}
	l.sync = func(f *os.File) error {
		if how == "sync" && fails() {
			return errFull
		}
		return f.Sync()
	}
}

// TestAFailedWriteLeavesNothing fails the k-th write, short write or sync, and
// then lets the disk work again.
func TestAFailedWriteLeavesNothing(t *testing.T) {
	for _, how := range []string{"write", "short", "sync"} {
		for k := 1; k <= 12; k++ {
			path := logPath(t)
			l := newLog(t, path, Options{MaxBytes: 1200})
			breakDisk(l, how, k)
			var want []string
			failed := 0
			for i := 1; i <= 14; i++ {
				e := entry(i)
				_, err := l.Append(e)
				if err != nil {
					require.ErrorIs(t, err, errFull)
					require.Equal(t, fault.Store, fault.CodeOf(err))
					failed++
					continue
				}
				want = append(want, e.Request)
			}
			require.Equal(t, 2, failed, "%s %d", how, k)
			var got []string
			for _, e := range read(t, l, Query{}) {
				got = append(got, e.Request)
			}
			require.Equal(t, want, got, "%s %d: exactly what was acknowledged", how, k)
			r, err := l.Verify(t.Context())
			require.NoError(t, err)
			require.True(t, r.OK, "%s %d: %v", how, k, r.Problems)
		}
	}
}

func TestSomebodyElsesChangeIsRefused(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, path string){
		"removed":  func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) },
		"replaced": func(t *testing.T, path string) { require.NoError(t, os.Rename(path, path+".x")); write(t, path, "") },
		"appended": func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			write(t, path, string(b)+"{}\n")
		},
		"emptied": func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := logPath(t)
			l := newLog(t, path, Options{})
			fill2(t, l, 5)
			change(t, path)
			for range 3 {
				require.Error(t, l.Check())
				_, err := l.Append(entry(6))
				require.Equal(t, fault.Store, fault.CodeOf(err))
				require.ErrorContains(t, err, path)
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func TestFilesThatAreNoLogAreRefused(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	write(t, target, "")
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(target, link))
	text := filepath.Join(dir, "text")
	write(t, text, "hello\nworld\n")
	long := filepath.Join(dir, "long")
	write(t, long, strings.Repeat("x", 5*MaxLine))
	for _, path := range []string{dir, link, text, long, filepath.Join(dir, "none", "log"), "/dev/null"} {
		l := New(path, Options{})
		require.Equal(t, fault.Store, fault.CodeOf(l.Check()), path)
		require.NoError(t, l.Close())
	}
	b, err := os.ReadFile(text)
	require.NoError(t, err)
	require.Equal(t, "hello\nworld\n", string(b), "it is left as it was")
	_, err = Verify(t.Context(), filepath.Join(dir, "nothing"))
	require.ErrorContains(t, err, "no audit log")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Verify(ended, text)
	require.ErrorIs(t, err, context.Canceled)
}

func TestOneProcessWritesALog(t *testing.T) {
	path := logPath(t)
	first := newLog(t, path, Options{})
	fill2(t, first, 1)
	second := New(path, Options{})
	require.ErrorContains(t, second.Check(), "another process writes it")
	require.NoError(t, first.Close())
	require.NoError(t, second.Check())
	require.NoError(t, second.Close())
}
