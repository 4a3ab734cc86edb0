package config

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAllProblemsAtOnceWithTheirLines(t *testing.T) {
	_, err := Parse([]byte(`
store: {path: ""}
log: {level: loud}
jobs:
  - name: ""
    prefix: ""
    parallelism: 0
    maxParallelism: 40000
    keyGroups:
      hash: md5
      keyType: text
      ranges: even
    operatorState: {split: half}
    checkpoint:
      schedule: "@every 500ms"
      minPause: -1s
      timeout: 0s
      maxPause: -3m
      grade: best
      incremental: true
      maxStall: 0s
      onStall: pray
      maxReadRate: 1kB
      selfCheckEvery: -1
    retention:
      keep: 0
      maxAge: -1h
    recovery: {onStateLoss: pray}
    sources:
      - {topic: "", group: g}
      - {topic: t}
      - {topic: a, group: b}
      - {topic: a, group: b}
  - name: wide
    parallelism: 11
    maxParallelism: 10
`))
	require.Equal(t, []string{
		`line 2: store.path: "": give the path of the checkpoint store's file, such as keyframe.db`,
		`line 3: log.level: "loud": want one of trace, debug, info, warn, error`,
		`line 5: jobs[0].name: "": give the job a name`,
		`line 6: jobs[0].prefix: "": give the beginning of the job's keys, such as streaming:runtime, or leave the field out`,
		`line 7: jobs[0].parallelism: 0: give at least 1 subtask`,
		`line 8: jobs[0].maxParallelism: 40000: give at most 32768`,
		`line 10: jobs[0].keyGroups.hash: "md5": want one of java, flink`,
		`line 11: jobs[0].keyGroups.keyType: "text": want one of string, int, long`,
		`line 12: jobs[0].keyGroups.ranges: "even": want one of leading, flink`,
		`line 13: jobs[0].operatorState.split: "half": want one of each, even`,
		`line 15: jobs[0].checkpoint.schedule: "@every 500ms": 500ms is under one second: give a duration of at least one second, such as "@every 30s"`,
		`line 16: jobs[0].checkpoint.minPause: -1s: it is negative: give 0 for none, or a duration such as 5s`,
		`line 17: jobs[0].checkpoint.timeout: 0s: it is less than 1ms: give a duration such as 5m`,
		`line 18: jobs[0].checkpoint.maxPause: -3m0s: it is negative: give a duration such as 30s`,
		`line 19: jobs[0].checkpoint.grade: "best": want one of auto, precopy, paused`,
		`line 21: jobs[0].checkpoint.maxStall: 0s: it is less than 1ms: give a duration such as 50ms`,
		`line 22: jobs[0].checkpoint.onStall: "pray": want one of wait, fail`,
		`line 23: jobs[0].checkpoint.maxReadRate: 1kB: give 0 for no bound, or at least 64KiB`,
		`line 24: jobs[0].checkpoint.selfCheckEvery: -1: give 0 for never, or a number of checkpoints such as 100`,
		`line 26: jobs[0].retention.keep: 0: keep at least 1: without a checkpoint nothing can be restored`,
		`line 27: jobs[0].retention.maxAge: -1h0m0s: it is negative: give 0 for no limit, or a duration such as 168h`,
		`line 28: jobs[0].recovery.onStateLoss: "pray": want one of restore, hold`,
		`line 30: jobs[0].sources[0].topic: "": give the topic of the streams stream:topic:{topic}:p:{n}`,
		`line 31: jobs[0].sources[1].group: "": give the job's consumer group`,
		`line 33: jobs[0].sources[3]: sources[2] is the same topic "a" and group "b": remove one`,
		`line 35: jobs[1].parallelism: 11: it is above maxParallelism 10: lower it to at most 10, or raise maxParallelism if the job has no state yet`,
	}, problemsOf(t, err))
}

func TestJobsThatCannotBeToldApart(t *testing.T) {
	_, err := Parse([]byte(`
jobs:
  - {name: "b:c", prefix: a}
  - {name: c, prefix: "a:b"}
  - {name: c, prefix: other}
  - {name: d}
  - {name: "d ", prefix: "streaming:runtime"}
`))
	require.Equal(t, []string{
		`line 4: jobs[1].name: "c": its state would lie under "a:b:c", as that of jobs[0] "b:c" does: change the prefix or the name of one`,
		`line 5: jobs[2].name: "c": jobs[1] has the same name: give each job its own`,
	}, problemsOf(t, err))
}

func TestSchedulesThatCannotRun(t *testing.T) {
	for _, spec := range []string{"TZ=0", "CRON_TZ=UTC", "0 0 30 2 *", "@every 500ms", "@every -5m", "0 0 0 * * *", " "} {
		j := Job{Name: "flights", Checkpoint: Checkpoint{Schedule: spec}}.WithDefaults()
		problems := problemsOf(t, j.Validate())
		require.Len(t, problems, 1)
		require.Contains(t, problems[0], "checkpoint.schedule: "+text(spec))
		require.ErrorContains(t, j.Validate(), `job "flights"`)
	}
	require.NoError(t, Job{Name: "on demand"}.WithDefaults().Validate())
}

func TestParallelismWithoutAMaximum(t *testing.T) {
	for p, want := range map[int]int{1: 128, 85: 128, 86: 256, 200: 512, 32768: 32768} {
		j := Job{Name: "x", Parallelism: p}.WithDefaults()
		require.Equal(t, want, j.MaxParallelism, p)
		require.NoError(t, j.Validate())
	}
	for _, p := range []int{-1, 32769} { // one problem, not one about what follows from it too
		require.Len(t, problemsOf(t, Job{Name: "x", Parallelism: p, MaxParallelism: 128}.WithDefaults().Validate()), 1, p)
	}
	require.Len(t, problemsOf(t, Job{Name: "x", Parallelism: 99999}.WithDefaults().Validate()), 1)
	require.Len(t, problemsOf(t, Job{Name: "x", Parallelism: 2, MaxParallelism: -7}.WithDefaults().Validate()), 1)
}

func TestParseJob(t *testing.T) {
	want := Job{Name: "flights", Parallelism: 2, Retention: Retention{Keep: 3},
		Checkpoint: Checkpoint{Schedule: "@hourly", MinPause: Duration(5 * time.Second)}}.WithDefaults()
	for _, text := range []string{
		"name: flights\nparallelism: 2\nretention: {keep: 3}\ncheckpoint: {schedule: \"@hourly\", minPause: 5s}\n",
		"{\n\t\"name\": \"flights\",\n\t\"parallelism\": 2,\n\t\"retention\": {\"keep\": 3},\n\t\"checkpoint\": {\"schedule\": \"@hourly\", \"minPause\": \"5s\"}\n}",
		"{name: flights, parallelism: 2, retention: {keep: 3}, checkpoint: {schedule: '@hourly', minPause: 5s}}",
	} {
		j, err := ParseJob([]byte(text))
		require.NoError(t, err, text)
		require.Equal(t, want, j)
	}
}

func TestParseJobRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "the text is empty",
		" \n":                                   "the text is empty",
		"null":                                  "name: \"\": give the job a name",
		"[]":                                    "want a value of type",
		"name: x\nretension: {}":                "line 2: retension: unknown field",
		"name: x\nparallelism: 0":               "line 2: parallelism: 0: give at least 1 subtask",
		`{"name":"x","retension":{}}`:           `unknown field "retension"`,
		`{"name":"x","retention":{"keep":0}}`:   "retention.keep: 0: keep at least 1",
		`{"name":"x","retention":{"keep":"3"}}`: "retention.keep: string: want a value of type int",
		`{"name":"x","checkpoint":{"timeout":5}}`:           "want a string such as",
		`{"name":"x","checkpoint":{"timeout":"5"}}`:         "want a number with a unit",
		`{"name":"x","prefix":""}`:                          "prefix",
		"jobs:\n  - name: x":                                "line 1: jobs: unknown field",
		`{"name":"x"} {"name":"y"}`:                         "",
		"name: x\nkeyGroups: {hash: java}\n---\nname: y":    "more than one YAML document",
		"name: x\nsources: [{topic: t, group: g, from: 0}]": "line 2: sources[0].from: unknown field",
	} {
		_, err := ParseJob([]byte(text))
		require.Error(t, err, text)
		require.ErrorContains(t, err, want, text)
		require.Len(t, problemsOf(t, err), 1, text)
	}
}

func TestWithDefaultsIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := Job{Name: rapid.String().Draw(t, "name"), Parallelism: rapid.IntRange(-1, 40000).Draw(t, "p"),
			MaxParallelism: rapid.IntRange(-1, 40000).Draw(t, "g"), Retention: Retention{Keep: rapid.IntRange(-1, 9).Draw(t, "keep")}}
		once := j.WithDefaults()
		require.Equal(t, once, once.WithDefaults())
		// The two rules about parallelism agree.
		if valid := once.Rule().Validate(once.Parallelism) == nil; once.Name != "" && once.Retention.Keep > 0 {
			require.Equal(t, valid, once.Validate() == nil, "%v", once.Validate())
		}
	})
}

func TestProblemsInOneLineEach(t *testing.T) {
	require.Equal(t, "a.b: \"v\": no", Problem{Field: "a.b", Value: `"v"`, Message: "no"}.String())
	two := Problems{{Field: "x", Message: "1"}, {Line: 4, Message: "2"}}
	require.Equal(t, "2 problems\n  x: 1\n  line 4: 2", two.Error())
	require.Equal(t, 2, strings.Count(two.Error(), "\n"))
}

func TestAGradeThatTrackingRulesOut(t *testing.T) {
	_, err := Parse([]byte("redis: {tracking: off}\njobs: [{name: a, checkpoint: {grade: precopy}}]\n"))
	require.ErrorContains(t, err, "jobs[0].checkpoint.grade")
	require.ErrorContains(t, err, "redis.tracking is off")
	_, err = Parse([]byte("redis: {tracking: off}\njobs: [{name: a, checkpoint: {grade: auto}}]\n"))
	require.NoError(t, err)
}

// The in-process store's own grade would be refused at each checkpoint, and 0
// is no bound of reading in JSON too.
func TestWhatARedisCannotCut(t *testing.T) {
	_, err := Parse([]byte("jobs: [{name: a, checkpoint: {grade: snapshot}}]\n"))
	require.ErrorContains(t, err, "want one of auto, precopy, paused")
	job, err := ParseJob([]byte(`{"name":"a","checkpoint":{"maxReadRate":0}}`))
	require.NoError(t, err)
	require.Zero(t, job.Checkpoint.MaxReadRate)
	var r Rate
	require.NoError(t, r.UnmarshalJSON([]byte("0")))
	require.Error(t, r.UnmarshalJSON([]byte("5")))
}
