package backendtest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/keygroups"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// rescale is a change from 2 to 3 subtasks as the coordinator would make it.
type rescale struct {
	req    statebackend.RestoreRequest
	staged []snapshot.RecordedKey
}

func planRescale(t *testing.T, h Harness, id string) rescale {
	t.Helper()
	_, keys := cutOf(t, h, job)
	req := request(t, h, job, id)
	req.Scope = statebackend.ScopeOperator
	for _, k := range keys {
		if k.Key.Section == snapshot.SectionOperator {
			req.Unchanged = append(req.Unchanged, statebackend.KeySummary{Name: k.Key.Name, Type: k.Key.Type, Count: k.End.Count, Digest: k.End.Digest})
		}
	}
	req.Operators = []snapshot.OperatorState{{Operator: "source", Name: "told", Mode: snapshot.ModeUnion,
		Handed: &snapshot.Handed{Epoch: req.NewEpoch, Length: 4, Digest: "abcd"}}}
	req.Assignment = &statebackend.Assignment{MaxParallelism: 128, Parallelism: 3, Hash: keygroups.HashJava,
		Ranges: []keygroups.Range{{Subtask: 0, Start: 0, End: 42}, {Subtask: 1, Start: 43, End: 85}, {Subtask: 2, Start: 86, End: 127}}}
	req.Schemas = map[string]string{}
	var r snapshot.Recorder
	for subtask := range 3 {
		name := operatorName(job, subtask, "told")
		req.Schemas[name] = "java.lang.Long|2"
		var items []snapshot.RecordedElement
		for i := range 4 {
			v := fmt.Sprint(subtask*10 + i)
			items = append(items, snapshot.RecordedElement{Size: uint64(len(v)), Value: []byte(v)})
		}
		require.NoError(t, snapshot.Replay([]snapshot.RecordedKey{{
			Key:      snapshot.Key{Section: snapshot.SectionOperator, Name: []byte(name), Type: snapshot.TypeList, Count: 4},
			Elements: items}}, &r))
	}
	return rescale{req, r.Keys}
}

// fillUnion gives the job a union beside the fixture's list.
func fillUnion(t *testing.T, h Harness) {
	fill(t, h, job, "scope")
	for subtask := range 2 {
		name := operatorName(job, subtask, "told")
		do(t, h, cmd(statebackend.OpSAdd, job.Index(), name), cmd(statebackend.OpHSet, job.Registry(), name, "java.lang.Long|2"),
			cmd(statebackend.OpRPush, name, fmt.Sprint(subtask), "7"))
	}
	do(t, h, cmd(statebackend.OpHSet, job.OperatorStates(), "source\x01told", `{"mode":"union"}`))
}

func testOperatorScope(t *testing.T, h Harness) {
	fillUnion(t, h)
	before, keyed := cutOf(t, h, job)
	plan := planRescale(t, h, "s1")
	res := restoreKeys(t, h, plan.req, plan.staged)
	require.EqualValues(t, 3, res.Keys)
	require.EqualValues(t, 2, res.Removed, "the two parts of the list")

	cut, keys := cutOf(t, h, job)
	require.Equal(t, plan.req.NewEpoch, cut.Record.Epoch)
	require.Equal(t, "s1", cut.Record.Flipped)
	require.Equal(t, plan.req.NewEpoch, cut.Assigned.Epoch)
	require.Equal(t, plan.req.Assignment.Ranges, cut.Assigned.Ranges)
	require.Equal(t, plan.req.Operators, cut.Operators)
	require.NotEqual(t, before.Operators, cut.Operators)
	only := func(keys []snapshot.RecordedKey, s snapshot.Section) (some []snapshot.RecordedKey) {
		for _, k := range keys {
			if k.Key.Section == s {
				some = append(some, k)
			}
		}
		return some
	}
	require.Empty(t, snapshot.DiffKeys(only(keyed, snapshot.SectionKeyed), only(keys, snapshot.SectionKeyed)), "keyed state stays")
	require.Empty(t, snapshot.DiffKeys(plan.staged, only(keys, snapshot.SectionOperator)))
	registry := fields(t, h, job.Registry())
	require.NotContains(t, registry, operatorName(job, 0, "positions"))
	require.Equal(t, "java.lang.Long|2", registry[operatorName(job, 2, "told")])
	require.Equal(t, "java.lang.String|3", registry[laterName(job)])

	s, err := h.Backend.Stage(ctxOf(t), planRescale(t, h, "s2").req)
	require.NoError(t, err)
	require.Error(t, s.BeginKey(snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte("k"), Type: snapshot.TypeHash, Count: 1}), "only operator state")
	require.NoError(t, s.Abort(ctxOf(t)))
}

// operatorChanges are writes to operator state: each names the key that it
// changes, and some say how to undo it.
var operatorChanges = map[string]func(t *testing.T, h Harness) (name string, undo func()){
	"grew": func(t *testing.T, h Harness) (string, func()) {
		name := operatorName(job, 1, "positions")
		do(t, h, cmd(statebackend.OpRPush, name, "late"))
		return name, nil
	},
	"went": func(t *testing.T, h Harness) (string, func()) {
		name := operatorName(job, 0, "positions")
		do(t, h, cmd(statebackend.OpDel, name))
		return name, nil
	},
	"same length": func(t *testing.T, h Harness) (string, func()) {
		name := operatorName(job, 0, "told")
		do(t, h, cmd(statebackend.OpDel, name), cmd(statebackend.OpRPush, name, "7", "0"))
		return name, nil
	},
	"came": func(t *testing.T, h Harness) (string, func()) {
		name := operatorName(job, 2, "told")
		do(t, h, cmd(statebackend.OpSAdd, job.Index(), name), cmd(statebackend.OpRPush, name, "x"))
		return name, func() { do(t, h, cmd(statebackend.OpDel, name), cmd(statebackend.OpSRem, job.Index(), name)) }
	},
}

// testOperatorScopeChanged (I4): operator state that changed after the plan was
// made stops the flip.
func testOperatorScopeChanged(t *testing.T, h Harness) {
	fillUnion(t, h)
	i := 0
	for what, change := range operatorChanges {
		i++
		plan := planRescale(t, h, fmt.Sprintf("c%d", i))
		s := stageKeys(t, h, plan.req, plan.staged)
		name, undo := change(t, h)
		before := liveDump(t, h)
		_, err := s.Flip(ctxOf(t))
		require.ErrorIs(t, err, statebackend.ErrChanged, what)
		require.ErrorContains(t, err, fmt.Sprintf("%q", name), what)
		require.Equal(t, before, liveDump(t, h), what)
		require.NoError(t, s.Abort(ctxOf(t)))
		if undo != nil {
			undo()
		}
	}
}
