package coordinator

import (
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

// rejected makes checkpoint 1 with value good, corrupts the state, and restores
// 1: the corrupted state is then in the undo checkpoint, 2.
func rejected(w *world) config.Job {
	job := testJob("flights")
	w.write(job, 140, "good")
	w.apply(job)
	w.checkpoint("flights")
	w.write(job, 140, "corrupted")
	w.done(w.c.Restore(w.t.Context(), "flights", RestoreRequest{Checkpoint: "1"}))
	w.pass(time.Second)
	return job
}

// copiesIn are the archives of the one folder in a directory, by name, and the
// folder.
func copiesIn(t *testing.T, dir string) (folder string, manifests []*snapshot.Manifest, files []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "*"+archive.Suffix))
	require.NoError(t, err)
	for _, f := range files {
		a, err := archive.Open(f)
		require.NoError(t, err)
		manifests = append(manifests, a.Manifest())
		require.NoError(t, a.Close())
		folder = filepath.Dir(f)
	}
	return folder, manifests, files
}

// chosenIn is the checkpoint that a restore from the directory takes.
func chosenIn(t *testing.T, dir string) (snapshot.ID, ArchiveChoice) {
	t.Helper()
	folder, all, _ := copiesIn(t, dir)
	var live *archive.Live
	l, err := archive.ReadLive(folder)
	if !archive.NoLive(err) {
		require.NoError(t, err)
		live = &l
	}
	c := ChooseArchive(all, live)
	return all[c.Index].Checkpoint.ID, c
}

func copiedTo(dir string) func(*Options) { return func(o *Options) { o.Copies = []string{dir} } }

// TestCopiesKnowWhichLineIsLive: what was given up doesn't come back from the
// copies, with the file that says what is live and without it.
func TestCopiesKnowWhichLineIsLive(t *testing.T) {
	dir := t.TempDir()
	inBubble(t, func(t *testing.T, w *world) {
		job := rejected(w)
		folder, all, _ := copiesIn(t, dir)
		require.Len(t, all, 2)
		l, err := archive.ReadLive(folder)
		require.NoError(t, err)
		require.EqualValues(t, 1, l.Base)
		require.EqualValues(t, 2, l.Newest)
		id, c := chosenIn(t, dir)
		require.EqualValues(t, 1, id)
		require.Contains(t, c.Passed[1], "checkpoint 2")
		require.Contains(t, c.Passed[1], "undo")

		w.checkpoint("flights")
		w.pass(time.Second)
		id, _ = chosenIn(t, dir)
		require.EqualValues(t, 3, id, "taken since, from what is live")

		// A regular one that is given up has nothing but the file against it.
		w.write(job, 140, "worse")
		w.checkpoint("flights")
		w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{Checkpoint: "3", NoUndo: true}))
		w.pass(time.Second)
		id, c = chosenIn(t, dir)
		require.EqualValues(t, 3, id)
		require.Contains(t, c.Passed[3], "given up")

		// Back to the undo checkpoint, on purpose: it is what is live.
		w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{Checkpoint: "2", NoUndo: true}))
		w.pass(time.Second)
		id, _ = chosenIn(t, dir)
		require.EqualValues(t, 2, id)
	}, copiedTo(dir))
}

// TestImportsOfADirectoryKnowWhichLineIsLive: in a new store, with an empty
// state store, the default of restore and of a drill is what was live.
func TestImportsOfADirectoryKnowWhichLineIsLive(t *testing.T) {
	for _, named := range []bool{true, false} {
		dir := t.TempDir()
		inBubble(t, func(t *testing.T, w *world) {
			job := rejected(w)
			w.close()
			require.NoError(t, os.Remove(w.path))
			w.store.Lose()
			w.open()
			w.apply(job)
			w.pass(time.Minute)
			_, c := chosenIn(t, dir)
			_, _, files := copiesIn(t, dir)
			for i, f := range files {
				b, err := os.ReadFile(f)
				require.NoError(t, err)
				req := ImportRequest{}
				if named {
					req.Branch = BranchLive
					if c.GaveUp[i] {
						req.Branch = BranchGivenUp
					}
				}
				w.bringIn(b, req)
			}
			cp, err := w.c.Resolve(t.Context(), "flights", "")
			require.NoError(t, err)
			require.EqualValues(t, 1, cp.ID)
			plan, err := w.c.PlanRestore(t.Context(), "flights", RestoreRequest{})
			require.NoError(t, err)
			require.EqualValues(t, 1, plan.Checkpoint)
			require.Contains(t, last(plan.Warnings), "checkpoint 2 is newer, and is passed over")
			cp, err = w.c.restorable(t.Context(), "flights", "")
			require.NoError(t, err)
			require.EqualValues(t, 1, cp.ID, "which a drill asks for, too")
			w.done(w.c.Restore(t.Context(), "flights", RestoreRequest{}))
			require.Equal(t, `"good-7"`, w.read(job, 3, 7))
			w.pass(time.Minute)
			w.store.Lose()
			w.pass(time.Minute)
			require.Equal(t, `"good-7"`, w.read(job, 3, 7), "a recovery follows it too")
		}, copiedTo(dir))
	}
}

// TestALossOfStoreAndStateNamesTheCopies: nothing is restored by itself, and
// health says what would bring it back.
func TestALossOfStoreAndStateNamesTheCopies(t *testing.T) {
	dir := t.TempDir()
	inBubble(t, func(t *testing.T, w *world) {
		job := rejected(w)
		require.Empty(t, w.health("flights").Warnings)
		w.close()
		require.NoError(t, os.Remove(w.path))
		w.store.Lose()
		w.open()
		w.apply(job)
		w.pass(time.Minute)
		h := w.health("flights")
		require.Equal(t, HealthWaiting, h.State)
		require.Len(t, h.Warnings, 1)
		folder, _, _ := copiesIn(t, dir)
		for _, part := range []string{"2 copies", "checkpoint 2", "`coordinator restore flights --from " + folder + "`"} {
			require.Contains(t, h.Warnings[0], part)
		}
		require.Contains(t, last(w.seen(EventCopiesFound)).Message, "restore flights --from "+folder)
		require.Empty(t, w.seen(EventRecoveryAttempt))
	}, copiedTo(dir))
}

// TestAGracefulStopMakesTheCopiesThatAreDue: of a checkpoint that was completed
// the moment before.
func TestAGracefulStopMakesTheCopiesThatAreDue(t *testing.T) {
	dir := t.TempDir()
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 140, "v")
		w.apply(job)
		for n := range 3 {
			w.checkpoint("flights") // and not one more moment
			w.close()
			_, all, _ := copiesIn(t, dir)
			require.Len(t, all, n+1)
			w.open()
			w.apply(job)
			w.pass(time.Second)
		}
		cp := last(w.history("flights"))
		require.Equal(t, CopyTally{Made: 1, Of: 1}, *w.c.CopyTally(cp))
	}, copiedTo(dir))
}

// TestAStopSaysWhichCopiesItLeaves: a directory that is away holds it up by
// nothing.
func TestAStopSaysWhichCopiesItLeaves(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "absent")
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 140, "v")
		w.apply(job)
		require.Equal(t, CopyTally{Made: 0, Of: 1}, *w.c.CopyTally(w.checkpoint("flights")))
		before := time.Now()
		w.close()
		require.Less(t, time.Since(before), time.Second)
		require.Contains(t, last(w.seen(EventCopyFailed)).Message, "stops, and 1 checkpoints have no copy there yet")
		require.NoError(t, os.Mkdir(dir, 0o700))
		w.open()
	}, copiedTo(dir))
}

// TestImportsPushNothingOut: keep counts what is the job's own.
func TestImportsPushNothingOut(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job, other := testJob("flights"), testJob("other")
		job.Retention.Keep = 2
		w.write(job, 140, "v")
		w.write(other, 140, "x")
		w.apply(job)
		w.apply(other)
		w.checkpoint("other")
		b := w.export("other", "")
		for range 2 {
			w.checkpoint("flights")
		}
		into := w.bringIn(b, ImportRequest{Job: "flights"}).Checkpoint
		w.checkpoint("flights")
		w.checkpoint("flights")
		require.Equal(t, []snapshot.ID{into, into + 1, into + 2}, ids(w.history("flights")), "two of its own, and the import")
	})
}

// TestAnImportForARestoreThatIsRefusedLeavesNothing: neither another job's, nor
// where another coordinator leads.
func TestAnImportForARestoreThatIsRefusedLeavesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job, other := testJob("flights"), testJob("other")
		w.write(job, 140, "v")
		w.write(other, 140, "x")
		w.apply(job)
		w.apply(other)
		w.checkpoint("other")
		b := w.export("other", "")
		_, err := w.c.Import(t.Context(), ImportRequest{Archive: w.archive(b), Job: "flights", Restore: &RestoreRequest{}})
		require.Equal(t, fault.Refused, fault.CodeOf(err), "%v", err)
		require.Empty(t, w.history("flights"))
		into := w.bringIn(b, ImportRequest{Job: "flights", Restore: &RestoreRequest{As: "flights"}})
		require.NotZero(t, into.Checkpoint)
	})
	inBubble(t, func(t *testing.T, a *world) {
		job := testJob("flights")
		a.write(job, 140, "v")
		a.apply(job)
		a.checkpoint("flights")
		b := a.another(owned("b", "/b", nil))
		b.apply(job)
		require.Equal(t, HealthStandby, b.job("flights").Health.State)
		_, err := b.c.Import(t.Context(), ImportRequest{Archive: b.archive(a.export("flights", "")), Restore: &RestoreRequest{}})
		require.Equal(t, fault.Refused, fault.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, "stands by")
		history, err := b.db.List(t.Context(), "flights")
		require.NoError(t, err)
		require.Empty(t, history)
		b.close()
	}, owned("a", "/a", nil))
}
