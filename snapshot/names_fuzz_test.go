package snapshot

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzDecodeCheckpoint: rows of a history, from a store that may be damaged or
// an archive of anybody.
func FuzzDecodeCheckpoint(f *testing.F) {
	done := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	for _, c := range []Checkpoint{{}, {Job: "fl\xffights", ID: 7, Name: "a\x00b", State: StateCompleted, CompletedAt: &done, Keys: 1 << 60, StallMs: 1.5,
		Sources: Positions{{Topic: "in", Group: "g", Read: -1}}, Hot: []HotKey{{Key: "\xfe", Elements: 3}}, Drill: &Drill{At: done, OK: true}, Failure: &Failure{Reason: FailKey, Message: "\xfd"}}} {
		b, err := EncodeCheckpoint(c)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add([]byte(`{"id":-1}`))
	f.Add([]byte(`{"job":"\\xzz"}`))
	f.Add([]byte(`{"startedAt":"0000-01-01T00:00:00+23:59"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := DecodeCheckpoint(b)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		again, err := EncodeCheckpoint(c)
		require.NoError(t, err)
		back, err := DecodeCheckpoint(again)
		require.NoError(t, err)
		third, err := EncodeCheckpoint(back)
		require.NoError(t, err)
		require.Equal(t, string(again), string(third))
	})
}

// FuzzParseNames: ids of checkpoints and chunks, and grades.
func FuzzParseNames(f *testing.F) {
	for _, s := range []string{"7", "0", "+7", "007", "18446744073709551616", "auto", "Paused", strings.Repeat("0a", 32), strings.Repeat("0A", 32), ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := ParseID(s); err == nil {
			require.NotZero(t, id)
			require.Equal(t, strings.TrimLeft(s, "0"), id.String())
		} else {
			require.ErrorContains(t, err, "checkpoint id")
		}
		if id, err := ParseChunkID(s); err == nil {
			require.Equal(t, strings.ToLower(s), id.String())
		}
		if g, err := ParseGrade(s); err == nil {
			require.True(t, s == "" && g == GradeAuto || s == string(g))
		}
	})
}
