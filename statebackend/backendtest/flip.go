package backendtest

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// liveDump is everything but what restores write beside the live keys.
func liveDump(t testing.TB, h Harness) map[string]statebackend.KeySummary {
	t.Helper()
	return dump(t, h, job.Record())
}

// testFlipFenced (I7): the epoch moved on while we staged.
func testFlipFenced(t *testing.T, h Harness) {
	fill(t, h, job, "fenced")
	_, keys := cutOf(t, h, job)
	spoil(t, h)
	before := liveDump(t, h)
	s := stageKeys(t, h, request(t, h, job, "r1"), keys)
	require.Equal(t, before, liveDump(t, h), "staging touches no live key")
	do(t, h, cmd(statebackend.OpHSet, job.Record(), statebackend.FieldEpoch, "77"))
	_, err := s.Flip(ctxOf(t))
	require.ErrorIs(t, err, statebackend.ErrFenced)
	require.ErrorContains(t, err, "77")
	require.Equal(t, before, liveDump(t, h))
	require.NoError(t, s.Abort(ctxOf(t)))
	noneStaged(t, h, job)

	// The mark was taken away, and then taken over.
	s = stageKeys(t, h, request(t, h, job, "r2"), keys)
	flipped, err := h.Backend.Resolve(ctxOf(t), job, "r2")
	require.NoError(t, err)
	require.False(t, flipped)
	other := stageKeys(t, h, request(t, h, job, "r3"), keys)
	_, err = s.Flip(ctxOf(t))
	require.Error(t, err)
	require.Equal(t, before, liveDump(t, h))
	require.NoError(t, s.Abort(ctxOf(t)))
	_, err = other.Flip(ctxOf(t))
	require.NoError(t, err, "the abort of one restore left the other alone")
}

// stagedHash finds the staged copy of the fixture's hash with the field tamper.
func stagedHash(t testing.TB, h Harness, id string) string {
	t.Helper()
	for _, key := range h.Keys(t) {
		if !strings.HasPrefix(key, job.Staging(id)) || string(do(t, h, cmd(statebackend.OpType, key))[0].Bytes) != "hash" {
			continue
		}
		if do(t, h, cmd(statebackend.OpHExists, key, "tamper"))[0].Int == 1 {
			return key
		}
	}
	require.Fail(t, "the staged hash isn't there")
	return ""
}

func testFlipNeedsItsStage(t *testing.T, h Harness) {
	fill(t, h, job, "needs")
	_, keys := cutOf(t, h, job)
	spoil(t, h)
	before := liveDump(t, h)
	s := stageKeys(t, h, request(t, h, job, "r1"), keys)
	require.NoError(t, s.Prove(ctxOf(t))) // a store may stage behind the calls, but not behind a proof
	do(t, h, cmd(statebackend.OpDel, stagedHash(t, h, "r1")))
	_, err := s.Flip(ctxOf(t))
	require.ErrorIs(t, err, statebackend.ErrMismatch)
	require.Equal(t, before, liveDump(t, h))
	require.NoError(t, s.Abort(ctxOf(t)))

	// A server that lost everything while we staged.
	s = stageKeys(t, h, request(t, h, job, "r2"), keys)
	h.Lose(t)
	_, err = s.Flip(ctxOf(t))
	require.Error(t, err)
	require.Empty(t, liveDump(t, h))
	require.NoError(t, s.Abort(ctxOf(t)))
	require.Empty(t, h.Keys(t))
}

func testAbort(t *testing.T, h Harness) {
	fill(t, h, job, "abort")
	_, keys := cutOf(t, h, job)
	spoil(t, h)
	before := dump(t, h)
	s := stageKeys(t, h, request(t, h, job, "r1"), keys)
	require.NoError(t, s.Abort(ctxOf(t)))
	require.NoError(t, s.Abort(ctxOf(t)))
	require.Equal(t, before, dump(t, h), "live keys untouched, nothing staged left, the record without its mark")
	_, err := s.Flip(ctxOf(t))
	require.Error(t, err)
	require.Equal(t, before, dump(t, h))

	// In the middle of a key.
	s, err = h.Backend.Stage(ctxOf(t), request(t, h, job, "r2"))
	require.NoError(t, err)
	require.NoError(t, s.BeginKey(snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(stateName(job, 1, "half")), Type: snapshot.TypeHash, Count: 2}))
	require.NoError(t, s.Element(snapshot.Element{Field: []byte("f"), Size: 1, Value: []byte("v")}))
	_, err = s.Flip(ctxOf(t))
	require.Error(t, err, "a key isn't whole")
	require.NoError(t, s.Abort(ctxOf(t)))
	require.Equal(t, before, dump(t, h))
}

// testProve: what is staged is compared with what EndKey says of it.
func testProve(t *testing.T, h Harness) {
	fill(t, h, job, "prove")
	_, keys := cutOf(t, h, job)
	before := dump(t, h)
	s := stageKeys(t, h, request(t, h, job, "whole"), keys[1:])
	require.NoError(t, s.Prove(ctxOf(t)))
	require.NoError(t, s.Prove(ctxOf(t)), "it may be done again")
	require.NoError(t, snapshot.Replay(keys[:1], s), "and more may be staged after it")
	require.NoError(t, s.Prove(ctxOf(t)))
	require.NoError(t, s.Abort(ctxOf(t)))
	for i, name := range []string{stateName(job, 1, "big"), stateName(job, 2, "odd"), stateName(job, 3, "list") + ":s:l",
		stateName(job, 4, "set") + ":s:m", stateName(job, 5, "zset"), stateName(job, 5, "signed"), stateName(job, 7, "empty string")} {
		wrong := slices.Clone(keys)
		at := slices.IndexFunc(wrong, func(k snapshot.RecordedKey) bool { return string(k.Key.Name) == name })
		wrong[at].End.Digest ^= 1
		s, err := h.Backend.Stage(ctxOf(t), request(t, h, job, "wrong"+strconv.Itoa(i)))
		require.NoError(t, err)
		if err = snapshot.Replay(wrong, s); err == nil { // a store may prove behind the calls
			err = s.Prove(ctxOf(t))
		}
		require.ErrorIs(t, err, statebackend.ErrMismatch, name)
		require.ErrorContains(t, err, strconv.Quote(name))
		_, err = s.Flip(ctxOf(t))
		require.ErrorIs(t, err, statebackend.ErrMismatch, name)
		require.NoError(t, s.Abort(ctxOf(t)))
	}
	require.Equal(t, before, dump(t, h))
}

func testResolve(t *testing.T, h Harness) {
	ctx := ctxOf(t)
	fill(t, h, job, "resolve")
	_, keys := cutOf(t, h, job)
	spoil(t, h)
	before := dump(t, h)
	for range 2 {
		flipped, err := h.Backend.Resolve(ctx, job, "never")
		require.NoError(t, err)
		require.False(t, flipped)
	}
	stageKeys(t, h, request(t, h, job, "r1"), keys) // and its coordinator dies
	flipped, err := h.Backend.Resolve(ctx, job, "other")
	require.NoError(t, err)
	require.False(t, flipped)
	g, err := h.Backend.Look(ctx, job)
	require.NoError(t, err)
	require.NotNil(t, g.Record.Restore, "another restore's mark stays")
	for range 2 {
		flipped, err := h.Backend.Resolve(ctx, job, "r1")
		require.NoError(t, err)
		require.False(t, flipped)
		require.Equal(t, before, dump(t, h))
	}

	req := request(t, h, job, "r2")
	s := stageKeys(t, h, req, keys)
	_, err = s.Flip(ctx)
	require.NoError(t, err)
	after := dump(t, h)
	for range 2 {
		flipped, err := h.Backend.Resolve(ctx, job, "r2")
		require.NoError(t, err)
		require.True(t, flipped)
		require.Equal(t, after, dump(t, h))
	}
	checkRestored(t, h, req, keys)
	_, err = h.Backend.Stage(ctx, func() statebackend.RestoreRequest { r := request(t, h, job, "r2"); return r }())
	require.Error(t, err, "an id that went live can't be used again")
}
