package coordinator

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/snapshot"
)

// tornJournal is a journal whose every record is the same bytes.
type tornJournal struct {
	snapshot.Journal
	value []byte
}

func (j tornJournal) Get(context.Context, string, string) ([]byte, bool, error) {
	return j.value, true, nil
}

func (j tornJournal) Each(_ context.Context, _ string, fn func(key string, value []byte) error) error {
	return fn("flights", j.value)
}

// FuzzJournalRecords: what the coordinator wrote down and finds again after a
// start, from a store that may be damaged: an error that names the job, or a
// record that can be used.
func FuzzJournalRecords(f *testing.F) {
	applied, err := json.Marshal(appliedJob{Job: config.Job{Name: "flights", Parallelism: 3}.WithDefaults(), Paused: true})
	require.NoError(f, err)
	f.Add(applied)
	f.Add([]byte(`{"checkpoint":7,"of":"restore"}`))
	f.Add([]byte(`{"newest":7,"base":5,"incarnation":"ab","epoch":3,"unknown":true}`))
	f.Add([]byte(`{"job":{"name":"flights","parallelism":-1,"checkpoint":{"timeout":"5x"}}}`))
	f.Add([]byte(`{"job":null,"holders":[1]}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		c := New(Options{Journal: tornJournal{value: value}})
		defer c.cancel(nil)
		specs, paused, err := c.load(t.Context())
		if err != nil {
			require.ErrorContains(t, err, `"flights"`)
		}
		for _, s := range specs {
			require.Equal(t, s, s.WithDefaults(), "nothing is left out")
			require.Contains(t, paused, "flights")
		}
		if _, err := c.loadUndo(t.Context(), "flights"); err != nil {
			require.ErrorContains(t, err, `"flights"`)
		}
		if _, _, err := c.lineage(t.Context(), "flights", nil); err != nil {
			require.ErrorContains(t, err, `"flights"`)
		}
	})
}
