package audit

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// FuzzEntry: whatever a request holds is one line of bounded length that is
// read back.
func FuzzEntry(f *testing.F) {
	f.Add("flights", "alice", "done", []byte(`{"checkpoint":"7","body":{"as":"x"}}`))
	f.Add(strings.Repeat("\x00", 3000), strings.Repeat("\"", 2500), "\n\r\u2028", []byte(`{"a":[1,2,{"b":null}]}`))
	f.Add(strings.Repeat("\x00", 2000), strings.Repeat("\x01", 2000), strings.Repeat("\x02", 2000), []byte("{}"))
	f.Add("\xff\xfe", "", strings.Repeat("é", 1001), []byte(`{"x":"`+strings.Repeat("y", 70_000)+`"}`))
	f.Fuzz(func(t *testing.T, job, who, why string, params []byte) {
		e := Entry{Seq: 7, Prev: genesis, At: noon, Phase: PhaseEnd, Request: who, Principal: who, By: "token", Source: job, Action: why, Job: job, Operation: who, Error: why}
		if json.Unmarshal(params, &e.Params) != nil {
			e.Params = nil
		}
		e.Plan = e.Params
		line, err := encode(e)
		require.NoError(t, err)
		require.Less(t, len(line), MaxLine)
		require.NotContains(t, string(line), "\n")
		back, err := decode(line)
		require.NoError(t, err)
		require.Equal(t, e.Seq, back.Seq)
		if len(job) < 100 && utf8.ValidString(job) {
			require.Equal(t, job, back.Job, "short texts are whole")
		}
	})
}

// FuzzReadLog: any bytes in the place of the log. What is whole goes on with the
// next line; what isn't is a problem that names its line, and never a panic.
func FuzzReadLog(f *testing.F) {
	path := logPath(f)
	l := New(path, Options{})
	fill(f, l, 1, 3)
	require.NoError(f, l.Close())
	good, err := os.ReadFile(path)
	require.NoError(f, err)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(good[bytes.IndexByte(good, '\n')+1:])
	f.Add(bytes.Replace(good, []byte("alice"), []byte("mabel"), 1))
	f.Add([]byte("{}\n\n\x00"))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := logPath(t)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		before, err := Verify(t.Context(), path)
		if err != nil {
			require.Contains(t, err.Error(), path)
			before.OK = false
		}
		l := New(path, Options{})
		defer func() { require.NoError(t, l.Close()) }()
		e, err := l.Append(entry(9))
		if !before.OK {
			return // it may be mended, refused or gone on with: there was no panic
		}
		require.NoError(t, err, "a whole log goes on")
		require.Equal(t, before.Last+1, e.Seq)
		after, err := l.Verify(t.Context())
		require.NoError(t, err)
		require.True(t, after.OK, after.Problems)
		require.Equal(t, before.Lines+1, after.Lines)
		all, err := l.Read(t.Context(), Query{Newest: true, Limit: 2})
		require.NoError(t, err)
		require.Equal(t, e.Seq, all[len(all)-1].Seq)
	})
}
