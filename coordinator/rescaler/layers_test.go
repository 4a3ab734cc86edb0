package rescaler

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// layered commits what m holds once more, as a base that is out of date and a
// layer that mends it: hashes lack a field, lists have another item, and a key
// is there that has gone.
func (w *world) layered(t tb, m *snapshot.Manifest) *snapshot.Manifest {
	t.Helper()
	ctx := context.Background()
	var r snapshot.Recorder
	require.NoError(t, snapshot.Walk(ctx, w.store, m, &r))
	var base, layer []snapshot.RecordedKey
	for _, k := range r.Keys {
		old := k
		old.End, k.End = snapshot.KeyEnd{}, snapshot.KeyEnd{}
		switch {
		case k.Key.Section == snapshot.SectionSource:
			layer = append(layer, k)
			continue
		case k.Key.Type == snapshot.TypeHash && len(k.Elements) > 1:
			last := len(k.Elements) - 1
			old.Elements, old.Key.Count = old.Elements[:last], uint64(last)
			k.Key.Op, k.Elements = snapshot.OpPatch, k.Elements[last:]
			layer = append(layer, k)
		case k.Key.Type == snapshot.TypeList:
			old.Elements = []snapshot.RecordedElement{{Size: 8, Value: []byte(`"before"`)}}
			old.Key.Count = 1
			layer = append(layer, k)
		}
		base = append(base, old)
	}
	gone := snapshot.Key{Section: snapshot.SectionKeyed, Type: snapshot.TypeString, Name: []byte(w.job.Key().Root() + ":was here"), Count: 1}
	base = append(base, snapshot.RecordedKey{Key: gone, Elements: []snapshot.RecordedElement{{Size: 1, Value: []byte("x")}}})
	layer = append(layer, snapshot.RecordedKey{Key: snapshot.Key{Section: gone.Section, Op: snapshot.OpGone, Name: gone.Name}})

	cp := m.Checkpoint
	out, err := w.store.Begin(ctx, snapshot.Attempt{Job: cp.Job, Kind: cp.Kind, Trigger: cp.Trigger, StartedAt: cp.StartedAt, Parent: cp.ID})
	require.NoError(t, err)
	defer out.Abort()
	enc := snapshot.NewEncoder(ctx, out, snapshot.EncoderOptions{ChunkTarget: 2000})
	require.NoError(t, snapshot.Replay(sortLayer(base), enc))
	require.NoError(t, enc.NextLayer())
	require.NoError(t, snapshot.Replay(sortLayer(layer), enc))
	sum, err := enc.Close()
	require.NoError(t, err)
	next := *m
	cp.ID, cp.Parent, cp.StoredBytes, cp.FullBytes, cp.Layers = out.ID(), cp.ID, out.StoredBytes(), sum.Stored, 2
	next.Checkpoint, next.Format, next.Sorted = cp, snapshot.FormatVersion, sum.Sorted
	next.Chunks, next.Layers = sum.Chunks, sum.Layers[1:]
	require.NoError(t, out.Commit(ctx, &next))
	return &next
}

func sortLayer(keys []snapshot.RecordedKey) []snapshot.RecordedKey {
	slices.SortFunc(keys, func(a, b snapshot.RecordedKey) int {
		if a.Key.Section != b.Key.Section {
			return int(a.Key.Section) - int(b.Key.Section)
		}
		return snapshot.CompareNames(a.Key.Name, b.Key.Name)
	})
	return keys
}

// I4 over a base in layers: what the layers say of keyed state is carried, and
// nothing of what they say of operator state is left.
func TestI4ARescaleOverLayers(t *testing.T) {
	for _, to := range []int{1, 2, 5} {
		w := newWorld(t, 3)
		w.seed(t)
		base := w.layered(t, w.take(t))
		ctx := context.Background()
		before, was := w.live(t)
		got, _ := w.content(t, base.Checkpoint.ID)
		require.Equal(t, before.all, got.all, "the layers are the live state")

		res, err := w.exec.Run(ctx, Request{Job: w.job, To: to, Base: base.Checkpoint.ID}, nil)
		require.NoError(t, err)
		w.noTraces(t)
		after, _ := w.live(t)
		require.Equal(t, before.keyed(), after.keyed())
		checkOperatorState(t, w, before, after, was, to)
		checkCheckpoint(t, w, base, res, after)
		m, err := w.store.Manifest(ctx, w.job.Name, res.Checkpoint)
		require.NoError(t, err)
		require.Len(t, m.Layers, 1)
		require.Equal(t, only(base.Layers[0].Chunks, snapshot.SectionKeyed), only(m.Layers[0].Chunks, snapshot.SectionKeyed))
		require.Empty(t, only(m.Layers[0].Chunks, snapshot.SectionOperator))
		require.Equal(t, 2, m.Checkpoint.Layers)
		storetest.MustBeClean(t, w.store)
	}
}
