package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"keyframe/snapshot"
)

// spoiler overwrites each chunk's bytes once the store has taken them, as an
// encoder that reuses its buffers does.
type spoiler struct{ snapshot.ChunkWriter }

func (s spoiler) WriteChunk(ctx context.Context, c snapshot.Chunk) (bool, error) {
	c.Data = append([]byte(nil), c.Data...)
	defer clear(c.Data)
	return s.ChunkWriter.WriteChunk(ctx, c)
}

func ownBytes(t *testing.T, s *subject) {
	ctx := context.Background()
	a := Attempt("flights")
	w := s.begin(a)
	defer w.Abort()
	sum, err := Encode(ctx, spoiler{w}, Keys("own", 300))
	require.NoError(t, err)
	m := ManifestOf(a, w.ID(), sum)
	require.NoError(t, w.Commit(ctx, m))
	for _, ref := range m.Chunks {
		b, err := s.store.Chunk(ctx, ref.ID)
		require.NoError(t, err)
		require.Len(t, b, int(ref.Stored))
		again, err := s.store.Chunk(ctx, ref.ID)
		require.NoError(t, err)
		clear(b)
		require.NotEqual(t, b, again)
	}
	m.Chunks[0].ID[0] ^= 1 // the store keeps no part of the caller's manifest
	MustHold(t, s.store, "flights", w.ID(), Keys("own", 300))
}

func contexts(t *testing.T, s *subject) {
	live := context.Background()
	ctx, cancel := context.WithCancel(live)
	cancel()
	a := Attempt("flights")
	old := MustTake(t, s.store, a, Keys("old", 100))
	_, err := s.store.Begin(ctx, a)
	require.ErrorIs(t, err, context.Canceled)
	w := s.begin(a)
	defer w.Abort()
	var rec RecordChunks
	_, err = Encode(live, &rec, Keys("state", 300))
	require.NoError(t, err)
	_, err = w.WriteChunk(ctx, rec.Chunks[0])
	require.ErrorIs(t, err, context.Canceled)
	m := s.encode(w, a, Keys("state", 300))
	require.ErrorIs(t, w.Commit(ctx, m), context.Canceled)
	require.Equal(t, snapshot.StateInProgress, s.states("flights")[w.ID()])
	yes := true
	id := old.Checkpoint.ID
	calls := map[string]func() error{
		"List":     func() error { _, err := s.store.List(ctx, "flights"); return err },
		"Manifest": func() error { _, err := s.store.Manifest(ctx, "flights", id); return err },
		"Chunk":    func() error { _, err := s.store.Chunk(ctx, old.Chunks[0].ID); return err },
		"Edit":     func() error { _, err := s.store.Edit(ctx, "flights", id, snapshot.Change{Pinned: &yes}); return err },
		"Delete":   func() error { return s.store.Delete(ctx, "flights", id) },
		"Hold":     func() error { _, err := s.store.Hold(ctx, "flights", id); return err },
		"Jobs":     func() error { _, err := s.store.Jobs(ctx); return err },
		"Stats":    func() error { _, err := s.store.Stats(ctx); return err },
		"Check":    func() error { _, err := s.store.Check(ctx); return err },
	}
	for name, call := range calls {
		require.ErrorIs(t, call(), context.Canceled, name)
	}
	require.NoError(t, w.Commit(live, m), "an ended context leaves the writer able")
	MustHold(t, s.store, "flights", id, Keys("old", 100))
	MustHold(t, s.store, "flights", w.ID(), Keys("state", 300))
}

func stats(t *testing.T, s *subject) {
	st := s.stats()
	require.NotEmpty(t, st.Path)
	require.Zero(t, st.Jobs+st.Checkpoints+st.Attempts+st.Chunks)
	require.Zero(t, st.LiveBytes)
	m := MustTake(t, s.store, Attempt("flights"), Keys("one", 300))
	MustTake(t, s.store, Attempt("flights"), Keys("one", 300))
	MustTake(t, s.store, Attempt("trains"), Keys("two", 300))
	s.begin(Attempt("ships")).Abort()
	st = s.stats()
	require.Equal(t, 3, st.Jobs)
	require.Equal(t, 3, st.Checkpoints)
	require.Equal(t, 4, st.Attempts)
	require.GreaterOrEqual(t, st.Chunks, 2*len(m.Chunks)-1)
	require.Greater(t, st.LiveBytes, int64(m.Checkpoint.FullBytes))
	require.GreaterOrEqual(t, st.FileBytes, st.LiveBytes)
	live := st.LiveBytes
	s.delete("flights", 1)
	st = s.stats()
	require.Less(t, st.LiveBytes, live, "the manifest is gone")
	s.delete("flights", 2)
	require.Less(t, s.stats().Chunks, st.Chunks)
}

// manyAtOnce has two jobs that take checkpoints of partly the same states and
// keep the newest three, with readers of all that is listed and a checker
// beside them.
func manyAtOnce(t *testing.T, s *subject) {
	const rounds = 15
	store := s.store
	jobs := []string{"flights", "trains"}
	work, ctx := errgroup.WithContext(context.Background())
	done := make(chan struct{})
	var writers errgroup.Group
	for j, job := range jobs {
		writers.Go(func() error { return keepTaking(ctx, store, job, j, rounds) })
	}
	work.Go(func() error {
		defer close(done)
		return writers.Wait()
	})
	for _, job := range jobs {
		work.Go(func() error { return readUntil(ctx, done, store, job) })
	}
	work.Go(func() error {
		for n := 0; n < 5; n++ {
			problems, err := store.Check(ctx)
			if err != nil || len(problems) > 0 {
				return fmt.Errorf("check beside writers: %v: %w", problems, errors.Join(err, errors.New("not clean")))
			}
		}
		return nil
	})
	require.NoError(t, work.Wait())
	for _, job := range jobs {
		all := s.list(job)
		require.Len(t, all, 3)
		require.Equal(t, snapshot.ID(rounds), all[2].ID)
	}
}

func keepTaking(ctx context.Context, store snapshot.Store, job string, j, rounds int) error {
	for i := range rounds {
		// Every third state is the same in both jobs.
		seed := fmt.Sprintf("state-%d", i)
		if i%3 != 0 {
			seed = fmt.Sprintf("%s-%d", seed, j)
		}
		m, err := Take(ctx, store, Attempt(job), Keys(seed, 150))
		if err != nil {
			return err
		}
		if m.Checkpoint.ID <= 3 {
			continue
		}
		for {
			err := store.Delete(ctx, job, m.Checkpoint.ID-3)
			if err == nil {
				break
			}
			if !errors.Is(err, snapshot.ErrInUse) { // a reader holds it
				return err
			}
		}
	}
	return nil
}

// readUntil walks every checkpoint that is listed, until done.
func readUntil(ctx context.Context, done <-chan struct{}, store snapshot.Store, job string) error {
	for {
		select {
		case <-done:
			return nil
		default:
		}
		all, err := store.List(ctx, job)
		if err != nil {
			return err
		}
		if !slices.IsSortedFunc(all, func(a, b snapshot.Checkpoint) int { return int(a.ID) - int(b.ID) }) {
			return fmt.Errorf("job %s is listed out of order", job)
		}
		for _, c := range all {
			if c.State == snapshot.StateCompleted {
				if err := readOne(ctx, store, c); err != nil {
					return err
				}
			}
		}
	}
}

func readOne(ctx context.Context, store snapshot.Store, c snapshot.Checkpoint) error {
	release, err := store.Hold(ctx, c.Job, c.ID)
	if errors.Is(err, snapshot.ErrNoCheckpoint) {
		return nil // deleted since it was listed
	}
	if err != nil {
		return err
	}
	defer release()
	m, err := store.Manifest(ctx, c.Job, c.ID)
	if err != nil {
		return err
	}
	var rec snapshot.Recorder
	if err := snapshot.Walk(ctx, store, m, &rec); err != nil {
		return err
	}
	if len(rec.Keys) != 4 || !bytes.HasSuffix(rec.Keys[0].Key.Name, []byte(":hash")) {
		return fmt.Errorf("job %s checkpoint %s: not what was written", c.Job, c.ID)
	}
	return nil
}
