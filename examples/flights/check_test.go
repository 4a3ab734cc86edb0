package flights

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// TestCheckFindsEachKindOfDifference spoils one thing after the other in the
// state of a finished job: each adds the difference that it should.
func TestCheckFindsEachKindOfDifference(t *testing.T) {
	store := memory.New(memory.Options{})
	_, err := Run(t.Context(), options(store, 2))
	require.NoError(t, err)
	report := checked(t, store, 2)

	key := statebackend.StringKey("MDT")
	_, group, err := rule().GroupOfKey(string(key))
	require.NoError(t, err)
	at := statebackend.Scope{Group: Group, Topic: Topic, Partition: group, Operator: Operator}
	state := func(name string) string { return testJob.KeyedKey(at, name, string(key)) }
	op := func(subtask int, name string) string {
		return testJob.OperatorKey(Group, Topic, subtask, SourceOperator, name)
	}
	stats, cmd := testJob.StateKey(at, Stats), statebackend.Command
	for _, c := range []struct {
		want  string
		spoil statebackend.Cmd
	}{
		{"MDT: count is 99, want", cmd(statebackend.OpHSet, stats, string(key), `{"count":99}`)},
		{"MDT: mean delay is 0.5", cmd(statebackend.OpHSet, stats, string(key), `{"mean":0.5}`)},
		{"MDT: total delay is 8", cmd(statebackend.OpHSet, stats, string(key), `{"total":8}`)},
		{"MDT: late is 77", cmd(statebackend.OpHSet, stats, string(key), `{"late":77}`)},
		{"MDT: value there is false, want true", cmd(statebackend.OpHDel, stats, string(key))},
		{"MDT: flights to DTW is 1234", cmd(statebackend.OpHSet, state(Routes), `"DTW"`, "1234")},
		{"MDT: flights to XXX is 1, want 0", cmd(statebackend.OpHSet, state(Routes), `"XXX"`, "1")},
		{"MDT: number of routes is 0", cmd(statebackend.OpDel, state(Routes))},
		{"MDT: number of last delays is", cmd(statebackend.OpRPush, state(Last), `{"index":20001,"delay":3}`)},
		{"MDT: seen XXX in the file is false", cmd(statebackend.OpSAdd, state(Seen), `"XXX"`)},
		{"MDT: number of destinations seen is 0", cmd(statebackend.OpDel, state(Seen))},
		{"number of keyed state keys is", cmd(statebackend.OpSRem, testJob.Index(), state(Last))},
		{"belongs to an airport is false", cmd(statebackend.OpSAdd, testJob.Index(), state("other"))},
		{"threshold of subtask 1 is 16", cmd(statebackend.OpHSet, op(1, Threshold), `"delay"`, "16")},
		{"threshold of subtask 0 there", cmd(statebackend.OpDel, op(0, Threshold))},
		{"is twice in the union of subtask 1", cmd(statebackend.OpRPush, op(1, Told), `{"subtask":0,"partition":1,"offset":500}`)},
		{"number of things told is", cmd(statebackend.OpRPush, op(1, Told), `{"subtask":0,"partition":1,"offset":501}`)},
		{"told at 500 is false, want true", cmd(statebackend.OpDel, op(1, Told))},
		{"told of subtask 2, beyond", cmd(statebackend.OpRPush, op(2, Told), `{"subtask":0,"partition":1,"offset":500}`)},
		{"in another part too is true", cmd(statebackend.OpRPush, op(1, Positions), `{"partition":0,"offset":700}`)},
		{"partitions with a position is 4", cmd(statebackend.OpDel, op(1, Positions))},
	} {
		require.False(t, differs(report, c.want), "before: %s", c.want)
		_, err := store.Do(t.Context(), c.spoil)
		require.NoError(t, err)
		report, err = Check(t.Context(), CheckOptions{Store: store, Job: testJob, Rule: rule(), Parallelism: 2})
		require.NoError(t, err)
		require.False(t, report.OK(), c.want)
		require.True(t, differs(report, c.want), c.want)
	}
}

// differs looks for a text in a report, which may be long.
func differs(r Report, text string) bool {
	return strings.Contains(strings.Join(r.Differences, "\n"), text)
}

func TestCheckOfNothing(t *testing.T) {
	report, err := Check(t.Context(), CheckOptions{Store: memory.New(memory.Options{}), Job: testJob, Rule: rule(), Parallelism: 2})
	require.NoError(t, err)
	require.False(t, report.OK())
	require.False(t, report.Complete)
	require.Contains(t, report.Differences, "partitions with a position is 0, want 8")
}
