package coordinator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/cut"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// hashState is the name of the state that world.write writes.
func hashState(job string, group int) string {
	return testJob(job).Key().StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: group, Operator: "count"}, "total")
}

func TestASelfCheckThatFindsNothing(t *testing.T) {
	withFollowing(t, func(t *testing.T, w *world, f *following) {
		job := testJob("flights")
		job.Checkpoint.SelfCheckEvery = new(5)
		rng := rand.New(rand.NewPCG(1, 9))
		w.write(job, 130, "v")
		w.stir(job, rng, 300)
		w.apply(job)
		for i := snapshot.ID(1); i <= 16; i++ {
			f.set(func() { f.rough = i%2 == 0 })
			w.stir(job, rng, 40)
			cp := w.checkpoint("flights")
			same(t, w.live(job), w.content("flights", cp.ID))
			require.Equal(t, i%5 == 0, cp.SelfChecked, "checkpoint %d", i)
			require.Equal(t, i != 1 && i%5 != 0, cp.Incremental)
			if cp.SelfChecked {
				require.Equal(t, fmt.Sprintf("everything was read to compare it with checkpoint %d", i-1), cp.FullReason)
			}
		}
		require.Empty(t, w.seen(EventSelfCheckFailed))
		w.stir(job, rng, 40)
		asked := w.done(w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{VerifyLive: true})).Checkpoint
		require.True(t, asked.SelfChecked)
		require.True(t, w.checkpoint("flights").Incremental, "the next one stands on it")
	})
}

func TestASelfCheckFindsExactlyTheKeyThatWasHidden(t *testing.T) {
	withFollowing(t, func(t *testing.T, w *world, f *following) {
		job := testJob("flights")
		rng := rand.New(rand.NewPCG(2, 9))
		w.write(job, 130, "v")
		w.stir(job, rng, 200)
		w.apply(job)
		w.checkpoint("flights")
		w.checkpoint("flights")
		hidden := hashState("flights", 6)
		f.set(func() { f.hide = hidden })
		_, err := w.store.Do(t.Context(), statebackend.Command(statebackend.OpHSet, hidden, "s:key-77", "written and not seen"))
		require.NoError(t, err)
		w.stir(job, rng, 50)
		w.checkpoint("flights") // 3: it lacks the write
		require.NotEmpty(t, snapshot.DiffKeys(w.live(job), w.content("flights", 3)))
		w.stir(job, rng, 50)
		w.checkpoint("flights")

		s := w.failed(w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{VerifyLive: true}))
		require.Equal(t, fault.Problems, s.Error.Code)
		require.Contains(t, s.Error.Message, fmt.Sprintf("what tracking believed of key %q since checkpoint 4 is wrong: the content of its 130 elements that are not marked as written has changed", hidden))
		require.Equal(t, snapshot.FailTracking, s.Checkpoint.Failure.Reason)
		failed := w.seen(EventSelfCheckFailed)
		require.Len(t, failed, 1)
		require.EqualValues(t, 5, failed[0].ID)

		for _, cp := range w.history("flights") { // 1 read everything, 2 to 4 rest on tracking
			require.Equal(t, cp.ID >= 2 && cp.ID <= 4, cp.Bad != "", "checkpoint %d", cp.ID)
		}
		j, err := w.c.Job("flights")
		require.NoError(t, err)
		require.EqualValues(t, 1, j.Good.ID)

		cp := w.checkpoint("flights")
		require.Equal(t, snapshot.GradePaused, cp.Grade, "once without tracking")
		require.Equal(t, "the self-check of checkpoint 5 found that tracking was wrong", cp.FullReason)
		same(t, w.live(job), w.content("flights", cp.ID))
		cp = w.checkpoint("flights")
		require.Equal(t, snapshot.GradePrecopy, cp.Grade)
		require.Contains(t, cp.FullReason, "what has been written since checkpoint 6 isn't known")
		f.set(func() { f.hide = "" })
		require.True(t, w.checkpoint("flights").Incremental)
		require.True(t, w.done(w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{VerifyLive: true})).Checkpoint.SelfChecked)
	})
}

func TestEachKindOfUnseenChangeIsFound(t *testing.T) {
	job := testJob("flights")
	name := hashState("flights", 3)
	for what, c := range map[string]struct {
		do     []statebackend.Cmd
		detail string
	}{
		"a value":      {[]statebackend.Cmd{statebackend.Command(statebackend.OpHSet, name, "s:key-1", "x")}, "has changed"},
		"a new field":  {[]statebackend.Cmd{statebackend.Command(statebackend.OpHSet, name, "s:new", "x")}, "130 of its elements that are not marked as written were there, and 131 are"},
		"a lost field": {[]statebackend.Cmd{statebackend.Command(statebackend.OpHDel, name, "s:key-1")}, "were there, and 129 are"},
		"an expiry":    {[]statebackend.Cmd{statebackend.Command(statebackend.OpPExpireAt, name, "4102444800000")}, "its expiry was 0 and is 4102444800000"},
		"a deletion":   {[]statebackend.Cmd{statebackend.Command(statebackend.OpDel, name)}, "it was hash and is missing"},
		"another type": {[]statebackend.Cmd{statebackend.Command(statebackend.OpDel, name), statebackend.Command(statebackend.OpSet, name, "x")}, "it was hash and is string"},
		"its name":     {[]statebackend.Cmd{statebackend.Command(statebackend.OpSRem, job.Key().Index(), name)}, "its name was in the index and is not now"},
	} {
		t.Run(what, func(t *testing.T) {
			withFollowing(t, func(t *testing.T, w *world, f *following) {
				w.write(job, 130, "v")
				w.apply(job)
				w.checkpoint("flights")
				f.set(func() { f.hide = name })
				_, err := w.store.Do(t.Context(), c.do...)
				require.NoError(t, err)
				s := w.failed(w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{VerifyLive: true}))
				require.Contains(t, s.Error.Message, name)
				require.Contains(t, s.Error.Message, c.detail)
			})
		})
	}
}

func TestAComparisonThatCannotBeMadeIsTold(t *testing.T) {
	withFollowing(t, func(t *testing.T, w *world, f *following) {
		job := testJob("flights")
		w.write(job, 130, "v")
		w.apply(job)
		verify := func(grade snapshot.Grade) snapshot.Checkpoint {
			return *w.done(w.c.Checkpoint(t.Context(), "flights", CheckpointRequest{VerifyLive: true, Grade: grade})).Checkpoint
		}
		cp := verify("")
		require.False(t, cp.SelfChecked)
		require.Equal(t, cut.Restarted.Text, cp.FullReason)
		f.set(func() { f.lost = "the link broke" })
		cp = verify("")
		require.False(t, cp.SelfChecked)
		require.Equal(t, "it was to be compared with checkpoint 1, and could not be: the link broke", cp.FullReason)
		f.set(func() { f.lost = "" })
		cp = verify(snapshot.GradePaused)
		require.False(t, cp.SelfChecked)
		require.Equal(t, "grade paused reads everything", cp.FullReason)
		require.Empty(t, w.seen(EventCheckpointFailed))
	})
}

func TestSuspects(t *testing.T) {
	full := func(id snapshot.ID, tracking string) snapshot.Checkpoint {
		return snapshot.Checkpoint{ID: id, State: snapshot.StateCompleted, Tracking: tracking, Parent: id - 1}
	}
	part := func(id, parent snapshot.ID) snapshot.Checkpoint {
		return snapshot.Checkpoint{ID: id, State: snapshot.StateCompleted, Tracking: "fields", Incremental: true, Parent: parent}
	}
	failed := snapshot.Checkpoint{ID: 6, State: snapshot.StateFailed}
	for name, c := range map[string]struct {
		history []snapshot.Checkpoint
		base    snapshot.ID
		want    []snapshot.ID
	}{
		"back to the full one":         {[]snapshot.Checkpoint{part(1, 0), full(2, "fields"), part(3, 2), part(4, 3)}, 4, []snapshot.ID{4, 3}},
		"up to the base":               {[]snapshot.Checkpoint{full(1, ""), part(2, 1), part(3, 2), failed, part(7, 3)}, 3, []snapshot.ID{3, 2}},
		"over failures":                {[]snapshot.Checkpoint{full(1, ""), part(2, 1), failed, part(7, 2)}, 7, []snapshot.ID{7, 2}},
		"a full base":                  {[]snapshot.Checkpoint{full(1, "fields"), full(2, "keys")}, 2, []snapshot.ID{2}},
		"read where writers were held": {[]snapshot.Checkpoint{part(1, 0), full(2, "")}, 2, nil},
		"another branch":               {[]snapshot.Checkpoint{full(1, ""), part(2, 1), part(3, 2), part(4, 2)}, 4, []snapshot.ID{4, 2}},
		"one in between was deleted":   {[]snapshot.Checkpoint{full(1, ""), part(2, 1), part(4, 3)}, 4, []snapshot.ID{4, 2}},
		"nothing older":                {[]snapshot.Checkpoint{part(4, 3)}, 4, []snapshot.ID{4}},
		"a parent that can't be":       {[]snapshot.Checkpoint{full(1, ""), part(4, 9)}, 4, []snapshot.ID{4}},
		"no history":                   {nil, 4, nil},
	} {
		var got []snapshot.ID
		for _, cp := range suspects(c.history, c.base) {
			got = append(got, cp.ID)
		}
		require.True(t, slices.Equal(c.want, got), "%s: %v, want %v", name, got, c.want)
	}
}
