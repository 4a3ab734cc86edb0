package coordinator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/coordinator/config"
	"keyframe/snapshot"
)

var day = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)

func completed(id snapshot.ID, kind snapshot.Kind) snapshot.Checkpoint {
	return snapshot.Checkpoint{ID: id, Kind: kind, State: snapshot.StateCompleted, StartedAt: day.Add(time.Duration(id) * time.Minute)}
}

func removedBy(history []snapshot.Checkpoint, p config.Retention, inUse map[snapshot.ID]string, now time.Time) []snapshot.ID {
	var removed []snapshot.ID
	for _, d := range Retain(history, p, inUse, now) {
		if !d.Keep {
			removed = append(removed, d.ID)
		}
	}
	return removed
}

func TestI6RetentionKeepsWhatIsNeeded(t *testing.T) {
	c, s := snapshot.KindCheckpoint, snapshot.KindSavepoint
	pinned := completed(1, c)
	pinned.Pinned = true
	bad := completed(3, c)
	bad.Bad = "chunk gone"
	running := completed(4, c)
	running.State = snapshot.StateInProgress
	for _, x := range []struct {
		name    string
		history []snapshot.Checkpoint
		policy  config.Retention
		inUse   map[snapshot.ID]string
		now     time.Time
		removed []snapshot.ID
	}{
		{name: "keep counts checkpoints", policy: config.Retention{Keep: 2}, history: []snapshot.Checkpoint{completed(1, c), completed(2, c), completed(3, c)}, removed: []snapshot.ID{1}},
		{name: "a savepoint does not count, and stays", policy: config.Retention{Keep: 1}, history: []snapshot.Checkpoint{completed(1, c), completed(2, s)}},
		{name: "an older savepoint stays", policy: config.Retention{Keep: 1}, history: []snapshot.Checkpoint{completed(1, s), completed(2, c), completed(3, c)}, removed: []snapshot.ID{2}},
		{name: "a pin stays and counts", policy: config.Retention{Keep: 1}, history: []snapshot.Checkpoint{pinned, completed(2, c), completed(3, c)}, removed: []snapshot.ID{2}},
		{name: "what is in use stays", policy: config.Retention{Keep: 1}, inUse: map[snapshot.ID]string{1: "undo"}, history: []snapshot.Checkpoint{completed(1, c), completed(2, c), completed(3, c)}, removed: []snapshot.ID{2}},
		{name: "age removes all but the newest good one", policy: config.Retention{Keep: 9, MaxAge: config.Duration(time.Hour)}, now: day.Add(1000 * time.Hour), history: []snapshot.Checkpoint{completed(1, c), completed(2, c)}, removed: []snapshot.ID{1}},
		{name: "a clock that jumped back removes nothing", policy: config.Retention{Keep: 9, MaxAge: config.Duration(time.Hour)}, now: day.Add(-1000 * time.Hour), history: []snapshot.Checkpoint{completed(1, c), completed(2, c)}},
		{name: "a bad newest one does not protect", policy: config.Retention{Keep: 1}, history: []snapshot.Checkpoint{completed(1, c), completed(2, c), bad}, removed: []snapshot.ID{1}},
		{name: "a running one stays", policy: config.Retention{Keep: 1}, history: []snapshot.Checkpoint{completed(1, c), completed(2, c), running}, removed: []snapshot.ID{1}},
	} {
		t.Run(x.name, func(t *testing.T) {
			now := x.now
			if now.IsZero() {
				now = day.Add(10 * time.Minute)
			}
			require.Equal(t, x.removed, removedBy(x.history, x.policy, x.inUse, now))
		})
	}
}

func TestRetentionBoundsFailedAttempts(t *testing.T) {
	var history []snapshot.Checkpoint
	for id := snapshot.ID(1); id <= 130; id++ {
		f := completed(id, snapshot.KindCheckpoint)
		f.State = snapshot.StateFailed
		history = append(history, f)
	}
	require.Len(t, removedBy(history, config.Retention{Keep: 1}, nil, day), 130-keptFailures)
}

func drawHistory(t *rapid.T) []snapshot.Checkpoint {
	n := rapid.IntRange(0, 40).Draw(t, "n")
	history := make([]snapshot.Checkpoint, 0, n)
	for id := snapshot.ID(1); int(id) <= n; id++ {
		cp := completed(id, rapid.SampledFrom([]snapshot.Kind{snapshot.KindCheckpoint, snapshot.KindSavepoint}).Draw(t, "kind"))
		cp.State = rapid.SampledFrom([]snapshot.State{snapshot.StateCompleted, snapshot.StateCompleted, snapshot.StateFailed, snapshot.StateInProgress}).Draw(t, "state")
		cp.Pinned = rapid.Bool().Draw(t, "pinned")
		if rapid.IntRange(0, 4).Draw(t, "bad") == 0 {
			cp.Bad = "x"
		}
		cp.StartedAt = day.Add(time.Duration(rapid.IntRange(-1000, 1000).Draw(t, "minutes")) * time.Minute)
		history = append(history, cp)
	}
	return history
}

func TestI6RetentionLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		history := drawHistory(t)
		policy := config.Retention{Keep: rapid.IntRange(1, 5).Draw(t, "keep"), MaxAge: config.Duration(rapid.IntRange(0, 3000).Draw(t, "age")) * config.Duration(time.Minute)}
		decisions := Retain(history, policy, nil, day)
		require.Len(t, decisions, len(history))
		newest := snapshot.ID(0)
		for _, cp := range history {
			if cp.Kind == snapshot.KindCheckpoint && cp.Restorable() {
				newest = cp.ID
			}
		}
		for i, d := range decisions {
			cp := history[i]
			require.Equal(t, cp.ID, d.ID)
			require.NotEmpty(t, d.Reason)
			mustStay := cp.ID == newest || cp.Pinned || cp.State == snapshot.StateInProgress ||
				(cp.Kind == snapshot.KindSavepoint && cp.State == snapshot.StateCompleted)
			require.False(t, mustStay && !d.Keep, "%+v was removed: %s", cp, d.Reason)
		}
	})
}
