package backendtest

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// step is a command with what it must give.
type step struct {
	cmd  statebackend.Cmd
	n    int64
	text string
	none bool
}

const (
	hashKey, listKey, setKey, zsetKey, strKey = "k:hash\x00", "k:list\xff", "k:set", "k:zset", "k:str"
)

// steps are commands in order with what each must give on an empty store.
var steps = []step{
	{cmd: cmd(statebackend.OpHGet, hashKey, "f"), none: true},
	{cmd: cmd(statebackend.OpHLen, hashKey)},
	{cmd: cmd(statebackend.OpHSet, hashKey, "f\xfe", ""), n: 1},
	{cmd: cmd(statebackend.OpHSet, hashKey, "f\xff", "v\x00"), n: 1},
	{cmd: cmd(statebackend.OpHSet, hashKey, "f\xff", "v2"), n: 0},
	{cmd: cmd(statebackend.OpHGet, hashKey, "f\xfe"), text: ""},
	{cmd: cmd(statebackend.OpHGet, hashKey, "f\xff"), text: "v2"},
	{cmd: cmd(statebackend.OpHSetNX, hashKey, "f\xff", "no"), n: 0},
	{cmd: cmd(statebackend.OpHSetNX, hashKey, "", "empty"), n: 1},
	{cmd: cmd(statebackend.OpHGet, hashKey, ""), text: "empty"},
	{cmd: cmd(statebackend.OpHExists, hashKey, "f"), n: 0},
	{cmd: cmd(statebackend.OpHExists, hashKey, "f\xfe"), n: 1},
	{cmd: cmd(statebackend.OpHLen, hashKey), n: 3},
	{cmd: cmd(statebackend.OpHDel, hashKey, "f\xfe"), n: 1},
	{cmd: cmd(statebackend.OpHDel, hashKey, "f\xfe"), n: 0},
	{cmd: cmd(statebackend.OpType, hashKey), text: "hash"},
	{cmd: cmd(statebackend.OpRPush, listKey, "b", "a", "b", ""), n: 4},
	{cmd: cmd(statebackend.OpRPush, listKey, "c"), n: 5},
	{cmd: cmd(statebackend.OpLLen, listKey), n: 5},
	{cmd: cmd(statebackend.OpLLen, "k:none")},
	{cmd: cmd(statebackend.OpSAdd, setKey, "x", "y", "x", ""), n: 3},
	{cmd: cmd(statebackend.OpSAdd, setKey, "y", "z"), n: 1},
	{cmd: cmd(statebackend.OpSIsMember, setKey, ""), n: 1},
	{cmd: cmd(statebackend.OpSIsMember, setKey, "q"), n: 0},
	{cmd: cmd(statebackend.OpSRem, setKey, "y", "q", ""), n: 2},
	{cmd: cmd(statebackend.OpSCard, setKey), n: 2},
	{cmd: cmd(statebackend.OpZAdd, zsetKey, "inf", "m"), n: 1},
	{cmd: cmd(statebackend.OpZAdd, zsetKey, "-0.5", "m"), n: 0},
	{cmd: cmd(statebackend.OpZRem, zsetKey, "m", "n"), n: 1},
	{cmd: cmd(statebackend.OpType, zsetKey), text: "none"},
	{cmd: cmd(statebackend.OpGet, strKey), none: true},
	{cmd: cmd(statebackend.OpSet, strKey, "")},
	{cmd: cmd(statebackend.OpGet, strKey), text: ""},
	{cmd: cmd(statebackend.OpSet, strKey, "\x00")},
	{cmd: cmd(statebackend.OpGet, strKey), text: "\x00"},
	{cmd: cmd(statebackend.OpDel, strKey), n: 1},
	{cmd: cmd(statebackend.OpDel, strKey), n: 0},
	{cmd: cmd(statebackend.OpPExpireAt, strKey, "99999999999999"), n: 0},
	{cmd: cmd(statebackend.OpPExpireAt, setKey, "99999999999999"), n: 1},
	{cmd: cmd(statebackend.OpPExpireAt, listKey, "1"), n: 1},
	{cmd: cmd(statebackend.OpType, listKey), text: "none"},
}

func testCommands(t *testing.T, h Harness) {
	for i, s := range steps {
		checkReply(t, s, do(t, h, s.cmd)[0], i)
	}
	// The same as one call, on other keys.
	var all []statebackend.Cmd
	for _, s := range steps {
		s.cmd.Key = "again:" + s.cmd.Key
		all = append(all, s.cmd)
	}
	for i, r := range do(t, h, all...) {
		checkReply(t, steps[i], r, i)
	}
	testExpiryDropped(t, h)
}

func checkReply(t *testing.T, s step, r statebackend.Reply, i int) {
	t.Helper()
	require.Equal(t, s.none, r.Nil, "step %d: %+v", i, s)
	require.Equal(t, s.n, r.Int, "step %d: %+v", i, s)
	require.Equal(t, s.text, string(r.Bytes), "step %d: %+v", i, s)
}

// testExpiryDropped: SET drops an expiry, a key that has expired is gone.
func testExpiryDropped(t *testing.T, h Harness) {
	soon := h.Now(t).Add(300 * time.Millisecond)
	at := strconv.FormatInt(soon.UnixMilli(), 10)
	do(t, h, cmd(statebackend.OpSet, "e:kept", "1"), cmd(statebackend.OpPExpireAt, "e:kept", at), cmd(statebackend.OpSet, "e:kept", "2"),
		cmd(statebackend.OpHSet, "e:gone", "f", "v"), cmd(statebackend.OpPExpireAt, "e:gone", at))
	h.Pass(t, soon.Add(grace))
	r := do(t, h, cmd(statebackend.OpGet, "e:kept"), cmd(statebackend.OpHGet, "e:gone", "f"), cmd(statebackend.OpHSet, "e:gone", "g", "w"), cmd(statebackend.OpHLen, "e:gone"))
	require.Equal(t, "2", string(r[0].Bytes))
	require.True(t, r[1].Nil)
	require.EqualValues(t, 1, r[3].Int, "nothing of the expired hash is left")
}

func testWrongType(t *testing.T, h Harness) {
	do(t, h, cmd(statebackend.OpSAdd, "set", "m"), cmd(statebackend.OpSet, "str", "s"))
	for _, c := range []statebackend.Cmd{
		cmd(statebackend.OpHGet, "set", "f"), cmd(statebackend.OpHSet, "set", "f", "v"), cmd(statebackend.OpHSetNX, "str", "f", "v"),
		cmd(statebackend.OpRPush, "set", "i"), cmd(statebackend.OpLLen, "str"), cmd(statebackend.OpSAdd, "str", "m"),
		cmd(statebackend.OpZAdd, "set", "1", "m"), cmd(statebackend.OpGet, "set"), cmd(statebackend.OpSRem, "str", "m"),
	} {
		_, err := h.Backend.Do(ctxOf(t), c)
		require.ErrorIs(t, err, statebackend.ErrWrongType, "%+v", c)
	}
	_, err := h.Backend.Do(ctxOf(t), cmd(statebackend.OpHSet, "before", "f", "v"), cmd(statebackend.OpHSet, "set", "f", "v"))
	require.ErrorIs(t, err, statebackend.ErrWrongType)
	require.Equal(t, "v", string(do(t, h, cmd(statebackend.OpHGet, "before", "f"))[0].Bytes), "earlier commands stay done")
	require.Equal(t, []string{"m"}, members(t, h, "set"))
	err = h.Backend.Each(ctxOf(t), "str", snapshot.TypeHash, func(snapshot.Element) error { return nil })
	require.ErrorIs(t, err, statebackend.ErrWrongType)
}

func testEach(t *testing.T, h Harness) {
	fill(t, h, job, "each")
	big := fields(t, h, stateName(job, 1, "big"))
	require.Len(t, big, hashFields)
	require.Equal(t, "value 28", big["s:each4"])
	odd := fields(t, h, stateName(job, 2, "odd"))
	for i, u := range ugly {
		require.Equal(t, ugly[len(ugly)-1-i], odd[u])
	}
	var items []string
	listKey := stateName(job, 3, "list") + ":s:l"
	require.NoError(t, h.Backend.Each(ctxOf(t), listKey, snapshot.TypeList, func(e snapshot.Element) error {
		require.EqualValues(t, len(e.Value), e.Size)
		items = append(items, string(e.Value))
		clear(e.Value) // ours to spoil
		return nil
	}))
	require.Len(t, items, 900+len(ugly))
	require.Equal(t, []string{"each0", "twice", "twice", "each1"}, items[:4])
	require.Equal(t, ugly, items[900:])
	require.EqualValues(t, 911, do(t, h, cmd(statebackend.OpLLen, listKey))[0].Int)

	got := map[string]float64{}
	require.NoError(t, h.Backend.Each(ctxOf(t), stateName(job, 5, "zset"), snapshot.TypeZSet, func(e snapshot.Element) error {
		got[string(e.Value)] = e.Score
		return nil
	}))
	for i, u := range ugly {
		want, err := strconv.ParseFloat(scores[i%len(scores)], 64)
		require.NoError(t, err)
		require.Equal(t, want, got[u], "%.20q", u)
	}
	stop := errors.New("enough")
	err := h.Backend.Each(ctxOf(t), listKey, snapshot.TypeList, func(snapshot.Element) error { return stop })
	require.ErrorIs(t, err, stop)
	require.Empty(t, members(t, h, "no such key"))
}

// testAtomic: nobody sees one of two writes of one call.
func testAtomic(t *testing.T, h Harness) {
	const rounds = 200
	var wg sync.WaitGroup
	var writeErr error
	wg.Go(func() {
		for i := range rounds {
			if _, writeErr = h.Backend.Do(ctxOf(t), cmd(statebackend.OpSet, "one", strconv.Itoa(i)), cmd(statebackend.OpHSet, "two", "f", strconv.Itoa(-i))); writeErr != nil {
				return
			}
		}
	})
	for range rounds {
		r := do(t, h, cmd(statebackend.OpGet, "one"), cmd(statebackend.OpHGet, "two", "f"))
		if r[0].Nil {
			require.True(t, r[1].Nil)
			continue
		}
		var one, two int
		_, err := fmt.Sscan(string(r[0].Bytes)+" "+string(r[1].Bytes), &one, &two)
		require.NoError(t, err)
		require.Equal(t, one, -two)
	}
	wg.Wait()
	require.NoError(t, writeErr)
}

func testClosed(t *testing.T, h Harness) {
	do(t, h, cmd(statebackend.OpSet, "k", "v"))
	require.NoError(t, h.Backend.Close())
	_, err := h.Backend.Do(ctxOf(t), cmd(statebackend.OpGet, "k"))
	require.ErrorIs(t, err, statebackend.ErrClosed)
}
