package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"keyframe/coordinator"
)

var (
	checkpointDue     = desc("checkpoint_due_timestamp_seconds", "When, by the schedule and the tolerable misses, the next good checkpoint must be there.", "job")
	checkpointOverdue = desc("checkpoint_overdue", "1 when that time has passed.", "job")
)

// collectSilence shows by when a good checkpoint is due. A job of which none is
// has no due time, and is not overdue.
func collectSilence(gauge func(*prometheus.Desc, float64, ...string), name string, j coordinator.JobStatus) {
	overdue := 0.0
	if j.Overdue {
		overdue = 1
	}
	gauge(checkpointOverdue, overdue, name)
	if j.DueAt != nil {
		gauge(checkpointDue, seconds(*j.DueAt), name)
	}
}
