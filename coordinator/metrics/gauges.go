package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"keyframe/coordinator"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("keyframe_"+name, help, labels, nil)
}

// What Flink's checkpoint metrics give (number of completed, failed, in
// progress and all checkpoints; the last one's duration, size, full size, id,
// restore time, external path, processed data, completion time), as gauges of
// the last checkpoint and counters of attempts.
var (
	lastID        = desc("last_checkpoint_id", "Id of the newest completed checkpoint.", "job")
	lastDuration  = desc("last_checkpoint_duration_seconds", "Duration of the newest completed checkpoint.", "job")
	lastStall     = desc("last_checkpoint_stall_seconds", "How long writers waited for the newest completed checkpoint.", "job")
	lastStored    = desc("last_checkpoint_stored_bytes", "Bytes that were new in the newest completed checkpoint.", "job")
	lastFull      = desc("last_checkpoint_full_bytes", "All bytes that the newest completed checkpoint needs.", "job")
	lastLogical   = desc("last_checkpoint_logical_bytes", "Logical bytes of the state in the newest completed checkpoint.", "job")
	lastKeys      = desc("last_checkpoint_keys", "Keys in the newest completed checkpoint.", "job")
	lastElements  = desc("last_checkpoint_elements", "Elements in the newest completed checkpoint.", "job")
	lastMissing   = desc("last_checkpoint_missing_keys", "Indexed keys that did not exist.", "job")
	lastCompleted = desc("last_checkpoint_completed_timestamp_seconds", "When the newest checkpoint was completed.", "job")
	goodAge       = desc("last_checkpoint_age_seconds", "Age of the newest completed checkpoint.", "job")
	inProgress    = desc("checkpoints_in_progress", "1 while a checkpoint is being taken.", "job")
	failures      = desc("checkpoint_failures_in_a_row", "Failed attempts since the last completed checkpoint.", "job")
	skipped       = desc("skipped_ticks_total", "Times of the schedule that were skipped.", "job")
	health        = desc("job_health", "1 for the state that the job's health is in.", "job", "state")
	parallelism   = desc("job_parallelism", "Assigned parallelism.", "job")
	epoch         = desc("job_epoch", "Epoch: the fencing token.", "job")
	storeFile     = desc("store_file_bytes", "Size of the store file.")
	storeLive     = desc("store_live_bytes", "Bytes of chunks and manifests that are kept.")
	storeFree     = desc("store_free_bytes", "Bytes of pages that the next writes reuse.")
	storeCount    = desc("store_checkpoints", "Completed checkpoints in the store.")
	storeUp       = desc("store_up", "1 when the store could be asked.")
)

var allHealth = []coordinator.HealthState{
	coordinator.HealthStarting, coordinator.HealthOK, coordinator.HealthWaiting, coordinator.HealthUnreachable,
	coordinator.HealthLost, coordinator.HealthOlder, coordinator.HealthForeign, coordinator.HealthMismatch,
	coordinator.HealthMarked, coordinator.HealthDenied,
}

// scrapeTimeout bounds what one scrape asks the store.
const scrapeTimeout = 5 * time.Second

// Describe implements prometheus.Collector: unchecked, since which gauges
// there are depends on the jobs.
func (m *Metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	if m.jobs == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, j := range m.jobs() {
		m.collectJob(gauge, j)
		ch <- prometheus.MustNewConstMetric(skipped, prometheus.CounterValue, float64(j.SkippedTicks), j.Name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	s, err := m.store(ctx)
	if err != nil {
		gauge(storeUp, 0)
		return
	}
	gauge(storeUp, 1)
	gauge(storeFile, float64(s.FileBytes))
	gauge(storeLive, float64(s.LiveBytes))
	gauge(storeFree, float64(s.FreeBytes))
	gauge(storeCount, float64(s.Checkpoints))
}

func (m *Metrics) collectJob(gauge func(*prometheus.Desc, float64, ...string), j coordinator.JobStatus) {
	running := 0.0
	if j.Operation != nil && j.Operation.Kind == coordinator.OpCheckpoint {
		running = 1
	}
	gauge(inProgress, running, j.Name)
	gauge(failures, float64(j.Failures), j.Name)
	gauge(parallelism, float64(j.Parallelism), j.Name)
	gauge(epoch, float64(j.Epoch), j.Name)
	for _, h := range allHealth {
		v := 0.0
		if j.Health.State == h {
			v = 1
		}
		gauge(health, v, j.Name, string(h))
	}
	c := j.Last
	if c == nil || c.CompletedAt == nil {
		return
	}
	gauge(lastID, float64(c.ID), j.Name)
	gauge(lastDuration, float64(c.DurationMs)/1000, j.Name)
	gauge(lastStall, c.StallMs/1000, j.Name)
	gauge(lastStored, float64(c.StoredBytes), j.Name)
	gauge(lastFull, float64(c.FullBytes), j.Name)
	gauge(lastLogical, float64(c.Bytes), j.Name)
	gauge(lastKeys, float64(c.Keys), j.Name)
	gauge(lastElements, float64(c.Elements), j.Name)
	gauge(lastMissing, float64(c.Missing), j.Name)
	gauge(lastCompleted, float64(c.CompletedAt.UnixMilli())/1000, j.Name)
	gauge(goodAge, m.now().Sub(*c.CompletedAt).Seconds(), j.Name)
}
