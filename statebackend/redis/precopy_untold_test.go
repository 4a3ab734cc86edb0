package redis

import (
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/statebackend"
)

// A group that is made in a stream is announced to nobody who tracks keys. So
// a self-check must not take it for a write that tracking missed.
func TestAStreamsGroupIsNotHeldAgainstTracking(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	stream := testJob.Root() + ":a-stream"
	run(t, c, "XADD", stream, "1-1", "f", "v")
	run(t, c, "SADD", testJob.Index(), stream)
	line := &series{b: tracked(t, s, TrackKeys)}
	first, _ := line.take(t, statebackend.CutRequest{Job: testJob})
	run(t, c, "XGROUP", "CREATE", stream, "readers", "0")
	checked, _ := line.take(t, statebackend.CutRequest{Job: testJob, Since: first.Token, Check: true})
	require.True(t, checked.Marked.Known, checked.Marked.Reason)
	require.True(t, checked.Marked.Keys[stream].Whole)
}

// What a tracker of keys learns only when it asks, SWAPDB there and back while
// nobody cut, costs a full cut and no attempt.
func TestASwapBetweenCutsFailsNone(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	fillJob(t, c, testJob, "seed")
	line := &series{b: tracked(t, s, TrackKeys)}
	first, _ := line.take(t, statebackend.CutRequest{Job: testJob})
	run(t, c, "SWAPDB", "0", "5")
	run(t, c, "SWAPDB", "0", "5")
	next, _ := line.take(t, statebackend.CutRequest{Job: testJob, Since: first.Token})
	require.False(t, next.Incremental)
	require.Contains(t, next.FullReason, "SWAPDB")
}
