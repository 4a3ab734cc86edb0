package coordinator

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// faulty has a bug that one job meets.
type faulty struct {
	statebackend.Backend
	job string
}

func (f faulty) Cut(ctx context.Context, r statebackend.CutRequest, s snapshot.Sink) (statebackend.Cut, error) {
	if r.Job.Name == f.job {
		panic("a bug")
	}
	return f.Backend.Cut(ctx, r, s)
}

func TestAPanicInOneJobStopsNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, name := range []string{"sick", "well"} {
			job := testJob(name)
			job.Checkpoint.Schedule = "@every 10s"
			w.write(job, 130, name)
			w.apply(job)
		}
		w.pass(35 * time.Second)
		require.GreaterOrEqual(t, len(w.seen(EventJobPanicked)), 3, "it is told, and tried again")
		require.GreaterOrEqual(t, len(w.seen(EventCheckpointCompleted)), 3)
		for _, cp := range w.history("sick") {
			require.Equal(t, snapshot.StateFailed, cp.State, "nothing stays in progress")
		}
		s := w.failed(w.c.Checkpoint(t.Context(), "sick", CheckpointRequest{}))
		require.Equal(t, fault.Internal, s.Error.Code)
		w.checkpoint("well")
	}, func(o *Options) { o.Backend = faulty{o.Backend, "sick"} })
}
