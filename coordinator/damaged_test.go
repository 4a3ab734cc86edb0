package coordinator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

// broken makes the store say that the chunks of some checkpoints are damaged.
type broken struct {
	snapshot.Store
	bad map[snapshot.ChunkID]bool
}

func (b *broken) Chunk(ctx context.Context, id snapshot.ChunkID) ([]byte, error) {
	data, err := b.Store.Chunk(ctx, id)
	if err == nil && b.bad[id] {
		data[len(data)-1] ^= 0x40
	}
	return data, err
}

func TestRecoveryFallsBackVisiblyWhenTheNewestIsDamaged(t *testing.T) {
	b := &broken{bad: map[snapshot.ChunkID]bool{}}
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 140, "first")
		w.apply(job)
		w.checkpoint("flights")
		w.pass(time.Hour)
		w.write(job, 140, "second")
		w.checkpoint("flights")
		m, err := w.c.Manifest(t.Context(), "flights", 2)
		require.NoError(t, err)
		b.bad[m.Chunks[0].ID] = true

		w.store.Lose()
		w.pass(5 * time.Second)
		require.Equal(t, `"first-9"`, w.read(job, 4, 9))
		fell := w.seen(EventRecoveryFellBack)
		require.Len(t, fell, 1)
		require.Contains(t, fell[0].Message, "checkpoint 2")
		require.Contains(t, fell[0].Message, "checkpoint 1 (1h0m")
		require.NotEmpty(t, w.history("flights")[1].Bad)
		require.Len(t, w.seen(EventCheckpointBad), 1, "marked once, not tried again")
	}, func(o *Options) { b.Store = o.Store; o.Store = b })
}

func TestVerifyMarksAndUnmarks(t *testing.T) {
	b := &broken{bad: map[snapshot.ChunkID]bool{}}
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 130, "v")
		w.apply(job)
		w.checkpoint("flights")
		require.True(t, w.done(w.c.Verify(t.Context(), "flights", "")).Verify.OK)
		m, err := w.c.Manifest(t.Context(), "flights", 1)
		require.NoError(t, err)
		b.bad[m.Chunks[0].ID] = true
		v := w.done(w.c.Verify(t.Context(), "flights", "1")).Verify
		require.False(t, v.OK)
		require.NotEmpty(t, v.Problems)
		_, err = w.c.Restore(t.Context(), "flights", RestoreRequest{})
		require.Equal(t, fault.NoCheckpoint, fault.CodeOf(err), "a bad one is not offered")
		delete(b.bad, m.Chunks[0].ID)
		require.True(t, w.done(w.c.Verify(t.Context(), "flights", "1")).Verify.OK)
		require.Empty(t, w.history("flights")[0].Bad)
	}, func(o *Options) { b.Store = o.Store; o.Store = b })
}

// blind is a store that can't read the manifests of some checkpoints.
type blind struct {
	snapshot.Store
	ids map[snapshot.ID]bool
}

func (b *blind) Manifest(ctx context.Context, job string, id snapshot.ID) (*snapshot.Manifest, error) {
	if b.ids[id] {
		return nil, fmt.Errorf("manifest of %d: %w", id, snapshot.ErrCorrupt)
	}
	return b.Store.Manifest(ctx, job, id)
}

func TestAnUnreadableManifestIsMarkedOnceAndStopsNothing(t *testing.T) {
	b := &blind{ids: map[snapshot.ID]bool{}}
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		w.write(job, 140, "first")
		w.apply(job)
		w.checkpoint("flights")
		w.write(job, 140, "second")
		w.checkpoint("flights")
		b.ids[2] = true
		w.close()
		w.open(job)
		w.pass(5 * time.Second)
		require.Equal(t, HealthOK, w.c.Jobs()[0].Health.State)
		require.NotEmpty(t, w.history("flights")[1].Bad)
		require.Len(t, w.seen(EventCheckpointBad), 1)
		require.Equal(t, snapshot.ID(3), w.checkpoint("flights").ID)
		require.NoError(t, w.c.DeleteCheckpoint(t.Context(), "flights", 3, true))
		w.store.Lose()
		w.pass(3 * time.Second)
		require.Equal(t, `"first-7"`, w.read(job, 3, 7))
	}, func(o *Options) { b.Store = o.Store; o.Store = b })
}
