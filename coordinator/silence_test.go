package coordinator

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// punctual is a job whose schedule promises a good checkpoint within 40 s of
// the one before: two times 10 s, and the timeout.
func punctual(w *world) config.Job {
	job := testJob("flights")
	job.Checkpoint.Schedule, job.Checkpoint.Timeout, job.Checkpoint.TolerableMisses = "@every 10s", config.Duration(20*time.Second), new(1)
	w.write(job, 130, "v")
	w.apply(job)
	return job
}

func (w *world) status() JobStatus {
	s, err := w.c.Job("flights")
	require.NoError(w.t, err)
	return s
}

func TestSilenceIsToldOnceAndSoIsItsEnd(t *testing.T) {
	d := &deaf{}
	inBubble(t, func(t *testing.T, w *world) {
		punctual(w)
		w.pass(25 * time.Second)
		s := w.status()
		require.NotNil(t, s.Good)
		require.Equal(t, s.Good.CompletedAt.UTC(), *s.LastGoodAt)
		require.Equal(t, s.LastGoodAt.Truncate(10*time.Second).Add(40*time.Second), *s.DueAt)
		require.False(t, s.Overdue)
		require.Empty(t, s.NotDue)

		d.off.Store(true)
		due := *s.DueAt
		w.pass(time.Until(due) - time.Millisecond)
		require.False(t, w.status().Overdue)
		require.Empty(t, w.seen(EventCheckpointOverdue))
		w.pass(2 * time.Second)
		s = w.status()
		require.True(t, s.Overdue)
		require.Equal(t, due, *s.DueAt)
		require.Equal(t, HealthUnreachable, s.Health.State)
		require.Contains(t, s.Health.Warnings[len(s.Health.Warnings)-1], `overdue: no good checkpoint since 2, completed 2000-01-01T00:00:20Z`)
		w.pass(10 * time.Minute)
		told := w.seen(EventCheckpointOverdue)
		require.Len(t, told, 1, "once per silence")
		require.WithinRange(t, told[0].At, due, due.Add(DefaultPoll))
		require.Contains(t, told[0].Message, due.Format(time.RFC3339))
		require.Contains(t, told[0].Message, "unreachable")
		require.True(t, told[0].Kind.Failed())
		require.Empty(t, w.seen(EventCheckpointOverdueEnded))

		d.off.Store(false)
		w.pass(12 * time.Second)
		ended := w.seen(EventCheckpointOverdueEnded)
		require.Len(t, ended, 1)
		require.NotZero(t, ended[0].ID)
		require.False(t, ended[0].Kind.Failed())
		s = w.status()
		require.False(t, s.Overdue)
		require.Empty(t, s.Health.Warnings)

		d.off.Store(true)
		w.pass(time.Minute)
		require.Len(t, w.seen(EventCheckpointOverdue), 2, "and again for the next")
	}, func(o *Options) { d.Backend = o.Backend; o.Backend = d })
}

// hung is a backend whose cuts end when the test does, whatever their deadline.
type hung struct {
	statebackend.Backend
	on  atomic.Bool
	end chan struct{}
}

func (h *hung) Cut(ctx context.Context, r statebackend.CutRequest, s snapshot.Sink) (statebackend.Cut, error) {
	if h.on.Load() {
		<-h.end
		return statebackend.Cut{}, statebackend.ErrUnreachable
	}
	return h.Backend.Cut(ctx, r, s)
}

func TestACheckpointThatHangsIsSilenceToo(t *testing.T) {
	h := &hung{}
	inBubble(t, func(t *testing.T, w *world) {
		punctual(w)
		w.pass(15 * time.Second)
		h.on.Store(true)
		w.pass(time.Minute)
		s := w.status()
		require.Equal(t, OpCheckpoint, s.Operation.Kind, "the actor is busy with it")
		require.Empty(t, w.seen(EventCheckpointFailed))
		require.True(t, s.Overdue)
		require.Len(t, w.seen(EventCheckpointOverdue), 1)
		h.on.Store(false)
		close(h.end)
		w.pass(15 * time.Second)
		require.Len(t, w.seen(EventCheckpointOverdueEnded), 1)
	}, func(o *Options) { h.Backend, h.end = o.Backend, make(chan struct{}); o.Backend = h })
}

// A person's checkpoint counts; a bad one doesn't.
func TestWhatCountsAsGood(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := punctual(w)
		w.pass(15 * time.Second)
		first := w.status()
		w.pass(2 * time.Second)
		cp := w.checkpoint(job.Name)
		s := w.status()
		require.Equal(t, cp.CompletedAt.UTC(), *s.LastGoodAt)
		require.True(t, s.LastGoodAt.After(*first.LastGoodAt))
		j, err := w.c.find(job.Name)
		require.NoError(t, err)
		_, err = w.db.Edit(t.Context(), job.Name, cp.ID, snapshot.Change{Bad: new("torn")})
		require.NoError(t, err)
		require.NoError(t, j.learn(t.Context()))
		require.Equal(t, *first.LastGoodAt, *w.status().LastGoodAt)
		require.Equal(t, *first.DueAt, *w.status().DueAt)
	})
}

func TestAPausedJobPromisesNothingAndSaysSo(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := punctual(w)
		w.pass(15 * time.Second)
		_, err := w.c.SetPaused(t.Context(), job.Name, true)
		require.NoError(t, err)
		w.pass(time.Hour)
		s := w.status()
		require.Equal(t, "paused", s.NotDue)
		require.Nil(t, s.DueAt)
		require.False(t, s.Overdue)
		require.NotNil(t, s.LastGoodAt)
		resumed := time.Now()
		s, err = w.c.SetPaused(t.Context(), job.Name, false)
		require.NoError(t, err)
		require.False(t, s.Overdue, "what the pause left out is nobody's fault")
		require.True(t, s.DueAt.After(resumed.Add(20*time.Second)))
		w.pass(time.Minute)
		require.Empty(t, w.seen(EventCheckpointOverdue))

		onDemand := testJob("flights")
		w.apply(onDemand)
		s = w.status()
		require.Equal(t, "on demand only", s.NotDue)
		require.Nil(t, s.DueAt)
		w.pass(time.Hour)
		w.apply(job)
		require.False(t, w.status().Overdue, "nor what an hour without a schedule left out")
		w.pass(time.Minute)
		require.Empty(t, w.seen(EventCheckpointOverdue))
	})
}

func TestAPauseEndsTheAlarm(t *testing.T) {
	d := &deaf{}
	inBubble(t, func(t *testing.T, w *world) {
		job := punctual(w)
		w.pass(15 * time.Second)
		d.off.Store(true)
		w.pass(time.Minute)
		require.Len(t, w.seen(EventCheckpointOverdue), 1)
		_, err := w.c.SetPaused(t.Context(), job.Name, true)
		require.NoError(t, err)
		w.pass(2 * time.Second)
		require.Equal(t, "paused", w.seen(EventCheckpointOverdueEnded)[0].Reason)
		_, err = w.c.SetPaused(t.Context(), job.Name, false)
		require.NoError(t, err)
		w.pass(2 * time.Second)
		require.Len(t, w.seen(EventCheckpointOverdue), 1)
		w.pass(time.Minute)
		require.Len(t, w.seen(EventCheckpointOverdue), 2, "from the resumption on it is promised again")
	}, func(o *Options) { d.Backend = o.Backend; o.Backend = d })
}

// What no coordinator took while none ran was not taken: a restart doesn't
// make an old checkpoint young. And a job that never had one is judged from
// when it is watched.
func TestARestartHidesNoSilence(t *testing.T) {
	d := &deaf{}
	inBubble(t, func(t *testing.T, w *world) {
		punctual(w)
		w.pass(15 * time.Second)
		last := *w.status().LastGoodAt
		w.close()
		time.Sleep(time.Hour)
		d.off.Store(true)
		w.open()
		w.pass(2 * time.Second)
		s := w.status()
		require.Equal(t, last, *s.LastGoodAt)
		require.True(t, s.Overdue)
		require.Len(t, w.seen(EventCheckpointOverdue), 1)
	}, func(o *Options) { d.Backend = o.Backend; o.Backend = d })
}

func TestAJobWithoutStateIsOverdueInTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		job := testJob("flights")
		job.Checkpoint.Schedule = "@every 1m"
		began := time.Now()
		w.apply(job)
		w.pass(2 * time.Minute)
		s := w.status()
		require.Equal(t, HealthWaiting, s.Health.State)
		require.Nil(t, s.LastGoodAt)
		require.WithinRange(t, *s.DueAt, began.Add(7*time.Minute), began.Add(8*time.Minute), "two misses, the third, and five minutes for it")
		w.pass(7 * time.Minute)
		require.Contains(t, w.seen(EventCheckpointOverdue)[0].Message, "no good checkpoint yet")
		require.Contains(t, w.seen(EventCheckpointOverdue)[0].Message, "no state at")
	})
}

// The wall clock jumps; what has passed is measured by another.
func TestAClockThatJumpsRaisesNoAlarmAndHidesNone(t *testing.T) {
	d := &deaf{}
	var jump atomic.Int64
	inBubble(t, func(t *testing.T, w *world) {
		punctual(w)
		w.pass(15 * time.Second)
		j, err := w.c.find("flights")
		require.NoError(t, err)
		judge := func() bool {
			j.mu.Lock()
			defer j.mu.Unlock()
			_, overdue := j.dueLocked()
			return overdue
		}
		require.False(t, judge())
		jump.Store(int64(3 * time.Hour))
		require.False(t, judge(), "forward")
		jump.Store(int64(-3 * time.Hour))
		d.off.Store(true)
		require.False(t, judge())
		w.pass(time.Minute)
		require.True(t, judge(), "backward")
	}, func(o *Options) {
		d.Backend = o.Backend
		o.Backend, o.Now = d, func() time.Time { return time.Now().Add(time.Duration(jump.Load())).UTC() }
	})
}

func TestWhoStandsByIsNotOverdue(t *testing.T) {
	inBubble(t, func(t *testing.T, a *world) {
		job := punctual(a)
		b := a.another(owned("b", "/b", nil))
		b.apply(job)
		a.pass(10 * time.Minute)
		s := b.status()
		require.Equal(t, HealthStandby, s.Health.State)
		require.Equal(t, "another coordinator leads", s.NotDue)
		require.Empty(t, b.seen(EventCheckpointOverdue))
		require.Empty(t, a.seen(EventCheckpointOverdue))
		a.close()
		b.pass(30 * time.Second)
		require.Equal(t, HealthOK, b.status().Health.State)
		require.Empty(t, b.seen(EventCheckpointOverdue), "it has just taken over")
		b.close()
		a.open()
	}, owned("a", "/a", nil))
}

// Before the first look it isn't known whether this coordinator leads: what its
// own store holds may be old because another one took the newer ones.
func TestAnOldHistoryIsNoSilenceBeforeTheFirstLook(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		punctual(w)
		w.pass(15 * time.Second)
		j, err := w.c.find("flights")
		require.NoError(t, err)
		j.mu.Lock()
		defer j.mu.Unlock()
		old := *j.good
		old.CompletedAt = new(old.CompletedAt.Add(-time.Hour))
		good, health := j.good, j.health
		j.good = &old
		_, overdue := j.dueLocked()
		require.True(t, overdue)
		j.health.State = HealthStarting
		_, overdue = j.dueLocked()
		require.False(t, overdue)
		j.good, j.health = good, health
	})
}
