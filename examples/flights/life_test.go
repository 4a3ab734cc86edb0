package flights

import (
	"context"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/rescale"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// film records what a cut pushes, as commands that make the same keys.
type film struct {
	keys []snapshot.Key
	cmds map[string][]statebackend.Cmd // by key
}

func (f *film) BeginKey(k snapshot.Key) error {
	k.Name = slices.Clone(k.Name)
	f.keys = append(f.keys, k)
	return nil
}

func (f *film) Element(e snapshot.Element) error {
	if f.cmds == nil {
		f.cmds = map[string][]statebackend.Cmd{}
	}
	k := f.keys[len(f.keys)-1]
	args := [][]byte{slices.Clone(e.Value)}
	op := map[snapshot.KeyType]statebackend.Op{snapshot.TypeString: statebackend.OpSet, snapshot.TypeList: statebackend.OpRPush,
		snapshot.TypeSet: statebackend.OpSAdd, snapshot.TypeHash: statebackend.OpHSet}[k.Type]
	if k.Type == snapshot.TypeHash {
		args = [][]byte{slices.Clone(e.Field), args[0]}
	}
	f.cmds[string(k.Name)] = append(f.cmds[string(k.Name)], statebackend.Cmd{Op: op, Key: string(k.Name), Args: args})
	return nil
}

func (f *film) Part([]byte) error              { panic("no value here is that long") }
func (f *film) EndKey(e snapshot.KeyEnd) error { return nil }

// put writes what was recorded, and the index.
func (f *film) put(t *testing.T, store statebackend.Store) {
	t.Helper()
	for _, k := range f.keys {
		cmds := f.cmds[string(k.Name)]
		if k.Section == snapshot.SectionKeyed || k.Section == snapshot.SectionOperator {
			cmds = append(cmds, statebackend.Command(statebackend.OpSAdd, testJob.Index(), string(k.Name)))
		}
		_, err := store.Do(t.Context(), cmds...)
		require.NoError(t, err)
	}
}

func cut(ctx context.Context, store *memory.Store, sink snapshot.Sink) (statebackend.Cut, error) {
	return store.Cut(ctx, statebackend.CutRequest{Job: testJob}, sink)
}

func parsePart(key []byte) (snapshot.OperatorState, int, bool) {
	known := statebackend.NewKnown(
		statebackend.StateName{Operator: SourceOperator, Name: Positions},
		statebackend.StateName{Operator: SourceOperator, Name: Told},
		statebackend.StateName{Operator: SourceOperator, Name: Threshold})
	p, ok := statebackend.ParseKey(testJob, key, known)
	return snapshot.OperatorState{Operator: p.Operator, Name: p.Name}, p.Partition, ok
}

// change does to the operator state what a rescale does, with its plan.
func change(t *testing.T, store *memory.Store, from, to int, epoch uint64) {
	t.Helper()
	var before film
	at, err := cut(t.Context(), store, &before)
	require.NoError(t, err)
	replay := func(ctx context.Context, sink snapshot.Sink) error { _, err := cut(ctx, store, sink); return err }
	collector := rescale.NewCollector(at.Operators, parsePart)
	require.NoError(t, replay(t.Context(), collector))
	states, err := collector.States()
	require.NoError(t, err)
	plan, err := rescale.Compute(rescale.Request{Rule: rule(), From: from, To: to, Split: rescale.SplitEach, States: states})
	require.NoError(t, err)
	var after film
	registered, err := rescale.Execution{Replay: replay, Parse: parsePart, Epoch: epoch,
		KeyOf: func(s snapshot.OperatorState, subtask int) []byte {
			return []byte(testJob.OperatorKey(Group, Topic, subtask, s.Operator, s.Name))
		}}.Write(t.Context(), plan, &after)
	require.NoError(t, err)
	var cmds []statebackend.Cmd
	for _, k := range before.keys {
		if k.Section == snapshot.SectionOperator {
			cmds = append(cmds, statebackend.Command(statebackend.OpDel, string(k.Name)),
				statebackend.Command(statebackend.OpSRem, testJob.Index(), string(k.Name)))
		}
	}
	for _, s := range registered {
		mode, err := statebackend.EncodeOperatorMode(s)
		require.NoError(t, err)
		cmds = append(cmds, statebackend.Command(statebackend.OpHSet, testJob.OperatorStates(), statebackend.OperatorField(s.Operator, s.Name), string(mode)))
	}
	_, err = store.Do(t.Context(), cmds...)
	require.NoError(t, err)
	after.put(t, store)
}

// TestI4WholeLife runs the job through losses and changes of parallelism; after
// each step the state agrees with the part of the file that has been read.
func TestI4WholeLife(t *testing.T) {
	store := memory.New(memory.Options{})
	parallelism, expected := 2, 0
	run := func(limit int) {
		o := options(store, parallelism)
		o.Limit, o.Continue = limit, expected > 0
		got, err := Run(t.Context(), o)
		require.NoError(t, err)
		expected += got.Processed
		require.Equal(t, expected, got.Done)
		require.Equal(t, expected, checked(t, store, parallelism).Records)
	}
	run(3000)
	for epoch, to := range []int{3, 5, 1, 12, 4} {
		// A checkpoint, work that is lost with the state, and the restore.
		var checkpoint film
		_, err := cut(t.Context(), store, &checkpoint)
		require.NoError(t, err)
		run(200 + epoch)
		expected -= 200 + epoch
		store.Lose()
		o := options(store, parallelism)
		o.Continue = true
		_, err = Run(t.Context(), o)
		require.ErrorIs(t, err, ErrStart)
		checkpoint.put(t, store)
		require.Equal(t, expected, checked(t, store, parallelism).Records)

		run(500)
		change(t, store, parallelism, to, uint64(epoch+2))
		parallelism = to
		require.Equal(t, expected, checked(t, store, parallelism).Records, "right after the rescale to "+strconv.Itoa(to))
		run(1000)
	}
}
