package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"keyframe/coordinator"
	"keyframe/coordinator/alarm"
)

var (
	checkpointDue     = desc("checkpoint_due_timestamp_seconds", "When, by the schedule and the tolerable misses, the next good checkpoint must be there.", "job")
	checkpointOverdue = desc("checkpoint_overdue", "1 when that time has passed.", "job")
	hookDeliveries    = desc("hook_deliveries_total", "Deliveries to hooks by result: delivered, failed (a try, which others may follow), given_up.", "hook", "result")
	hookDropped       = desc("hook_dropped_total", "Notices that no try was made for, or none after a stop: the queue was full, or the coordinator stopped.", "hook")
	hookQueued        = desc("hook_queued", "Notices that wait for their first try.", "hook")
	heartbeats        = desc("heartbeats_total", "Heartbeats by result: sent, failed.", "result")
	heartbeatHeld     = desc("heartbeat_held", "1 while the heartbeat is held back, since something is wrong with a job.")
)

// WatchAlarms sets where the figures of hooks and heartbeats are read from.
// Call it once, before serving.
func (m *Metrics) WatchAlarms(hooks func() []alarm.HookStatus, beats func() alarm.HeartbeatStatus) {
	m.hooks, m.beats = hooks, beats
}

// collectSilence shows by when a good checkpoint is due. A job of which none is
// has no due time, and is not overdue.
func collectSilence(gauge func(*prometheus.Desc, float64, ...string), name string, j coordinator.JobStatus) {
	gauge(checkpointOverdue, truth(j.Overdue), name)
	if j.DueAt != nil {
		gauge(checkpointDue, seconds(*j.DueAt), name)
	}
}

func (m *Metrics) collectAlarms(ch chan<- prometheus.Metric) {
	if m.hooks == nil {
		return
	}
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	for _, h := range m.hooks() {
		name := label(h.Name)
		send(hookDeliveries, prometheus.CounterValue, float64(h.Delivered), name, "delivered")
		send(hookDeliveries, prometheus.CounterValue, float64(h.Failed), name, "failed")
		send(hookDeliveries, prometheus.CounterValue, float64(h.GivenUp), name, "given_up")
		send(hookDropped, prometheus.CounterValue, float64(h.Dropped), name)
		send(hookQueued, prometheus.GaugeValue, float64(h.Queued), name)
	}
	if b := m.beats(); b.On {
		send(heartbeats, prometheus.CounterValue, float64(b.Sent), "sent")
		send(heartbeats, prometheus.CounterValue, float64(b.Failed), "failed")
		send(heartbeatHeld, prometheus.GaugeValue, truth(b.Held))
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
