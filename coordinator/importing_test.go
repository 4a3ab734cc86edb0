package coordinator

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/snapshot/archive"
)

// export gives a checkpoint as the bytes of an archive.
func (w *world) export(job, which string) []byte {
	w.t.Helper()
	var b bytes.Buffer
	require.NoError(w.t, w.c.Export(w.t.Context(), job, which, &b, nil))
	return b.Bytes()
}

func (w *world) archive(b []byte) *archive.Archive {
	w.t.Helper()
	a, err := archive.New(bytes.NewReader(b), int64(len(b)), "test.kfa")
	require.NoError(w.t, err)
	return a
}

func (w *world) bringIn(b []byte, req ImportRequest) ImportResult {
	w.t.Helper()
	req.Archive = w.archive(b)
	return *w.done(w.c.Import(w.t.Context(), req)).Import
}

func (w *world) health(job string) Health {
	w.t.Helper()
	s, err := w.c.Job(job)
	require.NoError(w.t, err)
	return s.Health
}

func TestAnExportedCheckpointIsImportedElsewhereAndRestored(t *testing.T) {
	var b []byte
	job := testJob("flights")
	inBubble(t, func(t *testing.T, w *world) {
		w.write(job, 150, "before")
		w.apply(job)
		w.checkpoint("flights")
		w.write(job, 160, "after")
		w.checkpoint("flights")
		b = w.export("flights", "2")
	})
	inBubble(t, func(t *testing.T, w *world) {
		w.apply(job)
		require.Equal(t, HealthWaiting, w.health("flights").State)
		res := w.bringIn(b, ImportRequest{})
		require.Equal(t, Origin{Job: "flights", ID: 2, Server: w.store.Server()}, res.From)
		require.Greater(t, res.Checkpoint, snapshot.ID(2), "never below the attempt that the state remembers")
		require.False(t, res.Already)
		w.pass(time.Minute)
		require.Equal(t, HealthWaiting, w.health("flights").State, "an import is no state that is lost")
		w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{}))
		require.Equal(t, `"after-159"`, w.read(job, 3, 159))
		w.pass(time.Minute)
		require.Equal(t, HealthOK, w.health("flights").State)
		next := w.checkpoint("flights")
		require.Equal(t, res.Checkpoint, next.Parent, "the state descends from the import")
	})
}

func TestAnImportIsWhatItWasAndSaysWhereItComesFrom(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job, other := testJob("flights"), testJob("other")
		w.write(job, 140, "v")
		w.apply(job)
		w.apply(other)
		s := w.done(w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{Name: "gold", Note: "before the fair"})).Checkpoint
		_, err := w.c.Pin(t.Context(), "flights", s.ID, true)
		require.NoError(t, err)
		b := w.export("flights", "gold")

		again := w.bringIn(b, ImportRequest{})
		require.True(t, again.Already, "it is there")
		require.Equal(t, s.ID, again.Checkpoint)
		require.Len(t, w.history("flights"), 1)

		into := w.bringIn(b, ImportRequest{Job: "other"})
		cp, err := w.c.Resolve(t.Context(), "other", "gold")
		require.NoError(t, err)
		require.Equal(t, into.Checkpoint, cp.ID)
		require.Equal(t, snapshot.KindSavepoint, cp.Kind)
		require.Equal(t, snapshot.TriggerImport, cp.Trigger)
		require.Equal(t, `before the fair; imported from checkpoint 1 of job "flights", `+w.store.Server(), cp.Note)
		require.True(t, cp.StartedAt.Equal(s.StartedAt))
		require.True(t, w.bringIn(b, ImportRequest{Job: "other"}).Already, "the same file twice")
		v := w.done(w.c.Verify(t.Context(), "other", "gold")).Verify
		require.True(t, v.OK, v.Problems)
		m, err := w.c.Manifest(t.Context(), "other", cp.ID)
		require.NoError(t, err)
		require.Equal(t, "flights", m.Identity.Job, "whose state it is stays")

		// Under a name of its own it is a savepoint; a name that is taken is refused.
		require.NoError(t, w.c.DeleteCheckpoint(t.Context(), "other", cp.ID, true))
		named := w.bringIn(b, ImportRequest{Job: "other", Name: "mine"})
		require.Greater(t, named.Checkpoint, cp.ID)
		_, err = w.c.Import(t.Context(), ImportRequest{Archive: w.archive(b), Job: "flights", Name: "gold"})
		require.Equal(t, fault.Refused, fault.CodeOf(err))
	})
}

func TestWhatDoesNotFitIsNotImported(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 140, "v")
		w.apply(job)
		wide := testJob("wide")
		wide.MaxParallelism = 20
		w.apply(wide)
		w.checkpoint("flights")
		b := w.export("flights", "")

		_, err := w.c.Import(t.Context(), ImportRequest{Archive: w.archive(b), Job: "wide"})
		require.Equal(t, fault.Refused, fault.CodeOf(err))
		require.ErrorContains(t, err, "20")
		_, err = w.c.Import(t.Context(), ImportRequest{Archive: w.archive(b), Job: "nobody"})
		require.Equal(t, fault.NoJob, fault.CodeOf(err))
		b[400] ^= 1
		_, err = w.c.Import(t.Context(), ImportRequest{Archive: w.archive(b)})
		require.Equal(t, fault.Corrupt, fault.CodeOf(err))
		require.Empty(t, w.history("wide"))
		require.Len(t, w.history("flights"), 1)
	})
}

// An import becomes the newest by id, and nothing else: guard, recovery, head,
// schedule of increments and what is shown as last stay the live state's own,
// also after a restart.
func TestAnImportIsNotTakenForTheLiveState(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job, donor := testJob("flights"), testJob("donor")
		w.write(donor, 130, "foreign")
		w.write(job, 140, "mine")
		w.apply(donor)
		w.apply(job)
		w.checkpoint("donor")
		b := w.export("donor", "")
		own := w.checkpoint("flights")
		imported := w.bringIn(b, ImportRequest{Job: "flights"})
		require.Greater(t, imported.Checkpoint, own.ID)

		check := func() {
			w.pass(time.Minute)
			s, err := w.c.Job("flights")
			require.NoError(t, err)
			require.Equal(t, HealthOK, s.Health.State, s.Health.Message)
			require.Equal(t, own.ID, s.Head)
			require.Equal(t, own.ID, s.Good.ID)
			require.Equal(t, own.ID, s.Last.ID)
			newest, err := w.c.Resolve(t.Context(), "flights", "")
			require.NoError(t, err)
			require.Equal(t, own.ID, newest.ID)
			plan, err := w.c.PlanRescale(t.Context(), "flights", RescaleRequest{Parallelism: 4})
			require.NoError(t, err)
			require.Equal(t, own.ID, plan.Base)
		}
		check()
		w.close()
		w.open()
		check()
		// Lost state is brought back from its own checkpoint.
		w.store.Lose()
		w.pass(time.Minute)
		require.Len(t, w.seen(EventRecovered), 2, "both jobs were lost")
		require.Equal(t, `"mine-139"`, w.read(job, 3, 139))
		next := w.checkpoint("flights")
		require.Equal(t, own.ID, next.Parent)
		require.Greater(t, next.ID, imported.Checkpoint)
	})
}

// A kill between the lineage record of an import and its commit leaves the
// guard as it was.
func TestAnImportThatFailsChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 140, "mine")
		w.apply(job)
		own := w.checkpoint("flights")
		j, err := w.c.find("flights")
		require.NoError(t, err)
		require.NoError(t, j.keepImport(t.Context(), own.ID+1))
		w.close()
		w.open()
		w.pass(time.Minute)
		s, err := w.c.Job("flights")
		require.NoError(t, err)
		require.Equal(t, HealthOK, s.Health.State, s.Health.Message)
		require.Equal(t, own.ID, s.Head)
		require.Equal(t, own.ID, w.checkpoint("flights").Parent)
	})
}

// A store is lost with everything but the copies: they bring it back, under the
// old ids, and what is taken after is above them (I10).
func TestCopiesBringALostStoreBack(t *testing.T) {
	dir := t.TempDir()
	withCopies := func(o *Options) { o.Copies = []string{dir} }
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		job.Retention = config.Retention{Keep: 2}
		w.write(job, 140, "one")
		w.apply(job)
		for range 4 {
			w.checkpoint("flights")
			w.pass(time.Second)
		}
		files := func() []string {
			all, err := filepath.Glob(filepath.Join(dir, "flights-*", "*.kfa"))
			require.NoError(t, err)
			return all
		}
		kept := files()
		require.Len(t, kept, 2, "copies follow retention")
		require.Len(t, w.seen(EventCopyMade), 4)
		m, err := w.c.Manifest(t.Context(), "flights", 4)
		require.NoError(t, err)
		require.Equal(t, kept[1], w.c.CopiesOf(m)[0].File)

		w.close()
		require.NoError(t, os.Remove(w.path))
		w.open()
		w.apply(job)
		w.pass(time.Minute)
		require.Len(t, w.seen(EventCopiesFound), 1)
		require.Equal(t, 2, w.c.Copies()[0].OnlyHere)
		for i, want := range []snapshot.ID{3, 4} {
			b, err := os.ReadFile(kept[i])
			require.NoError(t, err)
			require.Equal(t, want, w.bringIn(b, ImportRequest{}).Checkpoint)
		}
		w.pass(time.Second)
		require.Zero(t, w.c.Copies()[0].OnlyHere)
		require.Equal(t, kept, files(), "they are the same checkpoints: no second copy")
		require.EqualValues(t, 5, w.checkpoint("flights").ID)
	}, withCopies)
}

// A copy that fails delays no checkpoint and shows in the job's health.
func TestACopyThatFailsIsAWarningOfTheJob(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "absent")
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 140, "one")
		w.apply(job)
		w.checkpoint("flights")
		w.checkpoint("flights")
		w.pass(time.Minute)
		require.NotEmpty(t, w.seen(EventCopyFailed))
		h := w.health("flights")
		require.Equal(t, HealthOK, h.State)
		require.Len(t, h.Warnings, 1)
		require.Contains(t, h.Warnings[0], "2 checkpoints have no copy in "+dir)
		require.NoError(t, os.Mkdir(dir, 0o700))
		w.pass(10 * time.Minute)
		require.Empty(t, w.health("flights").Warnings)
		require.True(t, w.c.Copies()[0].OK)
	}, func(o *Options) { o.Copies = []string{dir} })
}
