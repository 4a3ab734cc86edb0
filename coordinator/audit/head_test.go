package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// forged are lines as somebody writes them who may write the file and knows how
// it is made: numbered and chained anew from a line on.
func forged(t *testing.T, lines [][]byte, first uint64, prev string) []byte {
	t.Helper()
	var out []byte
	for i, line := range lines {
		var e Entry
		require.NoError(t, json.Unmarshal(line, &e))
		e.Seq, e.Prev = first+uint64(i), prev
		b, err := encode(e)
		require.NoError(t, err)
		prev = hashOf(b)
		out = append(append(out, b...), '\n')
	}
	return out
}

// TestALogThatDoesNotBeginWithLineOneIsAProblem cuts the head off, in one file
// and where files were set aside; live and from the file alone.
func TestALogThatDoesNotBeginWithLineOneIsAProblem(t *testing.T) {
	for _, most := range []int64{0, 1500} {
		path, a := logPath(t), &anchor{}
		l := New(path, Options{MaxBytes: most, Anchor: a})
		fill(t, l, 1, 13)
		require.NoError(t, l.Close())
		aside, err := segments(path)
		require.NoError(t, err)
		for _, s := range aside[:max(0, len(aside)-1)] {
			require.NoError(t, os.Remove(s.path))
		}
		cut := path
		if len(aside) > 0 {
			cut = aside[len(aside)-1].path
		}
		whole, err := os.ReadFile(cut)
		require.NoError(t, err)
		lines := bytes.SplitAfter(whole, []byte("\n"))
		for n := 1; n < len(lines)-2; n++ {
			rest := bytes.Join(lines[n:], nil)
			require.NoError(t, os.WriteFile(cut, rest, 0o600))
			if len(aside) > 0 { // its name fits what is left
				was := cut
				e, err := decode(bytes.TrimSuffix(lines[n], []byte("\n")))
				require.NoError(t, err)
				cut = segmentName(path, e.Seq)
				require.NoError(t, os.Rename(was, cut))
			}
			r := verified(t, path)
			require.False(t, r.OK, "%d lines were cut off", n)
			require.Contains(t, r.Problems[0], fmt.Sprintf("lines 1 to %d are missing", r.First-1))
			l := newLog(t, path, Options{MaxBytes: most, Anchor: a})
			require.NoError(t, l.Check(), "changes go on")
			require.ErrorContains(t, l.Beginning(t.Context()), "are missing")
			r, err = l.Verify(t.Context())
			require.NoError(t, err)
			require.False(t, r.OK)
			require.NoError(t, l.Close())
		}
	}
}

// TestAForgedLogIsFoundByWhatTheStoreRemembers replaces the first line, cuts a
// run out of the middle and numbers the rest anew, and puts an older copy in
// the log's place.
func TestAForgedLogIsFoundByWhatTheStoreRemembers(t *testing.T) {
	path, a := logPath(t), &anchor{}
	l := New(path, Options{Anchor: a})
	fill(t, l, 1, 5)
	require.NoError(t, l.Close())
	older, err := os.ReadFile(path)
	require.NoError(t, err)
	l = New(path, Options{Anchor: a})
	for i := 6; i <= 12; i++ {
		_, err := l.Append(entry(i))
		require.NoError(t, err)
	}
	require.NoError(t, l.Close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := bytes.Split(bytes.TrimSuffix(whole, []byte("\n")), []byte("\n"))
	first := bytes.Replace(lines[0], []byte("alice"), []byte("mabel"), 1)
	run := slices.Delete(slices.Clone(lines), 3, 7)

	for name, c := range map[string]struct {
		content []byte
		alone   bool // the file alone tells it
	}{
		"another first line":                {append(append(bytes.Clone(first), '\n'), bytes.Join(append(lines[1:len(lines):len(lines)], nil), []byte("\n"))...), true},
		"another first line, chained anew":  {forged(t, append([][]byte{first}, lines[1:]...), 1, genesis), false},
		"the head is gone, numbered anew":   {forged(t, lines[3:], 1, genesis), false},
		"the head is gone, chained anew":    {forged(t, lines[3:], 4, genesis), true},
		"line 1 is gone, and says so":       {forged(t, lines[1:], 1, hashOf(lines[0])), true},
		"a run is gone, numbered anew":      {forged(t, run, 1, genesis), false},
		"a run is gone, numbered only":      {numbered(t, run), true},
		"an older copy":                     {older, false},
		"an older copy with lines of today": {append(bytes.Clone(older), forged(t, lines[6:], 6, hashOf(lines[4]))...), false},
	} {
		require.NoError(t, os.WriteFile(path, c.content, 0o600))
		require.Equal(t, !c.alone, verified(t, path).OK, name)
		r, err := newLog(t, path, Options{Anchor: a}).Verify(t.Context())
		require.NoError(t, err)
		require.False(t, r.OK, name)
	}
}

// numbered gives lines new numbers, and leaves their hashes as they were.
func numbered(t *testing.T, lines [][]byte) []byte {
	t.Helper()
	var out []byte
	for i, line := range lines {
		var e Entry
		require.NoError(t, json.Unmarshal(line, &e))
		e.Seq = uint64(i + 1)
		b, err := encode(e)
		require.NoError(t, err)
		out = append(append(out, b...), '\n')
	}
	return out
}
