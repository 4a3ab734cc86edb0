package flights

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// TestCheckFindsEachKindOfDifference spoils one thing at a time in the state of
// a job that is under way.
func TestCheckFindsEachKindOfDifference(t *testing.T) {
	begun := func() statebackend.Store {
		store := memory.New(memory.Options{})
		o := options(store, 2)
		o.Limit = 6000 // every partition is beyond the first thing that is told
		_, err := Run(t.Context(), o)
		require.NoError(t, err)
		return store
	}
	clean := checked(t, begun(), 2)

	key := statebackend.StringKey("MDT")
	_, group, err := rule().GroupOfKey(string(key))
	require.NoError(t, err)
	at := statebackend.Scope{Group: Group, Topic: Topic, Partition: group, Operator: Operator}
	state := func(name string) string { return testJob.KeyedKey(at, name, string(key)) }
	op := func(subtask int, name string) string {
		return testJob.OperatorKey(Group, Topic, subtask, SourceOperator, name)
	}
	cmd := statebackend.Command
	for want, spoil := range map[string]statebackend.Cmd{
		"MDT: value there is false, want true": cmd(statebackend.OpHDel, testJob.StateKey(at, Stats), string(key)),
		"MDT: count is 99, want":               cmd(statebackend.OpHSet, testJob.StateKey(at, Stats), string(key), `{"count":99,"total":1,"mean":0.5,"late":0}`),
		"MDT: mean delay is 0.5":               cmd(statebackend.OpHSet, testJob.StateKey(at, Stats), string(key), `{"count":99,"total":1,"mean":0.5,"late":0}`),
		"MDT: late is 77":                      cmd(statebackend.OpHSet, testJob.StateKey(at, Stats), string(key), `{"count":9,"total":1,"mean":0.5,"late":77}`),
		"MDT: flights to DTW is 1234":          cmd(statebackend.OpHSet, state(Routes), `"DTW"`, "1234"),
		"MDT: flights to XXX is 1, want 0":     cmd(statebackend.OpHSet, state(Routes), `"XXX"`, "1"),
		"MDT: number of routes is 0":           cmd(statebackend.OpDel, state(Routes)),
		"MDT: number of last delays is":        cmd(statebackend.OpRPush, state(Last), `{"index":20001,"delay":3}`),
		"MDT: seen XXX in the file is false":   cmd(statebackend.OpSAdd, state(Seen), `"XXX"`),
		"number of destinations seen is 0":     cmd(statebackend.OpDel, state(Seen)),
		"belongs to an airport is false":       cmd(statebackend.OpSAdd, testJob.Index(), state("other")),
		"number of keyed state keys is":        cmd(statebackend.OpSRem, testJob.Index(), state(Last)),
		"in another part too is true":          cmd(statebackend.OpRPush, op(1, Positions), `{"partition":0,"offset":2500}`),
		"partitions with a position is 4":      cmd(statebackend.OpDel, op(1, Positions)),
		"threshold of subtask 1 is 16":         cmd(statebackend.OpHSet, op(1, Threshold), `"delay"`, "16"),
		"threshold of subtask 0 there":         cmd(statebackend.OpDel, op(0, Threshold)),
		"is twice in the union of subtask 1":   cmd(statebackend.OpRPush, op(1, Told), `{"subtask":0,"partition":1,"offset":500}`),
		"number of things told is":             cmd(statebackend.OpRPush, op(1, Told), `{"subtask":0,"partition":1,"offset":501}`),
		"told at 500 is false, want true":      cmd(statebackend.OpDel, op(1, Told)),
		"told of subtask 2, beyond":            cmd(statebackend.OpRPush, op(2, Told), `{"subtask":0,"partition":1,"offset":500}`),
	} {
		spoiled := begun()
		_, err = spoiled.Do(t.Context(), spoil)
		require.NoError(t, err)
		report, err := Check(t.Context(), CheckOptions{Store: spoiled, Job: testJob, Rule: rule(), Parallelism: 2})
		require.NoError(t, err)
		require.False(t, report.OK(), want)
		require.Contains(t, strings.Join(report.Differences, "\n"), want)
		require.LessOrEqual(t, len(report.Differences), clean.Checks)
	}
}

func TestCheckOfNothing(t *testing.T) {
	report, err := Check(t.Context(), CheckOptions{Store: memory.New(memory.Options{}), Job: testJob, Rule: rule(), Parallelism: 2})
	require.NoError(t, err)
	require.False(t, report.OK())
	require.False(t, report.Complete)
	require.Contains(t, report.Differences, "partitions with a position is 0, want 8")
}
