package metrics

import (
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/snapshot"
)

func TestWhatCheckpointsReadIsCounted(t *testing.T) {
	m := watched()
	done := func(why string, c snapshot.Checkpoint) {
		m.OnEvent(coordinator.Event{Kind: coordinator.EventCheckpointCompleted, Job: "flights", Reason: why, Checkpoint: &c, At: now})
	}
	done("first", snapshot.Checkpoint{StoredBytes: 1000})
	for range 3 {
		done("", snapshot.Checkpoint{StoredBytes: 10, Incremental: true})
	}
	done("self-check", snapshot.Checkpoint{StoredBytes: 500, SelfChecked: true})
	done("something that no list has", snapshot.Checkpoint{})
	for _, k := range []coordinator.EventKind{coordinator.EventSelfCheckFailed, coordinator.EventSelfCheckFailed, coordinator.EventCheckpointMerged, coordinator.EventMergeFailed} {
		m.OnEvent(coordinator.Event{Kind: k, Job: "flights", At: now})
	}
	m.OnEvent(coordinator.Event{Kind: coordinator.EventCheckpointFailed, Job: "flights", Reason: string(snapshot.FailStall), At: now})
	m.OnEvent(coordinator.Event{Kind: coordinator.EventCheckpointFailed, Job: "flights", Reason: string(snapshot.FailTracking), At: now})
	scrape(t, m) // a job that is new to the counters shows from then on
	samples := scrape(t, m)
	for series, want := range map[string]float64{
		`keyframe_checkpoint_stored_bytes_total{job="flights"}`:                                1530,
		`keyframe_checkpoints_incremental_total{job="flights"}`:                                3,
		`keyframe_checkpoints_full_total{job="flights",reason="first"}`:                        1,
		`keyframe_checkpoints_full_total{job="flights",reason="self-check"}`:                   1,
		`keyframe_checkpoints_full_total{job="flights",reason="other"}`:                        1,
		`keyframe_self_checks_total{job="flights",outcome="passed"}`:                           1,
		`keyframe_self_checks_total{job="flights",outcome="failed"}`:                           2,
		`keyframe_merges_total{job="flights",outcome="completed"}`:                             1,
		`keyframe_merges_total{job="flights",outcome="failed"}`:                                1,
		`keyframe_checkpoint_attempts_total{job="flights",outcome="failed",reason="stall"}`:    1,
		`keyframe_checkpoint_attempts_total{job="flights",outcome="failed",reason="tracking"}`: 1,
		`keyframe_self_checks_total{job="of \"x\"\n\\y",outcome="failed"}`:                     0,
		`keyframe_checkpoints_incremental_total{job="of \"x\"\n\\y"}`:                          0,
	} {
		got, there := samples[series]
		require.True(t, there, series)
		require.InDelta(t, want, got, 0, series)
	}
	m.OnEvent(coordinator.Event{Kind: coordinator.EventJobDeleted, Job: "flights"})
	require.NotContains(t, scrape(t, m), `keyframe_checkpoints_full_total{job="flights",reason="first"}`)
	require.Len(t, coordinator.FullReasons(), 9)
}
