package redis

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// pushing appends to a list without a pause until it is stopped.
func pushing(t testing.TB, s *redistest.Server, key string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	c := patient(s)
	var wg sync.WaitGroup
	var err error
	wg.Go(func() {
		for ctx.Err() == nil && err == nil {
			err = c.RPush(context.Background(), key, "one more").Err()
		}
	})
	return func() {
		cancel()
		wg.Wait()
		require.NoError(t, err)
	}
}

// hugeItems is how many items a huge list has.
const hugeItems = 100_000

// hugeList is a list whose reading takes longer than a stall may.
func hugeList(t testing.TB, s *redistest.Server) string {
	key := testJob.Root() + ":cg:g:topic:t:p:1:state:op:hot:s:list"
	pipe := s.Client().Pipeline()
	items := make([]any, 1000)
	for i := range hugeItems / len(items) {
		for j := range items {
			items[j] = fmt.Sprintf("item %d of a list that is written all the time", i*1000+j)
		}
		pipe.RPush(context.Background(), key, items...)
	}
	pipe.SAdd(context.Background(), testJob.Index(), key)
	_, err := pipe.Exec(context.Background())
	require.NoError(t, err)
	return key
}

// TestAListThatNeverConverges: with one policy the cut fails before anybody is
// held, with the other it holds longer; both name the key.
func TestAListThatNeverConverges(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		fillJob(t, c, testJob, "seed")
		key := hugeList(t, s)
		stop := pushing(t, s, key)
		defer stop()
		held := false
		setFor(t, &lookedAt, func(statebackend.Job) { held = true })
		line := &series{b: b}
		_, _, err := line.try(t, statebackend.CutRequest{Job: testJob, MaxStall: 3 * time.Millisecond, OnStall: statebackend.StallFail})
		require.ErrorIs(t, err, statebackend.ErrStall)
		require.ErrorContains(t, err, fmt.Sprintf("%q", key))
		require.False(t, held)
		requireUnpaused(t, c)

		p := watchPauses(t, b, testJob)
		cut, keys := line.take(t, statebackend.CutRequest{Job: testJob, MaxStall: 3 * time.Millisecond})
		requireCopy(t, p, cut, keys)
		require.Greater(t, cut.Stall, 3*time.Millisecond)
		require.NotEmpty(t, cut.Hot)
		require.Equal(t, key, cut.Hot[0].Key)
		require.GreaterOrEqual(t, cut.Hot[0].Elements, uint64(hugeItems))
		require.Positive(t, cut.Rounds)
	})
}

// TestAHugeHashUnderWritesStallsNobody: 60,000 fields, written to at a high
// rate, are cut with a stall that doesn't depend on their number.
func TestAHugeHashUnderWritesStallsNobody(t *testing.T) {
	s := redistest.Start(t)
	b, c := tracked(t, s, TrackFields), s.Client()
	setFor(t, &trackPatience, 10*time.Second)
	js := jobShape{"one hash", 1, 60_000}
	js.fill(t, s)
	fillJob(t, c, testJob, "seed")
	stop := js.steady(t, b, 6_000)
	p := watchPauses(t, b, testJob)
	line := &series{b: b}
	for i := range 6 {
		cut, keys := line.take(t, statebackend.CutRequest{Job: testJob, MaxStall: time.Second})
		requireCopy(t, p, cut, keys)
		// On a machine that has much else to do the writers may get at half of
		// the state between two cuts: then, and only then, all is read again.
		const much = "more than half of the state was written since the earlier checkpoint"
		require.True(t, cut.Incremental == (i > 0) || i > 0 && cut.FullReason == much, cut.FullReason)
		t.Logf("cut %d: %d rounds, stall %v", i, cut.Rounds, cut.Stall)
	}
	_, n := stop()
	require.Greater(t, n, 1000)
}

// TestReadingIsNoFasterThanAllowed: the limit holds for what is read while
// writers run, and not inside the pause.
func TestReadingIsNoFasterThanAllowed(t *testing.T) {
	s := redistest.Start(t)
	b, c := tracked(t, s, TrackFields), s.Client()
	setFor(t, &trackPatience, 10*time.Second)
	require.NoError(t, c.Set(t.Context(), testJob.Root()+":cg:string", blob(3<<20, 5), 0).Err())
	require.NoError(t, c.SAdd(t.Context(), testJob.Index(), testJob.Root()+":cg:string").Err())
	line := &series{b: b}
	began := time.Now()
	cut, _ := line.take(t, statebackend.CutRequest{Job: testJob, MaxReadRate: 3 << 20})
	took := time.Since(began)
	require.Greater(t, took, 800*time.Millisecond)
	require.Less(t, cut.Stall, 500*time.Millisecond)

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := b.Cut(ctx, statebackend.CutRequest{Job: testJob, MaxReadRate: 1000}, &cutSink{s: line})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = b.Cut(t.Context(), statebackend.CutRequest{Job: testJob, MaxReadRate: -1}, &cutSink{s: line})
	require.ErrorContains(t, err, "-1")
	_, err = b.Cut(t.Context(), statebackend.CutRequest{Job: testJob, MaxStall: -1}, &cutSink{s: line})
	require.ErrorContains(t, err, "longest stall")
}

// TestManyFieldsAndNamesGoInLayers: what doesn't fit into memory is pushed as
// layers, and is as right.
func TestManyFieldsAndNamesGoInLayers(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		setFor(t, &bufferBytes, 20_000)
		setFor(t, &bufferKey, 4_000)
		setFor(t, &patchPiece, 20)
		setFor(t, &nameBudget, 8_000)
		setFor(t, &wholeLimit, 2_000)
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		fillJob(t, c, testJob, "seed")
		manyKeys(t, c, testJob, 400)
		p := watchPauses(t, b, testJob)
		stop := scribbling(t, s, testJob, 2, 60, 77, 5*time.Millisecond)
		defer stop()
		line := &series{b: b}
		most := 0
		for range 4 {
			if line.manifest != nil && len(line.manifest.Layers) > 16 { // as the coordinator does
				line = &series{b: b}
			}
			cut, sink := line.cut(t, statebackend.CutRequest{Job: testJob, MaxStall: time.Minute})
			line.commit(t, cut, sink)
			keys := line.read(t, line.manifest)
			requireCopy(t, p, cut, keys)
			most = max(most, sink.layers)
		}
		require.Greater(t, most, 2)
	})
}

var _ snapshot.LayerSink = (*cutSink)(nil)
