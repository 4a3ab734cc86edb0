package redis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// onKey calls fn when the n-th key of a cut begins.
func onNth(n int, fn func()) func(snapshot.Key) {
	return func(snapshot.Key) {
		if n--; n == 0 {
			fn()
		}
	}
}

// TestATrackerThatIsKilledInTheMiddle: fields go on where they were; keys can't,
// the attempt fails and says so, and the next one is full and right.
func TestATrackerThatIsKilledInTheMiddle(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		fillJob(t, c, testJob, "seed")
		manyKeys(t, c, testJob, 3000)
		stop := scribbling(t, s, testJob, 1, 40, 5, 20*time.Millisecond)
		defer stop()
		p := watchPauses(t, b, testJob)
		line := &series{b: b}
		line.take(t, statebackend.CutRequest{Job: testJob, MaxStall: time.Second})
		kind := map[string]string{TrackFields: "replica", TrackKeys: "normal"}[mode]
		for range 3 {
			sink := &cutSink{s: line, each: onNth(900, func() { killTrackers(t, s, kind) })}
			cut, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob, MaxStall: time.Second}, sink)
			if mode == TrackFields && err == nil {
				line.commit(t, cut, sink)
				requireCopy(t, p, cut, line.read(t, line.manifest))
				continue
			}
			require.Error(t, err)
			require.ErrorIs(t, err, statebackend.ErrChanged)
			require.ErrorContains(t, err, "track")
			requireUnpaused(t, c)
			cut, keys := line.take(t, statebackend.CutRequest{Job: testJob, MaxStall: time.Second})
			require.False(t, cut.Incremental)
			require.Contains(t, cut.FullReason, "tracking was lost")
			requireCopy(t, p, cut, keys)
		}
		cut, keys := line.take(t, statebackend.CutRequest{Job: testJob, MaxStall: time.Second})
		require.True(t, cut.Incremental, cut.FullReason)
		requireCopy(t, p, cut, keys)
	})
}

// killTrackers ends the connections on which writes are followed: replicas, or
// those that have client-side caching on.
func killTrackers(t testing.TB, s *redistest.Server, kind string) {
	c := s.Client()
	ctx := context.Background()
	if kind == "replica" {
		require.NoError(t, c.Do(ctx, "CLIENT", "KILL", "TYPE", "replica").Err())
		return
	}
	list, err := c.ClientList(ctx).Result()
	require.NoError(t, err)
	for line := range strings.SplitSeq(list, "\n") {
		fields := map[string]string{}
		for f := range strings.FieldsSeq(line) {
			name, value, _ := strings.Cut(f, "=")
			fields[name] = value
		}
		if strings.ContainsAny(fields["flags"], "tB") && fields["resp"] == "3" {
			require.NoError(t, c.Do(ctx, "CLIENT", "KILL", "ID", fields["id"]).Err())
		}
	}
}

// TestAPrecopyThatIsCutAtEachCall: whichever command is the last, the cut
// fails or is right, nothing is changed, and the writers are free soon after.
func TestAPrecopyThatIsCutAtEachCall(t *testing.T) {
	setFor(t, &pauseLease, 50*time.Millisecond) // where the machine is busy a cut fails by it, which is allowed, and the next one is tried
	setFor(t, &unpauseRetries, 0)
	setFor(t, &trackPatience, 5*time.Second)
	setFor(t, &barrierPatience, 200*time.Millisecond)
	eachFault(t, precopiesCutAtEachCall)
}

// eachFault runs a test at once with calls that the server doesn't get, and
// with calls whose answers are lost. The tests mostly wait.
func eachFault(t *testing.T, fn func(t *testing.T, silent bool)) {
	for name, silent := range map[string]bool{"call lost": false, "answer lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fn(t, silent)
		})
	}
}

func precopiesCutAtEachCall(t *testing.T, silent bool) {
	s := redistest.Start(t, redistest.Setting("hz 100"))
	c := s.Client()
	manyKeys(t, c, testJob, 3)
	require.NoError(t, c.HSet(t.Context(), testJob.Record(), "incarnation", "inc", "epoch", "2").Err())
	digest := allDigest(t, c)
	for k := 1; ; k += 5 {
		f := &fault{left: k, silent: silent}
		b := tracked(t, s, TrackKeys)
		b.setWrap(f.wrap)
		line := &series{b: b}
		cut, sink, err := line.try(t, statebackend.CutRequest{Job: testJob, Incarnation: "inc"})
		b.setWrap(nil)
		require.Equal(t, digest, allDigest(t, c), "call %d", k)
		requireUnpaused(t, c)
		if err == nil && !f.isCut() {
			require.Equal(t, snapshot.GradePrecopy, cut.Grade)
			line.commit(t, cut, sink)
			require.Len(t, line.read(t, line.manifest), 3)
			require.Greater(t, k, 60)
			return
		}
		require.Less(t, k, 1000)
		if err == nil {
			continue // what was lost was of no weight, as the canary's answer
		}
		require.True(t, errors.Is(err, statebackend.ErrUnreachable) || errors.Is(err, statebackend.ErrPauseExpired) ||
			errors.Is(err, statebackend.ErrChanged), "call %d: %v", k, err)
	}
}

// TestACutOfLayersThatIsCancelled frees the writers and leaves no goroutine.
func TestACutOfLayersThatIsCancelled(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, err := Open(t.Context(), Config{URL: s.URL(), Tracking: mode})
		require.NoError(t, err)
		c := s.Client()
		manyKeys(t, c, testJob, 3000)
		why := errors.New("the operator said so")
		line := &series{b: b}
		ctx, cancel := context.WithCancelCause(t.Context())
		_, err = b.Cut(ctx, statebackend.CutRequest{Job: testJob}, &cutSink{s: line, each: onNth(1000, func() { cancel(why) })})
		require.ErrorIs(t, err, why)
		ctx, cancel = context.WithCancelCause(t.Context())
		setFor(t, &lookedAt, func(statebackend.Job) { cancel(why) })
		_, err = b.Cut(ctx, statebackend.CutRequest{Job: testJob}, &cutSink{s: line})
		if err != nil { // everything had been read
			require.ErrorIs(t, err, why)
		}
		requireUnpaused(t, c)
		lookedAt = nil
		line.take(t, statebackend.CutRequest{Job: testJob})

		setFor(t, &lookedAt, func(statebackend.Job) { s.Kill() })
		_, err = b.Cut(t.Context(), statebackend.CutRequest{Job: testJob}, &cutSink{s: line})
		require.ErrorIs(t, err, statebackend.ErrUnreachable)
		require.NoError(t, b.Close())
	})
}

// TestAPauseThatEndsTooEarlyFailsThePrecopy: somebody frees the writers after
// the last read.
func TestAPauseThatEndsTooEarlyFailsThePrecopy(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		manyKeys(t, c, testJob, 300)
		line := &series{b: b}
		line.take(t, statebackend.CutRequest{Job: testJob})
		writes := true
		setFor(t, &lookedAt, func(statebackend.Job) {
			require.NoError(t, c.ClientUnpause(context.Background()).Err())
			if writes {
				require.NoError(t, c.Set(context.Background(), "foreign", "write", 0).Err())
			}
		})
		for _, writes = range []bool{true, false} {
			_, _, err := line.try(t, statebackend.CutRequest{Job: testJob})
			require.ErrorIs(t, err, statebackend.ErrPauseExpired)
			requireUnpaused(t, c)
		}
		lookedAt = nil
		run(t, c, "DEL", testJob.Root()+":cg:g:topic:t:p:5:state:o:m:s:5")
		p := watchPauses(t, b, testJob)
		cut, keys := line.take(t, statebackend.CutRequest{Job: testJob})
		requireCopy(t, p, cut, keys)
		require.True(t, cut.Incremental, cut.FullReason)
	})
}
