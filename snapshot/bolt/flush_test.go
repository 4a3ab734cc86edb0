package bolt

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

func TestWhatIsFlushedCanBeReadAndIsNoCommit(t *testing.T) {
	fx := &fixture{t: t, path: t.TempDir() + "/keyframe.db"}
	db := fx.open()
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	w, err := db.Begin(t.Context(), snapshot.Attempt{Job: "flights", Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerManual})
	require.NoError(t, err)
	enc := snapshot.NewEncoder(t.Context(), w, snapshot.EncoderOptions{})
	require.NoError(t, enc.BeginKey(snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte("k"), Type: snapshot.TypeString, Count: 1}))
	require.NoError(t, enc.Element(snapshot.Element{Size: 5, Value: []byte("value")}))
	require.NoError(t, enc.EndKey(snapshot.KeyEnd{}))
	sum, err := enc.Close()
	require.NoError(t, err)
	id := sum.Chunks[0].ID
	_, err = db.Chunk(t.Context(), id)
	require.ErrorIs(t, err, snapshot.ErrNoChunk, "it is in the batch")

	f := w.(interface {
		Flush(ctx context.Context) error
	})
	require.NoError(t, f.Flush(t.Context()))
	require.NoError(t, f.Flush(t.Context()), "with nothing to do")
	_, err = db.Chunk(t.Context(), id)
	require.NoError(t, err)
	history, err := db.List(t.Context(), "flights")
	require.NoError(t, err)
	require.Equal(t, snapshot.StateInProgress, history[0].State)

	w.Abort()
	require.Error(t, f.Flush(t.Context()))
	require.Eventually(t, func() bool {
		_, err := db.Chunk(t.Context(), id)
		return err != nil
	}, 20*time.Second, time.Millisecond, "it goes with the attempt")
}
