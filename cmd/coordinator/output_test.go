package main

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/coordinator"
	"keyframe/coordinator/api"
	"keyframe/coordinator/config"
	"keyframe/coordinator/rescaler"
	"keyframe/coordinator/restore"
	"keyframe/keygroups"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

var noon = time.Date(2026, 4, 5, 12, 0, 0, 0, time.UTC)

func TestUnitsForPeople(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1 << 20: "1.0 MiB", 3 << 30: "3.0 GiB", 1 << 40: "1.0 TiB", 1 << 63: "8192.0 PiB",
	} {
		require.Equal(t, want, size(n))
	}
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", 100000: "100,000"} {
		require.Equal(t, want, count(n))
	}
	require.Equal(t, "1m2.5s", millis(62500))
	require.Equal(t, "2026-04-05 12:00:00Z", when(noon.In(time.FixedZone("x", 5*3600))))
	require.Equal(t, "1h30m0s", since(noon.Add(-90*time.Minute-300*time.Millisecond), noon))
}

func TestCountOnlyAddsSeparators(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64().Draw(t, "n")
		s := count(n)
		require.Equal(t, strconv.FormatUint(n, 10), strings.ReplaceAll(s, ",", ""))
		for i, part := range strings.Split(s, ",") {
			require.True(t, len(part) == 3 || i == 0 && len(part) > 0 && len(part) < 4, s)
		}
	})
}

func TestNamesCantGarbleTheTerminal(t *testing.T) {
	for name, want := range map[string]string{
		"flights": "flights", "a b": "a b", "日本": "日本", "": "", "a\x1b[31m": `"a\x1b[31m"`, "a\nb": `"a\nb"`, "\u202ex": `"\u202ex"`,
		"\xff": `"\xff"`, " a": `" a"`, "a\u0085b": `"a\u0085b"`,
	} {
		require.Equal(t, want, quoted(name))
	}
	var out bytes.Buffer
	evil := snapshot.Checkpoint{ID: 3, Name: "x\x1b[2J", Note: "two\nlines", Job: "j\r", Bad: "\x07", State: snapshot.StateFailed,
		Failure: &snapshot.Failure{Reason: snapshot.FailKey, Message: "read key \x1b]0;title\x07"}}
	showDetail(&out, api.Detail{Checkpoint: evil}, noon)
	showJob(&out, api.Job{Name: "j\x1b", Root: "r\x1b", Last: &evil, Health: coordinator.Health{Message: "m\x1b"}}, noon)
	for _, r := range out.String() {
		require.True(t, r == '\n' || r >= ' ', "%q", out.String())
	}
}

// What is wrong with a job is read to its end, where the remedy stands.
func TestHealthIsShownToItsEnd(t *testing.T) {
	long := strings.Repeat("a long way to say it ", 20) + "and the remedy"
	var out bytes.Buffer
	showJob(&out, api.Job{Health: coordinator.Health{Message: long, Warnings: []string{"beware: " + long}}}, noon)
	require.Contains(t, out.String(), "\n                 "+long+"\n")
	require.Contains(t, out.String(), "warning          beware: "+long+"\n")
}

func TestTheDetailOfAJob(t *testing.T) {
	next, completed, due := noon.Add(90*time.Second), noon.Add(-time.Hour), noon.Add(-5*time.Minute)
	j := api.Job{
		Name: "flights", Root: "streaming:runtime:flights", Server: "redis://h:1/0", Parallelism: 12, MaxParallelism: 128, Epoch: 7, SkippedTicks: 3,
		Health: coordinator.Health{State: coordinator.HealthLost, Since: noon, Message: "the record is gone", Warnings: []string{"maxmemory-policy is allkeys-lru"}},
		Config: config.Job{Checkpoint: config.Checkpoint{Schedule: "@hourly"}}, NextCheckpoint: &next, Failures: 2, Undo: 4,
		DueAt: &due, Overdue: true,
		Leader:    &coordinator.Leader{ID: "0a1b", Host: "h2\x1b", Address: "127.0.0.1:7071", Since: noon, Token: 9},
		Last:      &snapshot.Checkpoint{ID: 5, Name: "sp", StartedAt: completed, Keys: 1234, Elements: 56789},
		Recovery:  &coordinator.RecoveryStatus{Since: noon, Attempts: 6, LastError: "no room"},
		Operation: &coordinator.Status{ID: "op-1", Kind: coordinator.OpRecovery, Progress: coordinator.Progress{Phase: "stage"}},
	}
	for i := range 12 {
		j.Ranges = append(j.Ranges, keygroups.Range{Subtask: i, Start: i * 10, End: i*10 + 9})
	}
	var out bytes.Buffer
	showJob(&out, j, noon)
	require.Equal(t, `job              flights
state            redis://h:1/0 under streaming:runtime:flights
health           lost since 2026-04-05 12:00:00Z
                 the record is gone
warning          maxmemory-policy is allkeys-lru
leader           another coordinator (0a1b) on "h2\x1b", API at 127.0.0.1:7071, since 2026-04-05 12:00:00Z, token 9
epoch            7
parallelism      12 of at most 128
                 subtask 0: key groups 0 to 9
                 subtask 1: key groups 10 to 19
                 subtask 2: key groups 20 to 29
                 subtask 3: key groups 30 to 39
                 subtask 4: key groups 40 to 49
                 subtask 5: key groups 50 to 59
                 subtask 6: key groups 60 to 69
                 subtask 7: key groups 70 to 79
                 … and 4 more
schedule         @hourly, next in 1m30s; 3 times skipped
last checkpoint  5 sp, 1h0m0s old, 1,234 keys, 56,789 elements
failures         2 in a row
due              OVERDUE since 2026-04-05 11:55:00Z (5m0s)
undo             would restore checkpoint 4
recovering       since 2026-04-05 12:00:00Z, 6 attempts; last error: no room
now              recovery op-1: stage
`, out.String())
}

func TestWhatIsDueOfAJob(t *testing.T) {
	due := noon.Add(5 * time.Minute)
	for want, j := range map[string]api.Job{
		"due              a good checkpoint by 2026-04-05 12:05:00Z\n": {DueAt: &due},
		"due              nothing: paused\n":                           {NotDue: "paused"},
		"":                                                             {},
	} {
		var out bytes.Buffer
		showDue(&out, j, noon)
		require.Equal(t, want, out.String())
	}
}

func TestTablesOfPlans(t *testing.T) {
	var out bytes.Buffer
	showRestorePlan(&out, restore.Plan{
		Job: "b", From: "a", Checkpoint: 3, AgeMs: 90_000, Keys: 12, Elements: 1234, Bytes: 5 << 20, Removed: 2, Expired: 1, Missing: 4, EpochFrom: 6, Epoch: 7,
		States:          []restore.StatePlan{{Operator: "count", State: "total", Type: "hash", Keys: 10, Elements: 1200, Bytes: 5 << 20, Remove: 2, Expired: 1}, {Type: "list", Keys: 2, Elements: 34, Bytes: 100}},
		Assignment:      &statebackend.Assignment{Parallelism: 2},
		LiveParallelism: 3, Warnings: []string{"careful"},
	})
	require.Equal(t, `Restore checkpoint 3 of job a (1m30s old) into job b:
 OPERATOR      STATE  TYPE  KEYS  ELEMENTS     SIZE  REMOVE  EXPIRED 
─────────────────────────────────────────────────────────────────────
 count         total  hash    10     1,200  5.0 MiB       2        1 
 (not parsed)         list     2        34    100 B       0        0 
─────────────────────────────────────────────────────────────────────
                              12     1,234  5.0 MiB       2        1 
epoch 6 → 7; 4 indexed names without a key; 0 source positions
parallelism 3 → 2, as the checkpoint has it
warning: careful
`, out.String())

	out.Reset()
	showRescalePlan(&out, rescaler.Plan{
		Job: "a", From: 1, To: 2, MaxParallelism: 10, Base: 9, SkewBefore: 1, SkewAfter: 1.25,
		Ranges:        []rescaler.RangePlan{{Range: keygroups.Range{Subtask: 0, Start: 0, End: 4}, Keys: 5, Elements: 50, Bytes: 2048}, {Range: keygroups.Range{Subtask: 1, Start: 5, End: 9}}},
		Moved:         []keygroups.Move{{Start: 5, End: 9, From: 0, To: 1}},
		OperatorState: []rescaler.OperatorPlan{{Operator: "src", Name: "pos", Mode: snapshot.ModeList, Before: []int{3}, After: []int{2, 1}}},
	})
	require.Equal(t, `Rescale job a from 1 to 2 of at most 10 (from checkpoint 9):
 SUBTASK  KEY GROUPS  KEYS  ELEMENTS     SIZE 
──────────────────────────────────────────────
       0  0 to 4         5        50  2.0 KiB 
       1  5 to 9         0         0      0 B 
5 key groups change their subtask; skew (fullest to mean) 1.00 → 1.25
 OPERATOR  STATE  MODE  ITEMS BEFORE  ITEMS AFTER 
──────────────────────────────────────────────────
 src       pos    list  [3]           [2 1]       
`, out.String())
}
