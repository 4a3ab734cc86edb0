package witness

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/snapshot"
)

// TestTheWitnessAndTheProductReadTheSame takes checkpoints of a real server, full
// ones and in layers, and holds what the witness reads of the file to what it
// reads of the server.
func TestTheWitnessAndTheProductReadTheSame(t *testing.T) {
	r := newRig(t)
	r.populate()
	r.apply()
	r.checkpoint() // the first one adopts the state, which writes
	rng := rand.New(rand.NewPCG(7, 11))
	j, layered := NewJournal(), 0
	for range 8 {
		before := r.look()
		cp := r.checkpoint()
		after := r.look()
		require.Empty(t, CheckUntouched(before, after, r.now()))
		require.Empty(t, Diff(r.stored(uint64(cp.ID)), after.State, r.now()))
		if cp.Incremental && cp.Layers > 1 {
			layered++
		}
		r.stir(rng, 200)
	}
	require.GreaterOrEqual(t, layered, 4, "they stand in layers")
	s := r.open()
	all, err := s.Checkpoints(r.spec.Name)
	require.NoError(t, err)
	last, err := s.Last(r.spec.Name)
	require.NoError(t, err)
	require.Empty(t, j.Listed(all, last))
	read, found, err := CheckReadable(s, r.spec.Name, 0)
	require.NoError(t, err)
	require.Empty(t, found)
	require.NotEmpty(t, read)
	for id, state := range read {
		m, err := r.c.Manifest(t.Context(), r.spec.Name, snapshot.ID(id))
		require.NoError(t, err)
		require.Equal(t, int(m.Checkpoint.Keys), len(state.Keys))
	}
	require.Greater(t, len(read[last].Keys), 20)
	jobs, err := s.Jobs()
	require.NoError(t, err)
	require.Equal(t, []string{r.spec.Name}, jobs)
}

// TestARestoreAndARescaleOfTheProductAreSound is the healthy side of I3 and I4.
func TestARestoreAndARescaleOfTheProductAreSound(t *testing.T) {
	r := newRig(t)
	r.populate()
	r.apply()
	j := NewJournal()
	cp := r.checkpoint()
	r.stir(rand.New(rand.NewPCG(3, 4)), 300)
	r.client.Del(t.Context(), r.name("large", 0))
	want, before := r.stored(uint64(cp.ID)), r.look()
	require.NotEmpty(t, Diff(want, before.State, r.now()))
	res := r.done(r.c.Restore(t.Context(), r.spec.Name, coordinator.RestoreRequest{Checkpoint: cp.ID.String()})).Restore
	after := r.look()
	require.Empty(t, CheckRestore(r.job.Root(), want, before, after, nil, r.now()))
	epoch, err := after.State.Epoch()
	require.NoError(t, err)
	require.EqualValues(t, res.Epoch, epoch)
	require.Empty(t, j.Epoch(epoch))
	incarnation, err := after.State.Incarnation()
	require.NoError(t, err)
	require.NotEmpty(t, incarnation)

	for _, parallelism := range []int{5, 3, 1, 2} {
		before := r.look()
		r.done(r.c.Rescale(t.Context(), r.spec.Name, coordinator.RescaleRequest{Parallelism: parallelism}))
		after := r.look()
		require.Empty(t, CheckRescale(r.job.Root(), before.State, after.State, parallelism, r.now()), "to %d", parallelism)
		require.Empty(t, DiffForeign(before.Foreign, after.Foreign, r.now()))
		epoch, err := after.State.Epoch()
		require.NoError(t, err)
		require.Empty(t, j.Epoch(epoch))
	}
	all, err := r.open().Checkpoints(r.spec.Name)
	require.NoError(t, err)
	require.Empty(t, j.Listed(all, 0))
}

// TestAKeyWhoseOperatorIsRegisteredLaterIsThereOnce: a key that was keyed state
// is operator state from then on, in increments too.
func TestAKeyWhoseOperatorIsRegisteredLaterIsThereOnce(t *testing.T) {
	r := newRig(t)
	r.populate()
	late := r.operator("late", 0)
	r.pipe([][]any{{"SADD", r.job.Index(), late}, {"RPUSH", late, "a", "b"}})
	r.apply()
	r.checkpoint()
	for step, commands := range [][][]any{
		{{"HSET", r.job.OperatorStates(), "src\x01late", `{"mode":"list"}`}},
		{{"RPUSH", late, "c"}},
		{{"HDEL", r.job.OperatorStates(), "src\x01late"}},
		{{"RPUSH", late, "d"}},
		{{"SREM", r.job.Index(), late}},
	} {
		r.pipe(commands)
		cp := r.checkpoint()
		require.Empty(t, Diff(r.stored(uint64(cp.ID)), r.look().State, r.now()), "step %d, incremental %t", step, cp.Incremental)
	}
}
