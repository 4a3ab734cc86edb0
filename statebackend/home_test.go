package statebackend

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// scripted is a store that records calls and answers as if every key were
// registered as schema says; fail is the number of the call that fails.
type scripted struct {
	Store
	schema string
	fail   int
	calls  [][]Cmd
}

var errCall = errors.New("connection reset")

func (s *scripted) Do(_ context.Context, cmds ...Cmd) ([]Reply, error) {
	s.calls = append(s.calls, cmds)
	if len(s.calls) == s.fail {
		return nil, errCall
	}
	replies := make([]Reply, len(cmds))
	for i, c := range cmds {
		if c.Op == OpHGet {
			replies[i] = Reply{Bytes: []byte(s.schema)}
		}
	}
	return replies, nil
}

// text shows calls as lines.
func text(calls [][]Cmd) (lines []string) {
	names := map[Op]string{OpHGet: "HGET", OpSAdd: "SADD", OpHSetNX: "HSETNX", OpHSet: "HSET", OpDel: "DEL", OpRPush: "RPUSH", OpHDel: "HDEL"}
	for _, call := range calls {
		line := ""
		for _, c := range call {
			line += names[c.Op] + " " + c.Key
			for _, a := range c.Args {
				line += " " + string(a)
			}
			line += "; "
		}
		lines = append(lines, line)
	}
	return lines
}

// Each write carries its registration; the first one is preceded by a look.
func TestCallsOfAHandle(t *testing.T) {
	s := &scripted{schema: "java.lang.Integer|1"}
	space := Space{Store: s, Job: Job{"p", "j"}, Scope: Scope{"g", "t", 4, "o"}}
	v, err := NewValueState(space, Descriptor[int]{Name: "v"})
	require.NoError(t, err)
	l, err := NewListState(space, Descriptor[int]{Name: "l"})
	require.NoError(t, err)
	ctx := t.Context()
	require.NoError(t, v.Update(ctx, "s:x", 5))
	require.NoError(t, v.Update(ctx, "s:y", 6))
	require.NoError(t, l.Update(ctx, "s:x", []int{7, 8}))
	require.NoError(t, l.Update(ctx, "s:x", nil))
	require.Equal(t, []string{
		"HGET p:j:stateSchema p:j:cg:g:topic:t:p:4:state:o:v; ",
		"SADD p:j:stateKeys p:j:cg:g:topic:t:p:4:state:o:v; HSETNX p:j:stateSchema p:j:cg:g:topic:t:p:4:state:o:v java.lang.Integer|1; " +
			"HGET p:j:stateSchema p:j:cg:g:topic:t:p:4:state:o:v; HSET p:j:cg:g:topic:t:p:4:state:o:v s:x 5; ",
		"SADD p:j:stateKeys p:j:cg:g:topic:t:p:4:state:o:v; HSETNX p:j:stateSchema p:j:cg:g:topic:t:p:4:state:o:v java.lang.Integer|1; " +
			"HGET p:j:stateSchema p:j:cg:g:topic:t:p:4:state:o:v; HSET p:j:cg:g:topic:t:p:4:state:o:v s:y 6; ",
		"HGET p:j:stateSchema p:j:cg:g:topic:t:p:4:state:o:l:s:x; ",
		"SADD p:j:stateKeys p:j:cg:g:topic:t:p:4:state:o:l:s:x; HSETNX p:j:stateSchema p:j:cg:g:topic:t:p:4:state:o:l:s:x java.lang.Integer|1; " +
			"HGET p:j:stateSchema p:j:cg:g:topic:t:p:4:state:o:l:s:x; DEL p:j:cg:g:topic:t:p:4:state:o:l:s:x; RPUSH p:j:cg:g:topic:t:p:4:state:o:l:s:x 7 8; ",
		"DEL p:j:cg:g:topic:t:p:4:state:o:l:s:x; ",
	}, text(s.calls))
}

// A batch registers each key once.
func TestCallsOfABatch(t *testing.T) {
	s := &scripted{schema: "java.lang.Integer|1"}
	v, err := NewValueState(SoloSpace(s, Job{"p", "j"}), Descriptor[int]{Name: "v"})
	require.NoError(t, err)
	b := NewBatch(s)
	ctx := WithBatch(t.Context(), b)
	for i := range 3 {
		require.NoError(t, v.Update(ctx, NumberKey(int64(i)), i+10))
	}
	require.NoError(t, v.Clear(ctx, "n:0"))
	require.NoError(t, b.Commit(ctx))
	at := "p:j:cg:standalone:topic:standalone:p:0:state:standalone:v"
	require.Equal(t, []string{
		"HGET p:j:stateSchema " + at + "; ",
		fmt.Sprintf("SADD p:j:stateKeys %[1]s; HSETNX p:j:stateSchema %[1]s java.lang.Integer|1; HGET p:j:stateSchema %[1]s; "+
			"HSET %[1]s n:0 10; HSET %[1]s n:1 11; HSET %[1]s n:2 12; HDEL %[1]s n:0; ", at),
	}, text(s.calls))
}

// Whichever call fails, the error comes back with the key.
func TestEveryFailureComesBack(t *testing.T) {
	for fail := 1; fail <= 2; fail++ {
		s := &scripted{schema: "java.lang.Integer|1", fail: fail}
		v, err := NewValueState(SoloSpace(s, Job{"p", "j"}), Descriptor[int]{Name: "v"})
		require.NoError(t, err)
		err = v.Update(t.Context(), "s:x", 1)
		require.ErrorIs(t, err, errCall)
		require.ErrorContains(t, err, ":state:standalone:v")
	}
	s := &scripted{schema: "java.lang.Integer|1", fail: 2}
	v, err := NewValueState(SoloSpace(s, Job{"p", "j"}), Descriptor[int]{Name: "v"})
	require.NoError(t, err)
	b := NewBatch(s)
	require.NoError(t, v.Update(WithBatch(t.Context(), b), "s:x", 1))
	require.ErrorIs(t, b.Commit(t.Context()), errCall)
	require.Zero(t, b.Len(), "a batch isn't committed twice")
	require.NoError(t, b.Commit(t.Context()))
	require.Len(t, s.calls, 2)
}

// The memory of what was checked is bounded.
func TestSeenIsBounded(t *testing.T) {
	s := &scripted{schema: "java.lang.Integer|1"}
	m, err := NewSetState(SoloSpace(s, Job{"p", "j"}), Descriptor[int]{Name: "v"})
	require.NoError(t, err)
	for i := range maxSeen + 10 {
		require.NoError(t, m.home.fits(strconv.Itoa(i), []Reply{{Nil: true}}))
	}
	require.LessOrEqual(t, len(m.home.seen), maxSeen)
	require.Contains(t, m.home.seen, strconv.Itoa(maxSeen+9))
}
