// Package metrics shows the coordinator's figures to Prometheus.
package metrics

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"keyframe/coordinator"
	"keyframe/coordinator/alarm"
	"keyframe/snapshot"
)

// Metrics is a Listener that counts what happens, and a collector that reads
// how jobs and the store stand when it is asked.
type Metrics struct {
	registry *prometheus.Registry
	jobs     func() []coordinator.JobStatus
	store    func(context.Context) (snapshot.StoreStats, error)
	now      func() time.Time
	hooks    func() []alarm.HookStatus // nil when there are no alarms
	beats    func() alarm.HeartbeatStatus
	copies   func() []coordinator.CopyStatus

	triggered *prometheus.CounterVec
	attempts  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	stall     *prometheus.HistogramVec
	stored    *prometheus.CounterVec
	full      *prometheus.CounterVec
	partial   *prometheus.CounterVec
	checks    *prometheus.CounterVec
	merges    *prometheus.CounterVec
	events    *prometheus.CounterVec
	restores  *prometheus.CounterVec
	restoring *prometheus.HistogramVec

	mu       sync.Mutex
	restored map[string]time.Time // job → end of its last restore
}

var (
	_ coordinator.Listener = (*Metrics)(nil)
	_ prometheus.Collector = (*Metrics)(nil)
)

// New makes the metrics. Watch says where to read from; until then only what
// is counted shows.
func New(now func() time.Time) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), now: now, restored: map[string]time.Time{}}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "keyframe", Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "keyframe", Name: name, Help: help, Buckets: buckets}, labels)
	}
	m.triggered = counter("checkpoints_triggered_total", "Checkpoint attempts that were begun.", "job")
	m.attempts = counter("checkpoint_attempts_total", "Checkpoint attempts that ended, by outcome and reason of failure.", "job", "outcome", "reason")
	m.duration = histogram("checkpoint_duration_seconds", "Duration of completed checkpoints.", prometheus.ExponentialBuckets(0.01, 2, 18), "job")
	m.stall = histogram("checkpoint_stall_seconds", "How long writers waited because of a cut.", prometheus.ExponentialBuckets(0.00025, 2, 18), "job")
	m.stored = counter("checkpoint_stored_bytes_total", "Bytes that were new in completed checkpoints.", "job")
	m.partial = counter("checkpoints_incremental_total", "Completed checkpoints that read and stored only what had changed.", "job")
	m.full = counter("checkpoints_full_total", "Completed checkpoints that read everything, by why they did.", "job", "reason")
	m.checks = counter("self_checks_total", "Comparisons of all state with what tracking believed, by outcome.", "job", "outcome")
	m.merges = counter("merges_total", "Merges of a checkpoint's layers in the background, by outcome.", "job", "outcome")
	m.events = counter("events_total", "Events by kind.", "job", "kind")
	m.restores = counter("restores_total", "Restores, recoveries and rescales that ended, by outcome.", "job", "kind", "outcome")
	m.restoring = histogram("restore_duration_seconds", "Duration of completed restores.", prometheus.ExponentialBuckets(0.01, 2, 18), "job")
	m.registry.MustRegister(m.triggered, m.attempts, m.duration, m.stall, m.stored, m.partial, m.full, m.checks, m.merges, m.events, m.restores, m.restoring, m,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Watch sets where gauges are read from. Call it once, before serving.
func (m *Metrics) Watch(jobs func() []coordinator.JobStatus, store func(context.Context) (snapshot.StoreStats, error)) {
	m.jobs, m.store = jobs, store
}

// Handler serves GET /metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// OnEvent implements coordinator.Listener.
func (m *Metrics) OnEvent(e coordinator.Event) {
	job := label(e.Job)
	if e.Kind == coordinator.EventJobDeleted {
		m.forget(e.Job)
		return
	}
	m.events.WithLabelValues(job, string(e.Kind)).Inc()
	switch e.Kind {
	case coordinator.EventCheckpointStarted:
		m.triggered.WithLabelValues(job).Inc()
	case coordinator.EventCheckpointCompleted:
		m.attempts.WithLabelValues(job, "completed", "").Inc()
		if c := e.Checkpoint; c != nil {
			m.completed(job, c, e.Reason)
		}
	case coordinator.EventCheckpointFailed:
		m.attempts.WithLabelValues(job, "failed", reason(e.Reason)).Inc()
	case coordinator.EventSelfCheckFailed:
		m.checks.WithLabelValues(job, "failed").Inc()
	case coordinator.EventCheckpointMerged:
		m.merges.WithLabelValues(job, "completed").Inc()
	case coordinator.EventMergeFailed:
		m.merges.WithLabelValues(job, "failed").Inc()
	default:
		m.onRestore(job, e)
	}
}

// completed counts a completed checkpoint; why is the code of why it is full.
func (m *Metrics) completed(job string, c *snapshot.Checkpoint, why string) {
	m.duration.WithLabelValues(job).Observe(float64(c.DurationMs) / 1000)
	m.stall.WithLabelValues(job).Observe(c.StallMs / 1000)
	m.stored.WithLabelValues(job).Add(float64(c.StoredBytes))
	if c.SelfChecked {
		m.checks.WithLabelValues(job, "passed").Inc()
	}
	if c.Incremental {
		m.partial.WithLabelValues(job).Inc()
		return
	}
	if !slices.Contains(coordinator.FullReasons(), why) {
		why = "other"
	}
	m.full.WithLabelValues(job, why).Inc()
}

// onRestore counts what ends a restore, a recovery or a rescale.
func (m *Metrics) onRestore(job string, e coordinator.Event) {
	kind, outcome := "", "completed"
	switch e.Kind {
	case coordinator.EventRestoreCompleted:
		kind = "restore"
	case coordinator.EventRecovered:
		kind = "recovery"
	case coordinator.EventRescaleCompleted:
		kind = "rescale"
	case coordinator.EventRestoreFailed:
		kind, outcome = "restore", "failed"
	case coordinator.EventRecoveryFailed:
		kind, outcome = "recovery", "failed"
	case coordinator.EventRescaleFailed:
		kind, outcome = "rescale", "failed"
	default:
		return
	}
	m.restores.WithLabelValues(job, kind, outcome).Inc()
	if outcome == "failed" {
		return
	}
	m.mu.Lock()
	m.restored[e.Job] = e.At
	m.mu.Unlock()
	if e.Restore != nil {
		m.restoring.WithLabelValues(job).Observe(float64(e.Restore.DurationMs) / 1000)
	}
}

// forget drops the series of a deleted job: jobs come and go, and a label's
// values must not only grow.
func (m *Metrics) forget(job string) {
	m.mu.Lock()
	delete(m.restored, job)
	m.mu.Unlock()
	of := prometheus.Labels{"job": label(job)}
	for _, v := range []interface{ DeletePartialMatch(prometheus.Labels) int }{
		m.triggered, m.attempts, m.duration, m.stall, m.stored, m.partial, m.full, m.checks, m.merges, m.events, m.restores, m.restoring,
	} {
		v.DeletePartialMatch(of)
	}
}

// reason keeps the label to the closed list of failures.
func reason(r string) string {
	switch f := snapshot.FailureReason(r); f {
	case snapshot.FailTimeout, snapshot.FailAborted, snapshot.FailInterrupted, snapshot.FailConnection, snapshot.FailPermission,
		snapshot.FailPause, snapshot.FailStall, snapshot.FailTracking, snapshot.FailKey, snapshot.FailState, snapshot.FailLease, snapshot.FailMemory, snapshot.FailStore, snapshot.FailInternal:
		return r
	case "":
		return "unrecorded" // the attempt failed before the store had a row of it
	}
	return "other"
}

// label is a job's name as a label: label values must be UTF-8.
func label(job string) string {
	if utf8.ValidString(job) {
		return job
	}
	return strconv.Quote(job)
}
