package coordinator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/doctor"
	"keyframe/coordinator/drill"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

// TestWhoTakesOverRemovesTheScratchKeysOfDeadDrills: their journal may never be
// opened again. What a living drill may own stays, and is told where none does.
func TestWhoTakesOverRemovesTheScratchKeysOfDeadDrills(t *testing.T) {
	w := drillWorld(t)
	key := testJob("flights").Key()
	token := w.job("flights").Leader.Token
	before := w.digest()
	scratch := func(id string) string { return drill.ScratchJob(key, id).Root() }
	dead, deadToo, later, unknown := scratch("6-aabb"), scratch("7-ccdd"), scratch("9999-eeff"), scratch("0102030405")
	otherJob := key.Prefix + ":keyframe-drill-6-aabb:trains:stateKeys"
	for i := range 1500 {
		w.srv.Do("SET", dead+":state:"+randomID(8), i)
	}
	w.srv.Do("SADD", deadToo+":stateKeys", "x")
	for _, left := range []string{later + ":stateKeys", unknown + ":stateKeys", otherJob} {
		w.srv.Do("SADD", left, "x")
	}
	require.Less(t, token, uint64(7))
	// Terms that were before this store's next one, which begins now.
	w.srv.Do("HSET", key.Lease(), "token", "7", "until", "1", "holder", "dead", "host", "elsewhere")
	require.Eventually(t, func() bool { return len(w.seen(EventScratchRemoved)) > 0 }, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, uint64(8), w.job("flights").Leader.Token)
	require.Contains(t, w.seen(EventScratchRemoved)[0].Message, "1501 scratch keys")
	require.ElementsMatch(t, []any{later + ":stateKeys", unknown + ":stateKeys", otherJob}, w.srv.Do("KEYS", "*keyframe-drill*"))

	report, err := w.c.Doctor(t.Context(), "flights", 0)
	require.NoError(t, err)
	var found *doctor.Finding
	for i, f := range report.Findings {
		if f.Code == doctor.CodeScratch {
			found = &report.Findings[i]
		}
	}
	require.NotNil(t, found)
	require.Equal(t, doctor.Warning, found.Severity)
	require.EqualValues(t, 2, found.Count)
	require.ElementsMatch(t, []string{later + ":*", unknown + ":*"}, found.Where)
	w.srv.Do("DEL", later+":stateKeys", unknown+":stateKeys", otherJob)
	require.NotEqual(t, before, w.digest(), "the lease is another one")
	require.True(t, w.done(w.c.Drill(t.Context(), "flights", "")).Drill.Equal)
}

// looking is where drills are made: it looks while a drill's keys are there, and
// ends the drill.
type looking struct {
	*redis.Backend
	look func()
}

func (l *looking) ReadAll(context.Context, statebackend.Job, snapshot.Sink) (string, error) {
	l.look()
	return "", errors.New("seen enough")
}

// TestALivingDrillsScratchKeysStay: its own term is not over.
func TestALivingDrillsScratchKeysStay(t *testing.T) {
	at := make(chan []string, 1)
	w := drillWorld(t, func(w *redisWorld, o *Options) {
		o.DrillTarget = &looking{w.backend, func() {
			key := testJob("flights").Key()
			_, err := w.c.removeDead(key, w.job("flights").Leader.Token)
			if err != nil {
				t.Error(err)
			}
			found, err := w.c.scratches(context.Background(), key)
			if err != nil {
				t.Error(err)
			}
			var ids []string
			for id := range found {
				ids = append(ids, id)
			}
			orphans, err := w.c.Doctor(context.Background(), "flights", 0)
			if err != nil {
				t.Error(err)
			}
			for _, f := range orphans.Findings {
				if f.Code == doctor.CodeScratch {
					t.Errorf("%+v", f)
				}
			}
			at <- ids
		}}
	})
	w.failed(w.c.Drill(t.Context(), "flights", ""))
	ids := <-at
	require.Len(t, ids, 1)
	require.Equal(t, w.job("flights").Leader.Token, tokenOf(ids[0]))
}
