package coordinator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// glimpse is a look at a state that has come through the cut of its attempt,
// in epoch 4.
func glimpse(incarnation string, attempt snapshot.ID, run string, indexed uint64) statebackend.Glimpse {
	return statebackend.Glimpse{
		Server:  snapshot.ServerInfo{RunID: run},
		Record:  statebackend.Record{Incarnation: incarnation, Attempt: attempt, Cut: attempt, Epoch: 4},
		Indexed: indexed, Where: "database 0 has 12 keys",
	}
}

func TestI5AssessTellsLostFromEmptyFromOlder(t *testing.T) {
	newest := lineage{id: 7, incarnation: "inc-a", attempt: 7, epoch: 4, runID: "run-1"}
	begun := glimpse("inc-a", 7, "run-2", 3) // saved between the note of attempt 7 and its cut
	begun.Record.Cut = 6
	ahead := begun
	ahead.Record.Attempt = 9
	unmarked := glimpse("inc-a", 8, "run-1", 3)
	unmarked.Record.Cut = 6
	flipped := newest // restored since the newest checkpoint
	flipped.epoch = 5
	marked := glimpse("inc-a", 7, "run-1", 3)
	marked.Record.Restore = &statebackend.Mark{ID: "r9", Kind: "restore", Checkpoint: 5, StartedAt: time.Unix(1e9, 0)}
	for _, c := range []struct {
		name   string
		look   statebackend.Glimpse
		newest lineage
		want   HealthState
		says   string
		adopt  bool
		repair bool
	}{
		{name: "a new job without state waits", look: glimpse("", 0, "run-1", 0), want: HealthWaiting, says: "database 0 has 12 keys"},
		{name: "a new job with state is adopted", look: glimpse("", 0, "run-1", 3), want: HealthOK, adopt: true},
		{name: "a new store file on known state", look: glimpse("inc-a", 41, "run-1", 3), want: HealthOK},
		{name: "empty but ours is empty, not lost", look: glimpse("inc-a", 7, "run-1", 0), newest: newest, want: HealthOK},
		{name: "a record that is gone is loss, though writers wrote anew", look: glimpse("", 0, "run-2", 99), newest: newest, want: HealthLost, says: "checkpoint 7"},
		{name: "a flush without restart is loss", look: glimpse("", 0, "run-1", 0), newest: newest, want: HealthLost},
		{name: "another incarnation is foreign", look: glimpse("inc-b", 7, "run-1", 3), newest: newest, want: HealthForeign, says: "inc-b"},
		{name: "an older file came back", look: glimpse("inc-a", 5, "run-2", 3), newest: newest, want: HealthOlder, says: "attempt 5"},
		{name: "an older file that knows the attempt and not its cut came back", look: begun, newest: newest, want: HealthOlder, says: "cut of attempt 6"},
		{name: "whatever was begun on it since", look: ahead, newest: newest, want: HealthOlder, says: "cut of attempt 6"},
		{name: "a file from before the last flip came back", look: glimpse("inc-a", 7, "run-2", 3), newest: flipped, want: HealthOlder, says: "epoch 5"},
		{name: "a lost mark of a cut is written again", look: unmarked, newest: newest, want: HealthOK, repair: true},
		{name: "a restart with all its state is fine", look: glimpse("inc-a", 7, "run-2", 3), newest: newest, want: HealthOK},
		{name: "behind without a restart is a lost note", look: glimpse("inc-a", 6, "run-1", 3), newest: newest, want: HealthOK, repair: true},
		{name: "a mark comes before everything", look: marked, newest: newest, want: HealthMarked, says: "r9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := assess(c.look, c.newest, "redis://h:1/0")
			require.Equal(t, c.want, v.health, v.message)
			require.Contains(t, v.message, c.says)
			require.Equal(t, c.adopt, v.adopt)
			require.Equal(t, c.repair, v.repair)
		})
	}
}

// The delays that Flink's exponential-delay restart strategy gives with these
// three numbers and no jitter.
func TestBackoffOfRecovery(t *testing.T) {
	want := []float64{1, 1.5, 2.25, 3.375, 5.0625, 7.59375, 11.390625, 17.085938, 25.628906, 38.443359, 57.665039, 60, 60, 60}
	for i, seconds := range want {
		require.InDelta(t, seconds, backoff(i+1).Seconds(), 1e-6, "attempt %d", i+1)
	}
	require.Equal(t, time.Minute, backoff(100000))
}
