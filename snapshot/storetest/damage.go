package storetest

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

// Damage changes the stored bytes of a chunk behind the store's back; nil from
// spoil takes them away. What counts the chunk's references stays.
type Damage func(id snapshot.ChunkID, spoil func(envelope []byte) []byte)

// OpenDamaged is Open with a Damage, which is for the store that is open.
type OpenDamaged func(t testing.TB) (store snapshot.Store, reopen func() snapshot.Store, damage Damage)

// Spoils are the kinds of damage of a chunk.
var Spoils = map[string]func(envelope []byte) []byte{
	"a bit in the content":  func(b []byte) []byte { b[len(b)/2] ^= 4; return b },
	"a bit in the header":   func(b []byte) []byte { b[20] ^= 1; return b },
	"a bit in the checksum": func(b []byte) []byte { b[len(b)-1] ^= 0x80; return b },
	"zeros":                 func(b []byte) []byte { return make([]byte, len(b)) },
	"cut short":             func(b []byte) []byte { return b[:len(b)-7] },
	"too long":              func(b []byte) []byte { return append(b, 0) },
	"gone":                  func([]byte) []byte { return nil },
}

// RunDamaged holds a store to this: a new checkpoint never counts on bytes of
// an older one that are damaged.
func RunDamaged(t *testing.T, open OpenDamaged) {
	tests := map[string]func(*testing.T, *subject, Damage, func([]byte) []byte){
		"ADamagedChunkIsStoredAgainAndMendsAll":    mended,
		"AnAttemptThatFailsKeepsWhatOthersCountOn": mendedByAFailure,
		"CommitRefusesADamagedChunkOfAnother":      othersChunk,
	}
	for name, run := range tests {
		for kind, spoil := range Spoils {
			t.Run(name+"/"+kind, func(t *testing.T) {
				store, reopen, damage := open(t)
				s := &subject{t: t, store: store, again: reopen}
				run(t, s, damage, func(b []byte) []byte { return spoil(bytes.Clone(b)) })
				MustBeClean(t, s.store)
				MustBeClean(t, s.reopen())
			})
		}
	}
}

func mustBeDamaged(t *testing.T, s *subject, m *snapshot.Manifest) {
	t.Helper()
	problems, err := snapshot.Verify(context.Background(), s.store, m)
	require.NoError(t, err)
	require.NotEmpty(t, problems, "the damage is seen")
}

func mended(t *testing.T, s *subject, damage Damage, spoil func([]byte) []byte) {
	keys := Keys("shared", 300)
	first := MustTake(t, s.store, Attempt("flights"), keys)
	MustTake(t, s.store, Attempt("trains"), keys)
	chunks := s.stats().Chunks
	bad := first.Chunks[1]
	damage(bad.ID, spoil)
	mustBeDamaged(t, s, first)
	last := MustTake(t, s.store, Attempt("flights"), keys)
	require.Equal(t, bad.Stored, last.Checkpoint.StoredBytes, "the damaged chunk is new, and only it")
	require.Equal(t, chunks, s.stats().Chunks)
	for range 2 {
		MustHold(t, s.store, "flights", last.Checkpoint.ID, keys)
		MustHold(t, s.store, "flights", first.Checkpoint.ID, keys)
		MustHold(t, s.store, "trains", 1, keys)
		MustBeClean(t, s.store)
		s.reopen()
	}
	// The references are still right.
	s.delete("flights", first.Checkpoint.ID)
	s.delete("trains", 1)
	MustHold(t, s.store, "flights", last.Checkpoint.ID, keys)
	s.delete("flights", last.Checkpoint.ID)
	require.Zero(t, s.stats().Chunks)
}

func mendedByAFailure(t *testing.T, s *subject, damage Damage, spoil func([]byte) []byte) {
	keys, a := Keys("shared", 300), Attempt("trains")
	first := MustTake(t, s.store, Attempt("flights"), keys)
	chunks := s.stats().Chunks
	damage(first.Chunks[2].ID, spoil)
	w := s.begin(a)
	m := s.encode(w, a, keys)
	require.NotZero(t, w.StoredBytes())
	m.Checkpoint.Job = "ships"
	require.Error(t, w.Commit(context.Background(), m))
	w.Abort()
	require.Equal(t, chunks, s.stats().Chunks)
	// Whether it was stored before the attempt ended is up to the store.
	MustTake(t, s.store, a, keys)
	MustHold(t, s.store, "flights", first.Checkpoint.ID, keys)
	MustHold(t, s.store, "trains", 2, keys)
}

// othersChunk has manifests that name chunks of a base which the attempt did
// not write, as a rescale's does.
func othersChunk(t *testing.T, s *subject, damage Damage, spoil func([]byte) []byte) {
	ctx := context.Background()
	keys, a := Keys("base", 300), Attempt("flights")
	base := MustTake(t, s.store, a, keys)
	takeOver := func(w snapshot.Writer) *snapshot.Manifest {
		m := *base
		m.Checkpoint.ID, m.Attempt, m.Checkpoint.StoredBytes = w.ID(), w.ID(), 0
		return &m
	}
	w := s.begin(a)
	require.NoError(t, w.Commit(ctx, takeOver(w)), "whole chunks can be taken over")
	MustHold(t, s.store, a.Job, w.ID(), keys)

	bad := base.Chunks[len(base.Chunks)-1].ID
	damage(bad, spoil)
	w = s.begin(a)
	defer w.Abort()
	m := takeOver(w)
	err := w.Commit(ctx, m)
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
	require.ErrorContains(t, err, bad.String())
	require.Equal(t, snapshot.StateInProgress, s.states(a.Job)[w.ID()])
	// Another attempt that has the good bytes mends it.
	MustTake(t, s.store, Attempt("trains"), keys)
	require.NoError(t, w.Commit(ctx, m), "a refused commit leaves the writer able")
	for _, id := range []snapshot.ID{base.Checkpoint.ID, w.ID()} {
		MustHold(t, s.store, a.Job, id, keys)
	}
}
