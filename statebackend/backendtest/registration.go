package backendtest

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

func operatorSpace(h Harness, subtask int) statebackend.Space {
	return statebackend.Space{Store: h.Backend, Job: job,
		Scope: statebackend.Scope{Group: "stats", Topic: "flights", Partition: subtask, Operator: "source"}}
}

func testOperatorState(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	list, err := statebackend.NewOperatorList(operatorSpace(h, 1), statebackend.Descriptor[int64]{Name: "positions"})
	require.NoError(t, err)
	union, err := statebackend.NewOperatorUnion(operatorSpace(h, 1), statebackend.Descriptor[string]{Name: "told"})
	require.NoError(t, err)
	broadcast, err := statebackend.NewOperatorBroadcast[string](operatorSpace(h, 1), statebackend.Descriptor[int]{Name: "limits"})
	require.NoError(t, err)

	require.NoError(t, list.Add(ctx, 5))
	require.NoError(t, list.AddAll(ctx, []int64{6, 5}))
	require.NoError(t, union.Update(ctx, []string{"x", "y"}))
	require.NoError(t, broadcast.Put(ctx, "delay", 15))
	require.NoError(t, broadcast.Put(ctx, "other", 1))
	require.NoError(t, broadcast.Remove(ctx, "other"))

	items, err := list.Get(ctx)
	require.NoError(t, err)
	require.Equal(t, []int64{5, 6, 5}, items)
	told, err := union.Get(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"x", "y"}, told)
	v, ok, err := broadcast.Get(ctx, "delay")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, 15, v)
	entries, err := broadcast.Entries(ctx)
	require.NoError(t, err)
	require.Equal(t, []statebackend.Entry[string, int]{{Key: "delay", Value: 15}}, entries)

	checkOperatorState(t, h)
	require.NoError(t, list.Update(ctx, nil))
	require.NoError(t, union.Clear(ctx))
	require.NoError(t, broadcast.Clear(ctx))
	empty, err := broadcast.IsEmpty(ctx)
	require.NoError(t, err)
	require.True(t, empty)
}

// checkOperatorState: modes and schemas as they are written, and in a cut.
func checkOperatorState(t *testing.T, h Harness) {
	t.Helper()
	require.Equal(t, map[string]string{"source\x01positions": `{"mode":"list"}`, "source\x01told": `{"mode":"union"}`,
		"source\x01limits": `{"mode":"broadcast"}`}, fields(t, h, job.OperatorStates()))
	require.Equal(t, map[string]string{operatorName(job, 1, "positions"): "java.lang.Long|1",
		operatorName(job, 1, "told"): "java.lang.String|1", operatorName(job, 1, "limits"): "java.lang.Integer|1"}, fields(t, h, job.Registry()))
	cut, keys := cutOf(t, h, job)
	require.Equal(t, []snapshot.OperatorState{{Operator: "source", Name: "limits", Mode: snapshot.ModeBroadcast},
		{Operator: "source", Name: "positions", Mode: snapshot.ModeList}, {Operator: "source", Name: "told", Mode: snapshot.ModeUnion}}, cut.Operators)
	find(t, keys, snapshot.SectionOperator, operatorName(job, 1, "limits"))
}

func testOperatorModes(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	handed := `{"mode":"union","handed":{"epoch":2,"length":7,"digest":"ab"},"new":1}`
	do(t, h, cmd(statebackend.OpHSet, job.OperatorStates(), "source\x01told", handed))
	union, err := statebackend.NewOperatorUnion(operatorSpace(h, 0), statebackend.Descriptor[string]{Name: "told"})
	require.NoError(t, err)
	require.NoError(t, union.Add(ctx, "x"))
	require.Equal(t, handed, fields(t, h, job.OperatorStates())["source\x01told"], "what the coordinator wrote stays")

	other, err := statebackend.NewOperatorList(operatorSpace(h, 2), statebackend.Descriptor[string]{Name: "told"})
	require.NoError(t, err)
	for _, err := range []error{other.Add(ctx, "x"), other.Clear(ctx), second(other.Get(ctx))} {
		require.ErrorIs(t, err, statebackend.ErrMode)
		require.ErrorContains(t, err, "union")
		require.ErrorContains(t, err, "list")
	}
	require.Len(t, members(t, h, job.Index()), 1)
}

func second[T any](_ T, err error) error { return err }

// testRegistrationSurvivesLoss: a handle that has written for long still
// registers its keys after the server has lost everything (cases 11).
func testRegistrationSurvivesLoss(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	v, err := statebackend.NewValueState(space(h), statebackend.Descriptor[int]{Name: "v"})
	require.NoError(t, err)
	m, err := statebackend.NewMapState[int](space(h), statebackend.Descriptor[bool]{Name: "m"})
	require.NoError(t, err)
	l, err := statebackend.NewOperatorList(operatorSpace(h, 0), statebackend.Descriptor[string]{Name: "o"})
	require.NoError(t, err)
	write := func() {
		t.Helper()
		require.NoError(t, v.Update(ctx, "s:k", 1))
		require.NoError(t, m.Put(ctx, "s:k", 2, true))
		require.NoError(t, l.Update(ctx, []string{"a"}))
	}
	check := func() {
		t.Helper()
		require.Len(t, members(t, h, job.Index()), 3)
		require.Equal(t, map[string]string{
			job.StateKey(space(h).Scope, "v"):        "java.lang.Integer|1",
			job.KeyedKey(space(h).Scope, "m", "s:k"): "java.lang.Boolean|1",
			operatorName(job, 0, "o"):                "java.lang.String|1",
		}, fields(t, h, job.Registry()))
		require.Len(t, fields(t, h, job.OperatorStates()), 1)
	}
	write()
	check()
	h.Lose(t)
	write()
	check()
	h.Lose(t)
	b := statebackend.NewBatch(h.Backend)
	ctx = statebackend.WithBatch(ctx, b)
	write()
	write()
	require.NoError(t, b.Commit(ctxOf(t)))
	check()
}

func testSchemaMismatch(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	was, err := statebackend.NewValueState(space(h), statebackend.Descriptor[int]{Name: "v"})
	require.NoError(t, err)
	require.NoError(t, was.Update(ctx, "s:k", 7))
	at := job.StateKey(space(h).Scope, "v")
	newer, err := statebackend.NewValueState(space(h), statebackend.Descriptor[int]{Name: "v", Version: 2})
	require.NoError(t, err)
	other, err := statebackend.NewValueState(space(h), statebackend.Descriptor[string]{Name: "v"})
	require.NoError(t, err)
	before := dump(t, h)
	for _, err := range []error{newer.Update(ctx, "s:k", 8), second(newer.Get(ctx, "s:k")), newer.Clear(ctx, "s:k"),
		newer.Update(statebackend.WithBatch(ctx, statebackend.NewBatch(h.Backend)), "s:k", 8)} {
		require.ErrorIs(t, err, statebackend.ErrSchema)
		for _, part := range []string{"java.lang.Integer|1", "java.lang.Integer|2", strconv.Quote(at)} {
			require.ErrorContains(t, err, part)
		}
	}
	require.ErrorIs(t, other.Update(ctx, "s:k", "8"), statebackend.ErrSchema)
	require.Equal(t, before, dump(t, h), "nothing was written")
}

// testSchemaChange: the state was lost and another program wrote it anew with
// another schema, which a handle that has checked long ago must notice.
func testSchemaChange(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	v, err := statebackend.NewValueState(space(h), statebackend.Descriptor[int]{Name: "v"})
	require.NoError(t, err)
	l, err := statebackend.NewListState(space(h), statebackend.Descriptor[int]{Name: "l"})
	require.NoError(t, err)
	require.NoError(t, v.Update(ctx, "s:k", 7))
	require.NoError(t, l.Add(ctx, "s:k", 7))
	h.Lose(t)
	do(t, h, cmd(statebackend.OpHSet, job.Registry(), job.StateKey(space(h).Scope, "v"), "com.x.Other|9"),
		cmd(statebackend.OpHSet, job.Registry(), job.KeyedKey(space(h).Scope, "l", "s:k"), "com.x.Other|9"))
	require.ErrorIs(t, second(l.Get(ctx, "s:k")), statebackend.ErrSchema)
	require.ErrorIs(t, l.Add(ctx, "s:k", 8), statebackend.ErrSchema)
	require.Empty(t, members(t, h, job.Index()), "refused before the write")
	b := statebackend.NewBatch(h.Backend)
	require.NoError(t, v.Update(statebackend.WithBatch(ctx, b), "s:k", 8), "it is queued")
	require.ErrorIs(t, b.Commit(ctx), statebackend.ErrSchema)
	err = v.Update(ctx, "s:k", 9)
	require.ErrorIs(t, err, statebackend.ErrSchema)
	require.ErrorContains(t, err, "com.x.Other|9")
}

// batched are three states whose writes a batch takes.
type batched struct {
	value *statebackend.ValueState[int]
	set   *statebackend.SetState[string]
	list  *statebackend.ListState[string]
}

func newBatched(t *testing.T, h Harness) (b batched) {
	t.Helper()
	var err error
	b.value, err = statebackend.NewValueState(space(h), statebackend.Descriptor[int]{Name: "v"})
	require.NoError(t, err)
	b.set, err = statebackend.NewSetState(space(h), statebackend.Descriptor[string]{Name: "s"})
	require.NoError(t, err)
	b.list, err = statebackend.NewListState(space(h), statebackend.Descriptor[string]{Name: "l"})
	require.NoError(t, err)
	return b
}

func (b batched) queue(ctx context.Context, t *testing.T) {
	t.Helper()
	require.NoError(t, b.value.Update(ctx, "s:k", 1))
	require.NoError(t, b.value.Update(ctx, "s:k", 2))
	fresh, err := b.set.Add(ctx, "s:k", "m")
	require.NoError(t, err)
	require.False(t, fresh, "not known yet")
	require.NoError(t, b.list.Update(ctx, "s:k", []string{"a", "b"}))
	require.NoError(t, b.list.Add(ctx, "s:k", "c"))
}

func testBatch(t *testing.T, h Harness) {
	states := newBatched(t, h)
	v, l := states.value, states.list
	b := statebackend.NewBatch(h.Backend)
	ctx := statebackend.WithBatch(ctxOf(t), b)
	states.queue(ctx, t)
	require.Empty(t, h.Keys(t), "nothing is written before the commit")
	_, err := v.Get(ctx, "s:k")
	require.ErrorIs(t, err, statebackend.ErrAbsent, "reads see the store")
	b.Discard()
	require.Zero(t, b.Len())
	require.NoError(t, b.Commit(ctx))
	require.Empty(t, h.Keys(t))

	states.queue(ctx, t)
	require.Positive(t, b.Len())
	require.NoError(t, b.Commit(ctxOf(t)))
	require.Zero(t, b.Len())
	got, err := v.Get(ctx, "s:k")
	require.NoError(t, err)
	require.Equal(t, 2, got)
	items, err := l.Get(ctx, "s:k")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "c"}, items)
	require.Len(t, members(t, h, job.Index()), 3)

	require.NoError(t, v.Clear(ctx, "s:k"))
	require.NoError(t, b.Commit(ctxOf(t)))
	_, err = v.Get(ctx, "s:k")
	require.ErrorIs(t, err, statebackend.ErrAbsent)

	foreign := statebackend.WithBatch(ctxOf(t), statebackend.NewBatch(struct{ statebackend.Store }{h.Backend}))
	require.ErrorIs(t, v.Update(foreign, "s:k", 3), statebackend.ErrUnsupported)
}

// testBatchUnderCuts (I2): state and source position change in one step, so
// every cut has them at the same step.
func testBatchUnderCuts(t *testing.T, h Harness) {
	v, err := statebackend.NewValueState(space(h), statebackend.Descriptor[int]{Name: "sum"})
	require.NoError(t, err)
	p, err := statebackend.NewOperatorList(operatorSpace(h, 0), statebackend.Descriptor[string]{Name: "positions"})
	require.NoError(t, err)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var writeErr error
	first := make(chan struct{})
	wg.Go(func() {
		for i := 1; writeErr == nil; i++ {
			b := statebackend.NewBatch(h.Backend)
			ctx := statebackend.WithBatch(ctxOf(t), b)
			writeErr = firstOf(v.Update(ctx, "s:k", i), p.Update(ctx, []string{fmt.Sprintf("pos-%d", i)}), b.Commit(ctxOf(t)))
			if i == 1 {
				close(first)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	<-first
	for range 15 {
		_, keys := cutOf(t, h, job)
		sum := find(t, keys, snapshot.SectionKeyed, job.StateKey(space(h).Scope, "sum")).Elements[0].Value
		pos := find(t, keys, snapshot.SectionOperator, operatorName(job, 0, "positions")).Elements
		require.Len(t, pos, 1)
		require.Equal(t, `"pos-`+string(sum)+`"`, string(pos[0].Value))
	}
	close(stop)
	wg.Wait()
	require.NoError(t, writeErr)
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
