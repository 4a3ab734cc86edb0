package bolt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

type writeAt = func(b []byte, off int64) (int, error)

// intercept puts fn between bbolt and its file. bbolt has the seam for its own
// tests but does not export it.
func intercept(t testing.TB, db *DB, fn func(write writeAt, b []byte, off int64) (int, error)) {
	t.Helper()
	v := reflect.ValueOf(db.file).Elem().FieldByName("ops").FieldByName("writeAt")
	require.True(t, v.IsValid(), "bbolt has moved its write function")
	p := (*writeAt)(unsafe.Pointer(v.UnsafeAddr()))
	write := *p
	*p = func(b []byte, off int64) (int, error) { return fn(write, b, off) }
}

// noRoom is what a write to a full disk gives.
func noRoom() error { return &fs.PathError{Op: "write", Path: "keyframe.db", Err: syscall.ENOSPC} }

// faultKinds are the ways in which write k goes wrong.
var faultKinds = map[string]func(write writeAt, b []byte, off int64) (int, error){
	"no room": func(_ writeAt, _ []byte, _ int64) (int, error) { return 0, noRoom() },
	"torn": func(write writeAt, b []byte, off int64) (int, error) {
		n, err := write(b[:len(b)/2], off)
		return n, errors.Join(err, syscall.EIO)
	},
	// A sync gives the error as it is, and one that says so is no full disk.
	"a sync that has no room": func(write writeAt, b []byte, off int64) (int, error) {
		n, err := write(b, off)
		return n, errors.Join(err, syscall.ENOSPC)
	},
	// What a failed sync after the write looks like.
	"done but not known": func(write writeAt, b []byte, off int64) (int, error) {
		n, err := write(b, off)
		return n, errors.Join(err, syscall.EIO)
	},
}

// scenario goes through begin, chunks, commit, edit, delete, rewrite and fail, and says
// how far it came.
type scenario struct {
	db        *DB
	committed bool // Commit returned nil
	deleted   bool // Delete returned nil
}

func (s *scenario) run(ctx context.Context) error {
	a := storetest.Attempt("flights")
	w, err := s.db.Begin(ctx, a)
	if err != nil {
		return err
	}
	defer w.Abort()
	sum, err := storetest.Encode(ctx, w, storetest.Keys("new", 200))
	if err != nil {
		return err
	}
	if err := w.Commit(ctx, storetest.ManifestOf(a, w.ID(), sum)); err != nil {
		return err
	}
	s.committed = true
	yes := true
	if _, err := s.db.Edit(ctx, "flights", w.ID(), snapshot.Change{Pinned: &yes}); err != nil {
		return err
	}
	if err := s.db.Delete(ctx, "flights", 1); err != nil {
		return err
	}
	s.deleted = true
	if _, err := storetest.Rewrite(ctx, s.db, "flights", w.ID(), 2*storetest.ChunkTarget); err != nil {
		return err
	}
	failing, err := s.db.Begin(ctx, a)
	if err != nil {
		return err
	}
	if _, err := storetest.Encode(ctx, failing, storetest.Keys("failing", 100)); err != nil {
		return errors.Join(err, failing.Fail(ctx, snapshot.Failure{Reason: snapshot.FailStore, Message: err.Error()}))
	}
	return failing.Fail(ctx, snapshot.Failure{Reason: snapshot.FailTimeout, Message: "too slow"})
}

// TestWriteKFails (I1) lets each single write to the file go wrong in turn.
func TestWriteKFails(t *testing.T) {
	withoutChild(t)
	start := twoTaken(t)
	for kind, fault := range faultKinds {
		t.Run(kind, func(t *testing.T) {
			broken := 0
			for k := 1; ; k++ {
				hit, stopped := failWriteK(t, start, k, fault)
				if !hit {
					require.Greater(t, k, 20, "the scenario makes that many writes at least")
					break
				}
				if stopped {
					broken++
				}
			}
			require.Equal(t, kind != "no room", broken > 0, "only a full disk is got over without a restart")
		})
	}
}

// twoTaken is a store's file with checkpoints 1 (old) and 2 (kept) in it.
func twoTaken(t *testing.T) []byte {
	f := newFixture(t)
	storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys("old", 200))
	storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys("kept", 150))
	b, err := os.ReadFile(f.path)
	require.NoError(t, err)
	return b
}

func failWriteK(t *testing.T, start []byte, k int, fault func(writeAt, []byte, int64) (int, error)) (hit, stopped bool) {
	ctx := context.Background()
	f := newFixture(t)
	f.opts.BatchBytes = 3 << 10
	require.NoError(t, f.db.Close())
	require.NoError(t, os.WriteFile(f.path, start, 0o600))
	f.open()
	var n atomic.Int64 // batches and removals are written beside the test
	intercept(t, f.db, func(write writeAt, b []byte, off int64) (int, error) {
		if n.Add(1) == int64(k) {
			return fault(write, b, off)
		}
		return write(b, off)
	})
	s := &scenario{db: f.db}
	runErr := s.run(ctx)
	f.idle()
	if n.Load() < int64(k) {
		require.NoError(t, runErr)
		return false, false
	}
	note := fmt.Sprintf("write %d: %v", k, runErr)
	stopped = f.db.Err() != nil
	if stopped {
		require.ErrorContains(t, f.db.Err(), "restart the coordinator", note)
		_, err := f.db.Begin(ctx, storetest.Attempt("flights"))
		require.Equal(t, f.db.Err(), err, "nothing more is written: %s", note)
	} else {
		storetest.MustBeClean(t, f.db)
		m, err := storetest.Take(ctx, f.db, storetest.Attempt("later"), storetest.Keys("later", 100))
		require.NoError(t, err, "the next attempt works: %s", note)
		storetest.MustHold(t, f.db, "later", m.Checkpoint.ID, storetest.Keys("later", 100))
	}
	s.compare(t, note, false)
	s.db = f.reopen()
	storetest.MustBeClean(t, s.db)
	s.compare(t, note, true)
	return true, stopped
}

// compare holds the history against what the calls returned.
func (s *scenario) compare(t *testing.T, note string, reopened bool) {
	t.Helper()
	all, err := s.db.List(context.Background(), "flights")
	if !reopened && err != nil {
		require.Equal(t, s.db.Err(), err, note)
		return // nobody knows what the disk has: nothing is listed
	}
	require.NoError(t, err, note)
	rows := map[snapshot.ID]snapshot.Checkpoint{}
	for _, c := range all {
		rows[c.ID] = c
		require.NotEqual(t, snapshot.StateInProgress, c.State, note)
	}
	storetest.MustHold(t, s.db, "flights", 2, storetest.Keys("kept", 150))
	_, old := rows[1]
	require.False(t, s.deleted && old, "deleted, and there again: %s", note)
	if old {
		storetest.MustHold(t, s.db, "flights", 1, storetest.Keys("old", 200))
	}
	listed := rows[3].State == snapshot.StateCompleted
	if s.committed {
		require.True(t, listed, "committed, and not there: %s", note)
	} else if !reopened {
		require.False(t, listed, "not committed, and listed: %s", note)
	}
	if listed {
		storetest.MustHold(t, s.db, "flights", 3, storetest.Keys("new", 200))
	}
}

// fillable gives the switch of a full disk.
func fillable(t *testing.T, db *DB) *atomic.Bool {
	var full atomic.Bool // a batch is written beside the test
	intercept(t, db, func(write writeAt, b []byte, off int64) (int, error) {
		if full.Load() {
			return 0, noRoom()
		}
		return write(b, off)
	})
	return &full
}

// TestAFailureThatCannotBeWrittenIsShown fills the disk for good in the middle
// of an attempt: it is failed in the history, with its reason, and stays so.
func TestAFailureThatCannotBeWrittenIsShown(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	full := fillable(t, f.db)
	a := storetest.Attempt("flights")
	w, err := f.db.Begin(ctx, a)
	require.NoError(t, err)
	_, err = storetest.Encode(ctx, w, storetest.Keys("s", 300))
	require.NoError(t, err)
	full.Store(true)
	err = w.Fail(ctx, snapshot.Failure{Reason: snapshot.FailTimeout, Message: "5m are over"})
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "5m are over")
	shown := func() {
		all, err := f.db.List(ctx, "flights")
		require.NoError(t, err)
		require.Equal(t, snapshot.StateFailed, all[0].State)
		require.Equal(t, &snapshot.Failure{Reason: snapshot.FailTimeout, Message: "5m are over"}, all[0].Failure)
	}
	shown()
	storetest.MustBeClean(t, f.db)
	_, err = f.db.Begin(ctx, a)
	require.ErrorIs(t, err, syscall.ENOSPC)
	full.Store(false)
	shown()
	w, err = f.db.Begin(ctx, a)
	require.NoError(t, err)
	require.Equal(t, snapshot.ID(2), w.ID())
	w.Abort()
	shown()
	st, err := f.db.Stats(ctx)
	require.NoError(t, err)
	require.Zero(t, st.Chunks)
	storetest.MustBeSwept(t, f.db) // the garbage went with the next removal
	f.reopen()
	shown()
	storetest.MustBeClean(t, f.db)
}

// TestAPanicOfBboltStopsTheStore has bbolt fall over a page, as it does over a
// damaged one: that is an error, and no more is written.
func TestAPanicOfBboltStopsTheStore(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys("s", 30))
	err := f.db.view(ctx, func(tx *bbolt.Tx) error { panic("page 7 already freed") })
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
	require.ErrorContains(t, err, "page 7 already freed")
	require.Equal(t, err, f.db.Err())
	_, err = f.db.List(ctx, "flights")
	require.Equal(t, f.db.Err(), err)
	f.reopen()
	storetest.MustHold(t, f.db, "flights", 1, storetest.Keys("s", 30))
	storetest.MustBeClean(t, f.db)
}

// TestAFileThatIsCutShortUnderneath makes the mapping fault.
func TestAFileThatIsCutShortUnderneath(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	m := storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys("s", 3000))
	require.NoError(t, syscall.Truncate(f.path, 8<<10))
	_, err := f.db.Chunk(ctx, m.Chunks[len(m.Chunks)-1].ID)
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
	require.ErrorContains(t, err, f.path)
	require.Error(t, f.db.Err())
	_, err = f.db.Begin(ctx, storetest.Attempt("flights"))
	require.Equal(t, f.db.Err(), err)
	require.NoError(t, f.db.Close())
	_, err = Open(ctx, f.path, Options{})
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
	require.ErrorContains(t, err, "cut short")
}
