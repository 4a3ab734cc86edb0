package audit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/coordinator/fault"
)

var noon = time.Date(2026, 4, 5, 12, 0, 0, 0, time.UTC)

func logPath(t testing.TB) string { return filepath.Join(t.TempDir(), "keyframe.db.audit") }

func newLog(t testing.TB, path string, o Options) *Log {
	o.Now = func() time.Time { return noon }
	l := New(path, o)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func entry(i int) Entry {
	return Entry{Phase: PhaseBegin, Request: fmt.Sprintf("r-%d", i), Principal: "alice", By: "token", Role: "admin", Source: "10.0.0.7:1234",
		Action: "restore", Job: fmt.Sprintf("job-%d", i%3), Params: map[string]any{"checkpoint": fmt.Sprint(i)}}
}

func fill(t testing.TB, l *Log, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		e, err := l.Append(entry(i))
		require.NoError(t, err)
		require.EqualValues(t, i, e.Seq)
		require.NotZero(t, e.At)
	}
}

func verified(t testing.TB, path string) Report {
	t.Helper()
	r, err := Verify(t.Context(), path)
	require.NoError(t, err)
	return r
}

func read(t testing.TB, l *Log, q Query) []Entry {
	t.Helper()
	all, err := l.Read(t.Context(), q)
	require.NoError(t, err)
	return all
}

func seqs(all []Entry) (out []uint64) {
	for _, e := range all {
		out = append(out, e.Seq)
	}
	return out
}

func TestLinesAreChainedOverFilesAndRestarts(t *testing.T) {
	path, a := logPath(t), &anchor{}
	n := 0
	for range 4 {
		l := New(path, Options{MaxBytes: 1500, Anchor: a, Now: func() time.Time { return noon }})
		fill(t, l, n+1, n+13)
		n += 13
		require.NoError(t, l.Close())
		require.NoError(t, l.Close(), "twice")
		_, err := l.Append(entry(0))
		require.Equal(t, fault.Store, fault.CodeOf(err))
	}
	r := verified(t, path)
	require.True(t, r.OK, r.Problems)
	require.EqualValues(t, 52, r.Lines)
	require.EqualValues(t, 52, r.Last)
	require.EqualValues(t, 1, r.First)
	require.Greater(t, r.Files, 5)
	aside, err := segments(path)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(aside), r.Files-1)
	for _, s := range aside {
		info, err := os.Stat(s.path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
	}
	// Older files may be taken away: that they ended there is remembered, but
	// not in the log itself.
	require.NoError(t, os.Remove(aside[0].path))
	l := newLog(t, path, Options{MaxBytes: 1500, Anchor: a})
	require.NoError(t, l.Check())
	require.NoError(t, l.Beginning(t.Context()))
	r, err = l.Verify(t.Context())
	require.NoError(t, err)
	require.True(t, r.OK, r.Problems)
	require.EqualValues(t, aside[1].first, r.First)
	r = verified(t, path)
	require.False(t, r.OK)
	require.Contains(t, r.Problems[0], "are missing")
	// One in the middle may not.
	require.NoError(t, os.Remove(aside[2].path))
	r, err = l.Verify(t.Context())
	require.NoError(t, err)
	require.False(t, r.OK)
	require.Contains(t, r.Problems[0], "lines are missing")
}

func TestReadingPages(t *testing.T) {
	l := newLog(t, logPath(t), Options{MaxBytes: 1500})
	require.Empty(t, read(t, l, Query{}))
	require.Empty(t, read(t, l, Query{Newest: true}))
	fill(t, l, 1, 50)
	var got []uint64
	for after := uint64(0); ; {
		page := read(t, l, Query{After: after, Limit: 7})
		if len(page) == 0 {
			break
		}
		require.LessOrEqual(t, len(page), 7)
		got = append(got, seqs(page)...)
		after = page[len(page)-1].Seq
	}
	require.Len(t, got, 50)
	for i, s := range got {
		require.EqualValues(t, i+1, s)
	}
	require.Equal(t, []uint64{48, 49, 50}, seqs(read(t, l, Query{Newest: true, Limit: 3})))
	require.Equal(t, []uint64{43, 46, 49}, seqs(read(t, l, Query{Newest: true, Limit: 3, Job: "job-1"})))
	require.Len(t, read(t, l, Query{Newest: true}), 50)
	require.Equal(t, []uint64{31, 34}, seqs(read(t, l, Query{After: 30, Limit: 2, Job: "job-1"})))
	first := read(t, l, Query{Limit: 1})[0]
	want := entry(1)
	want.Seq, want.Prev, want.At = 1, genesis, noon
	require.Equal(t, want, first)
}

// TestAnyChangeOfALineIsFound flips each byte of a log in turn, and takes away,
// doubles and swaps lines.
func TestAnyChangeOfALineIsFound(t *testing.T) {
	path := logPath(t)
	l := New(path, Options{})
	fill2(t, l, 6)
	require.NoError(t, l.Close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	check := func(what string, b []byte) {
		t.Helper()
		require.NoError(t, os.WriteFile(path, b, 0o600))
		require.False(t, verified(t, path).OK, what)
	}
	for i := range whole[:last] { // of the last line only another copy of its hash can tell
		b := bytes.Clone(whole)
		b[i] ^= 0x01
		check(fmt.Sprintf("byte %d", i), b)
	}
	lines := bytes.SplitAfter(whole, []byte("\n"))
	lines = lines[:len(lines)-1]
	for i := range lines[:len(lines)-1] {
		rest := append(append([][]byte{}, lines[:i]...), lines[i+1:]...)
		check("a line is gone", bytes.Join(rest, nil))
		swapped := append([][]byte{}, lines...)
		swapped[i], swapped[i+1] = swapped[i+1], swapped[i]
		check("two are swapped", bytes.Join(swapped, nil))
		doubled := append(append(append([][]byte{}, lines[:i+1]...), lines[i]), lines[i+1:]...)
		check("one is doubled", bytes.Join(doubled, nil))
	}
	require.NoError(t, os.WriteFile(path, whole, 0o600))
	require.True(t, verified(t, path).OK)
}

func fill2(t testing.TB, l *Log, n int) { fill(t, l, 1, n) }

// anchor remembers in memory.
type anchor struct {
	head Known
	err  error
}

var _ Anchor = (*anchor)(nil)

func (a *anchor) Load() (Known, error) { return a.head, a.err }
func (a *anchor) Save(h Known) error {
	if a.err == nil {
		a.head = h
	}
	return a.err
}

func TestLinesCutOffAtTheEndAreMissed(t *testing.T) {
	path, a := logPath(t), &anchor{}
	l := New(path, Options{Anchor: a})
	fill2(t, l, anchorEvery+3)
	require.EqualValues(t, anchorEvery, a.head.Seq)
	require.NoError(t, l.Close())
	require.Equal(t, l.Head(), a.head.Head)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1

	require.NoError(t, os.WriteFile(path, whole[:last], 0o600))
	l = New(path, Options{Anchor: a})
	_, err = l.Append(entry(1))
	require.Equal(t, fault.Store, fault.CodeOf(err))
	require.ErrorContains(t, err, "lines are missing")
	r, err := l.Verify(t.Context())
	require.NoError(t, err)
	require.False(t, r.OK)
	require.True(t, verified(t, path).OK, "the chain alone can't tell")

	// Another last line instead.
	require.NoError(t, os.WriteFile(path, append(bytes.Clone(whole[:last]), bytes.Replace(whole[last:], []byte("alice"), []byte("malin"), 1)...), 0o600))
	_, err = l.Append(entry(1))
	require.ErrorContains(t, err, "is not the one that was written")
	r, err = l.Verify(t.Context())
	require.NoError(t, err)
	require.False(t, r.OK)

	// Put back, it goes on without a restart.
	require.NoError(t, os.WriteFile(path, whole, 0o600))
	_, err = l.Append(entry(1))
	require.NoError(t, err)
	require.NoError(t, l.Close())

	// What is remembered can't be read, or kept: lines count all the same.
	a.err = errors.New("store is closed")
	l = New(path, Options{Anchor: a})
	require.ErrorContains(t, l.Check(), "store is closed")
	a.err = nil
	require.NoError(t, l.Check())
	a.err = errors.New("store is full")
	for i := range 2 * anchorEvery {
		_, err := l.Append(entry(i))
		require.NoError(t, err)
	}
	require.ErrorContains(t, l.Close(), "store is full")
	require.True(t, verified(t, path).OK)
}

func TestManyWritersMakeOneChain(t *testing.T) {
	path := logPath(t)
	l := newLog(t, path, Options{MaxBytes: 4000})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 20 {
				_, err := l.Append(entry(w*20 + i))
				if err != nil {
					t.Error(err)
				}
				if i%5 == 0 {
					if _, err := l.Read(t.Context(), Query{Newest: true, Limit: 10}); err != nil {
						t.Error(err)
					}
					if r, err := l.Verify(t.Context()); err != nil || !r.OK {
						t.Error(err, r.Problems)
					}
				}
			}
		})
	}
	wg.Wait()
	r := verified(t, path)
	require.True(t, r.OK, r.Problems)
	require.EqualValues(t, 160, r.Lines)
}

// TestAnyTextIsOneLine: no name can begin a line of its own or be lost.
func TestAnyTextIsOneLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "keyframe-audit")
		require.NoError(t, err)
		defer func() { require.NoError(t, os.RemoveAll(dir)) }()
		path := filepath.Join(dir, "a")
		l := New(path, Options{})
		text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"a\nb", "\x00", "\u2028", strings.Repeat("ü", 5000), "\xff\xfe", `"}` + "\n{"}))
		e := Entry{Phase: PhaseNote, Principal: text.Draw(t, "principal"), By: "token", Action: "x", Job: text.Draw(t, "job"), Error: text.Draw(t, "error"),
			Params: map[string]any{text.Draw(t, "key"): strings.Repeat(text.Draw(t, "value"), rapid.IntRange(1, 4).Draw(t, "n")*20)}}
		_, err = l.Append(e)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, 1, bytes.Count(b, []byte("\n")))
		require.LessOrEqual(t, len(b), MaxLine)
		for _, c := range string(b[:len(b)-1]) {
			require.GreaterOrEqual(t, c, ' ', "no control characters")
		}
		got, err := decode(b[:len(b)-1])
		require.NoError(t, err)
		if len(e.Job) <= maxText {
			require.Equal(t, string([]rune(e.Job)), got.Job)
		}
	})
}
