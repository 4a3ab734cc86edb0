package alarm

import (
	"encoding/json"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
)

// jobs are what the heartbeat sees.
type jobs struct {
	mu  sync.Mutex
	all []coordinator.JobStatus
}

func (j *jobs) set(all ...coordinator.JobStatus) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all = all
}

func (j *jobs) get() []coordinator.JobStatus {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.all
}

func job(name string, state coordinator.HealthState, overdue bool) coordinator.JobStatus {
	return coordinator.JobStatus{Name: name, Health: coordinator.Health{State: state}, Overdue: overdue}
}

// beating runs f with a heartbeat every minute and time under control.
func beating(t *testing.T, spec config.Heartbeat, f func(t *testing.T, h *Heartbeat, j *jobs, r *receiver, l *told)) {
	synctest.Test(t, func(t *testing.T) {
		r, l, j := &receiver{}, &told{}, &jobs{}
		j.set(job("flights", coordinator.HealthOK, false))
		w := r.serve()
		spec.URL = "http://beats.example/geheim"
		h := NewHeartbeat(Options{Alarms: config.Alarms{Heartbeat: spec}, Version: "1.2.3", Jobs: j.get, Tell: l, dial: w.dial})
		f(t, h, j, r, l)
		h.Close()
		h.Close()
		n := len(r.requests())
		time.Sleep(time.Hour)
		require.Len(t, r.requests(), n, "nothing after the end")
		r.stop(t)
		require.NotContains(t, l.text(), "geheim")
		synctest.Wait()
	})
}

func TestTheHeartbeatIsSentWhileAllIsWell(t *testing.T) {
	beating(t, config.Heartbeat{}, func(t *testing.T, h *Heartbeat, j *jobs, r *receiver, l *told) {
		time.Sleep(soonAgain + 9*time.Minute + time.Second)
		require.Len(t, r.requests(), 10)
		require.Equal(t, "GET", r.requests()[0].method)
		require.Equal(t, "/geheim", r.requests()[0].path)
		require.Empty(t, r.requests()[0].body)
		require.Equal(t, HeartbeatStatus{On: true, Sent: 10}, sentless(h.Status()))
		require.Empty(t, l.kinds())

		j.set(job("flights", coordinator.HealthOK, true), job("other", coordinator.HealthLost, false))
		time.Sleep(time.Hour)
		require.Len(t, r.requests(), 10, "silence is the message")
		require.Equal(t, HeartbeatStatus{On: true, Sent: 10, Held: true}, sentless(h.Status()))
		require.Equal(t, []coordinator.EventKind{coordinator.EventHeartbeatHeld}, l.kinds(), "told once")
		require.Contains(t, l.text(), `job \"flights\": no good checkpoint`)
		require.Contains(t, l.text(), `job \"other\": lost`)

		j.set(job("flights", coordinator.HealthOK, false))
		time.Sleep(time.Minute)
		require.Len(t, r.requests(), 11)
		require.Equal(t, coordinator.EventHeartbeatBack, l.kinds()[1])
	})
}

func TestAFailureIsReportedWhereThatIsAskedFor(t *testing.T) {
	beating(t, config.Heartbeat{Method: "POST", FailSuffix: "/fail", Every: config.Duration(5 * time.Second), Jobs: []string{"flights"}}, func(t *testing.T, h *Heartbeat, j *jobs, r *receiver, _ *told) {
		time.Sleep(6 * time.Second)
		j.set(job("flights", coordinator.HealthUnreachable, false), job("other", coordinator.HealthLost, true))
		time.Sleep(10 * time.Second)
		j.set(job("flights", coordinator.HealthOK, false), job("other", coordinator.HealthLost, true))
		time.Sleep(5 * time.Second)
		j.set()
		time.Sleep(5 * time.Second)
		got := r.requests()
		require.Len(t, got, 5)
		var beats []Beat
		for i, path := range []string{"/geheim", "/geheim/fail", "/geheim/fail", "/geheim", "/geheim/fail"} {
			require.Equal(t, path, got[i].path)
			require.Equal(t, "application/json", got[i].header.Get("Content-Type"))
			var b Beat
			require.NoError(t, json.Unmarshal([]byte(got[i].body), &b))
			require.WithinDuration(t, got[i].at, b.At, 0)
			beats = append(beats, b)
		}
		require.Equal(t, Beat{Schema: 1, Host: hostName(), Version: "1.2.3", At: beats[0].At, OK: true}, beats[0])
		require.Equal(t, []string{`job "flights": unreachable`}, beats[1].Wrong, "the other job is no concern of it")
		require.False(t, beats[1].OK)
		require.Equal(t, []string{`job "flights": there is none of that name`}, beats[4].Wrong)
		require.Equal(t, HeartbeatStatus{On: true, Sent: 2, Held: true}, sentless(h.Status()))
	})
}

func TestAHeartbeatThatFailsIsTriedAgainSoon(t *testing.T) {
	beating(t, config.Heartbeat{Every: config.Duration(time.Hour)}, func(t *testing.T, h *Heartbeat, _ *jobs, r *receiver, l *told) {
		r.answers(status(502))
		time.Sleep(35 * time.Second)
		require.Len(t, r.requests(), 3)
		require.Equal(t, []coordinator.EventKind{coordinator.EventHeartbeatFailed}, l.kinds(), "told once")
		require.Contains(t, l.text(), "http://beats.example: it answered 502")
		r.answers(nil)
		time.Sleep(10 * time.Second)
		require.Equal(t, coordinator.EventHeartbeatBack, l.kinds()[1])
		require.Equal(t, HeartbeatStatus{On: true, Sent: 1, Failed: 3}, sentless(h.Status()))
		time.Sleep(50 * time.Minute)
		require.Len(t, r.requests(), 4, "the next one after the whole interval")
	})
}

func TestWithoutAURLThereIsNoHeartbeat(t *testing.T) {
	h := NewHeartbeat(Options{})
	require.False(t, h.Status().On)
	h.Close()
}

func TestWhatIsWrongWithJobs(t *testing.T) {
	well := map[coordinator.HealthState]bool{coordinator.HealthOK: true, coordinator.HealthWaiting: true, coordinator.HealthStandby: true}
	for _, state := range []coordinator.HealthState{
		coordinator.HealthStarting, coordinator.HealthOK, coordinator.HealthWaiting, coordinator.HealthUnreachable, coordinator.HealthLost, coordinator.HealthOlder,
		coordinator.HealthForeign, coordinator.HealthMismatch, coordinator.HealthMarked, coordinator.HealthDenied, coordinator.HealthDamaged, coordinator.HealthStandby,
		"one that isn't known yet",
	} {
		require.Equal(t, well[state], len(Wrong([]coordinator.JobStatus{job("a", state, false)}, nil)) == 0, state)
		require.Len(t, Wrong([]coordinator.JobStatus{job("a", state, true)}, nil), 1, state)
	}
	paused := job("a", coordinator.HealthOK, false)
	paused.Paused = true
	require.Empty(t, Wrong([]coordinator.JobStatus{paused}, nil))
	require.Empty(t, Wrong(nil, nil), "a coordinator without jobs is alive")
}

// sentless is a status without the time of the last heartbeat that was sent.
func sentless(s HeartbeatStatus) HeartbeatStatus {
	s.LastSentAt = nil
	return s
}
