package witness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/snapshot"
)

// completed is a row of a history as it should be.
func completed(id uint64, change ...func(*Checkpoint)) Checkpoint {
	c := Checkpoint{ID: id, Kind: "checkpoint", Trigger: "schedule", State: stateCompleted, Keys: 200 + id, Epoch: 1 + id/4}
	for _, fn := range change {
		fn(&c)
	}
	return c
}

func rows(ids ...uint64) (all []Checkpoint) {
	for _, id := range ids {
		all = append(all, completed(id))
	}
	return all
}

func TestI6WhatRetentionMayNotRemoveIsMissed(t *testing.T) {
	pinned := completed(2, func(c *Checkpoint) { c.Pinned = true })
	named := completed(3, func(c *Checkpoint) { c.Kind, c.Name = kindSavepoint, "before the upgrade" })
	rescaled := completed(6, func(c *Checkpoint) { c.Trigger = triggerRescale })
	bad := completed(7, func(c *Checkpoint) { c.Bad = "a chunk is gone" })
	begin := func() *Journal {
		j := NewJournal()
		require.Empty(t, j.Listed([]Checkpoint{completed(1), pinned, named, completed(4), completed(5), rescaled, bad}, 7))
		return j
	}
	require.Empty(t, begin().Listed([]Checkpoint{pinned, named, completed(5)}, 8), "what is older or bad may go, and a rescale that wasn't made")
	require.Empty(t, begin().Listed([]Checkpoint{pinned, named, completed(8)}, 8), "a newer one is there")
	requireFound(t, "I6", "checkpoint 2 is gone, and was pinned", begin().Listed([]Checkpoint{named, completed(5)}, 7))
	requireFound(t, "I6", "savepoint 3 (before the upgrade) is gone", begin().Listed([]Checkpoint{pinned, completed(5)}, 7))
	requireFound(t, "I6", "checkpoint 5, the newest restorable one, is gone; the newest is now 4", begin().Listed([]Checkpoint{pinned, named, completed(4)}, 7))
	requireFound(t, "I6", "the newest is now 0", begin().Listed(nil, 7)[2:])
	j := begin()
	for _, id := range []uint64{2, 3, 5} {
		j.Deleted(id)
	}
	require.Empty(t, j.Listed([]Checkpoint{completed(4)}, 7), "by the caller's wish")
}

func TestI10IdsThatDoNotGrowAreFound(t *testing.T) {
	j := NewJournal()
	require.Empty(t, j.Listed(rows(1, 2, 3), 3))
	require.Empty(t, j.Listed(rows(2, 3, 5), 6), "attempts may have failed and gone")
	requireFound(t, "I10", "id 6 is new, and 6 was there before", j.Listed(rows(2, 3, 5, 6), 6))
	requireFound(t, "I10", "id 3 is listed after 5", j.Listed(rows(2, 5, 3, 6), 6)[:1])
	requireFound(t, "I10", "the greatest id ever was 5, and 6 was seen", j.Listed(rows(2, 3, 5, 6), 5))
	j.NewStore()
	require.Empty(t, j.Listed(nil, 0), "a new file holds nothing, and knows nothing")
	requireFound(t, "I10", "id 1 is new, and 6 was there before", j.Listed(rows(1), 1)[:1])
	j.NewStore()
	require.Empty(t, j.Listed(rows(7), 7))
}

func TestI7EpochsThatFallAreFound(t *testing.T) {
	j := NewJournal()
	require.Empty(t, j.Epoch(3))
	require.Empty(t, j.Write(3, "a flip"))
	require.Empty(t, j.Epoch(4))
	requireFound(t, "I7", "a write of epoch 3 after epoch 4: the flip of restore 17", j.Write(3, "the flip of restore 17"))
	requireFound(t, "I7", "the epoch is 2 and was 4", j.Epoch(2))
	require.Empty(t, j.Epoch(4))
	require.Empty(t, j.Actors("checkpoint"))
	requireFound(t, "I7", "2 act on the job at once", j.Actors("checkpoint", "restore"))
	older := completed(9, func(c *Checkpoint) { c.Epoch = 1 })
	requireFound(t, "I7", "checkpoint 9 has epoch 1, 8 had 3", j.Listed(append(rows(7, 8), older), 9))
	older.Trigger = triggerImport
	require.Empty(t, NewJournal().Listed(append(rows(7, 8), older), 9))
}

func TestI8AProcessAboveItsBoundIsFound(t *testing.T) {
	was, err := HighWater(os.Getpid())
	require.NoError(t, err)
	b := make([]byte, 64<<20)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	is, err := HighWater(os.Getpid())
	require.NoError(t, err)
	require.Greater(t, is, was, "%d pages were touched", len(b)/4096)
	j := NewJournal()
	require.Empty(t, j.Memory(is, is))
	requireFound(t, "I8", "the bound is", j.Memory(is, was))
	_, err = HighWater(1 << 30)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestI2AndI5PositionsAreJudged drives a counter on a real server and loses it.
func TestI2AndI5PositionsAreJudged(t *testing.T) {
	r := newRig(t)
	r.populate()
	r.apply()
	counter := r.name("hash", 4)
	position := func(id snapshot.ID) (n int64) {
		fields, err := r.stored(uint64(id)).Keys[counter].Fields()
		require.NoError(t, err)
		_, err = fmt.Sscan(fields["n"], &n)
		require.NoError(t, err)
		return n
	}
	row := func(cp *snapshot.Checkpoint) Checkpoint {
		return Checkpoint{ID: uint64(cp.ID), Parent: uint64(cp.Parent), State: stateCompleted}
	}
	count := func(n int64) { require.NoError(t, r.client.HSet(t.Context(), counter, "n", n).Err()) }
	j := NewJournal()
	count(130)
	first := r.checkpoint()
	require.Empty(t, j.Taken(row(first), position(first.ID), 130, 130))
	count(140)
	second := r.checkpoint()
	require.Equal(t, first.ID, second.Parent)
	require.Empty(t, j.Taken(row(second), position(second.ID), 130, 141))
	requireFound(t, "I2", "checkpoint 2 holds position 140: while it was taken the state went from 141 to 150", j.Taken(row(second), position(second.ID), 141, 150))

	// The state is set back behind the product's back: what it takes then is what I5 forbids.
	count(7)
	third := r.checkpoint()
	requireFound(t, "I5", "checkpoint 3 holds position 7, and its parent 2 holds 140", j.Taken(row(third), position(third.ID), 0, 1000))
	j.Lost(uint64(third.ID))
	fourth := r.checkpoint()
	requireFound(t, "I5", "completed after a loss (newest was 3)", j.Taken(row(fourth), position(fourth.ID), 0, 1000))

	r.done(r.c.Restore(t.Context(), r.spec.Name, coordinator.RestoreRequest{Checkpoint: second.ID.String(), NoUndo: true}))
	j.Restored(uint64(fourth.ID), position(second.ID))
	fifth := r.checkpoint()
	require.Equal(t, second.ID, fifth.Parent, "its state descends from what was restored")
	require.Empty(t, j.Taken(row(fifth), position(fifth.ID), 140, 140))
	requireFound(t, "I5", "what was live after checkpoint 4 held 140", j.Taken(Checkpoint{ID: 6}, 139, 0, 1000))
}

func TestI2ContentIsHeldToTheModel(t *testing.T) {
	s := &State{Keys: map[string]Entry{"left": {Type: "string", Elements: []string{StringText("4")}}, "right": {Type: "string", Elements: []string{StringText("4")}}}}
	fits := func(s *State) error {
		if a, b := s.Keys["left"].Elements[0], s.Keys["right"].Elements[0]; a != b {
			return errors.New("left is " + a + ", right is " + b)
		}
		return nil
	}
	require.Empty(t, CheckContent(9, s, fits))
	s.Keys["right"] = Entry{Type: "string", Elements: []string{StringText("5")}}
	requireFound(t, "I2", `checkpoint 9: left is "4", right is "5"`, CheckContent(9, s, fits))
}

// TestAHealthyRunGivesNoFinding runs the product over deletions, retention,
// savepoints, a restore, a rescale and a new store file.
func TestAHealthyRunGivesNoFinding(t *testing.T) {
	r := newRig(t)
	r.populate()
	r.spec.Retention.Keep = 2
	r.apply()
	j, ctx, name := NewJournal(), t.Context(), r.spec.Name
	look := func() []Checkpoint {
		s, err := OpenStore(r.path, t.TempDir())
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		all, err := s.Checkpoints(name)
		require.NoError(t, err)
		last, err := s.Last(name)
		require.NoError(t, err)
		require.Empty(t, j.Listed(all, last))
		epoch, err := r.look().State.Epoch()
		require.NoError(t, err)
		require.Empty(t, j.Epoch(epoch))
		return all
	}
	r.checkpoint()
	r.done(r.c.Checkpoint(ctx, name, coordinator.CheckpointRequest{Name: "named"}))
	_, err := r.c.Pin(ctx, name, 1, true)
	require.NoError(t, err)
	look()
	for range 5 {
		r.checkpoint()
		look()
	}
	r.done(r.c.Restore(ctx, name, coordinator.RestoreRequest{Checkpoint: "named"}))
	look()
	r.done(r.c.Rescale(ctx, name, coordinator.RescaleRequest{Parallelism: 4}))
	r.checkpoint()
	all := look()
	require.Less(t, len(all), 12, "retention has removed some")
	j.Deleted(2)
	require.NoError(t, r.c.DeleteCheckpoint(ctx, name, 2, true))
	for _, c := range look() {
		require.NotEqual(t, uint64(2), c.ID)
	}
	require.Empty(t, j.Findings())
}

func TestAFileThatIsNoStoreIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "no.db")
	_, err := OpenStore(file, t.TempDir())
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(file, make([]byte, 200<<10), 0o600))
	dir := t.TempDir()
	_, err = OpenStore(file, dir)
	require.ErrorContains(t, err, "its pages have 0 bytes")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "its copy is removed")
}

func TestWhatASalvageFindsAgainIsNoNewID(t *testing.T) {
	j := NewJournal()
	require.Empty(t, j.Listed(rows(4, 6), 6))
	j.Salvaged()
	require.Empty(t, j.Listed(rows(4, 5), 6), "6 was lost, 5 had been removed")
	requireFound(t, "I10", "id 3 is new, and 6 was there before", j.Listed(rows(3, 4, 5), 6))
	requireFound(t, "I6", "checkpoint 5, the newest restorable one, is gone", j.Listed(rows(3, 4), 6))
}
