package redis

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/track"
)

// After the wait the tracker follows; a user who may not attach is told so at
// once, not when the time is over.
func TestAwaitTracking(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	require.NoError(t, c.ConfigSet(t.Context(), "repl-diskless-sync-delay", "0").Err())
	open := func(user, tracking string) *Backend {
		b, err := Open(t.Context(), Config{URL: "redis://" + user + s.Addr, Tracking: tracking})
		require.NoError(t, err)
		return b
	}
	b := open("", TrackAuto)
	require.NoError(t, b.AwaitTracking(t.Context()))
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.NoError(t, b.tracks.started[track.LevelFields].Attached(short))
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.AwaitTracking(t.Context()), statebackend.ErrClosed)

	require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "plain", "on", ">pw", "allcommands", "-psync", "-sync", "allkeys").Err())
	b = open("plain:pw@", TrackAuto)
	err := b.AwaitTracking(t.Context())
	require.ErrorIs(t, err, track.ErrDenied)
	require.ErrorContains(t, err, "track writes by fields")
	require.NoError(t, b.Close())

	for _, other := range []string{TrackKeys, TrackOff} { // nothing to wait for
		b = open("", other)
		require.NoError(t, b.AwaitTracking(t.Context()))
		require.Empty(t, b.tracks.started)
		require.NoError(t, b.Close())
	}

	b = open("", TrackFields)
	s.Kill()
	short, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	require.ErrorIs(t, b.AwaitTracking(short), track.ErrLost)
	require.NoError(t, b.Close())
}
