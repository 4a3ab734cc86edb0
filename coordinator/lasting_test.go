package coordinator

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

func watchedStore(w **world) func(*Options) {
	return func(o *Options) { o.StoreErr = func() error { return (*w).db.Err() } }
}

// TestAStoreFileThatIsRemovedIsNoticedWithinAPoll: by jobs on demand too, and
// what the open file holds is what lost state is still recovered from.
func TestAStoreFileThatIsRemovedIsNoticedWithinAPoll(t *testing.T) {
	for _, schedule := range []string{"", "@every 1m"} {
		var it *world
		inBubble(t, func(t *testing.T, w *world) {
			it = w
			job := testJob("flights")
			job.Checkpoint.Schedule = schedule
			w.write(job, 130, "v")
			w.apply(job)
			w.checkpoint("flights")
			w.write(job, 130, "newer")
			w.checkpoint("flights")
			waiting := testJob("empty")
			w.apply(waiting)
			require.NoError(t, os.Rename(w.path, w.path+".moved"))
			w.pass(2 * DefaultPoll)
			s := w.job("flights")
			require.Equal(t, HealthStore, s.Health.State)
			require.Contains(t, s.Health.Message, "it was removed, or moved away")
			require.Contains(t, s.Health.Message, "first copy it (cp /proc/")
			require.Contains(t, last(w.job("empty").Health.Warnings), "it was removed, or moved away")
			require.Len(t, w.seen(EventStoreStopped), 1)
			stats, err := w.c.StoreStats(t.Context())
			require.NoError(t, err)
			require.Contains(t, stats.Stopped, "it was removed", "what /readyz goes by")

			for range 2 {
				w.store.Lose()
				w.pass(3 * DefaultPoll)
				require.Equal(t, `"newer-7"`, w.read(job, 3, 7))
				s = w.job("flights")
				require.Equal(t, HealthStore, s.Health.State)
				require.Contains(t, s.Health.Message, "it was removed")
			}
			require.Len(t, w.seen(EventRecovered), 2)
			require.Len(t, w.seen(EventStoreStopped), 1)
			for _, e := range w.seen(EventHealthChanged) {
				require.NotEqual(t, HealthUnreachable, e.Health, e.Message)
			}
			_, err = w.c.SetPaused(t.Context(), "flights", true)
			require.ErrorContains(t, err, "it was removed", "what has to last is refused")
			require.NoError(t, w.c.Stop(t.Context()))
			require.NoError(t, w.db.Close())
			require.NoError(t, os.Rename(w.path+".moved", w.path))
			w.open()
			w.pass(2 * DefaultPoll)
			require.Equal(t, HealthOK, w.job("flights").Health.State, w.job("flights").Health.Message)
			require.Equal(t, snapshot.ID(3), w.checkpoint("flights").ID)
		}, func(o *Options) { watchedStore(&it)(o) })
	}
}
