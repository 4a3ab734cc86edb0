package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/statebackend"
)

// notes is a sink that remembers what it was told.
type notes struct {
	keys     map[string]statebackend.KeyFacts
	elements map[string][]string
	names    map[string]statebackend.NameFacts
	last     string
	fail     error // what Element gives
	deaf     bool  // elements are not wanted
}

var _ statebackend.InspectSink = (*notes)(nil)

func (n *notes) Key(k statebackend.KeyFacts) (bool, error) {
	n.last = string(k.Name)
	k.Name = nil // valid during the call only
	n.keys[n.last] = k
	return !n.deaf, nil
}

func (n *notes) Element(member []byte) error {
	n.elements[n.last] = append(n.elements[n.last], string(member))
	clear(member)
	return n.fail
}

func (n *notes) Name(f statebackend.NameFacts) error {
	name := string(f.Name)
	f.Name = nil
	n.names[name] = f
	return nil
}

func inspect(t testing.TB, h Harness, req statebackend.InspectRequest, n *notes) (statebackend.Inspection, error) {
	t.Helper()
	i, ok := h.Backend.(statebackend.Inspector)
	require.True(t, ok, "the store can't be inspected")
	n.keys, n.names, n.elements = map[string]statebackend.KeyFacts{}, map[string]statebackend.NameFacts{}, map[string][]string{}
	return i.Inspect(ctxOf(t), req, n)
}

// inspected are the keys of [fillInspected], one of each type.
type inspected struct{ hash, zset, set, list, text string }

// fillInspected writes state of every type, with names that a pattern may
// stumble over.
func fillInspected(t *testing.T, h Harness) inspected {
	root := job.Root()
	hash, zset, set, list, text := root+":cg:h", root+":cg:z", root+":cg:s", root+":cg:l", root+":\xff text"
	var cmds []statebackend.Cmd
	for i := range 700 {
		m := fmt.Sprintf("member-%d\x00", i)
		cmds = append(cmds, cmd(statebackend.OpHSet, hash, m, "value of "+m), cmd(statebackend.OpZAdd, zset, "1.5", m), cmd(statebackend.OpSAdd, set, m))
	}
	cmds = append(cmds, cmd(statebackend.OpRPush, list, "a", "b"), cmd(statebackend.OpSet, text, ""),
		cmd(statebackend.OpPExpireAt, list, "99999999999999"),
		cmd(statebackend.OpSAdd, job.Index(), hash, "\xff not there", "elsewhere"), cmd(statebackend.OpSet, "elsewhere", "x"),
		cmd(statebackend.OpSet, "streaming:runtime:flights", "no key of the job"), cmd(statebackend.OpSet, "streaming:runtime:flightsX\x00:cg", "nor this"),
		cmd(statebackend.OpHSet, job.Registry(), hash, "java.lang.String|1"))
	do(t, h, cmds...)
	return inspected{hash, zset, set, list, text}
}

func testInspect(t *testing.T, h Harness) {
	k := fillInspected(t, h)
	before := dump(t, h)
	var n notes
	seen, err := inspect(t, h, statebackend.InspectRequest{Job: job}, &n)
	require.NoError(t, err)
	require.Equal(t, before, dump(t, h), "nothing was written")
	types := map[string]string{}
	for name, f := range n.keys {
		types[name] = f.Type
		require.Positive(t, f.Bytes+1, name)
		require.Equal(t, name == k.hash, f.Indexed, name)
		require.Equal(t, name == k.list, f.ExpireAt != 0, name)
		require.Equal(t, -1, f.Freq, name)
	}
	require.Equal(t, map[string]string{k.hash: "hash", k.zset: "zset", k.set: "set", k.list: "list", k.text: "string", job.Index(): "set", job.Registry(): "hash"}, types)
	require.EqualValues(t, 99999999999999, n.keys[k.list].ExpireAt)
	for _, name := range []string{k.hash, k.zset, k.set} {
		slices.Sort(n.elements[name])
		require.Len(t, slices.Compact(n.elements[name]), 700, name)
		require.Equal(t, "member-0\x00", n.elements[name][0])
	}
	require.Empty(t, n.elements[k.list])
	require.Empty(t, n.elements[k.text])
	require.Equal(t, map[string]statebackend.NameFacts{
		k.hash: {Exists: true, Schema: []byte("java.lang.String|1")}, "\xff not there": {}, "elsewhere": {Exists: true},
	}, n.names)
	require.False(t, seen.Activity.Writes)
	require.Empty(t, seen.Untold)
}

func testInspectEnds(t *testing.T, h Harness) {
	stop := errors.New("enough")
	fill(t, h, job, "ends")
	n := &notes{fail: stop}
	_, err := inspect(t, h, statebackend.InspectRequest{Job: job}, n)
	require.ErrorIs(t, err, stop)
	n = &notes{fail: stop, deaf: true}
	_, err = inspect(t, h, statebackend.InspectRequest{Job: job}, n)
	require.NoError(t, err, "no element was wanted, so none came")
	require.Len(t, n.names, fixtureNames)

	_, err = inspect(t, h, statebackend.InspectRequest{Job: statebackend.Job{Prefix: "p"}}, n)
	require.Error(t, err, "a job without a name")
	_, err = inspect(t, h, statebackend.InspectRequest{Job: statebackend.Job{Prefix: "p", Name: "empty"}}, n)
	require.NoError(t, err)
	require.Empty(t, n.keys)
	require.Empty(t, n.names)

	ctx, cancel := context.WithTimeout(ctxOf(t), 50*time.Millisecond)
	defer cancel()
	_, err = h.Backend.(statebackend.Inspector).Inspect(ctx, statebackend.InspectRequest{Job: job, Watch: time.Hour}, &notes{
		keys: map[string]statebackend.KeyFacts{}, names: map[string]statebackend.NameFacts{}, elements: map[string][]string{}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func testHolds(t *testing.T, h Harness) {
	do(t, h, cmd(statebackend.OpHSet, "h", "f", "1"), cmd(statebackend.OpZAdd, "z", "2", "m"), cmd(statebackend.OpSet, "s", ""))
	var asks []statebackend.HoldsAsk
	var want []bool
	for range 120 { // more than one pipeline
		asks = append(asks, statebackend.HoldsAsk{Key: "h"}, statebackend.HoldsAsk{Key: "none"}, statebackend.HoldsAsk{Key: "s"},
			statebackend.HoldsAsk{Key: "h", Type: "hash", Member: []byte("f")}, statebackend.HoldsAsk{Key: "h", Type: "hash", Member: []byte("g")},
			statebackend.HoldsAsk{Key: "z", Type: "zset", Member: []byte("m")}, statebackend.HoldsAsk{Key: "z", Type: "zset", Member: []byte{}},
			statebackend.HoldsAsk{Key: "s", Type: "hash", Member: []byte("f")}, statebackend.HoldsAsk{Key: "none", Type: "zset", Member: []byte("f")})
		want = append(want, true, false, true, true, false, true, false, false, false)
	}
	held, err := h.Backend.(statebackend.Inspector).Holds(ctxOf(t), asks)
	require.NoError(t, err)
	require.Equal(t, want, held)
	held, err = h.Backend.(statebackend.Inspector).Holds(ctxOf(t), nil)
	require.NoError(t, err)
	require.Empty(t, held)
}
