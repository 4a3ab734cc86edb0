package redis

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/statebackend"
)

// TestTheMarkOfACutComesBeforeTheWritersThatItHeld (I5): no write that came
// after the cut may be there without the mark, or a file saved between the two
// would be taken for an older state. And none that came before it with it.
func TestTheMarkOfACutComesBeforeTheWritersThatItHeld(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	fillJob(t, c, testJob, "seed")
	require.NoError(t, c.HSet(t.Context(), testJob.Record(), "attempt", "40").Err())
	const held = 60
	marks := make([]any, held)
	var wg sync.WaitGroup
	sink := &hookSink{n: 3, do: func() {
		for i := range held {
			wg.Go(func() {
				conn := s.Client()
				v, err := conn.Do(context.Background(), "EVAL", "redis.call('INCR', KEYS[1]); return redis.call('HGET', KEYS[2], 'cut')",
					"2", "written after the cut", testJob.Record()).Result()
				if marks[i] = v; err != nil {
					marks[i] = err
				}
			})
		}
		require.Eventually(t, func() bool {
			info, err := c.Info(t.Context(), "clients").Result()
			return err == nil && strings.Contains(info, fmt.Sprintf("blocked_clients:%d\r\n", held+1))
		}, 5*time.Second, time.Millisecond, "writers and the canary are held")
		require.Equal(t, "18", c.HGet(t.Context(), testJob.Record(), "cut").Val())
	}}
	_, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob, Incarnation: "inc-seed"}, sink)
	require.NoError(t, err)
	wg.Wait()
	for _, m := range marks {
		require.Equal(t, "40", m)
	}
}

// A user without the right to write the record still gets its checkpoint.
func TestACutWhoseMarkIsRefusedIsStillACut(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	fillJob(t, c, testJob, "seed")
	require.NoError(t, c.HSet(t.Context(), testJob.Record(), "attempt", "40").Err())
	require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "reader", "on", ">pw", "allcommands", "-hset", "allkeys").Err())
	b, err := Open(t.Context(), Config{URL: "redis://reader:pw@" + s.Addr, Tracking: TrackOff})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	cut, _ := cutOf(t, b, statebackend.CutRequest{Job: testJob, Incarnation: "inc-seed"})
	require.EqualValues(t, 40, cut.Record.Attempt)
	require.Equal(t, "18", c.HGet(t.Context(), testJob.Record(), "cut").Val())
	requireUnpaused(t, c)
}
