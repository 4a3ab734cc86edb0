package redis

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// withoutOpaque leaves out the stream, which nothing but RESTORE can make.
func withoutOpaque(all []staged) []staged {
	var kept []staged
	for _, k := range all {
		if k.key.Type != snapshot.TypeOpaque {
			kept = append(kept, k)
		}
	}
	return kept
}

// A server that doesn't take payloads gets plain commands: the restore says so
// and is as good.
func TestAServerWithoutPayloadsGetsPlainCommands(t *testing.T) {
	for name, refuses := range map[string]func(t *testing.T) (*redistest.Server, *Backend){
		"no right": func(t *testing.T) (*redistest.Server, *Backend) {
			srv := redistest.Start(t)
			return srv, limitedUser(t, srv, "-restore")
		},
		"no command": func(t *testing.T) (*redistest.Server, *Backend) {
			srv := redistest.Start(t, redistest.Setting(`rename-command RESTORE ""`))
			return srv, openTest(t, srv)
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv, b := refuses(t)
			c, ctx := srv.Client(), context.Background()
			fillJob(t, c, testJob, "mine")
			require.NoError(t, c.SRem(ctx, testJob.Index(), testJob.Root()+":cg:stream").Err())
			keys := withoutOpaque(readJob(t, b, testJob))
			_, want := apart(digests(t, c), testJob)
			disturb(t, c, testJob)
			res, err := restore(ctx, b, testRequest("plain", 3), keys)
			require.NoError(t, err)
			require.Contains(t, res.Warning, "plain commands")
			require.Contains(t, res.Warning, "+restore")
			_, got := apart(digests(t, c), testJob)
			delete(want, testJob.Root()+":cg:stream") // disturbed, and not the job's any more
			delete(got, testJob.Root()+":cg:stream")
			requireSame(t, want, got, "restored")
			noTraces(t, c, testJob)
		})
	}
}

// What refuses a payload after the probe is told so that the staging can be
// repeated in plain commands, which does it.
func TestAPayloadThatIsRefusedLaterCanBeRepeatedPlainly(t *testing.T) {
	srv := redistest.Start(t)
	c, admin, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	keys := readJob(t, admin, testJob)
	want := digests(t, c)
	disturb(t, c, testJob)
	before := digests(t, c)
	b := limitedUser(t, srv)
	s, err := b.Stage(ctx, testRequest("late", 3))
	require.NoError(t, err)
	srv.Do("ACL", "SETUSER", "limited", "-restore")
	_, err = stageProveFlip(ctx, s, withoutOpaque(keys))
	require.ErrorIs(t, err, statebackend.ErrPayloadRefused)
	require.ErrorIs(t, err, statebackend.ErrPermission)
	require.NotErrorIs(t, err, statebackend.ErrMismatch, "what lacks for it is no news")
	require.NoError(t, s.Abort(ctx))
	requireSame(t, before, digests(t, c), "after the refusal")

	srv.Do("ACL", "SETUSER", "limited", "+restore")
	req := testRequest("late", 3)
	req.Plain = true
	res, err := restore(ctx, b, req, keys)
	require.NoError(t, err)
	require.Empty(t, res.Warning, "it was asked for")
	_, wantRest := apart(want, testJob)
	_, gotRest := apart(digests(t, c), testJob)
	requireSame(t, wantRest, gotRest, "restored")
}

// A key that is there already is no matter of payloads: it would be no better
// in plain commands.
func TestAStagedNameThatIsTakenIsNoRefusalOfPayloads(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	keys := readJob(t, b, testJob)
	taken := string(numbered(testJob.Staging("taken")+stageKeys, 4))
	require.NoError(t, c.Set(ctx, taken, "somebody's", 0).Err())
	s, err := b.Stage(ctx, testRequest("taken", 3))
	require.NoError(t, err)
	_, err = stageProveFlip(ctx, s, keys)
	require.ErrorContains(t, err, "BUSYKEY")
	require.NotErrorIs(t, err, statebackend.ErrPayloadRefused)
	require.NoError(t, s.Abort(ctx))
	noTraces(t, c, testJob)
}

// An element that the checkpoint's digest doesn't know is found before
// anything of its key is sent.
func TestAPayloadThatIsNotTheCheckpointsIsNotSent(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	keys := readJob(t, b, testJob)
	for i, k := range keys {
		if !hasPayload(k.key.Type) {
			continue
		}
		wrong := append([]staged{}, k)
		wrong[0].end.Digest++
		s, err := b.Stage(ctx, testRequest("wrong"+fmt.Sprint(i), 3))
		require.NoError(t, err)
		err = feed(s, wrong)
		require.ErrorIs(t, err, statebackend.ErrMismatch)
		var ke *statebackend.KeyError
		require.True(t, errors.As(err, &ke))
		require.Equal(t, string(k.key.Name), string(ke.Key))
		require.NoError(t, s.Abort(ctx))
	}
	noTraces(t, c, testJob)
}

// What lies under a staged name before, and isn't in the index, goes where the
// checkpoint has a key, whether the database holds anything else or not.
func TestKeysInTheWayAreReplaced(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	fillJob(t, c, testJob, "mine")
	keys := readJob(t, b, testJob)
	_, want := apart(digests(t, c), testJob)
	for i, inTheWay := range []string{"", "big", "small", "expiring"} {
		require.NoError(t, c.FlushAll(ctx).Err())
		if inTheWay != "" {
			require.NoError(t, c.Set(ctx, testJob.Root()+":cg:"+inTheWay, "in the way", 0).Err())
		}
		req := testRequest(fmt.Sprintf("way%d", i), 0)
		_, err := restore(ctx, b, req, keys)
		require.NoError(t, err)
		_, got := apart(digests(t, c), testJob)
		requireSame(t, want, got, "in the way: "+inTheWay)
		noTraces(t, c, testJob)
	}
}

// A restore's memory doesn't grow with the state: payloads and names are
// bounded.
func TestPayloadsAndNamesStayWithinTheirBounds(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	for i, g := range []generated{
		{keys: 3, elements: 60_000, size: 400, kind: snapshot.TypeHash},
		{keys: 300_000, elements: 1, size: 8, kind: snapshot.TypeHash},
	} {
		require.NoError(t, c.FlushAll(ctx).Err())
		s, err := b.Stage(ctx, testRequest(fmt.Sprintf("bound%d", i), 0))
		require.NoError(t, err)
		require.NoError(t, g.feed(s))
		st := s.(*staging)
		require.LessOrEqual(t, cap(st.payload.b), payloadMost*3/2)
		require.LessOrEqual(t, st.names.held, codedMost+codedBlock)
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		require.Less(t, m.HeapAlloc, uint64(48<<20), "%+v", g)
		require.NoError(t, s.Prove(ctx))
		_, err = s.Flip(ctx)
		require.NoError(t, err)
		require.Equal(t, int64(g.keys), c.SCard(ctx, testJob.Index()).Val())
	}
}
