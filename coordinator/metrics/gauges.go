package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"keyframe/coordinator"
	"keyframe/snapshot"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("keyframe_"+name, help, labels, nil)
}

// The twelve figures of Flink's checkpoint metrics, and where they are here:
//
//	lastCheckpointDuration          last_checkpoint_duration_seconds
//	lastCheckpointSize              last_checkpoint_stored_bytes
//	lastCheckpointFullSize          last_checkpoint_full_bytes
//	lastCompletedCheckpointId       last_checkpoint_id
//	lastCheckpointExternalPath      store_info{path}
//	lastCheckpointRestoreTimestamp  last_restore_timestamp_seconds
//	lastCheckpointProcessedData     last_checkpoint_logical_bytes
//	lastCheckpointPersistedData     last_checkpoint_stored_bytes (nothing else is persisted)
//	numberOfInProgressCheckpoints   checkpoints_in_progress
//	numberOfCompletedCheckpoints    checkpoint_attempts_total{outcome="completed"}
//	numberOfFailedCheckpoints       checkpoint_attempts_total{outcome="failed"}
//	totalNumberOfCheckpoints        checkpoints_triggered_total
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
	lastLayers    = desc("last_checkpoint_layers", "Layers that a restore of the newest completed checkpoint reads.", "job")
	lastRounds    = desc("last_checkpoint_rounds", "How often what had been written meanwhile was read again before the pause.", "job")
	goodAge       = desc("last_good_checkpoint_age_seconds", "Age of the newest restorable checkpoint.", "job")
	lastRestored  = desc("last_restore_timestamp_seconds", "When the state was last restored, recovered or rescaled, since the coordinator started.", "job")
	inProgress    = desc("checkpoints_in_progress", "1 while a checkpoint is being taken.", "job")
	failures      = desc("checkpoint_failures_in_a_row", "Failed attempts since the last completed checkpoint.", "job")
	skipped       = desc("skipped_ticks_total", "Times of the schedule that were skipped.", "job")
	inDoubt       = desc("checkpoints_in_doubt", "Checkpoints that are far smaller than the one before, and that nobody has accepted: nothing older is removed.", "job")
	health        = desc("job_health", "1 for the state that the job's health is in.", "job", "state")
	parallelism   = desc("job_parallelism", "Assigned parallelism.", "job")
	epoch         = desc("job_epoch", "Epoch: the fencing token.", "job")
	leads         = desc("job_leader", "1 while this coordinator leads the job, 0 while it stands by.", "job")
	leaderToken   = desc("job_leader_token", "Fencing token of the job's leader; grows with each takeover.", "job")
	storeFile     = desc("store_file_bytes", "Size of the store file.")
	storeLive     = desc("store_live_bytes", "Bytes of chunks and manifests that are kept.")
	storeFree     = desc("store_free_bytes", "Bytes of pages that the next writes reuse.")
	storeWaiting  = desc("store_waiting_bytes", "Bytes of deleted checkpoints that are being removed in the background.")
	storeRatio    = desc("store_file_live_ratio", "Size of the store file over what is live in it, 0 when nothing is.")
	storeCount    = desc("store_checkpoints", "Completed checkpoints in the store.")
	storeUp       = desc("store_up", "1 when the store could be asked.")
	storeWrites   = desc("store_writable", "1 while the store can be written, 0 when it has stopped until the next start.")
	storeDamaged  = desc("store_damaged_files", "Damaged files of this store that were kept aside, whether or not something of them was salvaged, and that nobody has moved away.")
	storeInfo     = desc("store_info", "Always 1: where the checkpoints are.", "path")
)

var allHealth = []coordinator.HealthState{
	coordinator.HealthStarting, coordinator.HealthOK, coordinator.HealthWaiting, coordinator.HealthUnreachable,
	coordinator.HealthLost, coordinator.HealthOlder, coordinator.HealthForeign, coordinator.HealthMismatch,
	coordinator.HealthMarked, coordinator.HealthDenied, coordinator.HealthDamaged, coordinator.HealthStandby, coordinator.HealthStore,
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
		ch <- prometheus.MustNewConstMetric(skipped, prometheus.CounterValue, float64(j.SkippedTicks), label(j.Name))
	}
	m.collectAlarms(ch)
	m.collectCopies(ch)
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	s, err := m.store(ctx)
	if err != nil {
		gauge(storeUp, 0)
		return
	}
	gauge(storeUp, 1)
	writable := 1.0
	if s.Stopped != "" {
		writable = 0
	}
	gauge(storeWrites, writable)
	gauge(storeDamaged, float64(len(s.Damaged)))
	gauge(storeFile, float64(s.FileBytes))
	gauge(storeLive, float64(s.LiveBytes))
	gauge(storeFree, float64(s.FreeBytes))
	gauge(storeWaiting, float64(s.WaitingBytes))
	gauge(storeRatio, s.Ratio)
	gauge(storeCount, float64(s.Checkpoints))
	gauge(storeInfo, 1, label(s.Path))
}

func (m *Metrics) collectJob(gauge func(*prometheus.Desc, float64, ...string), j coordinator.JobStatus) {
	name := label(j.Name)
	m.triggered.WithLabelValues(name) // zero is shown too
	m.attempts.WithLabelValues(name, "completed", "")
	m.partial.WithLabelValues(name)
	m.checks.WithLabelValues(name, "failed")
	m.mu.Lock()
	restored, ok := m.restored[j.Name]
	m.mu.Unlock()
	if ok {
		gauge(lastRestored, seconds(restored), name)
	}
	running := 0.0
	if j.Operation != nil && j.Operation.Kind == coordinator.OpCheckpoint {
		running = 1
	}
	gauge(inProgress, running, name)
	gauge(failures, float64(j.Failures), name)
	gauge(inDoubt, float64(len(j.InDoubt)), name)
	gauge(parallelism, float64(j.Parallelism), name)
	gauge(epoch, float64(j.Epoch), name)
	collectLeader(gauge, name, j.Leader)
	for _, h := range allHealth {
		v := 0.0
		if j.Health.State == h {
			v = 1
		}
		gauge(health, v, name, string(h))
	}
	if g := j.Good; g != nil && g.CompletedAt != nil {
		gauge(goodAge, m.now().Sub(*g.CompletedAt).Seconds(), name)
	}
	collectSilence(gauge, name, j)
	m.collectLast(gauge, name, j.Last)
}

// collectLeader shows whether this coordinator leads a job.
func collectLeader(gauge func(*prometheus.Desc, float64, ...string), name string, l *coordinator.Leader) {
	me, token := 0.0, 0.0
	if l != nil {
		token = float64(l.Token)
		if l.Me {
			me = 1
		}
	}
	gauge(leads, me, name)
	gauge(leaderToken, token, name)
}

// collectLast shows the newest completed checkpoint.
func (m *Metrics) collectLast(gauge func(*prometheus.Desc, float64, ...string), name string, c *snapshot.Checkpoint) {
	if c == nil || c.CompletedAt == nil {
		return
	}
	gauge(lastID, float64(c.ID), name)
	gauge(lastDuration, float64(c.DurationMs)/1000, name)
	gauge(lastStall, c.StallMs/1000, name)
	gauge(lastStored, float64(c.StoredBytes), name)
	gauge(lastFull, float64(c.FullBytes), name)
	gauge(lastLogical, float64(c.Bytes), name)
	gauge(lastKeys, float64(c.Keys), name)
	gauge(lastElements, float64(c.Elements), name)
	gauge(lastMissing, float64(c.Missing), name)
	gauge(lastLayers, float64(max(c.Layers, 1)), name)
	gauge(lastRounds, float64(c.Rounds), name)
	gauge(lastCompleted, seconds(*c.CompletedAt), name)
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
