package metrics

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/alarm"
)

func TestSilenceHooksAndHeartbeatShow(t *testing.T) {
	due := now.Add(-time.Minute)
	m := New(func() time.Time { return now })
	m.Watch(func() []coordinator.JobStatus {
		return []coordinator.JobStatus{{Name: "late", Overdue: true, DueAt: &due}, {Name: "paused", NotDue: "paused"}}
	}, stats)
	before := scrape(t, m)
	require.NotContains(t, before, "keyframe_heartbeat_held")
	m.WatchAlarms(func() []alarm.HookStatus {
		return []alarm.HookStatus{{Name: "chat", Delivered: 1, Failed: 22, GivenUp: 3, Dropped: 4, Queued: 5}, {Name: "p\xff"}}
	}, func() alarm.HeartbeatStatus { return alarm.HeartbeatStatus{On: true, Sent: 6, Failed: 7, Held: true} })
	samples := scrape(t, m)
	for series, want := range map[string]float64{
		`keyframe_checkpoint_overdue{job="late"}`:                        1,
		`keyframe_checkpoint_overdue{job="paused"}`:                      0,
		`keyframe_checkpoint_due_timestamp_seconds{job="late"}`:          float64(due.Unix()),
		`keyframe_hook_deliveries_total{hook="chat",result="delivered"}`: 1,
		`keyframe_hook_deliveries_total{hook="chat",result="failed"}`:    22,
		`keyframe_hook_deliveries_total{hook="chat",result="given_up"}`:  3,
		`keyframe_hook_dropped_total{hook="chat"}`:                       4,
		`keyframe_hook_queued{hook="chat"}`:                              5,
		`keyframe_hook_dropped_total{hook="\"p\\xff\""}`:                 0,
		`keyframe_heartbeats_total{result="sent"}`:                       6,
		`keyframe_heartbeats_total{result="failed"}`:                     7,
		`keyframe_heartbeat_held`:                                        1,
	} {
		got, there := samples[series]
		require.True(t, there, series)
		require.InDelta(t, want, got, 0, series)
	}
	require.NotContains(t, samples, `keyframe_checkpoint_due_timestamp_seconds{job="paused"}`)

	m.WatchAlarms(func() []alarm.HookStatus { return nil }, func() alarm.HeartbeatStatus { return alarm.HeartbeatStatus{} })
	require.NotContains(t, scrape(t, m), "keyframe_heartbeat_held")
}
