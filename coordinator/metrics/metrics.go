// Package metrics shows the coordinator's figures to Prometheus.
package metrics

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"keyframe/coordinator"
	"keyframe/snapshot"
)

// Metrics is a Listener that counts what happens, and a collector that reads
// how jobs and the store stand when it is asked.
type Metrics struct {
	registry *prometheus.Registry
	jobs     func() []coordinator.JobStatus
	store    func(context.Context) (snapshot.StoreStats, error)
	now      func() time.Time

	attempts  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	stall     *prometheus.HistogramVec
	events    *prometheus.CounterVec
	restores  *prometheus.CounterVec
	restoring *prometheus.HistogramVec
}

var (
	_ coordinator.Listener = (*Metrics)(nil)
	_ prometheus.Collector = (*Metrics)(nil)
)

// New makes the metrics. Watch says where to read from; until then only what
// is counted shows.
func New(now func() time.Time) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), now: now}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "keyframe", Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "keyframe", Name: name, Help: help, Buckets: buckets}, labels)
	}
	m.attempts = counter("checkpoint_attempts_total", "Checkpoint attempts that ended, by outcome and reason of failure.", "job", "outcome", "reason")
	m.duration = histogram("checkpoint_duration_seconds", "Duration of completed checkpoints.", prometheus.ExponentialBuckets(0.01, 2, 18), "job")
	m.stall = histogram("checkpoint_stall_seconds", "How long writers waited because of a cut.", prometheus.ExponentialBuckets(0.00025, 2, 18), "job")
	m.events = counter("events_total", "Events by kind.", "job", "kind")
	m.restores = counter("restores_total", "Restores, recoveries and rescales that ended, by outcome.", "job", "kind", "outcome")
	m.restoring = histogram("restore_duration_seconds", "Duration of completed restores.", prometheus.ExponentialBuckets(0.01, 2, 18), "job")
	m.registry.MustRegister(m.attempts, m.duration, m.stall, m.events, m.restores, m.restoring, m,
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
	m.events.WithLabelValues(e.Job, string(e.Kind)).Inc()
	switch e.Kind {
	case coordinator.EventCheckpointCompleted:
		m.attempts.WithLabelValues(e.Job, "completed", "").Inc()
		if c := e.Checkpoint; c != nil {
			m.duration.WithLabelValues(e.Job).Observe(float64(c.DurationMs) / 1000)
			m.stall.WithLabelValues(e.Job).Observe(c.StallMs / 1000)
		}
	case coordinator.EventCheckpointFailed:
		m.attempts.WithLabelValues(e.Job, "failed", e.Reason).Inc()
	case coordinator.EventRestoreCompleted, coordinator.EventRecovered:
		kind := "restore"
		if e.Kind == coordinator.EventRecovered {
			kind = "recovery"
		}
		m.restores.WithLabelValues(e.Job, kind, "completed").Inc()
		if e.Restore != nil {
			m.restoring.WithLabelValues(e.Job).Observe(float64(e.Restore.DurationMs) / 1000)
		}
	case coordinator.EventRestoreFailed:
		m.restores.WithLabelValues(e.Job, "restore", "failed").Inc()
	case coordinator.EventRecoveryFailed:
		m.restores.WithLabelValues(e.Job, "recovery", "failed").Inc()
	case coordinator.EventRescaleCompleted:
		m.restores.WithLabelValues(e.Job, "rescale", "completed").Inc()
	case coordinator.EventRescaleFailed:
		m.restores.WithLabelValues(e.Job, "rescale", "failed").Inc()
	}
}
