package coordinator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
)

// What a plan from an archive says is what the plan says once the archive is
// imported; and it has changed nothing.
func TestAPlanFromAnArchiveIsThatOfItsImport(t *testing.T) {
	var b []byte
	job, other := testJob("flights"), testJob("other")
	inBubble(t, func(t *testing.T, w *world) {
		w.write(job, 150, "before")
		w.apply(job)
		w.checkpoint("flights")
		w.checkpoint("flights")
		b = w.export("flights", "2")
	})
	inBubble(t, func(t *testing.T, w *world) {
		w.write(job, 170, "live")
		w.apply(job)
		w.apply(other)
		w.checkpoint("flights")
		w.pass(time.Minute)
		events := len(w.events)
		before := w.live(job)
		for _, req := range []RestoreRequest{{}, {As: "other"}} {
			foretold, err := w.c.PlanArchive(t.Context(), "flights", w.archive(b), req)
			require.NoError(t, err)
			require.EqualValues(t, 2, foretold.Checkpoint)
			require.Equal(t, "flights", foretold.From)
			require.NotZero(t, foretold.Keys)
			last := len(foretold.Warnings) - 1
			require.Contains(t, foretold.Warnings[last], "imports it")
			require.Equal(t, before, w.live(job))
			require.Len(t, w.history("flights"), 1)
			require.Len(t, w.events, events, "nothing happened")

			res := w.bringIn(b, ImportRequest{})
			req.Checkpoint = res.Checkpoint.String()
			plan, err := w.c.PlanRestore(t.Context(), "flights", req)
			require.NoError(t, err)
			again, err := w.c.PlanArchive(t.Context(), "flights", w.archive(b), RestoreRequest{As: req.As})
			require.NoError(t, err)
			require.Equal(t, plan, again, "what is there already is restored from the store")
			foretold.Warnings = append([]string{}, foretold.Warnings[:last]...)
			plan.Checkpoint = foretold.Checkpoint
			require.Equal(t, plan, foretold)
			require.NoError(t, w.c.DeleteCheckpoint(t.Context(), "flights", res.Checkpoint, true))
			events = len(w.events)
		}
	})
}

func TestAPlanFromAnArchiveRefusesWhatItsImportWould(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job, narrow := testJob("flights"), testJob("narrow")
		narrow.MaxParallelism = 5
		narrow.Retention = config.Retention{Keep: 2}
		w.write(job, 150, "v")
		w.apply(job)
		w.apply(narrow)
		w.checkpoint("flights")
		b := w.export("flights", "")
		plan := func(name string, b []byte, req RestoreRequest) fault.Code {
			_, err := w.c.PlanArchive(t.Context(), name, w.archive(b), req)
			require.Error(t, err)
			return fault.CodeOf(err)
		}
		require.Equal(t, fault.Refused, plan("narrow", b, RestoreRequest{}))
		require.Equal(t, fault.NoJob, plan("nobody", b, RestoreRequest{}))
		require.Equal(t, fault.NoJob, plan("flights", b, RestoreRequest{As: "nobody"}))
		require.Equal(t, fault.Usage, plan("flights", b, RestoreRequest{Checkpoint: "1"}))
		b[400] ^= 1
		require.Equal(t, fault.Corrupt, plan("flights", b, RestoreRequest{}))
	})
}
