package coordinator

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/snapshot/storetest"
)

func TestCompactionDue(t *testing.T) {
	const gain = 64
	s := snapshot.StoreStats{FileBytes: 301, LiveBytes: 150, FreeBytes: 64}
	require.True(t, CompactionDue(s, 2, gain))
	for name, change := range map[string]func(*snapshot.StoreStats){
		"the ratio is not above":              func(s *snapshot.StoreStats) { s.FileBytes = 300 },
		"too little to gain":                  func(s *snapshot.StoreStats) { s.FreeBytes = 63 },
		"a deletion is on its way":            func(s *snapshot.StoreStats) { s.WaitingChunks = 1 },
		"nothing free, all of it bookkeeping": func(s *snapshot.StoreStats) { s.FileBytes, s.FreeBytes = 9000, 0 },
	} {
		other := s
		change(&other)
		require.False(t, CompactionDue(other, 2, gain), name)
	}
	require.False(t, CompactionDue(s, 0, gain), "0 is never")
	require.True(t, CompactionDue(snapshot.StoreStats{FileBytes: 100, FreeBytes: 90}, 2, gain), "nothing is live")
	require.False(t, CompactionDue(snapshot.StoreStats{}, 2, 0))
	rapid.Check(t, func(rt *rapid.T) {
		n := func(what string) int64 { return rapid.Int64Range(0, 1<<50).Draw(rt, what) }
		s := snapshot.StoreStats{FileBytes: n("file"), LiveBytes: n("live"), FreeBytes: n("free")}
		above, gain := rapid.Float64Range(1.5, 100).Draw(rt, "above"), n("gain")
		if CompactionDue(s, above, gain) {
			require.GreaterOrEqual(rt, s.FreeBytes, gain)
			require.Greater(rt, s.FileBytes, s.LiveBytes)
			require.True(rt, CompactionDue(s, above-0.1, gain), "a lower bound is passed too")
		}
	})
}

// withUpkeep makes a world's store compact itself, at a small gain.
func withUpkeep(o *Options) {
	o.Upkeep, o.CompactAbove, o.CompactGain = o.Store.(*bolt.DB), 2, 200<<10
}

// churnStore leaves a store with much more free than live.
func churnStore(t *testing.T, db *bolt.DB, rounds int) {
	var made []snapshot.ID
	for i := range rounds {
		m := storetest.MustTake(t, db, storetest.Attempt("churn"), storetest.Keys(string(rune('a'+i%26)), 4000))
		storetest.MustTake(t, db, storetest.Attempt("kept"), storetest.Keys("kept", 50))
		made = append(made, m.Checkpoint.ID)
	}
	for _, id := range made {
		require.NoError(t, db.Delete(t.Context(), "churn", id))
	}
}

// TestTheStoreIsCompactedByItself keeps the ratio of the file bounded through
// churn, and rests between.
func TestTheStoreIsCompactedByItself(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for round := range 3 {
			churnStore(t, w.db, 6)
			synctest.Wait()
			before, err := w.c.StoreStats(t.Context())
			require.NoError(t, err)
			require.Greater(t, before.Ratio, 2.0)
			w.pass(upkeepPoll + upkeepPause)
			after, err := w.c.StoreStats(t.Context())
			require.NoError(t, err)
			require.Less(t, after.FreeBytes, int64(200<<10))
			require.Len(t, w.seen(EventStoreCompacted), round+1)
			op := w.c.Operations("")[0]
			require.Equal(t, OpCompact, op.Kind)
			require.Equal(t, OpDone, op.State)
			require.Equal(t, after.FileBytes, op.Compact.AfterBytes)
			require.Less(t, op.Compact.AfterBytes, op.Compact.BeforeBytes)
			w.pass(3 * upkeepPause)
			require.Len(t, w.seen(EventStoreCompacted), round+1, "it is not due again")
		}
		storetest.MustHold(t, w.db, "kept", 1, storetest.Keys("kept", 50))
	}, withUpkeep)
}

func TestAStoreIsNotCompactedByItselfWhenToldSo(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		churnStore(t, w.db, 6)
		w.pass(24 * time.Hour)
		require.Empty(t, w.seen(EventStoreCompacted))
		s := w.done(w.c.CompactStore())
		require.Less(t, s.Compact.AfterBytes, s.Compact.BeforeBytes/2, "but on request")
		require.Equal(t, uint64(s.Progress.TotalBytes), max(s.Progress.TotalBytes, s.Progress.Bytes))
		require.Len(t, w.seen(EventStoreCompacted), 1)
	}, withUpkeep, func(o *Options) { o.CompactAbove = 0 })
}

// heldUpkeep is an upkeep that waits until it may go on, or fails.
type heldUpkeep struct {
	snapshot.Upkeep
	entered chan struct{}
	leave   chan struct{}

	mu    sync.Mutex
	err   error
	calls int
}

func (h *heldUpkeep) fails(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
}

func (h *heldUpkeep) called() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls
}

func (h *heldUpkeep) call() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	return h.err
}

func (h *heldUpkeep) Compact(ctx context.Context, progress func(snapshot.UpkeepProgress)) (snapshot.CompactResult, error) {
	if err := h.call(); err != nil {
		return snapshot.CompactResult{}, err
	}
	h.entered <- struct{}{}
	select {
	case <-h.leave:
	case <-ctx.Done():
		return snapshot.CompactResult{}, context.Cause(ctx)
	}
	return h.Upkeep.Compact(ctx, progress)
}

func TestAFailedCompactionIsToldAndNotTriedAtOnce(t *testing.T) {
	var h *heldUpkeep
	inBubble(t, func(t *testing.T, w *world) {
		churnStore(t, w.db, 6)
		w.pass(upkeepPoll + time.Second)
		failed := w.seen(EventStoreUpkeepFailed)
		require.Len(t, failed, 1)
		require.Contains(t, failed[0].Message, "not enough room")
		require.True(t, failed[0].Kind.Failed())
		op, err := w.c.Operation(failed[0].Operation)
		require.NoError(t, err)
		require.Equal(t, fault.Store, op.Status().Error.Code)
		w.pass(upkeepFailedIn - time.Minute)
		require.Equal(t, 1, h.called())
		h.fails(nil)
		w.pass(2 * time.Minute)
		require.Equal(t, 2, h.called())
		require.Len(t, w.seen(EventStoreCompacted), 1)
	}, withUpkeep, func(o *Options) {
		h = &heldUpkeep{Upkeep: o.Upkeep, entered: make(chan struct{}, 9), leave: make(chan struct{}), err: snapshot.ErrNoSpace}
		close(h.leave)
		o.Upkeep = h
	})
}

// TestOneOperationOnTheStoreAtATime, and a stop aborts it at once.
func TestOneOperationOnTheStoreAtATime(t *testing.T) {
	var h *heldUpkeep
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 130, "v")
		w.apply(job)
		op, err := w.c.CompactStore()
		require.NoError(t, err)
		<-h.entered
		_, err = w.c.BackupStore("/somewhere/else.db")
		require.Equal(t, fault.Busy, fault.CodeOf(err))
		require.ErrorContains(t, err, op.Status().ID)
		_, err = w.c.CompactStore()
		require.Equal(t, fault.Busy, fault.CodeOf(err))
		require.Equal(t, snapshot.ID(1), w.checkpoint("flights").ID, "jobs go on")
		require.NoError(t, w.c.Abort(op.Status().ID))
		require.Contains(t, w.failed(op, nil).Error.Message, "aborted on request")

		op, err = w.c.CompactStore()
		require.NoError(t, err)
		<-h.entered
		begun := time.Now()
		require.NoError(t, w.c.Stop(t.Context()))
		require.Zero(t, time.Since(begun))
		require.Contains(t, w.failed(op, nil).Error.Message, "stopping")
		_, err = w.c.CompactStore()
		require.Equal(t, fault.Busy, fault.CodeOf(err))
	}, withUpkeep, func(o *Options) {
		h = &heldUpkeep{Upkeep: o.Upkeep, entered: make(chan struct{}, 9), leave: make(chan struct{})}
		o.Upkeep = h
	})
}

func TestABackupIsMadeWhileJobsGoOn(t *testing.T) {
	dir := t.TempDir()
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 130, "v")
		w.apply(job)
		w.checkpoint("flights")
		file := filepath.Join(dir, "copy.db")
		s := w.done(w.c.BackupStore(file))
		require.Equal(t, OpBackup, s.Kind)
		require.Equal(t, file, s.Backup.File)
		require.Equal(t, 1, s.Backup.Checkpoints)
		require.Len(t, w.seen(EventStoreBackedUp), 1)
		require.Equal(t, fault.Refused, w.failed(w.c.BackupStore(file)).Error.Code, "it is there already")
		require.Empty(t, w.seen(EventStoreUpkeepFailed), "which is no alarm")
		require.Equal(t, fault.Store, w.failed(w.c.BackupStore(filepath.Join(dir, "no", "folder.db"))).Error.Code)
		require.Len(t, w.seen(EventStoreUpkeepFailed), 1)
		for _, relative := range []string{"", "copy.db", "./copy.db", "../copy.db"} {
			_, err := w.c.BackupStore(relative)
			require.Equal(t, fault.Usage, fault.CodeOf(err), relative)
		}
		copied, err := bolt.Open(t.Context(), file, bolt.Options{})
		require.NoError(t, err)
		storetest.MustBeClean(t, copied)
		all, err := copied.List(t.Context(), "flights")
		require.NoError(t, err)
		require.Equal(t, w.history("flights"), all)
		require.NoError(t, copied.Close())
		_, err = os.Stat(file + ".tmp")
		require.ErrorIs(t, err, fs.ErrNotExist)
	}, withUpkeep)
}

func TestAStoreWithoutUpkeep(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		_, err := w.c.CompactStore()
		require.Equal(t, fault.Refused, fault.CodeOf(err))
		_, err = w.c.BackupStore("/somewhere/else.db")
		require.Equal(t, fault.Refused, fault.CodeOf(err))
		w.pass(2 * upkeepPoll)
	}, func(o *Options) { o.CompactAbove = 2 })
}

func TestErrorsOfUpkeepHaveCodes(t *testing.T) {
	for err, want := range map[error]fault.Code{
		snapshot.ErrUpkeep: fault.Busy, fs.ErrExist: fault.Refused, snapshot.ErrNoSpace: fault.Store, snapshot.ErrCorrupt: fault.Corrupt,
		snapshot.ErrClosed: fault.Store, errStopping: fault.Failed, errors.New("disk"): fault.Store, fs.ErrPermission: fault.Store,
	} {
		require.Equal(t, want, fault.CodeOf(explainUpkeep(err)), "%v", err)
	}
}
