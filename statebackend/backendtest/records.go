package backendtest

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

func testLook(t *testing.T, h Harness) {
	g, err := h.Backend.Look(ctxOf(t), job)
	require.NoError(t, err)
	require.Equal(t, statebackend.Record{}, g.Record)
	require.Zero(t, g.Indexed)
	require.Nil(t, g.Assigned)
	require.NotEmpty(t, g.Where, "a person needs to know why there is nothing")
	require.NotEmpty(t, g.Server.RunID)
	require.Empty(t, h.Keys(t), "a look writes nothing")

	fill(t, h, job, "look")
	g, err = h.Backend.Look(ctxOf(t), job)
	require.NoError(t, err)
	require.EqualValues(t, fixtureNames, g.Indexed)
	require.Equal(t, "incarnation-look", g.Record.Incarnation)
	require.Equal(t, 2, g.Assigned.Parallelism)
	require.NotContains(t, h.Backend.Server(), "@")

	_, err = h.Backend.Look(ctxOf(t), statebackend.Job{Prefix: "p"})
	require.Error(t, err, "a job without a name")
	do(t, h, cmd(statebackend.OpHSet, job.Record(), statebackend.FieldEpoch, "many"))
	_, err = h.Backend.Look(ctxOf(t), job)
	require.ErrorContains(t, err, "epoch")
}

// testDamaged: garbage in the job's own keys is told as that, with the key and
// what to do, and never as a server that can't be reached.
func testDamaged(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	fill(t, h, job, "damaged")
	mode := statebackend.OperatorField("source", "positions")
	for what, c := range map[string]struct {
		key          string
		spoil, clean statebackend.Cmd
	}{
		"epoch":         {job.Record(), cmd(statebackend.OpHSet, job.Record(), statebackend.FieldEpoch, "-1"), cmd(statebackend.OpHSet, job.Record(), statebackend.FieldEpoch, "1")},
		"time":          {job.Record(), cmd(statebackend.OpHSet, job.Record(), statebackend.FieldCheckpointAt, "today"), cmd(statebackend.OpHDel, job.Record(), statebackend.FieldCheckpointAt)},
		"mark":          {job.Record(), cmd(statebackend.OpHSet, job.Record(), statebackend.FieldRestore, `{"id":"r1"`), cmd(statebackend.OpHDel, job.Record(), statebackend.FieldRestore)},
		"empty mark":    {job.Record(), cmd(statebackend.OpHSet, job.Record(), statebackend.FieldRestore, ""), cmd(statebackend.OpHDel, job.Record(), statebackend.FieldRestore)},
		"no ranges":     {job.Assignment(), cmd(statebackend.OpSet, job.Assignment(), "{}"), cmd(statebackend.OpDel, job.Assignment())},
		"cut off":       {job.Assignment(), cmd(statebackend.OpSet, job.Assignment(), `{"epoch":3,"parall`), cmd(statebackend.OpDel, job.Assignment())},
		"no assignment": {job.Assignment(), cmd(statebackend.OpSet, job.Assignment(), "\x00\xff"), cmd(statebackend.OpDel, job.Assignment())},
		"mode":          {job.OperatorStates(), cmd(statebackend.OpHSet, job.OperatorStates(), mode, `{"mode":`), cmd(statebackend.OpHSet, job.OperatorStates(), mode, `{"mode":"list"}`)},
	} {
		do(t, h, c.spoil)
		_, lookErr := h.Backend.Look(ctx, job)
		var r snapshot.Recorder
		_, cutErr := h.Backend.Cut(ctx, statebackend.CutRequest{Job: job}, &r)
		for _, err := range []error{lookErr, cutErr} {
			require.ErrorIs(t, err, statebackend.ErrDamaged, what)
			require.NotErrorIs(t, err, statebackend.ErrUnreachable, what)
			require.ErrorContains(t, err, strconv.Quote(c.key), what)
			require.ErrorContains(t, err, "DEL", "%s: the remedy", what)
		}
		do(t, h, c.clean)
		_, err := h.Backend.Look(ctx, job)
		require.NoError(t, err, what)
	}
	do(t, h, cmd(statebackend.OpHSet, job.Record(), statebackend.FieldAttempt, "many"))
	_, err := h.Backend.Adopt(ctx, job, "x", assignment())
	require.ErrorIs(t, err, statebackend.ErrDamaged)
	require.ErrorIs(t, h.Backend.Note(ctx, job, "incarnation-damaged", statebackend.Notes{Attempt: 3}), statebackend.ErrDamaged)
}

func testAdopt(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	r, err := h.Backend.Adopt(ctx, job, "first", assignment())
	require.NoError(t, err)
	require.Equal(t, statebackend.Record{Incarnation: "first", Epoch: 1}, r)
	other := assignment()
	other.Parallelism = 1
	r, err = h.Backend.Adopt(ctx, job, "second", other)
	require.NoError(t, err)
	require.Equal(t, statebackend.Record{Incarnation: "first", Epoch: 1}, r, "what is there stays")
	g, err := h.Backend.Look(ctx, job)
	require.NoError(t, err)
	want := assignment()
	want.Epoch = 1
	require.Equal(t, want, *g.Assigned)

	// A record that has its epoch, and an assignment that was lost.
	do(t, h, cmd(statebackend.OpHSet, job.Record(), statebackend.FieldEpoch, "6"), cmd(statebackend.OpDel, job.Assignment()),
		cmd(statebackend.OpHSet, job.Record(), "a newer field", "x"))
	r, err = h.Backend.Adopt(ctx, job, "third", other)
	require.NoError(t, err)
	require.EqualValues(t, 6, r.Epoch)
	g, err = h.Backend.Look(ctx, job)
	require.NoError(t, err)
	require.EqualValues(t, 6, g.Assigned.Epoch)
	require.Equal(t, 1, g.Assigned.Parallelism)
	require.Equal(t, "x", fields(t, h, job.Record())["a newer field"])
	require.Len(t, h.Keys(t), 2)
}

func testNote(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	require.ErrorIs(t, h.Backend.Note(ctx, job, "first", statebackend.Notes{Attempt: 3}), statebackend.ErrStateLost)
	require.Empty(t, h.Keys(t), "nothing was written")
	_, err := h.Backend.Adopt(ctx, job, "first", assignment())
	require.NoError(t, err)
	at := time.Date(2025, 5, 6, 7, 8, 9, 0, time.UTC)
	require.NoError(t, h.Backend.Note(ctx, job, "first", statebackend.Notes{Attempt: 3}))
	require.NoError(t, h.Backend.Note(ctx, job, "first", statebackend.Notes{Cut: 1, Checkpoint: 2, CheckpointAt: at}))
	want := statebackend.Record{Incarnation: "first", Epoch: 1, Attempt: 3, Cut: 1, Checkpoint: 2, CheckpointAt: at}
	look := func() statebackend.Record {
		g, err := h.Backend.Look(ctx, job)
		require.NoError(t, err)
		return g.Record
	}
	require.Equal(t, want, look())
	err = h.Backend.Note(ctx, job, "second", statebackend.Notes{Attempt: 9, Checkpoint: 9})
	require.ErrorIs(t, err, statebackend.ErrStateLost)
	require.Equal(t, want, look())
	h.Lose(t)
	require.ErrorIs(t, h.Backend.Note(ctx, job, "first", statebackend.Notes{Attempt: 9}), statebackend.ErrStateLost)
	require.Empty(t, h.Keys(t))
}

func testSmallReads(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	none := func([]byte) error { return errors.New("there is no name") }
	require.NoError(t, h.Backend.Index(ctx, job, none))
	fill(t, h, job, "small")
	seen := map[string]int{}
	require.NoError(t, h.Backend.Index(ctx, job, func(name []byte) error {
		seen[string(name)]++
		clear(name)
		return nil
	}))
	require.Len(t, seen, fixtureNames)
	for name, n := range seen {
		require.Equal(t, 1, n, name)
	}
	require.Contains(t, seen, "\xff not ours \x00")
	stop := errors.New("enough")
	require.ErrorIs(t, h.Backend.Index(ctx, job, func([]byte) error { return stop }), stop)

	schemas, err := h.Backend.Schemas(ctx, job, [][]byte{[]byte("\xff not ours \x00"), []byte(laterName(job))})
	require.NoError(t, err)
	require.Equal(t, []string{"", "java.lang.String|3"}, schemas)
	schemas, err = h.Backend.Schemas(ctx, job, nil)
	require.NoError(t, err)
	require.Empty(t, schemas)

	n, err := h.Backend.Partitions(ctx, "flights")
	require.NoError(t, err)
	require.Zero(t, n)
	do(t, h, cmd(statebackend.OpHSet, "streaming:mq:topic:flights:meta", "partitionCount", "12"))
	n, err = h.Backend.Partitions(ctx, "flights")
	require.NoError(t, err)
	require.Equal(t, 12, n)
}

// testJobsSideBySide (cases 15): names that contain each other, or that a
// pattern would take for more than one.
func testJobsSideBySide(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	names := []string{"a", "a:b", "ab", "a*", "[x]", `a\b`, "a?", "a b", "x"}
	jobs := make([]statebackend.Job, len(names))
	for i, n := range names {
		jobs[i] = statebackend.Job{Prefix: "p", Name: n}
		state := jobs[i].StateKey(statebackend.Solo, "v")
		do(t, h, cmd(statebackend.OpSAdd, jobs[i].Index(), state), cmd(statebackend.OpHSet, jobs[i].Registry(), state, "java.lang.String|1"),
			cmd(statebackend.OpHSet, state, statebackend.SoloKey, "of "+n))
		_, err := h.Backend.Adopt(ctx, jobs[i], "inc "+n, assignment())
		require.NoError(t, err)
	}
	for i, j := range jobs {
		_, keys := cutOf(t, h, j)
		require.Len(t, keys, 3, "its state, its registry, its assignment")
		v := find(t, keys, snapshot.SectionKeyed, j.StateKey(statebackend.Solo, "v"))
		require.Equal(t, "of "+names[i], string(v.Elements[0].Value))
		others := func() map[string]statebackend.KeySummary {
			all := dump(t, h)
			for key := range all {
				if strings.HasPrefix(key, j.StateKey(statebackend.Solo, "")) || key == j.Index() || key == j.Registry() || key == j.Record() || key == j.Assignment() {
					delete(all, key)
				}
			}
			return all
		}
		before := others()
		do(t, h, cmd(statebackend.OpHSet, j.StateKey(statebackend.Solo, "v"), statebackend.SoloKey, "spoiled"))
		req := request(t, h, j, "side"+string(rune('a'+i)))
		abandoned, err := h.Backend.Stage(ctx, req)
		require.NoError(t, err)
		require.NoError(t, snapshot.Replay(keys, abandoned))
		require.NoError(t, abandoned.Abort(ctx))
		require.Equal(t, before, others())
		req.ID += "2"
		restoreKeys(t, h, req, keys)
		require.Equal(t, before, others())
		require.Equal(t, map[string]string{statebackend.SoloKey: "of " + names[i]}, fields(t, h, j.StateKey(statebackend.Solo, "v")))
	}
}
