package rescale

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

// bigJob has each kind of state, 150 items and fields per part (more than the
// 128 that a small Redis encoding holds), and one value larger than a part.
func bigJob() *fakeJob {
	j := &fakeJob{piece: 7}
	list := j.register("a", "list", snapshot.ModeList)
	u := j.register("b", "union", snapshot.ModeUnion)
	b := j.register("c", "broad", snapshot.ModeBroadcast)
	for sub := range 3 {
		var all, told, rules []item
		for i := range 150 {
			all = append(all, items(fmt.Sprintf("list-%d-%d", sub, i))...)
			told = append(told, items(fmt.Sprintf("told-%d-%d", sub, i))...)
			rules = append(rules, field(fmt.Sprintf("rule-%d", i), fmt.Sprintf("value-%d", i)))
		}
		all = append(all, item{value: bytes.Repeat([]byte{byte(sub), 0, '\n'}, 700<<10)}, item{value: []byte{}})
		j.add(list, sub, all...)
		j.add(u, sub, told...)
		j.add(b, sub, rules...)
	}
	return j
}

func plan(t *testing.T, j *fakeJob, from, to int) Plan {
	t.Helper()
	p, err := Compute(Request{Rule: rule(), From: from, To: to, States: j.collect(t)})
	require.NoError(t, err)
	return p
}

// TestWriteGivesTheSameFromMemoryAndFromReplays with every budget from "all
// fits" over "one state fits" to "nothing fits".
func TestWriteGivesTheSameFromMemoryAndFromReplays(t *testing.T) {
	j := bigJob()
	p := plan(t, j, 3, 5)
	var want []fakeKey
	for _, c := range []struct {
		budget  int
		replays int
	}{
		{0, 1},
		// All is over, then each state by itself: the list is over too and
		// takes one replay for each of its five keys.
		{200 << 10, 1 + 3 + 5},
		{1, 1 + 3 + 5 + 5 + 5},
	} {
		j.replays = 0
		var out recorder
		states, err := j.execution(c.budget).Write(t.Context(), p, &out)
		require.NoError(t, err)
		require.Equal(t, c.replays, j.replays, "budget %d", c.budget)
		if want == nil {
			want = out.keys
		}
		requireSameKeys(t, want, out.keys)
		require.Len(t, states, 3)
		require.Equal(t, uint64(9), states[1].Handed.Epoch)
		require.Equal(t, 450, states[1].Handed.Length)
		require.Len(t, out.keys, 15)
		for i, k := range out.keys {
			require.Equal(t, keyOf(p.States[i/5].OperatorState, i%5), k.key.Name, "by state, then by subtask")
			require.Equal(t, []snapshot.KeyType{snapshot.TypeList, snapshot.TypeList, snapshot.TypeHash}[i/5], k.key.Type)
		}
	}
}

func requireSameKeys(t require.TestingT, want, got []fakeKey) {
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i].key, got[i].key)
		require.Len(t, got[i].elems, len(want[i].elems))
		for e := range want[i].elems {
			require.True(t, bytes.Equal(want[i].elems[e].field, got[i].elems[e].field))
			require.True(t, bytes.Equal(want[i].elems[e].value, got[i].elems[e].value))
		}
	}
}

// TestWriteFromReplaysInAnyOrder: when the old parts come in the wrong order,
// a key takes more replays and still has its items in order.
func TestWriteFromReplaysInAnyOrder(t *testing.T) {
	j := letters("abc", "def", "ghi")
	j.keys[0], j.keys[2] = j.keys[2], j.keys[0]
	p := plan(t, j, 3, 1)
	j.replays = 0
	var out recorder
	_, err := j.execution(1).Write(t.Context(), p, &out)
	require.NoError(t, err)
	require.Equal(t, []string{"abcdefghi"}, joined((&fakeJob{keys: out.keys}).parts("op", "list", 1)))
	require.Equal(t, 1+3, j.replays)
}

func TestWriteKeepsTheExpiryThatAllPartsHave(t *testing.T) {
	j := letters("abc", "def")
	for i := range j.keys {
		j.keys[i].key.ExpireAt = 1800000000456
	}
	out := j.rescaled(t, 2, 3, SplitEach, 0)
	for _, k := range out.keys {
		require.Equal(t, int64(1800000000456), k.key.ExpireAt)
	}
}

func TestWriteNothing(t *testing.T) {
	j := &fakeJob{}
	j.register("op", "list", snapshot.ModeList)
	var out recorder
	states, err := j.execution(0).Write(t.Context(), plan(t, j, 2, 3), &out)
	require.NoError(t, err)
	require.Equal(t, j.registered, states)
	require.Zero(t, out.calls)
}

// TestWriteRefusesAnotherCheckpoint than the plan was made from.
func TestWriteRefusesAnotherCheckpoint(t *testing.T) {
	for _, budget := range []int{0, 1} {
		for name, c := range map[string]struct {
			edit func(*fakeJob)
			says string
		}{
			"shorter part": {func(j *fakeJob) { j.keys[1].elems = j.keys[1].elems[:2] }, "items 0 to 3 of subtask 1 were planned"},
			"no part":      {func(j *fakeJob) { j.keys = j.keys[:1] }, "items 0 to 3 of subtask 1 were planned"},
			"unknown key":  {func(j *fakeJob) { j.keys[0].key.Name = []byte("unknown") }, `"unknown" belongs to no known state`},
			"missing key":  {func(j *fakeJob) { j.keys[0].key.Type = snapshot.TypeMissing }, "items 0 to 3 of subtask 0 were planned"},
		} {
			t.Run(fmt.Sprintf("%s, budget %d", name, budget), func(t *testing.T) {
				j := letters("abc", "def")
				p := plan(t, j, 2, 1)
				c.edit(j)
				_, err := j.execution(budget).Write(t.Context(), p, &recorder{})
				require.ErrorIs(t, err, ErrInput)
				require.ErrorContains(t, err, c.says)
			})
		}
	}
}

func TestWriteRefusesTwoKeysForAPart(t *testing.T) {
	j := letters("abc", "def")
	p := plan(t, j, 2, 1)
	j.keys = append(j.keys, j.keys[0])
	_, err := j.execution(0).Write(t.Context(), p, &recorder{})
	require.ErrorContains(t, err, `key "op|list|0" is the second one`)
}

func TestWritePassesErrorsOn(t *testing.T) {
	boom := errors.New("boom")
	for _, budget := range []int{0, 1} {
		j := letters("abc", "def")
		j.keys[0].elems[1].value = bytes.Repeat([]byte("long"), 5)
		j.piece = 6
		p := plan(t, j, 2, 3)

		// Call k of the sink fails, for every k until the run succeeds.
		k := 1
		for ; ; k++ {
			out := recorder{failAt: k, err: boom}
			_, err := j.execution(budget).Write(t.Context(), p, &out)
			if err == nil {
				require.Equal(t, k, out.calls+1)
				break
			}
			require.ErrorIs(t, err, boom, "call %d", k)
			require.ErrorContains(t, err, "op/list")
			require.ErrorContains(t, err, `key "op|list|`)
			require.Equal(t, k, out.calls, "a dead sink isn't called again")
		}
		require.Greater(t, k, 12)

		x := j.execution(budget)
		x.Replay = func(context.Context, snapshot.Sink) error { return boom }
		_, err := x.Write(t.Context(), p, &recorder{})
		require.ErrorIs(t, err, boom)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = j.execution(budget).Write(ctx, p, &recorder{})
		require.ErrorIs(t, err, context.Canceled)
	}
}

// TestWriteDoesNotTrustSizes: a size that nobody can have is over the budget,
// not an allocation; what then comes is short of it.
func TestWriteDoesNotTrustSizes(t *testing.T) {
	j := letters("abc")
	p := plan(t, j, 1, 2)
	for _, size := range []uint64{1 << 62, ^uint64(0), 5} {
		x := j.execution(0)
		x.Replay = func(_ context.Context, sink snapshot.Sink) error {
			for _, call := range []func() error{
				func() error { return sink.BeginKey(j.keys[0].key) },
				func() error { return sink.Element(snapshot.Element{Size: size, Value: []byte("a")}) },
				func() error { return sink.EndKey(snapshot.KeyEnd{}) },
			} {
				if err := call(); err != nil {
					return err
				}
			}
			return nil
		}
		_, err := x.Write(t.Context(), p, &recorder{})
		require.Error(t, err)
	}
}
