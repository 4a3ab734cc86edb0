package redis

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// smallCheckpoint is a few keys of several types that differ from what
// fillJob writes, so that old and new can be told apart.
func smallCheckpoint(job statebackend.Job) []staged {
	name := func(s string) []byte { return []byte(job.Root() + ":cg:" + s) }
	el := func(field, value string, score float64) snapshot.Element {
		e := snapshot.Element{Score: score, Size: uint64(len(value)), Value: []byte(value)}
		if field != "" {
			e.Field = []byte(field)
		}
		return e
	}
	keys := []staged{
		{key: snapshot.Key{Section: snapshot.SectionKeyed, Name: name("small"), Type: snapshot.TypeHash},
			elements: []snapshot.Element{el("f", "restored", 0), el("g", "two", 0)}},
		{key: snapshot.Key{Section: snapshot.SectionKeyed, Name: name("list"), Type: snapshot.TypeZSet,
			ExpireAt: time.Now().Add(time.Hour).UnixMilli()}, elements: []snapshot.Element{el("", "m", 2.5)}},
		{key: snapshot.Key{Section: snapshot.SectionKeyed, Name: name("string"), Type: snapshot.TypeList},
			elements: []snapshot.Element{el("", "1", 0), el("", "1", 0)}},
		{key: snapshot.Key{Section: snapshot.SectionKeyed, Name: name("zset")}},
		{key: snapshot.Key{Section: snapshot.SectionMeta, Name: []byte(job.Registry()), Type: snapshot.TypeHash},
			elements: []snapshot.Element{el(string(name("small")), "restored|2", 0)}},
	}
	for i := range keys {
		keys[i].sum()
	}
	return keys
}

// Invariant I3: the connection ends at call k, for each k until none is left;
// afterwards the state is old or new, whole, and Resolve leaves no trace.
func TestARestoreCutAtEachCallIsWholeI3(t *testing.T) {
	srv := redistest.Start(t)
	c, b := srv.Client(), openTest(t, srv)
	fillJob(t, c, testJob, "old")
	addSource(t, c)
	keys := append(smallCheckpoint(testJob), sourceKeys(t, b)...)
	cutEverywhere(t, srv, keys, func() statebackend.RestoreRequest {
		require.NoError(t, c.XAck(context.Background(), testStream, testGroup, "1-7", "4-7").Err())
		req := testRequest("cut", 3)
		req.Positions = testPositions()
		return req
	})
}

// The same for a change of parallelism.
func TestARescaleCutAtEachCallIsWholeI4(t *testing.T) {
	srv := redistest.Start(t)
	c, b := srv.Client(), openTest(t, srv)
	cutEverywhere(t, srv, rescaled(), func() statebackend.RestoreRequest {
		return rescaleRequest("cut", summaries(t, b, operatorJob(t, c)))
	})
}

// cutEverywhere restores keys over what setUp makes of an empty server, cut at
// call 1, 2, … before and after the server has answered.
func cutEverywhere(t *testing.T, srv *redistest.Server, keys []staged, setUp func() statebackend.RestoreRequest) {
	t.Helper()
	c, ctx := srv.Client(), context.Background()
	healthy := openTest(t, srv)
	req := setUp()
	srv.Do("SAVE")
	fresh := func() { srv.Do("DEBUG", "RELOAD", "NOSAVE") } // what was saved, byte for byte
	_, was := apart(digests(t, c), testJob)
	_, err := restore(ctx, healthy, req, keys)
	require.NoError(t, err)
	_, becomes := apart(digests(t, c), testJob)
	for _, silent := range []bool{false, true} {
		flips := 0
		for k := 1; ; k++ {
			fresh()
			f := &fault{left: k, silent: silent}
			err := restoreThrough(t, srv, f, req, keys)
			if err == nil && !f.isCut() {
				require.Greater(t, k, 40, "calls of the whole restore")
				break
			}
			if err != nil {
				require.ErrorIs(t, err, statebackend.ErrUnreachable, "call %d", k)
			}
			flipped, resolveErr := healthy.Resolve(ctx, testJob, "cut")
			require.NoError(t, resolveErr)
			noTraces(t, c, testJob)
			_, now := apart(digests(t, c), testJob)
			want := map[bool]map[string]string{false: was, true: becomes}[flipped]
			requireExpiryAside(t, want, now, fmt.Sprintf("cut at call %d, silent %v, flipped %v", k, silent, flipped))
			if flipped {
				flips++
				require.True(t, silent || err == nil, "flipped although the call was not sent")
			}
		}
		require.Equal(t, map[bool]int{false: 0, true: 1}[silent], flips, "only a lost answer of the flip leaves the new state")
	}
}

// restoreThrough restores on connections that the fault cuts, and dies.
func restoreThrough(t *testing.T, srv *redistest.Server, f *fault, req statebackend.RestoreRequest, keys []staged) error {
	t.Helper()
	ctx := context.Background()
	b, err := Open(ctx, Config{URL: srv.URL(), Lazy: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	b.setWrap(f.wrap)
	s, err := b.Stage(ctx, req)
	if err != nil {
		return err
	}
	_, err = stageProveFlip(ctx, s, keys)
	s.(*staging).hangUp()
	return err
}

// requireExpiryAside is requireSame for states whose expiry times were set at
// different moments.
func requireExpiryAside(t *testing.T, want, got map[string]string, what string) {
	t.Helper()
	cut := func(all map[string]string) map[string]string {
		out := make(map[string]string, len(all))
		for k, v := range all {
			digest, expiry := v[:40], v[41:]
			out[k] = digest + map[bool]string{true: " expires", false: " stays"}[expiry != "-1"]
		}
		return out
	}
	requireSame(t, cut(want), cut(got), what)
}

// The same for Resolve itself: cut anywhere, it can be called again.
func TestAResolveCutAtEachCallCanBeRepeated(t *testing.T) {
	srv := redistest.Start(t)
	c, ctx := srv.Client(), context.Background()
	healthy := openTest(t, srv)
	fillJob(t, c, testJob, "old")
	old := digests(t, c)
	keys := smallCheckpoint(testJob)
	for k := 1; ; k++ {
		s, err := healthy.Stage(ctx, testRequest("again", 3))
		require.NoError(t, err)
		require.NoError(t, feed(s, keys))
		require.NoError(t, s.(*staging).finishStaging())
		s.(*staging).hangUp()
		f := &fault{left: k, silent: k%2 == 0}
		b, err := Open(ctx, Config{URL: srv.URL(), Lazy: true})
		require.NoError(t, err)
		b.setWrap(f.wrap)
		_, err = b.Resolve(ctx, testJob, "again")
		require.NoError(t, b.Close())
		if err == nil && !f.isCut() {
			require.Greater(t, k, 5)
			noTraces(t, c, testJob)
			return
		}
		flipped, err := healthy.Resolve(ctx, testJob, "again")
		require.NoError(t, err)
		require.False(t, flipped)
		noTraces(t, c, testJob)
		requireSame(t, old, digests(t, c), fmt.Sprintf("cut at call %d", k))
	}
}

func TestAServerKilledInMidRestoreIsResolvedAfterItsRestart(t *testing.T) {
	srv := redistest.Start(t, redistest.Setting("appendonly yes"), redistest.Setting("appendfsync always"))
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "old")
	old := digests(t, c)
	s, err := b.Stage(ctx, testRequest("kill", 3))
	require.NoError(t, err)
	require.NoError(t, feed(s, smallCheckpoint(testJob)))
	require.NoError(t, s.(*staging).finishStaging())
	srv.Kill()
	_, err = s.Flip(ctx)
	require.ErrorIs(t, err, statebackend.ErrUnreachable)
	require.ErrorIs(t, s.Abort(ctx), statebackend.ErrUnreachable)
	srv.Restart()
	require.True(t, srv.Client().HExists(ctx, testJob.Record(), "restore").Val(), "the job is still marked")
	flipped, err := b.Resolve(ctx, testJob, "kill")
	require.NoError(t, err)
	require.False(t, flipped)
	noTraces(t, c, testJob)
	requireSame(t, old, digests(t, c), "after the restart")
}

func TestStagedKeysThatWereEvictedAreNamedAndTheRestFound(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	// The names hold every character that a pattern of the server would use.
	job := statebackend.Job{Prefix: "p", Name: `a*[x]^\-?`}
	near := statebackend.Job{Prefix: "p", Name: `abbbx^\-y`}
	fillJob(t, c, job, "old")
	require.NoError(t, c.Set(ctx, near.Staging("ev")+"k0.0", "not ours", 0).Err())
	old := digests(t, c)
	req := testRequest("ev", 3)
	req.Job = job
	s, err := b.Stage(ctx, req)
	require.NoError(t, err)
	require.NoError(t, feed(s, smallCheckpoint(job)))
	require.NoError(t, s.(*staging).finishStaging())
	require.NoError(t, c.Del(ctx, job.Staging("ev")+"k0.1", job.Staging("ev")+stageNext).Err())
	_, err = s.Flip(ctx)
	require.ErrorIs(t, err, statebackend.ErrMismatch)
	var ke *statebackend.KeyError
	require.True(t, errors.As(err, &ke))
	require.Equal(t, job.Root()+":cg:list", string(ke.Key))
	require.NoError(t, s.Abort(ctx))
	noTraces(t, c, job)
	requireSame(t, old, digests(t, c), "after the abort")
}
