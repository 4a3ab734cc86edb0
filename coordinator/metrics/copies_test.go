package metrics

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
)

func TestCopiesAreShownByTheirDirectory(t *testing.T) {
	newest, checked := now.Add(-3*time.Hour), now.Add(-time.Minute)
	m := watched()
	m.WatchCopies(func() []coordinator.CopyStatus {
		s := coordinator.CopyStatus{Path: "/mnt/b", OK: true, Copies: 2, Bytes: 3, Waiting: 4, LagMs: 5500, OnlyHere: 6, NewestAt: &newest, Bad: 7, CheckedAt: &checked}
		n := &s.SinceStart
		n.Made, n.MadeBytes, n.Failures, n.Checks, n.ChecksBad, n.ChecksFailed = 8, 9, 10, 23, 11, 13
		return []coordinator.CopyStatus{s, {Path: "c"}}
	})
	got := scrape(t, m)
	for series, want := range map[string]float64{
		"copies_up": 1, "copies": 2, "copies_bytes": 3, "copies_waiting": 4, "copies_lag_seconds": 5.5, "copies_only_here": 6, "copies_bad": 7,
		"copies_newest_age_seconds": 10800, "copies_checked_timestamp_seconds": float64(checked.Unix()),
		"copies_made_total": 8, "copies_written_bytes_total": 9, "copy_failures_total": 10,
	} {
		require.InDelta(t, want, got["keyframe_"+series+`{path="/mnt/b"}`], 0, series)
	}
	for result, want := range map[string]float64{"whole": 12, "bad": 11, "failed": 13} {
		require.InDelta(t, want, got[`keyframe_copy_checks_total{path="/mnt/b",result="`+result+`"}`], 0, result)
	}
	require.Contains(t, got, `keyframe_copies_up{path="c"}`)
	require.NotContains(t, got, `keyframe_copies_newest_age_seconds{path="c"}`, "there is none")
}
