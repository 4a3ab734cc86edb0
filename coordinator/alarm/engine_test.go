package alarm

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// warmUp uses the compressor outside bubbles: its pools are channels, and one
// that is made inside of one can't be used in another.
func warmUp(t *testing.T) {
	t.Helper()
	chunks := &snapshot.MemChunks{}
	enc := snapshot.NewEncoder(t.Context(), chunks, snapshot.EncoderOptions{})
	value := bytes.Repeat([]byte("keyframe"), 1000)
	require.NoError(t, enc.BeginKey(snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte("k"), Type: snapshot.TypeString, Count: 1}))
	require.NoError(t, enc.Element(snapshot.Element{Size: uint64(len(value)), Value: value}))
	require.NoError(t, enc.EndKey(snapshot.KeyEnd{}))
	sum, err := enc.Close()
	require.NoError(t, err)
	// What it says of this small manifest doesn't matter: the chunk is read.
	_ = snapshot.Walk(t.Context(), chunks, &snapshot.Manifest{Format: snapshot.FormatVersion, Chunks: sum.Chunks}, &snapshot.Recorder{})
}

func fill(t *testing.T, store *memory.Store, spec config.Job) {
	key := spec.Key()
	name := key.StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: 1, Operator: "count"}, "total")
	cmds := []statebackend.Cmd{statebackend.Command(statebackend.OpSAdd, key.Index(), name), statebackend.Command(statebackend.OpHSet, key.Registry(), name, "java.lang.String|1")}
	for i := range 130 {
		cmds = append(cmds, statebackend.Command(statebackend.OpHSet, name, fmt.Sprintf("s:key-%d", i), fmt.Sprintf("%q", fmt.Sprintf("v-%d", i))))
	}
	_, err := store.Do(t.Context(), cmds...)
	require.NoError(t, err)
}

// A real coordinator with two hooks that want everything, and hang: checkpoints
// are taken as if there were none, in no time at all by the bubble's clock.
func TestAHookThatHangsDelaysNoCheckpoint(t *testing.T) {
	warmUp(t)
	path := filepath.Join(t.TempDir(), "keyframe.db")
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(_ int, _ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }}
		w := r.serve()
		all := []config.AlarmGroup{config.AlarmAll}
		d := NewDispatcher(Options{Alarms: hooks(config.Hook{URL: "http://a.example", Events: all}, config.Hook{URL: "http://b.example", Events: all}), dial: w.dial, queue: 10})
		db, err := bolt.Open(t.Context(), path, bolt.Options{})
		require.NoError(t, err)
		store := memory.New(memory.Options{})
		spec := config.Job{Name: "flights", Parallelism: 2, MaxParallelism: 10}.WithDefaults()
		fill(t, store, spec)
		c := coordinator.New(coordinator.Options{Store: db, Journal: db.Journal(), Backend: store, Jobs: []config.Job{spec}, Listener: d})
		require.NoError(t, c.Start(t.Context()))
		synctest.Wait()
		began := time.Now()
		for range 20 {
			op, err := c.Checkpoint(t.Context(), "flights", coordinator.CheckpointRequest{})
			require.NoError(t, err)
			s, err := op.Wait(t.Context())
			require.NoError(t, err)
			require.Equal(t, coordinator.OpDone, s.State, "%+v", s.Error)
		}
		require.Zero(t, time.Since(began))
		for _, h := range d.Hooks() {
			require.Zero(t, h.Delivered)
			require.Equal(t, 10, h.Queued)
			require.Greater(t, h.Dropped, uint64(20))
		}
		require.NoError(t, c.Stop(context.Background()))
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		d.Close(ctx)
		r.stop(t)
		require.NoError(t, db.Close())
	})
}
