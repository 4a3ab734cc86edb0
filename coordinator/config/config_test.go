package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/keygroups"
	"keyframe/rescale"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// problemsOf are the lines of all problems in a configuration error, which
// must be one that callers can decide on.
func problemsOf(t *testing.T, err error) []string {
	t.Helper()
	require.Equal(t, fault.Config, fault.CodeOf(err), "%v", err)
	require.NotEmpty(t, fault.As(err).Hint)
	var ps Problems
	require.True(t, errors.As(err, &ps), "%v", err)
	var all []string
	for _, p := range ps {
		all = append(all, p.String())
		require.Contains(t, err.Error(), p.String())
	}
	return all
}

// file writes a file for a test and gives its path.
func file(t *testing.T, name, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	require.NoError(t, os.Chmod(path, mode)) // whatever the umask
	return path
}

func TestEmptyTextGivesDefaults(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing yet\n", "---\n", "redis:\nstore:\napi:\nlog:\njobs:\n"} {
		f, err := Parse([]byte(text))
		require.NoError(t, err, "%q", text)
		require.Equal(t, Defaults(), f, "%q", text)
	}
	require.NoError(t, Defaults().Validate())
}

func TestMinimalJobGetsItsDefaults(t *testing.T) {
	f, err := Parse([]byte("jobs:\n  - name: flights\n"))
	require.NoError(t, err)
	want := Job{
		Name: "flights", Prefix: "streaming:runtime", Parallelism: 1, MaxParallelism: 128,
		KeyGroups:     KeyGroups{Hash: keygroups.HashJava, KeyType: keygroups.KeyString, Ranges: keygroups.RangesLeading},
		OperatorState: OperatorState{Split: rescale.SplitEach},
		Checkpoint: Checkpoint{Timeout: Duration(5 * time.Minute), MaxPause: Duration(30 * time.Second), Grade: snapshot.GradeAuto,
			Incremental: new(true), MaxStall: Duration(50 * time.Millisecond), OnStall: statebackend.StallWait, SelfCheckEvery: new(100), TolerableMisses: new(2),
			Shrink: Shrink{Keys: new(0.5), Elements: new(0.5)}},
		Retention: Retention{Keep: 5},
		Recovery:  Recovery{OnStateLoss: LossRestore},
	}
	require.Equal(t, []Job{want}, f.Jobs)
	require.Equal(t, want, Job{Name: "flights"}.WithDefaults())
	require.True(t, Checkpoint{}.Increments(), "a job that was kept by an older version")
	require.Equal(t, 100, Checkpoint{}.SelfCheck())
	require.Equal(t, statebackend.Job{Prefix: "streaming:runtime", Name: "flights"}, want.Key())
	require.Equal(t, 128, want.Rule().MaxParallelism)
	require.NoError(t, want.Rule().Validate(want.Parallelism))
}

func TestEveryFieldIsRead(t *testing.T) {
	f, err := Parse([]byte(`
redis: {url: "unix:///run/redis.sock?db=3", tracking: keys}
store: {path: a.db, compactAbove: 3.5, onDamage: refuse}
api:   {listen: "unix:/run/keyframe.sock"}
log:   {level: debug, json: true}
lease: {ttl: 90s}
jobs:
  - name: "a:b c"
    prefix: other
    parallelism: 3
    maxParallelism: 10
    keyGroups: {hash: flink, keyType: long, ranges: flink}
    operatorState: {split: even}
    checkpoint: {schedule: "CRON_TZ=Europe/Berlin 30 2 * * *", minPause: 5s, timeout: 1m30s, maxPause: 250ms, grade: precopy,
      incremental: false, maxStall: 7ms, onStall: fail, maxReadRate: 50MB, selfCheckEvery: 0, tolerableMisses: 0,
      shrink: {keys: 0.75, elements: 0}}
    retention: {keep: 7, maxAge: 168h}
    recovery: {onStateLoss: hold}
    sources: [{topic: t1, group: g1}, {topic: t1, group: g2}]
`))
	require.NoError(t, err)
	require.Equal(t, File{
		Redis: Redis{URL: "unix:///run/redis.sock?db=3", Tracking: TrackKeys}, Store: Store{Path: "a.db", CompactAbove: 3.5, OnDamage: DamageRefuse, CheckCopies: CopyCheck{Every: Duration(time.Hour), Rate: 16 << 20}},
		API: API{Listen: "unix:/run/keyframe.sock", MaxImport: 16 << 30}, Log: Log{Level: "debug", JSON: true}, Lease: Lease{TTL: Duration(90 * time.Second)},
		Jobs: []Job{{
			Name: "a:b c", Prefix: "other", Parallelism: 3, MaxParallelism: 10,
			KeyGroups:     KeyGroups{Hash: keygroups.HashFlink, KeyType: keygroups.KeyLong, Ranges: keygroups.RangesFlink},
			OperatorState: OperatorState{Split: rescale.SplitEven},
			Checkpoint: Checkpoint{Schedule: "CRON_TZ=Europe/Berlin 30 2 * * *", MinPause: Duration(5 * time.Second),
				Timeout: Duration(90 * time.Second), MaxPause: Duration(250 * time.Millisecond), Grade: snapshot.GradePrecopy,
				Incremental: new(false), MaxStall: Duration(7 * time.Millisecond), OnStall: statebackend.StallFail, MaxReadRate: 50e6, SelfCheckEvery: new(0), TolerableMisses: new(0),
				Shrink: Shrink{Keys: new(0.75), Elements: new(0.0)}},
			Retention: Retention{Keep: 7, MaxAge: Duration(168 * time.Hour)},
			Recovery:  Recovery{OnStateLoss: LossHold},
			Sources:   []Source{{Topic: "t1", Group: "g1"}, {Topic: "t1", Group: "g2"}},
		}},
	}, f)
}

func TestWrongStructureIsReportedWhole(t *testing.T) {
	_, err := Parse([]byte(`
redis:
  uri: redis://h
store: keyframe.db
log:
  json: maybe
jobs:
  - name: [flights]
    parallelism: 1.5
    retention: {keep: five}
    checkpoint:
      timeout: 5
      minPause: 5x
      schedul: "@hourly"
    sources: {topic: t}
  -
  - name: b
    sources:
      - topic
extra: 1
`))
	require.Equal(t, []string{
		"line 3: redis.uri: unknown field; known are url, passwordFile, passwordEnv, caFile, certFile, keyFile, tracking",
		"line 4: store: want fields with values, found one value",
		"line 6: log.json: maybe: want true or false",
		"line 8: jobs[0].name: want one value, found a list",
		"line 9: jobs[0].parallelism: 1.5: want a whole number",
		"line 10: jobs[0].retention.keep: five: want a whole number",
		`line 12: jobs[0].checkpoint.timeout: duration "5": want a number with a unit, such as 30s, 5m or 168h`,
		`line 13: jobs[0].checkpoint.minPause: duration "5x": want a number with a unit, such as 30s, 5m or 168h`,
		"line 14: jobs[0].checkpoint.schedul: unknown field; known are schedule, minPause, timeout, maxPause, grade, incremental, maxStall, onStall, maxReadRate, selfCheckEvery, tolerableMisses, shrink",
		"line 15: jobs[0].sources: want a list (lines that begin with -), found fields",
		"jobs[1]: is empty: fill it or remove it",
		"line 19: jobs[2].sources[0]: want fields with values, found one value",
		"line 20: extra: unknown field; known are redis, store, api, log, drill, audit, alarms, lease, jobs",
	}, problemsOf(t, err))
}

func TestTextsThatAreNoYAML(t *testing.T) {
	for text, want := range map[string]string{
		"jobs:\n\t- name: x":          "line 2: ",
		"jobs: [{name: x\n":           "line 1: ",
		"- name: x":                   "want fields with values, found a list",
		"flights":                     "want fields with values, found one value",
		"store: {path: a, path: b}":   "already defined",
		"redis: *nowhere":             "nowhere",
		"log: {level: a}\n---\njobs:": "more than one YAML document",
		"jobs:\n - name: a\n   prefix: &p x\n   keyGroups: *p": "string was used where mapping is expected",
		"log: {level: \"a}": "line 1: ",
	} {
		_, err := Parse([]byte(text))
		require.Error(t, err, text)
		require.ErrorContains(t, err, want, text)
		require.Len(t, problemsOf(t, err), 1, text)
	}
}

func TestAnchorsAreAllowed(t *testing.T) {
	f, err := Parse([]byte("jobs:\n - name: a\n   retention: &r {keep: 9}\n - name: b\n   retention: *r\n - name: c\n   retention: {<<: *r, maxAge: 1h}\n"))
	require.NoError(t, err)
	require.Equal(t, []Retention{{Keep: 9}, {Keep: 9}, {Keep: 9, MaxAge: Duration(time.Hour)}},
		[]Retention{f.Jobs[0].Retention, f.Jobs[1].Retention, f.Jobs[2].Retention})
}

func TestLoadNamesTheFile(t *testing.T) {
	path := file(t, "k.yaml", "jobs:\n  - name: x\n    paralelism: 2\n", 0o600)
	_, err := Load(path)
	require.ErrorContains(t, err, "configuration "+path+": line 3: jobs[0].paralelism: unknown field")
	_, err = Load(filepath.Join(t.TempDir(), "none.yaml"))
	require.Equal(t, fault.Config, fault.CodeOf(err))
	require.ErrorContains(t, err, "none.yaml: no such file")
	_, err = Load(t.TempDir())
	require.Equal(t, fault.Config, fault.CodeOf(err))
	_, err = Load(file(t, "big.yaml", strings.Repeat("# big\n", maxText/6+1), 0o600))
	require.ErrorContains(t, err, "is larger than 8388608 bytes")
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "jobs:\n  - name: x\n", "redis: &a {url: x}\nstore: *a\n", "jobs: [{retention: {<<: 1}}]",
		"? [a]\n: b", "!!map {a: 1}", "jobs: [{name: !!int x}]", "a: &a [*a]", "- - -", "{\"name\":\"x\"}", "jobs: [&x {sources: *x}]"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if file, err := Parse(text); err == nil {
			require.NoError(t, file.Validate())
			require.NotEmpty(t, file.String())
		}
		if job, err := ParseJob(text); err == nil {
			require.NoError(t, job.Validate())
			require.NoError(t, job.Rule().Validate(job.Parallelism), "the key groups agree")
			require.NoError(t, job.Key().Validate())
		}
	})
}
