package rescaler

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/keygroups"
	"keyframe/rescale"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// refuses requires that both Plan and Run refuse, with a code and values, and
// that nothing has changed.
func refuses(t *testing.T, w *world, req Request, code fault.Code, says ...string) *fault.Error {
	t.Helper()
	ctx := context.Background()
	keys := w.backend.(*memory.Store).Keys()
	before, err := w.store.List(ctx, w.job.Name)
	require.NoError(t, err)
	_, planErr := w.exec.Plan(ctx, req)
	_, err = w.exec.Run(ctx, req, nil)
	for _, err := range []error{planErr, err} {
		require.Error(t, err)
		require.Equal(t, code, fault.CodeOf(err), "%v", err)
		for _, s := range says {
			require.ErrorContains(t, err, s)
		}
	}
	require.ElementsMatch(t, keys, w.backend.(*memory.Store).Keys(), "nothing is written")
	after, lerr := w.store.List(ctx, w.job.Name)
	require.NoError(t, lerr)
	require.Equal(t, before, after, "no attempt is begun")
	w.noTraces(t)
	return fault.As(err)
}

func TestTargetGuards(t *testing.T) {
	w := newWorld(t, 2)
	w.seed(t)
	w.take(t)
	refuses(t, w, Request{Job: w.job, To: 12}, fault.Refused, "parallelism 12 is above its max parallelism 11")
	refuses(t, w, Request{Job: w.job, To: 2}, fault.Refused, "parallelism 2 already: nothing to do")
	refuses(t, w, Request{Job: w.job, To: 0}, fault.Usage, "parallelism 0")
	refuses(t, w, Request{Job: w.job, To: -3}, fault.Usage, "parallelism -3")
}

func TestSourceGuard(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, 2)
	w.seed(t)
	w.take(t)
	w.do(t, statebackend.Command(statebackend.OpHSet, "streaming:mq:topic:in:meta", "partitionCount", "4"))
	w.job.Sources = []config.Source{{Topic: "other", Group: "stats"}, {Topic: "in", Group: "stats"}}
	f := refuses(t, w, Request{Job: w.job, To: 5}, fault.Refused, `source "in" has 4 partitions`, "the new parallelism 5")
	require.Contains(t, f.Hint, "--allow-idle")
	plan, err := w.exec.Plan(ctx, Request{Job: w.job, To: 5, AllowIdle: true})
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(plan.Warnings), `source "in" has 4 partitions: 1 subtasks will be idle`)
	require.Contains(t, fmt.Sprint(plan.Warnings), `source "other" doesn't tell`)
	_, err = w.exec.Plan(ctx, Request{Job: w.job, To: 4})
	require.NoError(t, err, "as many as there are partitions")
}

func TestBroadcastCopiesThatDisagreeNeedAChoice(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, 3)
	w.seed(t)
	w.put(t, w.opKey(1, "threshold"), "", statebackend.OpHSet, `"f7"`, "0.125")
	base := w.take(t)
	f := refuses(t, w, Request{Job: w.job, To: 2}, fault.Refused, "delays/threshold", "subtask 0, 2", "subtask 1")
	require.Contains(t, f.Hint, "--broadcast operator/name=subtask")
	require.ErrorIs(t, f, rescale.ErrDisagree)
	refuses(t, w, Request{Job: w.job, To: 2, Broadcast: map[string]int{"delays/typo": 1}}, fault.Usage,
		`"delays/typo"`, "delays/threshold")
	refuses(t, w, Request{Job: w.job, To: 2, Broadcast: map[string]int{"delays/threshold": 9}}, fault.Refused, "subtask 9")
	_, err := w.exec.Run(ctx, Request{Job: w.job, To: 2, Base: base.Checkpoint.ID, Broadcast: map[string]int{"delays/threshold": 1}}, nil)
	require.NoError(t, err)
	after, _ := w.live(t)
	for i := range 2 {
		require.Contains(t, after.items[w.opKey(i, "threshold")], `"f7"=0.125`)
	}
}

func TestBaseGuards(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, 2)
	w.seed(t)
	f := refuses(t, w, Request{Job: w.job, To: 3}, fault.NoCheckpoint, `job "flights" has no checkpoint`)
	require.Contains(t, f.Hint, "take a checkpoint")
	base := w.take(t)
	refuses(t, w, Request{Job: w.job, To: 3, Base: 9}, fault.NoCheckpoint, "no checkpoint 9")
	why := "chunk 2 is damaged"
	_, err := w.store.Edit(ctx, w.job.Name, base.Checkpoint.ID, snapshot.Change{Bad: &why})
	require.NoError(t, err)
	refuses(t, w, Request{Job: w.job, To: 3, Base: base.Checkpoint.ID}, fault.Corrupt, why)
	refuses(t, w, Request{Job: w.job, To: 3}, fault.NoCheckpoint)
	good := w.take(t)
	job := w.job
	job.MaxParallelism = 22
	refuses(t, w, Request{Job: job, To: 3}, fault.Refused, "max parallelism is 11 in the state and 22")
	job = w.job
	job.Prefix = "other"
	refuses(t, w, Request{Job: job, To: 3}, fault.Refused, `prefix "streaming:runtime"`, `prefix "other"`)

	// The assignment has moved on since.
	_, err = w.exec.Run(ctx, Request{Job: w.job, To: 4, Base: good.Checkpoint.ID}, nil)
	require.NoError(t, err)
	f = refuses(t, w, Request{Job: w.job, To: 3, Base: good.Checkpoint.ID}, fault.Refused, "has parallelism 2", "assigned to 4 subtasks")
	require.Contains(t, f.Hint, "take a checkpoint")
}

// TestAnOldBaseIsGoodForAPlanOnly has the same assignment in a later epoch.
func TestAnOldBaseIsGoodForAPlanOnly(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, 2)
	w.seed(t)
	w.take(t)
	w.do(t, statebackend.Command(statebackend.OpHSet, w.job.Key().Record(), statebackend.FieldEpoch, "8"))
	plan, err := w.exec.Plan(ctx, Request{Job: w.job, To: 3})
	require.NoError(t, err)
	require.Equal(t, uint64(9), plan.Epoch)
	require.Contains(t, fmt.Sprint(plan.Warnings), "taken in epoch 1 of incarnation incarnation-1, the state is in epoch 8")
	_, err = w.exec.Run(ctx, Request{Job: w.job, To: 3}, nil)
	require.Equal(t, fault.Refused, fault.CodeOf(err))
	require.ErrorContains(t, err, "taken in epoch 1")
}

func TestAMarkRefuses(t *testing.T) {
	w := newWorld(t, 2)
	w.seed(t)
	w.take(t)
	ctx := context.Background()
	_, err := w.backend.Stage(ctx, statebackend.RestoreRequest{ID: "theirs1", Job: w.job.Key(), Scope: statebackend.ScopeAll,
		Checkpoint: 31, StartedAt: start, Epoch: 1, NewEpoch: 2, Incarnation: "theirs"})
	require.NoError(t, err)
	_, planErr := w.exec.Plan(ctx, Request{Job: w.job, To: 3})
	_, runErr := w.exec.Run(ctx, Request{Job: w.job, To: 3}, nil)
	for _, err := range []error{planErr, runErr} {
		require.ErrorIs(t, err, statebackend.ErrMarked)
		require.Equal(t, fault.Refused, fault.CodeOf(err))
		require.ErrorContains(t, err, "checkpoint 31 (id theirs1)")
	}
}

func TestOperatorKeysThatNobodyRegisteredAreRefused(t *testing.T) {
	w := newWorld(t, 2)
	w.seed(t)
	w.put(t, w.opKey(0, "stranger"), "", statebackend.OpRPush, "1")
	w.take(t)
	refuses(t, w, Request{Job: w.job, To: 3}, fault.Refused, "stranger", "register its state")
}

func TestPartsInTwoPlacesAreRefused(t *testing.T) {
	w := newWorld(t, 2)
	w.seed(t)
	w.put(t, w.job.Key().OperatorKey("audit", "in", 1, "delays", "told"), "", statebackend.OpRPush, `"x"`)
	w.take(t)
	f := refuses(t, w, Request{Job: w.job, To: 3}, fault.Refused, "delays/told", `group "audit"`, `group "stats"`)
	require.Contains(t, f.Hint, "left over")
}

func TestAPartBeyondTheParallelismIsRefused(t *testing.T) {
	w := newWorld(t, 2)
	w.seed(t)
	w.put(t, w.opKey(6, "told"), "", statebackend.OpRPush, `"left over"`)
	w.take(t)
	refuses(t, w, Request{Job: w.job, To: 3}, fault.Refused, "subtask 6", "parallelism is 2")
}

func TestAJobWithoutOperatorStateRescales(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, 2)
	s := statebackend.Scope{Group: "stats", Topic: "in", Partition: 4, Operator: "delays"}
	w.put(t, w.job.Key().StateKey(s, "count"), "", statebackend.OpHSet, "s:a", "1")
	w.adopt(t)
	base := w.take(t)
	before, _ := w.live(t)
	res, err := w.exec.Run(ctx, Request{Job: w.job, To: 11, Base: base.Checkpoint.ID}, nil)
	require.NoError(t, err)
	require.Empty(t, res.OperatorState)
	require.Equal(t, 11.0, res.SkewAfter, "all of it is with one of eleven")
	after, c := w.live(t)
	require.Equal(t, before.keyed(), after.keyed())
	require.Equal(t, 11, c.Assigned.Parallelism)
	checkCheckpoint(t, w, base, res, after)
}

func TestRoomForTheOperatorState(t *testing.T) {
	w := newWorld(t, 2)
	w.seed(t)
	base := w.take(t)
	before, _ := w.live(t)
	tight := w.executor(w.store, w.store.Journal(), &full{Backend: w.backend})
	_, err := tight.Run(context.Background(), Request{Job: w.job, To: 3, Base: base.Checkpoint.ID}, nil)
	require.ErrorIs(t, err, statebackend.ErrNoRoom)
	require.Equal(t, fault.Refused, fault.CodeOf(err))
	require.Contains(t, err.Error(), "nothing was changed")
	// Three broadcasts, three unions and what is left of five items.
	require.Contains(t, err.Error(), "9 keys with 467 elements")
	after, _ := w.live(t)
	require.Equal(t, before.all, after.all)
	history, err := w.store.List(context.Background(), w.job.Name)
	require.NoError(t, err)
	require.Equal(t, snapshot.FailState, history[1].Failure.Reason)
	w.noTraces(t)
}

// full is a server without memory.
type full struct{ statebackend.Backend }

func (*full) Room(_ context.Context, keys, elements, _ uint64) error {
	return fmt.Errorf("%w: for %d keys with %d elements", statebackend.ErrNoRoom, keys, elements)
}

func TestMovedIsWhatTheRangesSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups := rapid.IntRange(1, 300).Draw(t, "groups")
		assign := func(label string) []keygroups.Range {
			rule := keygroups.Rule{MaxParallelism: groups, Ranges: rapid.SampledFrom(
				[]keygroups.Ranges{keygroups.RangesLeading, keygroups.RangesFlink}).Draw(t, label+" rule")}.WithDefaults()
			ranges, err := rule.Assign(rapid.IntRange(1, groups).Draw(t, label))
			require.NoError(t, err)
			return ranges
		}
		before, after := assign("before"), assign("after")
		from, to := owners(before, groups), owners(after, groups)
		last := -1
		for i, m := range moved(before, after, groups) {
			require.Greater(t, m.Start, last)
			for g := last + 1; g < m.Start; g++ {
				require.Equal(t, from[g], to[g], "group %d is in no move %d", g, i)
			}
			for g := m.Start; g <= m.End; g++ {
				require.Equal(t, m.From, from[g])
				require.Equal(t, m.To, to[g])
				require.NotEqual(t, from[g], to[g])
			}
			last = m.End
		}
		for g := last + 1; g < groups; g++ {
			require.Equal(t, from[g], to[g])
		}
		rule := keygroups.Rule{MaxParallelism: groups}.WithDefaults()
		b, err := rule.Assign(len(before))
		require.NoError(t, err)
		a, err := rule.Assign(len(after))
		require.NoError(t, err)
		want, err := keygroups.Moves(rule, len(before), len(after))
		require.NoError(t, err)
		require.Equal(t, append([]keygroups.Move{}, want...), moved(b, a, groups), "as package keygroups has it when the rule stays")
	})
}

func TestLoadAndSkew(t *testing.T) {
	stats := []snapshot.GroupStats{{Group: 0, Keys: 1, Elements: 10, Bytes: 3}, {Group: 3, Keys: 2, Elements: 30, Bytes: 5}, {Group: 99, Keys: 7, Elements: 7}}
	ranges := []keygroups.Range{{Subtask: 0, Start: 0, End: 1}, {Subtask: 1, Start: 2, End: 3}}
	got := load(ranges, stats, 4)
	require.Equal(t, []RangePlan{
		{Range: ranges[0], Keys: 1, Elements: 10, Bytes: 3}, {Range: ranges[1], Keys: 2, Elements: 30, Bytes: 5}}, got)
	require.InDelta(t, 1.5, skew(got), 1e-12)
	require.Equal(t, 1.0, skew(load(ranges, nil, 4)), "nothing is even")
}
