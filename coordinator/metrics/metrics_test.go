package metrics

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/coordinator"
	"keyframe/coordinator/restore"
	"keyframe/snapshot"
)

var (
	now       = time.Date(2026, 4, 5, 6, 7, 8, 0, time.UTC)
	completed = now.Add(-90 * time.Second)
	good      = now.Add(-10 * time.Minute)
)

// lastCheckpoint has another number in every field.
func lastCheckpoint() *snapshot.Checkpoint {
	return &snapshot.Checkpoint{
		Job: "flights", ID: 41, State: snapshot.StateCompleted, StartedAt: completed.Add(-2500 * time.Millisecond), CompletedAt: &completed,
		DurationMs: 2500, StallMs: 1.75, Keys: 11, Elements: 222, Bytes: 3333, StoredBytes: 444, FullBytes: 5555, Missing: 6,
		Bad: "damaged", Layers: 12, Rounds: 13,
	}
}

func jobs() []coordinator.JobStatus {
	return []coordinator.JobStatus{
		{
			Name: "flights", Parallelism: 3, Epoch: 7, SkippedTicks: 8, Failures: 9,
			Health: coordinator.Health{State: coordinator.HealthLost}, Last: lastCheckpoint(),
			Good:      &snapshot.Checkpoint{ID: 40, CompletedAt: &good},
			Operation: &coordinator.Status{Kind: coordinator.OpCheckpoint},
		},
		{Name: `of "x"` + "\n\\y", Parallelism: 1, Health: coordinator.Health{State: coordinator.HealthOK}, Operation: &coordinator.Status{Kind: coordinator.OpVerify}},
	}
}

func stats(context.Context) (snapshot.StoreStats, error) {
	return snapshot.StoreStats{Path: "/var/lib/keyframe.db", FileBytes: 900, LiveBytes: 700, FreeBytes: 100, Ratio: 1.5, WaitingBytes: 60, WaitingChunks: 3, Checkpoints: 5, Attempts: 6}, nil
}

func watched() *Metrics {
	m := New(func() time.Time { return now })
	m.Watch(jobs, stats)
	return m
}

// scrape gives the samples of /metrics by their series.
func scrape(t require.TestingT, m *Metrics) map[string]float64 {
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, 200, rec.Code, rec.Body)
	text, err := io.ReadAll(rec.Body)
	require.NoError(t, err)
	samples := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		require.Positive(t, at, line)
		v, err := strconv.ParseFloat(line[at+1:], 64)
		require.NoError(t, err, line)
		require.NotContains(t, samples, line[:at])
		samples[line[:at]] = v
	}
	return samples
}

// ours are the series of a job, without those that are 0.
func ours(samples map[string]float64, job string) map[string]float64 {
	found := map[string]float64{}
	for name, v := range samples {
		if strings.Contains(name, "job="+strconv.Quote(job)) && v != 0 {
			found[strings.Replace(name, "job="+strconv.Quote(job), "", 1)] = v
		}
	}
	return found
}

func TestGaugesOfJobsAndStore(t *testing.T) {
	m := watched()
	samples := scrape(t, m)
	require.Equal(t, map[string]float64{
		"keyframe_last_checkpoint_id{}": 41, "keyframe_last_checkpoint_duration_seconds{}": 2.5, "keyframe_last_checkpoint_stall_seconds{}": 0.00175,
		"keyframe_last_checkpoint_stored_bytes{}": 444, "keyframe_last_checkpoint_full_bytes{}": 5555, "keyframe_last_checkpoint_logical_bytes{}": 3333,
		"keyframe_last_checkpoint_keys{}": 11, "keyframe_last_checkpoint_elements{}": 222, "keyframe_last_checkpoint_missing_keys{}": 6,
		"keyframe_last_checkpoint_layers{}": 12, "keyframe_last_checkpoint_rounds{}": 13,
		"keyframe_last_checkpoint_completed_timestamp_seconds{}": float64(completed.Unix()),
		"keyframe_last_good_checkpoint_age_seconds{}":            600, // not that of the damaged one
		"keyframe_checkpoints_in_progress{}":                     1, "keyframe_checkpoint_failures_in_a_row{}": 9, "keyframe_skipped_ticks_total{}": 8,
		`keyframe_job_health{,state="lost"}`: 1, "keyframe_job_parallelism{}": 3, "keyframe_job_epoch{}": 7,
	}, ours(samples, "flights"))
	for name, want := range map[string]float64{
		"keyframe_store_file_bytes": 900, "keyframe_store_live_bytes": 700, "keyframe_store_free_bytes": 100, "keyframe_store_waiting_bytes": 60, "keyframe_store_file_live_ratio": 1.5, "keyframe_store_checkpoints": 5,
		"keyframe_store_up": 1, `keyframe_store_info{path="/var/lib/keyframe.db"}`: 1,
	} {
		require.InDelta(t, want, samples[name], 0, name)
	}
	other := ours(samples, `of "x"`+"\n\\y")
	require.Equal(t, map[string]float64{`keyframe_job_health{,state="ok"}`: 1, "keyframe_job_parallelism{}": 1}, other, "a job without a checkpoint has none of its figures")
	require.Contains(t, samples, "go_goroutines")
}

// TestTheTwelveFiguresOfFlink maps the names of Flink's checkpoint metrics to
// ours; all must be there after one checkpoint, one failure and one restore.
func TestTheTwelveFiguresOfFlink(t *testing.T) {
	m := watched()
	tell(m)
	samples := scrape(t, m)
	of := `{job="flights"`
	figures := map[string]struct {
		series string
		want   float64
	}{
		"lastCheckpointDuration":         {"keyframe_last_checkpoint_duration_seconds" + of + "}", 2.5},
		"lastCheckpointSize":             {"keyframe_last_checkpoint_stored_bytes" + of + "}", 444},
		"lastCheckpointFullSize":         {"keyframe_last_checkpoint_full_bytes" + of + "}", 5555},
		"lastCompletedCheckpointId":      {"keyframe_last_checkpoint_id" + of + "}", 41},
		"lastCheckpointExternalPath":     {`keyframe_store_info{path="/var/lib/keyframe.db"}`, 1},
		"lastCheckpointRestoreTimestamp": {"keyframe_last_restore_timestamp_seconds" + of + "}", float64(now.Unix())},
		"lastCheckpointProcessedData":    {"keyframe_last_checkpoint_logical_bytes" + of + "}", 3333},
		"lastCheckpointPersistedData":    {"keyframe_last_checkpoint_stored_bytes" + of + "}", 444},
		"numberOfInProgressCheckpoints":  {"keyframe_checkpoints_in_progress" + of + "}", 1},
		"numberOfCompletedCheckpoints":   {"keyframe_checkpoint_attempts_total" + of + `,outcome="completed",reason=""}`, 2},
		"numberOfFailedCheckpoints":      {"keyframe_checkpoint_attempts_total" + of + `,outcome="failed",reason="timeout"}`, 1},
		"totalNumberOfCheckpoints":       {"keyframe_checkpoints_triggered_total" + of + "}", 4},
	}
	require.Len(t, figures, 12)
	for flink, f := range figures {
		got, there := samples[f.series]
		require.True(t, there, "%s: no series %s", flink, f.series)
		require.InDelta(t, f.want, got, 0, flink)
	}
}

// tell sends what happens to a job in an hour.
func tell(m *Metrics) {
	for range 4 {
		m.OnEvent(coordinator.Event{Kind: coordinator.EventCheckpointStarted, Job: "flights", At: now})
	}
	slow := lastCheckpoint()
	slow.DurationMs, slow.StallMs = 70_000, 0.3
	for _, c := range []*snapshot.Checkpoint{lastCheckpoint(), slow} {
		m.OnEvent(coordinator.Event{Kind: coordinator.EventCheckpointCompleted, Job: "flights", Checkpoint: c, At: now})
	}
	m.OnEvent(coordinator.Event{Kind: coordinator.EventCheckpointFailed, Job: "flights", Reason: string(snapshot.FailTimeout), At: now})
	m.OnEvent(coordinator.Event{Kind: coordinator.EventCheckpointFailed, Job: "flights", At: now})
	m.OnEvent(coordinator.Event{Kind: coordinator.EventRestoreFailed, Job: "flights", At: now.Add(time.Hour)})
	m.OnEvent(coordinator.Event{Kind: coordinator.EventRecovered, Job: "flights", At: now, Restore: &restore.Result{DurationMs: 300}})
}

func TestHistogramsAndCounters(t *testing.T) {
	m := watched()
	tell(m)
	s := scrape(t, m)
	of := `{job="flights"`
	require.InDelta(t, 72.5, s["keyframe_checkpoint_duration_seconds_sum"+of+"}"], 1e-9)
	require.InDelta(t, 2, s["keyframe_checkpoint_duration_seconds_count"+of+"}"], 0)
	require.InDelta(t, 0, s["keyframe_checkpoint_duration_seconds_bucket"+of+`,le="1.28"}`], 0)
	require.InDelta(t, 1, s["keyframe_checkpoint_duration_seconds_bucket"+of+`,le="2.56"}`], 0)
	require.InDelta(t, 0.00205, s["keyframe_checkpoint_stall_seconds_sum"+of+"}"], 1e-9)
	require.InDelta(t, 1, s["keyframe_checkpoint_stall_seconds_bucket"+of+`,le="0.0005"}`], 0)
	require.InDelta(t, 0.3, s["keyframe_restore_duration_seconds_sum"+of+"}"], 1e-9)
	require.InDelta(t, 1, s["keyframe_checkpoint_attempts_total"+of+`,outcome="failed",reason="unrecorded"}`], 0)
	require.InDelta(t, 1, s["keyframe_restores_total"+of+`,kind="recovery",outcome="completed"}`], 0)
	require.InDelta(t, 1, s["keyframe_restores_total"+of+`,kind="restore",outcome="failed"}`], 0)
	require.InDelta(t, 4, s["keyframe_events_total"+of+`,kind="checkpoint_started"}`], 0)
	require.InDelta(t, float64(now.Unix()), s["keyframe_last_restore_timestamp_seconds"+of+"}"], 0, "a failed restore restored nothing")
}

func TestAStoreThatFailsDoesntFailTheScrape(t *testing.T) {
	m := New(func() time.Time { return now })
	require.NotContains(t, scrape(t, m), "keyframe_store_up", "before Watch there is nothing to ask")
	m.Watch(jobs, func(context.Context) (snapshot.StoreStats, error) { return snapshot.StoreStats{}, errors.New("disk") })
	s := scrape(t, m)
	require.Contains(t, s, "keyframe_store_up")
	require.InDelta(t, 0, s["keyframe_store_up"], 0)
	require.NotContains(t, s, "keyframe_store_file_bytes")
	require.Contains(t, s, `keyframe_last_checkpoint_id{job="flights"}`)
}

// TestLabelsAreBounded: whatever events say, the number of series depends only
// on the jobs that there are.
func TestLabelsAreBounded(t *testing.T) {
	series := func(m *Metrics, job string) int {
		n := 0
		for name := range scrape(t, m) {
			if strings.Contains(name, "job="+strconv.Quote(job)) {
				n++
			}
		}
		return n
	}
	m := New(func() time.Time { return now })
	all := []coordinator.EventKind{
		coordinator.EventCheckpointStarted, coordinator.EventCheckpointCompleted, coordinator.EventCheckpointFailed,
		coordinator.EventRestoreCompleted, coordinator.EventRescaleFailed, coordinator.EventTickSkipped, coordinator.EventHealthChanged,
	}
	burst := func(job string) {
		for i := range 300 {
			for _, kind := range all {
				m.OnEvent(coordinator.Event{
					Kind: kind, Job: job, ID: snapshot.ID(i), Operation: fmt.Sprint("op-", i), Reason: fmt.Sprint("reason ", i), Message: fmt.Sprint("message ", i), At: now,
				})
			}
		}
	}
	burst("kept")
	once := series(m, "kept")
	burst("kept")
	require.Equal(t, once, series(m, "kept"))
	require.Less(t, once, 40)
	require.InDelta(t, 600, scrape(t, m)[`keyframe_checkpoint_attempts_total{job="kept",outcome="failed",reason="other"}`], 0)
	for i := range 50 {
		job := fmt.Sprint("gone ", i)
		burst(job)
		m.OnEvent(coordinator.Event{Kind: coordinator.EventJobDeleted, Job: job})
		require.Zero(t, series(m, job), "series of a deleted job go")
	}
	require.Equal(t, once, series(m, "kept"))
}

func TestEveryFailureReasonIsKept(t *testing.T) {
	all := constants(t, "../../snapshot/checkpoint.go", "FailureReason")
	require.Greater(t, len(all), 5)
	for _, r := range all {
		require.Equal(t, r, reason(r))
	}
	require.Equal(t, "other", reason("anything else"))
	require.Equal(t, "unrecorded", reason(""))
}

func TestAnyJobNameMakesAScrape(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.OneOf(
			rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		), 1, 4, rapid.ID[string]).Draw(t, "names")
		m := New(func() time.Time { return now })
		m.Watch(func() []coordinator.JobStatus {
			var all []coordinator.JobStatus
			for _, n := range names {
				all = append(all, coordinator.JobStatus{Name: n, Parallelism: 1, Last: lastCheckpoint()})
			}
			return all
		}, stats)
		for _, n := range names {
			m.OnEvent(coordinator.Event{Kind: coordinator.EventCheckpointCompleted, Job: n, Checkpoint: lastCheckpoint()})
		}
		n := 0
		for name := range scrape(t, m) {
			if strings.HasPrefix(name, "keyframe_last_checkpoint_id{") {
				n++
			}
		}
		require.Equal(t, len(names), n)
	})
}

// constants are the values of all constants of a type in a source file.
func constants(t *testing.T, file, typ string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	require.NoError(t, err)
	var all []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			if id, ok := v.Type.(*ast.Ident); ok && id.Name == typ {
				text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				require.NoError(t, err)
				all = append(all, text)
			}
		}
		return true
	})
	slices.Sort(all)
	return all
}

func TestEveryHealthIsShown(t *testing.T) {
	var shown []string
	for name := range scrape(t, watched()) {
		if state, ok := strings.CutPrefix(name, `keyframe_job_health{job="flights",state="`); ok {
			shown = append(shown, strings.TrimSuffix(state, `"}`))
		}
	}
	slices.Sort(shown)
	want := constants(t, "../guard.go", "HealthState")
	require.Greater(t, len(want), 5)
	require.Equal(t, want, shown)
}

func TestNamesFollowTheRulesOfPrometheus(t *testing.T) {
	m := watched()
	tell(m)
	problems, err := testutil.GatherAndLint(m.registry)
	require.NoError(t, err)
	for _, p := range problems {
		// The Go collectors' own names are theirs.
		require.NotContains(t, p.Metric, "keyframe_", "%s", p.Text)
	}
}
