package restore

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

// oneRecord is a journal that holds one record, and what is put over it.
type oneRecord struct {
	snapshot.Journal
	value []byte
}

func (o *oneRecord) Get(context.Context, string, string) ([]byte, bool, error) {
	return o.value, true, nil
}

func (o *oneRecord) Put(_ context.Context, _, _ string, value []byte) error {
	o.value = value
	return nil
}

// FuzzJournalEntry: the journal's entry of a restore, from a store that may be
// damaged. What is read is written back as it was.
func FuzzJournalEntry(f *testing.F) {
	f.Add("flights", []byte(`{"id":"r5","job":"flights","prefix":"p","kind":"restore","checkpoint":7,"startedAt":"2026-01-02T03:04:05Z","phase":"stage","keys":3,"detail":{"a":1}}`))
	f.Add("other", []byte(`{"id":"r5","job":"flights","prefix":"p","kind":"rescale","checkpoint":7}`))
	f.Add("flights", []byte(`{"id":"r5","job":"flights","prefix":"p","kind":"drop","checkpoint":-1}`))
	f.Add("flights", []byte("null"))
	f.Fuzz(func(t *testing.T, job string, value []byte) {
		j := &oneRecord{value: value}
		e, err := GetEntry(t.Context(), j, job)
		if err != nil {
			require.Equal(t, fault.Corrupt, fault.CodeOf(err))
			require.Contains(t, err.Error(), "read the journal of job")
			return
		}
		require.Equal(t, job, e.Job)
		require.NoError(t, PutEntry(t.Context(), j, *e))
		back, err := GetEntry(t.Context(), j, job)
		require.NoError(t, err)
		back.Detail, e.Detail = nil, nil // as a text, spaces may differ
		require.Equal(t, e, back)
	})
}

// FuzzVersionsAndIDs: what is compared is ordered, whatever a server tells.
func FuzzVersionsAndIDs(f *testing.F) {
	f.Add("7.4.1", "8.0", "1-1", "1-2")
	f.Add("7", "x.y", "18446744073709551616-0", "-")
	f.Add("-7.0", "+7.0", "1-", "")
	f.Fuzz(func(t *testing.T, v, w, a, b string) {
		x, ok := parseVersion(v)
		y, ok2 := parseVersion(w)
		if ok && ok2 {
			require.False(t, newer(x, y) && newer(y, x))
		}
		require.False(t, ok && newer(x, x))
		require.False(t, idBefore(a, b) && idBefore(b, a))
		require.False(t, idBefore(a, a))
	})
}
