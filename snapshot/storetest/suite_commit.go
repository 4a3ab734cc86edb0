package storetest

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

func idsOnlyGrow(t *testing.T, s *subject) {
	ctx := context.Background()
	a := Attempt("flights")
	require.Equal(t, snapshot.ID(1), MustTake(t, s.store, a, Keys("one", 5)).Checkpoint.ID)
	w := s.begin(a)
	require.Equal(t, snapshot.ID(2), w.ID())
	require.NoError(t, w.Fail(ctx, snapshot.Failure{Reason: snapshot.FailKey, Message: "key \"x\" changed"}))
	w = s.begin(a)
	require.Equal(t, snapshot.ID(3), w.ID())
	w.Abort()
	s.delete("flights", 3)
	s.begin(a).Abort()
	require.Equal(t, map[snapshot.ID]snapshot.State{1: snapshot.StateCompleted, 2: snapshot.StateFailed, 4: snapshot.StateFailed},
		s.states("flights"), "the id of a deleted attempt is not given again")
	for _, id := range []snapshot.ID{1, 2, 4} {
		s.delete("flights", id)
	}
	require.Empty(t, s.list("flights"))
	s.reopen()
	w = s.begin(a)
	require.Equal(t, snapshot.ID(5), w.ID(), "also when the whole history is gone and the store was reopened")
	w.Abort()
	other := s.begin(Attempt("flights2"))
	require.Equal(t, snapshot.ID(1), other.ID(), "ids are per job")
	other.Abort()
}

func idsAdopt(t *testing.T, s *subject) {
	a := Attempt("flights")
	for _, step := range []struct{ after, want snapshot.ID }{{100, 101}, {5, 102}, {102, 103}, {0, 104}, {1 << 40, 1<<40 + 1}} {
		a.After = step.after
		w := s.begin(a)
		require.Equal(t, step.want, w.ID(), "after %s", step.after)
		w.Abort()
		s.delete(a.Job, step.want)
		s.reopen()
	}
	a.After = math.MaxUint64
	_, err := s.store.Begin(context.Background(), a)
	require.ErrorContains(t, err, "no checkpoint id is left")
}

func commitPoint(t *testing.T, s *subject) {
	ctx := context.Background()
	a := Attempt("flights")
	w := s.begin(a)
	defer w.Abort()
	m := s.encode(w, a, Keys("state", 300))
	require.Greater(t, len(m.Chunks), 3)
	require.Equal(t, m.Checkpoint.StoredBytes, w.StoredBytes())
	all := s.list("flights")
	require.Len(t, all, 1)
	require.Equal(t, snapshot.Checkpoint{Job: "flights", ID: 1, Kind: a.Kind, Trigger: a.Trigger,
		State: snapshot.StateInProgress, StartedAt: a.StartedAt}, all[0])
	_, err := s.store.Manifest(ctx, "flights", 1)
	require.ErrorIs(t, err, snapshot.ErrNoCheckpoint)
	require.NoError(t, w.Commit(ctx, m))
	require.Equal(t, map[snapshot.ID]snapshot.State{1: snapshot.StateCompleted}, s.states("flights"))
	MustHold(t, s.store, "flights", 1, Keys("state", 300))
}

func committedWhole(t *testing.T, s *subject) {
	a := snapshot.Attempt{Job: "fl\xffights", Kind: snapshot.KindSavepoint, Name: "before \xfe", Note: "base64:note",
		Trigger: snapshot.TriggerPreRescale, StartedAt: Start, After: 6, Parent: 3}
	m := MustTake(t, s.store, a, Keys("whole", 200))
	for _, when := range []string{"at once", "after a kill"} {
		got, err := s.store.Manifest(context.Background(), a.Job, 7)
		require.NoError(t, err)
		require.Equal(t, m, got, when)
		require.Equal(t, []snapshot.Checkpoint{m.Checkpoint}, s.list(a.Job), when)
		MustHold(t, s.store, a.Job, 7, Keys("whole", 200))
		s.reopen()
	}
}

var errKilled = errors.New("killed here")

// killAt passes n chunks on and then gives errKilled.
type killAt struct {
	snapshot.ChunkWriter
	n int
}

func (k *killAt) WriteChunk(ctx context.Context, c snapshot.Chunk) (bool, error) {
	if k.n == 0 {
		return false, errKilled
	}
	k.n--
	return k.ChunkWriter.WriteChunk(ctx, c)
}

// killedBetweenCalls kills the store after Begin, after each chunk, and after
// Commit. A checkpoint from before must come through all of it.
func killedBetweenCalls(t *testing.T, s *subject) {
	ctx := context.Background()
	a := Attempt("flights")
	kept := MustTake(t, s.store, Attempt("kept"), Keys("kept", 150))
	base := s.stats().Chunks
	for n := 0; ; n++ {
		w := s.begin(a)
		sum, err := Encode(ctx, &killAt{w, n}, Keys("state", 300))
		if err == nil {
			m := ManifestOf(a, w.ID(), sum)
			require.NoError(t, w.Commit(ctx, m))
			s.reopen()
			require.Equal(t, snapshot.StateCompleted, s.states("flights")[w.ID()])
			MustHold(t, s.store, "flights", w.ID(), Keys("state", 300))
			break
		}
		require.ErrorIs(t, err, errKilled)
		s.reopen()
		all := s.list("flights")
		require.Len(t, all, n+1)
		last := all[n]
		require.Equal(t, snapshot.StateFailed, last.State, "killed after %d chunks", n)
		require.Equal(t, snapshot.FailInterrupted, last.Failure.Reason)
		require.NotEmpty(t, last.Failure.Message)
		require.Equal(t, base, s.stats().Chunks, "what the attempt stored is removed")
		MustHold(t, s.store, "kept", kept.Checkpoint.ID, Keys("kept", 150))
		MustBeClean(t, s.store)
	}
	require.Greater(t, len(s.list("flights")), 3)
}

func commitRefuses(t *testing.T, s *subject) {
	ctx := context.Background()
	a := Attempt("flights")
	donor := MustTake(t, s.store, Attempt("donor"), Keys("donor", 150))
	w := s.begin(a)
	defer w.Abort()
	good := s.encode(w, a, Keys("state", 300))
	bad := map[string]func(*snapshot.Manifest){
		"another job":      func(m *snapshot.Manifest) { m.Checkpoint.Job = "trains" },
		"another id":       func(m *snapshot.Manifest) { m.Checkpoint.ID++ },
		"another kind":     func(m *snapshot.Manifest) { m.Checkpoint.Kind = snapshot.KindSavepoint },
		"not completed":    func(m *snapshot.Manifest) { m.Checkpoint.State = snapshot.StateInProgress },
		"no time":          func(m *snapshot.Manifest) { m.Checkpoint.CompletedAt = nil },
		"illegal manifest": func(m *snapshot.Manifest) { m.KeyGroups.MaxParallelism = 0 },
		"a chunk missing": func(m *snapshot.Manifest) {
			m.Chunks = append([]snapshot.ChunkRef(nil), m.Chunks...)
			m.Chunks[1].ID[0] ^= 0x55
		},
	}
	for name, spoil := range bad {
		m := *good
		spoil(&m)
		require.Error(t, w.Commit(ctx, &m), name)
		require.Equal(t, map[snapshot.ID]snapshot.State{1: snapshot.StateInProgress}, s.states("flights"), name)
		_, err := s.store.Manifest(ctx, "flights", 1)
		require.ErrorIs(t, err, snapshot.ErrNoCheckpoint, name)
	}
	require.NoError(t, w.Commit(ctx, good), "a refused manifest leaves the writer able")
	MustHold(t, s.store, "flights", 1, Keys("state", 300))
	MustHold(t, s.store, "donor", donor.Checkpoint.ID, Keys("donor", 150))
}

func commitThenFail(t *testing.T, s *subject) {
	ctx := context.Background()
	a := Attempt("flights")
	w := s.begin(a)
	m := s.encode(w, a, Keys("state", 300))
	m.Chunks[0].ID[5] ^= 1
	err := w.Commit(ctx, m)
	require.ErrorIs(t, err, snapshot.ErrNoChunk)
	require.ErrorContains(t, err, m.Chunks[0].ID.String())
	require.NoError(t, w.Fail(ctx, snapshot.Failure{Reason: snapshot.FailStore, Message: err.Error()}))
	all := s.list("flights")
	require.Equal(t, snapshot.StateFailed, all[0].State)
	require.Equal(t, snapshot.FailStore, all[0].Failure.Reason)
	require.Zero(t, s.stats().Chunks)
}

func endedWriter(t *testing.T, s *subject) {
	ctx := context.Background()
	a := Attempt("flights")
	var rec RecordChunks
	_, err := Encode(ctx, &rec, Keys("state", 50))
	require.NoError(t, err)
	for name, end := range map[string]func(w snapshot.Writer, m *snapshot.Manifest){
		"committed": func(w snapshot.Writer, m *snapshot.Manifest) { require.NoError(t, w.Commit(ctx, m)) },
		"failed": func(w snapshot.Writer, m *snapshot.Manifest) {
			require.NoError(t, w.Fail(ctx, snapshot.Failure{Reason: snapshot.FailTimeout, Message: "5m is over"}))
		},
		"aborted": func(w snapshot.Writer, m *snapshot.Manifest) { w.Abort() },
	} {
		w := s.begin(a)
		m := s.encode(w, a, Keys("state"+name, 50))
		end(w, m)
		before := s.list("flights")
		_, err := w.WriteChunk(ctx, rec.Chunks[0])
		require.Error(t, err, name)
		require.Error(t, w.Commit(ctx, m), name)
		w.Abort()
		require.Equal(t, before, s.list("flights"), name)
	}
}

// RecordChunks keeps copies of what an encoder writes.
type RecordChunks struct{ Chunks []snapshot.Chunk }

// WriteChunk implements [snapshot.ChunkWriter].
func (r *RecordChunks) WriteChunk(_ context.Context, c snapshot.Chunk) (bool, error) {
	c.Data = append([]byte(nil), c.Data...)
	r.Chunks = append(r.Chunks, c)
	return true, nil
}

func abortAfterCommit(t *testing.T, s *subject) {
	ctx := context.Background()
	a := Attempt("flights")
	w := s.begin(a)
	require.NoError(t, w.Commit(ctx, s.encode(w, a, Keys("state", 90))))
	w.Abort()
	w.Abort()
	require.Error(t, w.Fail(ctx, snapshot.Failure{Reason: snapshot.FailInternal, Message: "too late"}))
	require.Equal(t, map[snapshot.ID]snapshot.State{1: snapshot.StateCompleted}, s.states("flights"))
	MustHold(t, s.store, "flights", 1, Keys("state", 90))
}

func failuresStay(t *testing.T, s *subject) {
	ctx := context.Background()
	a := Attempt("flights")
	a.Note = "by hand"
	w := s.begin(a)
	s.encode(w, a, Keys("state", 300))
	first := snapshot.Failure{Reason: snapshot.FailPermission, Message: "CLIENT|PAUSE is not permitted to user \xff"}
	require.NoError(t, w.Fail(ctx, first))
	require.NoError(t, w.Fail(ctx, snapshot.Failure{Reason: snapshot.FailInternal, Message: "second"}))
	w.Abort()
	aborted := s.begin(a)
	s.encode(aborted, a, Keys("state2", 300))
	aborted.Abort()
	for range 2 {
		all := s.list("flights")
		require.Len(t, all, 2)
		require.Equal(t, &first, all[0].Failure, "the first reason stays")
		require.Equal(t, snapshot.FailAborted, all[1].Failure.Reason)
		for _, c := range all {
			require.Equal(t, snapshot.StateFailed, c.State)
			require.Equal(t, "by hand", c.Note)
			require.True(t, c.StartedAt.Equal(Start))
			require.Nil(t, c.CompletedAt)
		}
		require.Zero(t, s.stats().Chunks)
		s.reopen()
	}
}
