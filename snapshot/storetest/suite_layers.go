package storetest

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

// sorted puts keys in the order in which a layer has them.
func sorted(keys []snapshot.RecordedKey) []snapshot.RecordedKey {
	keys = slices.Clone(keys)
	slices.SortStableFunc(keys, func(a, b snapshot.RecordedKey) int {
		if a.Key.Section != b.Key.Section {
			return int(a.Key.Section) - int(b.Key.Section)
		}
		return snapshot.CompareNames(a.Key.Name, b.Key.Name)
	})
	return keys
}

// TakeOver makes a checkpoint of a parent's chunks with one layer over them:
// the keys of layer are put in the place of the parent's of that name. The new
// manifest's totals are those of state, which is what the checkpoint then
// holds.
func TakeOver(ctx context.Context, s snapshot.Store, a snapshot.Attempt, parent *snapshot.Manifest, layer, state []snapshot.RecordedKey) (*snapshot.Manifest, error) {
	w, err := s.Begin(ctx, a)
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	enc := snapshot.NewEncoder(ctx, w, snapshot.EncoderOptions{ChunkTarget: ChunkTarget, Over: true})
	if err := snapshot.Replay(sorted(layer), enc); err != nil {
		return nil, err
	}
	sum, err := enc.Close()
	if err != nil {
		return nil, err
	}
	whole, err := Encode(ctx, &RecordChunks{}, sorted(state))
	if err != nil {
		return nil, err
	}
	whole.Chunks, whole.Fresh, whole.Stored = parent.Chunks, sum.Fresh, parent.Checkpoint.FullBytes+sum.Stored
	m := ManifestOf(a, w.ID(), whole)
	m.Sorted, m.Layers = true, append(slices.Clone(parent.Layers), sum.Layers...)
	m.Checkpoint.Incremental, m.Checkpoint.Layers = true, 1+len(m.Layers)
	return m, w.Commit(ctx, m)
}

// chain is checkpoints that each stand on the one before, with the states that
// they hold, and the newest one's manifest.
func chain(s *subject) (states [][]snapshot.RecordedKey, m *snapshot.Manifest) {
	ctx := context.Background()
	a, base := Attempt("flights"), sorted(Keys("base", 400))
	w := s.begin(a)
	m = s.encode(w, a, base)
	m.Sorted = true
	require.NoError(s.t, w.Commit(ctx, m))
	states = append(states, base)
	for n := range 3 {
		// Another hash of the same name, smaller each time.
		state := slices.Clone(states[n])
		i := slices.IndexFunc(state, func(k snapshot.RecordedKey) bool { return k.Key.Type == snapshot.TypeHash })
		state[i].Elements = slices.Clone(state[i].Elements[:300-100*n])
		state[i].Key.Count = uint64(len(state[i].Elements))
		var err error
		m, err = TakeOver(ctx, s.store, a, m, state[i:i+1], state)
		require.NoError(s.t, err)
		require.Less(s.t, m.Checkpoint.StoredBytes, m.Checkpoint.FullBytes/2)
		states = append(states, state)
	}
	return states, m
}

// layers deletes a chain from its old end, and merges its newest.
func layers(t *testing.T, s *subject) {
	ctx := context.Background()
	states, m := chain(s)
	holds := func() {
		for _, c := range s.list("flights") {
			MustHold(t, s.store, "flights", c.ID, states[c.ID-1])
		}
		MustBeClean(t, s.store)
	}
	holds()
	chunks := s.stats().Chunks
	require.Equal(t, len(ids(m)), chunks, "the last one needs all of them")
	for _, id := range []snapshot.ID{1, 2} {
		s.delete("flights", id)
		s.reopen()
		holds()
	}
	require.Equal(t, chunks, s.stats().Chunks)

	// The newest gets one layer: the one before still needs its own.
	r, err := s.store.Rewrite(ctx, "flights", 4)
	require.NoError(t, err)
	defer r.Abort()
	flat, err := snapshot.Merge(ctx, s.store, m, 0, r, snapshot.EncoderOptions{ChunkTarget: ChunkTarget})
	require.NoError(t, err)
	require.NoError(t, r.Commit(ctx, flat))
	row := s.list("flights")[1]
	require.Equal(t, []any{1, flat.Checkpoint.FullBytes}, []any{row.Layers, row.FullBytes})
	require.Equal(t, min(m.Checkpoint.StoredBytes, row.FullBytes), row.StoredBytes, "what the attempt stored")
	require.Less(t, row.FullBytes, m.Checkpoint.FullBytes)
	holds()
	s.delete("flights", 3)
	require.Equal(t, len(ids(flat)), s.stats().Chunks, "layers go with the last that stands on them")
	MustHold(t, s.store, "flights", 4, states[3])
}
