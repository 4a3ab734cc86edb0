package redis

import (
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// TestACutWithoutAnIncarnationWritesNothingI9: whoever only measures a job
// leaves its record as it is, though a mark is due.
func TestACutWithoutAnIncarnationWritesNothingI9(t *testing.T) {
	for _, grade := range []snapshot.Grade{snapshot.GradePaused, snapshot.GradePrecopy} {
		s := redistest.Start(t)
		c := s.Client()
		fillJob(t, c, testJob, "seed")
		require.NoError(t, c.HSet(t.Context(), testJob.Record(), "attempt", "40").Err())
		require.NoError(t, c.ConfigSet(t.Context(), "repl-diskless-sync-delay", "0").Err())
		b, err := Open(t.Context(), Config{URL: s.URL()})
		require.NoError(t, err)
		require.NoError(t, b.AwaitTracking(t.Context()))
		before := c.HGetAll(t.Context(), testJob.Record()).Val()
		req := statebackend.CutRequest{Job: testJob, Grade: grade}
		cut, err := b.Cut(t.Context(), req, &countLayers{})
		require.NoError(t, err)
		require.Equal(t, grade, cut.Grade)
		require.EqualValues(t, 40, cut.Record.Attempt)
		require.Equal(t, before, c.HGetAll(t.Context(), testJob.Record()).Val())

		req.Incarnation = "inc-seed"
		_, err = b.Cut(t.Context(), req, &countLayers{})
		require.NoError(t, err)
		require.Equal(t, "40", c.HGet(t.Context(), testJob.Record(), "cut").Val())
		require.NoError(t, b.Close())
	}
}

// countLayers is a sink that keeps nothing.
type countLayers struct{ keys, layers int }

func (c *countLayers) BeginKey(snapshot.Key) error    { c.keys++; return nil }
func (c *countLayers) Element(snapshot.Element) error { return nil }
func (c *countLayers) Part([]byte) error              { return nil }
func (c *countLayers) EndKey(snapshot.KeyEnd) error   { return nil }
func (c *countLayers) NextLayer() error               { c.layers++; return nil }
