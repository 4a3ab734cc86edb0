package redis

import (
	"context"
	"sync"
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
		h, _ := conformance(t, TrackOff)
		h.Grade = snapshot.GradePaused
		return h
	})
}

// TestConformanceOfLayers runs the suite on what the layers of a cut come to
// when they are merged; each cut stands on the one before it where it can.
func TestConformanceOfLayers(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		backendtest.Run(t, func(t *testing.T) backendtest.Harness {
			h, b := conformance(t, mode)
			h.Grade, h.Backend = snapshot.GradePrecopy, &mergedBackend{Backend: b, t: t, lines: map[statebackend.Job]*series{}}
			return h
		})
	})
}

// mergedBackend is a store whose cuts come as one instant's keys again.
type mergedBackend struct {
	*Backend
	t     *testing.T
	mu    sync.Mutex
	lines map[statebackend.Job]*series
}

func (m *mergedBackend) Cut(ctx context.Context, req statebackend.CutRequest, to snapshot.Sink) (statebackend.Cut, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	line := m.lines[req.Job]
	if line == nil {
		line = &series{b: m.Backend}
		m.lines[req.Job] = line
	}
	req.Since = line.token
	sink := &cutSink{s: line}
	cut, err := m.Backend.Cut(ctx, req, sink)
	if err != nil {
		return cut, err
	}
	sink.start(false)
	line.commit(m.t, cut, sink)
	for _, section := range []snapshot.Section{snapshot.SectionKeyed, snapshot.SectionOperator, snapshot.SectionMeta, snapshot.SectionSource} {
		if err := snapshot.Walk(ctx, &line.chunks, line.manifest, to, section); err != nil {
			return statebackend.Cut{}, err
		}
	}
	return cut, nil
}

func conformance(t *testing.T, mode string) (backendtest.Harness, *Backend) {
	srv := redistest.Start(t)
	c, ctx := srv.Client(), context.Background()
	b, err := Open(ctx, Config{URL: srv.URL(), Tracking: mode})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() }) // the suite closes some itself
	now := func(t testing.TB) time.Time {
		at, err := c.Time(ctx).Result()
		require.NoError(t, err)
		return at
	}
	return backendtest.Harness{
		Backend: b, Refused: snapshot.GradeSnapshot,
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
			require.Eventually(t, func() bool { return now(t).After(until) }, 20*time.Second, time.Millisecond)
		},
		Opaque: func(t testing.TB, key string) {
			require.NoError(t, c.Do(ctx, "XADD", key, "5-1", "field", "value").Err())
		},
	}, b
}
