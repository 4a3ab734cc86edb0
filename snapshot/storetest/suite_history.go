package storetest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

func listOrder(t *testing.T, s *subject) {
	a := Attempt("flights")
	var want []snapshot.ID
	for _, after := range []snapshot.ID{0, 1, 254, 255, 256, 65535, 1 << 32} {
		a.After = after
		w := s.begin(a)
		if after%2 == 0 {
			w.Abort()
		} else {
			require.NoError(t, w.Commit(context.Background(), s.encode(w, a, Keys("state", int(after%7)+1))))
		}
		want = append(want, after+1)
	}
	s.reopen()
	var got []snapshot.ID
	for _, c := range s.list("flights") {
		got = append(got, c.ID)
	}
	require.Equal(t, want, got)
}

func notThere(t *testing.T, s *subject) {
	ctx := context.Background()
	yes := true
	s.begin(Attempt("failed")).Abort()
	for _, at := range []struct {
		job string
		id  snapshot.ID
		row bool
	}{{"unknown", 1, false}, {"failed", 2, false}, {"failed", 1, true}} {
		_, err := s.store.Manifest(ctx, at.job, at.id)
		require.ErrorIs(t, err, snapshot.ErrNoCheckpoint)
		require.ErrorContains(t, err, at.job)
		_, err = s.store.Edit(ctx, at.job, at.id, snapshot.Change{Pinned: &yes})
		require.ErrorIs(t, err, snapshot.ErrNoCheckpoint)
		if at.row {
			continue
		}
		_, err = s.store.Hold(ctx, at.job, at.id)
		require.ErrorIs(t, err, snapshot.ErrNoCheckpoint)
		require.ErrorIs(t, s.store.Delete(ctx, at.job, at.id), snapshot.ErrNoCheckpoint)
	}
	require.Empty(t, s.list("unknown"))
	_, err := s.store.Chunk(ctx, snapshot.ChunkID{1, 2, 3})
	require.ErrorIs(t, err, snapshot.ErrNoChunk)
	jobs, err := s.store.Jobs(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"failed"}, jobs, "asking for a job does not make it")
	_, err = s.store.Begin(ctx, Attempt(""))
	require.Error(t, err, "a job without a name")
}

// sharedChunks has three checkpoints that share: the same state again, and,
// as after a rescale, the same keyed state with another operator state.
func sharedChunks(t *testing.T, s *subject) {
	one := Keys("shared", 300)
	two := append(append([]snapshot.RecordedKey(nil), one[:3]...), Keys("other", 1)[3])
	first := MustTake(t, s.store, Attempt("flights"), one)
	chunks := s.stats().Chunks
	again := MustTake(t, s.store, Attempt("flights"), one)
	require.Zero(t, again.Checkpoint.StoredBytes, "the same state again stores nothing")
	require.Equal(t, first.Checkpoint.FullBytes, again.Checkpoint.FullBytes)
	rescaled := MustTake(t, s.store, Attempt("trains"), two)
	require.NotZero(t, rescaled.Checkpoint.StoredBytes)
	require.Less(t, rescaled.Checkpoint.StoredBytes, rescaled.Checkpoint.FullBytes/2)
	require.Equal(t, chunks+1, s.stats().Chunks)

	s.delete("flights", first.Checkpoint.ID)
	require.Equal(t, chunks+1, s.stats().Chunks)
	MustHold(t, s.store, "flights", again.Checkpoint.ID, one)
	s.delete("flights", again.Checkpoint.ID)
	MustBeClean(t, s.reopen())
	MustHold(t, s.store, "trains", rescaled.Checkpoint.ID, two)
	require.Equal(t, chunks, s.stats().Chunks, "only the operator state of the deleted ones is gone")
	s.delete("trains", rescaled.Checkpoint.ID)
	require.Zero(t, s.stats().Chunks)
}

// attemptKeepsChunks deletes a checkpoint while an attempt counts on its
// chunks.
func attemptKeepsChunks(t *testing.T, s *subject) {
	ctx := context.Background()
	keys := Keys("shared", 300)
	old := MustTake(t, s.store, Attempt("flights"), keys)
	a := Attempt("flights")
	w := s.begin(a)
	defer w.Abort()
	m := s.encode(w, a, keys)
	require.Zero(t, w.StoredBytes())
	s.delete("flights", old.Checkpoint.ID)
	MustBeClean(t, s.store)
	require.NoError(t, w.Commit(ctx, m))
	MustHold(t, s.store, "flights", w.ID(), keys)

	late := s.begin(a)
	s.encode(late, a, keys)
	s.delete("flights", w.ID())
	late.Abort()
	require.Zero(t, s.stats().Chunks, "whoever needed them last lets go of them")
}

func twinAttempts(t *testing.T, s *subject) {
	ctx := context.Background()
	keys := Keys("twin", 300)
	a, b := Attempt("flights"), Attempt("trains")
	for _, order := range []string{"the first to write fails", "the second to write fails"} {
		first, second := s.begin(a), s.begin(b)
		m1 := s.encode(first, a, keys)
		m2 := s.encode(second, b, keys)
		good, m := second, m2
		if order == "the first to write fails" {
			require.NoError(t, first.Fail(ctx, snapshot.Failure{Reason: snapshot.FailConnection, Message: "lost"}))
		} else {
			second.Abort()
			good, m = first, m1
		}
		MustBeClean(t, s.store)
		require.NoError(t, good.Commit(ctx, m), order)
		MustHold(t, s.store, m.Checkpoint.Job, m.Checkpoint.ID, keys)
		s.delete(m.Checkpoint.Job, m.Checkpoint.ID)
		require.Zero(t, s.stats().Chunks, order)
	}
}

func holds(t *testing.T, s *subject) {
	ctx := context.Background()
	m := MustTake(t, s.store, Attempt("flights"), Keys("held", 300))
	id := m.Checkpoint.ID
	one, err := s.store.Hold(ctx, "flights", id)
	require.NoError(t, err)
	two, err := s.store.Hold(ctx, "flights", id)
	require.NoError(t, err)
	require.ErrorIs(t, s.store.Delete(ctx, "flights", id), snapshot.ErrInUse)
	one()
	one()
	err = s.store.Delete(ctx, "flights", id)
	require.ErrorIs(t, err, snapshot.ErrInUse, "released twice is released once")
	require.ErrorContains(t, err, "flights")
	MustHold(t, s.store, "flights", id, Keys("held", 300))
	two()
	s.delete("flights", id)
	two()
	require.Empty(t, s.list("flights"))

	id = MustTake(t, s.store, Attempt("flights"), Keys("held", 300)).Checkpoint.ID
	_, err = s.store.Hold(ctx, "flights", id)
	require.NoError(t, err)
	s.reopen()
	s.delete("flights", id) // a hold is gone with its process
}

func inProgressStays(t *testing.T, s *subject) {
	w := s.begin(Attempt("flights"))
	require.ErrorIs(t, s.store.Delete(context.Background(), "flights", w.ID()), snapshot.ErrInUse)
	w.Abort()
	s.delete("flights", w.ID())
	require.Empty(t, s.list("flights"))
}

func edits(t *testing.T, s *subject) {
	ctx := context.Background()
	m := MustTake(t, s.store, Attempt("flights"), Keys("edited", 300))
	id := m.Checkpoint.ID
	want := m.Checkpoint
	set := func(ch snapshot.Change) {
		t.Helper()
		got, err := s.store.Edit(ctx, "flights", id, ch)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, []snapshot.Checkpoint{want}, s.list("flights"))
		MustHold(t, s.store, "flights", id, Keys("edited", 300))
		MustBeClean(t, s.reopen())
	}
	yes, no, bad, good := true, false, "chunk 3: wrong checksum", ""
	want.Pinned = true
	set(snapshot.Change{Pinned: &yes})
	want.Bad = bad
	set(snapshot.Change{Bad: &bad})
	require.False(t, want.Restorable())
	set(snapshot.Change{})
	want.Pinned, want.Bad = false, ""
	set(snapshot.Change{Pinned: &no, Bad: &good})
	want.Drill = &snapshot.Drill{At: m.CutAt, OK: false, RestoreMs: 40, AgeMs: 7, Server: "127.0.0.1:6379/0", Message: "key \"\xff\" differs"}
	set(snapshot.Change{Drill: want.Drill})
	accepted := m.CutAt
	want.Shrunk = &snapshot.Shrunk{Base: 3, KeysBefore: 900, KeysAfter: 7, ElementsBefore: 1200, ElementsAfter: 8, Accepted: true, AcceptedAt: &accepted, Note: "purged \xff"}
	set(snapshot.Change{Shrunk: want.Shrunk})
	set(snapshot.Change{})
}

func jobNames(t *testing.T, s *subject) {
	ctx := context.Background()
	names := []string{"[x]", "a", "a b", "a*", "a:b", "a?", "a\\b", "a\x00", "ab", "rows", "\xc3\xa9", "\xff"}
	for i := range names {
		MustTake(t, s.store, Attempt(names[i]), Keys(names[i], 20+i))
	}
	jobs, err := s.store.Jobs(ctx)
	require.NoError(t, err)
	require.ElementsMatch(t, names, jobs)
	s.delete("a", 1)
	for i, name := range names {
		if name == "a" {
			require.Empty(t, s.list(name))
			continue
		}
		require.Len(t, s.list(name), 1)
		MustHold(t, s.store, name, 1, Keys(name, 20+i))
	}
	jobs, err = s.store.Jobs(ctx)
	require.NoError(t, err)
	require.NotContains(t, jobs, "a")
	require.Len(t, jobs, len(names)-1)
}
