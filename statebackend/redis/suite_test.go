package redis

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/backendtest"
)

var _ statebackend.Backend = (*Backend)(nil)

func TestConformance(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backendtest.Harness {
		srv := redistest.Start(t)
		c, ctx := srv.Client(), context.Background()
		b, err := Open(ctx, Config{URL: srv.URL()})
		require.NoError(t, err)
		t.Cleanup(func() { _ = b.Close() }) // the suite closes some itself
		now := func(t testing.TB) time.Time {
			at, err := c.Time(ctx).Result()
			require.NoError(t, err)
			return at
		}
		return backendtest.Harness{
			Backend: b, Grade: snapshot.GradePaused, Refused: snapshot.GradeSnapshot,
			Lose: func(t testing.TB) { require.NoError(t, c.FlushAll(ctx).Err()) },
			Keys: func(t testing.TB) []string {
				var all []string
				iter := c.Scan(ctx, 0, "", 1000).Iterator()
				for iter.Next(ctx) {
					all = append(all, iter.Val())
				}
				require.NoError(t, iter.Err())
				return all
			},
			Now: now,
			Pass: func(t testing.TB, until time.Time) {
				require.Eventually(t, func() bool { return now(t).After(until) }, 5*time.Second, time.Millisecond)
			},
			Opaque: func(t testing.TB, key string) {
				require.NoError(t, c.Do(ctx, "XADD", key, "5-1", "field", "value").Err())
			},
		}
	})
}
