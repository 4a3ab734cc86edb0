package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

// Rechunk writes the content of a checkpoint again, in chunks of another size,
// and gives the manifest to commit.
func Rechunk(ctx context.Context, s snapshot.Store, r snapshot.ChunkWriter, job string, id snapshot.ID, target int) (*snapshot.Manifest, error) {
	m, err := s.Manifest(ctx, job, id)
	if err != nil {
		return nil, err
	}
	enc := snapshot.NewEncoder(ctx, r, snapshot.EncoderOptions{ChunkTarget: target})
	if err := snapshot.Walk(ctx, s, m, enc); err != nil {
		return nil, err
	}
	sum, err := enc.Close()
	if err != nil {
		return nil, err
	}
	m.Chunks, m.Checkpoint.FullBytes = sum.Chunks, sum.Stored
	m.Checkpoint.StoredBytes = min(m.Checkpoint.StoredBytes, sum.Stored)
	return m, nil
}

// Rewrite puts other chunks, of another size, under a checkpoint.
func Rewrite(ctx context.Context, s snapshot.Store, job string, id snapshot.ID, target int) (*snapshot.Manifest, error) {
	r, err := s.Rewrite(ctx, job, id)
	if err != nil {
		return nil, err
	}
	defer r.Abort()
	m, err := Rechunk(ctx, s, r, job, id, target)
	if err != nil {
		return nil, err
	}
	return m, r.Commit(ctx, m)
}

func (s *subject) rewriter(job string, id snapshot.ID) (snapshot.Rewriter, *snapshot.Manifest) {
	s.t.Helper()
	r, err := s.store.Rewrite(context.Background(), job, id)
	require.NoError(s.t, err)
	m, err := Rechunk(context.Background(), s.store, r, job, id, 2*ChunkTarget)
	require.NoError(s.t, err)
	return r, m
}

func ids(m *snapshot.Manifest) map[snapshot.ChunkID]bool {
	all := map[snapshot.ChunkID]bool{}
	for ref := range m.AllChunks() {
		all[ref.ID] = true
	}
	return all
}

// rewrites gives one of two checkpoints of the same state other chunks. Only
// the last section's is the same in both forms.
func rewrites(t *testing.T, s *subject) {
	ctx := context.Background()
	keys := Keys("rewritten", 400)
	a := Attempt("flights")
	first := MustTake(t, s.store, a, keys)
	second := MustTake(t, s.store, a, keys)
	before := s.stats()
	yes := true
	_, err := s.store.Edit(ctx, "flights", 2, snapshot.Change{Pinned: &yes})
	require.NoError(t, err)
	r, m := s.rewriter("flights", 2)
	require.NotZero(t, r.StoredBytes())
	require.Less(t, r.StoredBytes(), m.Checkpoint.FullBytes, "a chunk that is stored already is not stored again")
	require.NoError(t, r.Commit(ctx, m))
	r.Abort()
	require.Error(t, r.Commit(ctx, m))
	for range 2 {
		got, err := s.store.Manifest(ctx, "flights", 2)
		require.NoError(t, err)
		require.Equal(t, m.Chunks, got.Chunks)
		want := second.Checkpoint
		want.Pinned, want.FullBytes = true, m.Checkpoint.FullBytes
		require.NotEqual(t, second.Checkpoint.FullBytes, want.FullBytes)
		require.Equal(t, []snapshot.Checkpoint{first.Checkpoint, want}, s.list("flights"), "the attempt stored what it stored")
		for _, id := range []snapshot.ID{1, 2} {
			MustHold(t, s.store, "flights", id, keys)
		}
		MustBeClean(t, s.store)
		s.reopen()
	}
	require.Greater(t, s.stats().Chunks, before.Chunks, "the other one still needs the old chunks")
	s.delete("flights", 1)
	require.Equal(t, len(ids(m)), s.stats().Chunks)
	MustHold(t, s.store, "flights", 2, keys)
	s.delete("flights", 2)
	require.Zero(t, s.stats().Chunks)
}

// otherContents are what makes a manifest one of another checkpoint.
var otherContents = map[string]func(m *snapshot.Manifest){
	"job":      func(m *snapshot.Manifest) { m.Checkpoint.Job = "trains" },
	"id":       func(m *snapshot.Manifest) { m.Checkpoint.ID, m.Attempt = 7, 7 },
	"keys":     func(m *snapshot.Manifest) { m.Checkpoint.Keys++ },
	"elements": func(m *snapshot.Manifest) { m.Checkpoint.Elements-- },
	"missing":  func(m *snapshot.Manifest) { m.Checkpoint.Missing = 4 },
	"bytes":    func(m *snapshot.Manifest) { m.Checkpoint.Bytes++ },
	"identity": func(m *snapshot.Manifest) { m.Identity.Prefix = "other" },
	"cut":      func(m *snapshot.Manifest) { m.CutAt = m.CutAt.Add(1) },
	"state":    func(m *snapshot.Manifest) { m.Incarnation = "dead" },
	"server":   func(m *snapshot.Manifest) { m.Server.RunID = "run-2" },
	"time":     func(m *snapshot.Manifest) { m.Checkpoint.StartedAt = m.Checkpoint.StartedAt.AddDate(0, 0, -1) },
	"grade":    func(m *snapshot.Manifest) { m.Checkpoint.Grade = snapshot.GradeSnapshot },
	"illegal":  func(m *snapshot.Manifest) { m.KeyGroups.MaxParallelism = 0 },
	"a chunk": func(m *snapshot.Manifest) {
		m.Chunks = append([]snapshot.ChunkRef(nil), m.Chunks...)
		m.Chunks[0].ID[3] ^= 0x10
	},
}

func rewriteRefuses(t *testing.T, s *subject) {
	ctx := context.Background()
	keys := Keys("kept", 300)
	MustTake(t, s.store, Attempt("flights"), keys)
	s.begin(Attempt("flights")).Abort()
	running := s.begin(Attempt("flights"))
	defer running.Abort()
	for _, id := range []snapshot.ID{2, 3, 4} {
		_, err := s.store.Rewrite(ctx, "flights", id)
		require.ErrorIs(t, err, snapshot.ErrNoCheckpoint)
	}
	r, good := s.rewriter("flights", 1)
	defer r.Abort()
	for name, spoil := range otherContents {
		m := *good
		spoil(&m)
		require.Error(t, r.Commit(ctx, &m), name)
		got, err := s.store.Manifest(ctx, "flights", 1)
		require.NoError(t, err)
		require.NotEqual(t, good.Chunks, got.Chunks, name)
		MustBeClean(t, s.store)
	}
	require.NoError(t, r.Commit(ctx, good), "a refused manifest leaves the rewriter able")
	MustHold(t, s.store, "flights", 1, keys)
}

func rewriteKeeps(t *testing.T, s *subject) {
	ctx := context.Background()
	m := MustTake(t, s.store, Attempt("flights"), Keys("kept", 300))
	r, other := s.rewriter("flights", 1)
	require.ErrorIs(t, s.store.Delete(ctx, "flights", 1), snapshot.ErrInUse)
	_, err := s.store.Rewrite(ctx, "flights", 1)
	require.ErrorIs(t, err, snapshot.ErrInUse)
	require.NotZero(t, r.StoredBytes())
	r.Abort()
	r.Abort()
	require.Error(t, r.Commit(ctx, other))
	_, err = r.WriteChunk(ctx, snapshot.Chunk{})
	require.Error(t, err)
	require.Equal(t, len(m.Chunks), s.stats().Chunks, "what was written is dropped")
	MustHold(t, s.store, "flights", 1, Keys("kept", 300))
	_, err = Rewrite(ctx, s.store, "flights", 1, 3*ChunkTarget)
	require.NoError(t, err)
	s.delete("flights", 1)
}

// rewriteUnderReaders has one reader from before the first rewrite, one from
// between, and one from after the second: each reads by the manifest that it
// found.
func rewriteUnderReaders(t *testing.T, s *subject) {
	ctx := context.Background()
	keys := Keys("read", 400)
	MustTake(t, s.store, Attempt("flights"), keys)
	type reader struct {
		m       *snapshot.Manifest
		release func()
	}
	read := func() reader {
		release, err := s.store.Hold(ctx, "flights", 1)
		require.NoError(t, err)
		m, err := s.store.Manifest(ctx, "flights", 1)
		require.NoError(t, err)
		return reader{m, release}
	}
	readers := []reader{read()}
	for n := range 2 {
		_, err := Rewrite(ctx, s.store, "flights", 1, (n+2)*ChunkTarget)
		require.NoError(t, err)
		readers = append(readers, read())
		MustBeClean(t, s.store)
	}
	// In an order in which the middle one outlives the first.
	for _, i := range []int{0, 1, 2} {
		for _, r := range readers[i:] {
			require.NoError(t, snapshot.Walk(ctx, s.store, r.m, nil))
		}
		require.ErrorIs(t, s.store.Delete(ctx, "flights", 1), snapshot.ErrInUse)
		readers[i].release()
		readers[i].release()
		MustBeClean(t, s.store)
	}
	require.Equal(t, len(ids(readers[2].m)), s.stats().Chunks, "what only the old manifests named is gone")
	MustHold(t, s.store, "flights", 1, keys)
	s.delete("flights", 1)
	require.Zero(t, s.stats().Chunks)
}

// rewriteKilled kills the store after each chunk of a rewrite, and after its
// commit.
func rewriteKilled(t *testing.T, s *subject) {
	ctx := context.Background()
	keys := Keys("killed", 300)
	old := MustTake(t, s.store, Attempt("flights"), keys)
	for n := 0; ; n++ {
		r, err := s.store.Rewrite(ctx, "flights", 1)
		require.NoError(t, err)
		m, err := Rechunk(ctx, s.store, &killAt{r, n}, "flights", 1, 2*ChunkTarget)
		if err == nil {
			require.Greater(t, n, 2)
			require.NoError(t, r.Commit(ctx, m))
			s.reopen()
			require.Equal(t, len(ids(m)), s.stats().Chunks)
			MustHold(t, s.store, "flights", 1, keys)
			return
		}
		require.True(t, errors.Is(err, errKilled), "%v", err)
		s.reopen()
		got, err := s.store.Manifest(ctx, "flights", 1)
		require.NoError(t, err)
		require.Equal(t, old.Chunks, got.Chunks)
		require.Equal(t, len(old.Chunks), s.stats().Chunks)
		MustHold(t, s.store, "flights", 1, keys)
		MustBeClean(t, s.store)
	}
}

// deletedInTheBackground has chunks that wait, of which a new checkpoint wants
// some again.
func deletedInTheBackground(t *testing.T, s *subject) {
	ctx := context.Background()
	for range 20 {
		keys := Keys("again", 300)
		MustTake(t, s.store, Attempt("flights"), keys)
		id := s.list("flights")[0].ID
		s.delete("flights", id)
		_, err := s.store.Manifest(ctx, "flights", id)
		require.ErrorIs(t, err, snapshot.ErrNoCheckpoint, "it is gone at once")
		require.Zero(t, s.stats().Chunks)
		m := MustTake(t, s.store, Attempt("flights"), keys)
		MustHold(t, s.store, "flights", m.Checkpoint.ID, keys)
		s.delete("flights", m.Checkpoint.ID)
	}
	s.swept()
	MustTake(t, s.store, Attempt("flights"), Keys("more", 300))
	s.delete("flights", s.list("flights")[0].ID)
	s.reopen()
	s.swept() // by the next start, when a kill came first
	require.Zero(t, s.stats().LiveBytes)
}
