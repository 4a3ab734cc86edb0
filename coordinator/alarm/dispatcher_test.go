package alarm

import (
	"context"
	"maps"
	"net"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
)

// timeless is a status without its times.
func timeless(s HookStatus) HookStatus {
	s.LastDeliveredAt, s.LastFailedAt = nil, nil
	return s
}

const target = "http://receiver.example/hook/geheim"

// bubble runs f with a dispatcher of one hook, a receiver, and time under
// control.
func bubble(t *testing.T, r *receiver, spec config.Hook, queue int, f func(t *testing.T, d *Dispatcher, l *told)) {
	synctest.Test(t, func(t *testing.T) {
		l := &told{}
		w := r.serve()
		spec.URL = target
		d := NewDispatcher(Options{Alarms: hooks(spec), Version: "1.2.3", Tell: l, queue: queue, dial: w.dial})
		f(t, d, l)
		shut(d)
		r.stop(t)
		require.NotContains(t, l.text(), "geheim")
		synctest.Wait()
	})
}

func TestAHookGetsWhatItAskedFor(t *testing.T) {
	r := &receiver{}
	bubble(t, r, config.Hook{Name: "chat", Jobs: []string{"flights"}}, 0, func(t *testing.T, d *Dispatcher, l *told) {
		lost := event(coordinator.EventStateLost, "flights")
		lost.Reason, lost.ID = "why", 7
		for _, e := range []coordinator.Event{
			event(coordinator.EventCheckpointStarted, "flights"), event(coordinator.EventCheckpointFailed, "flights"), event(coordinator.EventCheckpointFailed, "billing"),
			lost, event(coordinator.EventHealthChanged, "flights"), event(coordinator.EventStoreUpkeepFailed, ""), event(coordinator.EventHookFailed, "flights"),
			event(coordinator.EventCheckpointOverdueEnded, "flights"),
		} {
			d.OnEvent(e)
		}
		synctest.Wait()
		got := r.requests()
		require.Equal(t, []uint64{1, 2, 3, 4}, r.seqs())
		n := got[1].notice
		require.Equal(t, lost, n.Event)
		require.Equal(t, Notice{Schema: 1, Host: hostName(), Version: "1.2.3", Run: n.Run, Hook: "chat", Seq: 2, Try: 1, SentAt: n.SentAt, Group: "state-loss", Failed: true, Event: lost}, n)
		require.Len(t, n.Run, 16)
		require.Equal(t, coordinator.EventStoreUpkeepFailed, got[2].notice.Event.Kind, "what is no job's concerns all")
		require.False(t, got[3].notice.Failed)
		require.Equal(t, "POST", got[0].method)
		require.Equal(t, "/hook/geheim", got[0].path)
		require.Equal(t, "application/json", got[0].header.Get("Content-Type"))
		require.Equal(t, "keyframe/1.2.3", got[0].header.Get("User-Agent"))
		require.Equal(t, []HookStatus{{Name: "chat", Target: "http://receiver.example", Delivered: 4}}, []HookStatus{timeless(d.Hooks()[0])})
		require.Empty(t, l.kinds())
	})
}

func TestTriesComeEverMoreSeldom(t *testing.T) {
	r := &receiver{answer: status(503)}
	bubble(t, r, config.Hook{Tries: 12, MaxAge: config.Duration(24 * time.Hour)}, 0, func(t *testing.T, d *Dispatcher, l *told) {
		d.OnEvent(event(coordinator.EventStateLost, "flights"))
		time.Sleep(2 * time.Hour)
		got := r.requests()
		require.Len(t, got, 12)
		want := time.Second
		for i := 1; i < len(got); i++ {
			gap := got[i].at.Sub(got[i-1].at)
			require.GreaterOrEqual(t, gap, want/2, "before try %d", i+1)
			require.LessOrEqual(t, gap, want, "before try %d", i+1)
			require.Equal(t, i+1, got[i].notice.Try)
			want = min(2*want, 5*time.Minute)
		}
		s := d.Hooks()[0]
		require.Equal(t, HookStatus{Name: "hook1", Target: "http://receiver.example", Failed: 12, GivenUp: 1, LastError: "it answered 503 Service Unavailable"}, timeless(s))
		require.Equal(t, []coordinator.EventKind{coordinator.EventHookFailed, coordinator.EventHookFailed}, l.kinds(), "at the first failure, and when it is given up")
		require.Contains(t, l.text(), "given up after 12 tries")

		r.answers(nil)
		d.OnEvent(event(coordinator.EventRecovered, "flights"))
		synctest.Wait()
		last := r.requests()[12].notice
		require.Equal(t, uint64(2), last.Seq)
		require.Equal(t, uint64(1), last.Lost)
		require.Equal(t, coordinator.EventHookRecovered, l.kinds()[2])
		require.Empty(t, d.Hooks()[0].LastError)
	})
}

func TestWhatIsTooOldIsGivenUp(t *testing.T) {
	r := &receiver{answer: status(500)}
	bubble(t, r, config.Hook{Tries: 1000, MaxAge: config.Duration(10 * time.Minute)}, 0, func(t *testing.T, d *Dispatcher, _ *told) {
		began := time.Now()
		d.OnEvent(event(coordinator.EventStateLost, "flights"))
		time.Sleep(time.Hour)
		got := r.requests()
		require.WithinRange(t, got[len(got)-1].at, began.Add(5*time.Minute), began.Add(10*time.Minute))
		require.Equal(t, uint64(1), d.Hooks()[0].GivenUp)
	})
}

func TestAHookThatHangsLosesTheOldestAndSaysSo(t *testing.T) {
	r := &receiver{}
	r.answers(func(_ int, _ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	bubble(t, r, config.Hook{Timeout: config.Duration(10 * time.Second)}, 3, func(t *testing.T, d *Dispatcher, l *told) {
		for range 10 {
			d.OnEvent(event(coordinator.EventCheckpointFailed, "flights"))
			synctest.Wait() // the first one is under way before the second comes
		}
		s := d.Hooks()[0]
		require.Equal(t, HookStatus{Name: "hook1", Target: "http://receiver.example", Queued: 3, Trying: true, Dropped: 6}, timeless(s))
		time.Sleep(10500 * time.Millisecond)
		require.Contains(t, d.Hooks()[0].LastError, "no answer within 10s")
		r.answers(nil)
		time.Sleep(time.Minute)
		s = d.Hooks()[0]
		require.Equal(t, uint64(4), s.Delivered)
		got := r.seqs()
		require.Equal(t, []uint64{1, 8, 9, 10}, slices.Compact(got))
		require.Equal(t, uint64(6), r.requests()[len(got)-1].notice.Lost)
		require.Contains(t, l.kinds(), coordinator.EventHookDropped)
		require.Contains(t, l.text(), "6 notices were dropped")
	})
}

func TestOneHookDoesNotHoldUpAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad, good := &receiver{answer: func(_ int, _ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }}, &receiver{}
		wires := map[string]*wire{"bad.example:80": bad.serve(), "good.example:80": good.serve()}
		d := NewDispatcher(Options{Alarms: hooks(config.Hook{URL: "http://bad.example"}, config.Hook{URL: "http://good.example"}),
			dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				return wires[address].dial(ctx, network, address)
			}})
		for range 50 {
			d.OnEvent(event(coordinator.EventStateLost, "flights"))
		}
		synctest.Wait()
		require.Len(t, good.seqs(), 50)
		require.Len(t, bad.seqs(), 1)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		d.Close(ctx)
		require.LessOrEqual(t, time.Since(began), 4*time.Second, "a stop doesn't wait for it for longer")
		require.Equal(t, uint64(50), d.Hooks()[0].Dropped)
		bad.stop(t)
		good.stop(t)
	})
}

func TestAtTheStopEachNoticeIsTriedOnceMore(t *testing.T) {
	r := &receiver{answer: status(500)}
	bubble(t, r, config.Hook{}, 0, func(t *testing.T, d *Dispatcher, l *told) {
		for range 3 {
			d.OnEvent(event(coordinator.EventStateLost, "flights"))
		}
		time.Sleep(100 * time.Millisecond)
		r.answers(func(n int, w http.ResponseWriter, _ *http.Request) {
			if r.requests()[n].notice.Seq == 2 {
				w.WriteHeader(500)
			}
		})
		began := time.Now()
		shut(d)
		require.Zero(t, time.Since(began))
		require.Equal(t, []uint64{1, 1, 2, 3}, r.seqs())
		s := d.Hooks()[0]
		require.Equal(t, uint64(2), s.Delivered)
		require.Equal(t, uint64(1), s.Dropped)
		require.Contains(t, l.kinds(), coordinator.EventHookDropped)
		d.OnEvent(event(coordinator.EventStateLost, "flights"))
		require.Equal(t, uint64(2), d.Hooks()[0].Dropped, "what comes later is counted too")
	})
}

// course is what happens to one hook in one run.
type course struct {
	Answers  []string
	Spec     config.Hook
	Queue    int
	Pauses   []time.Duration // before the next event
	Patience bool            // until nothing is tried any more
}

// play lets it happen.
func (c course) play(t *testing.T) (s HookStatus, got []request) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(n int, w http.ResponseWriter, req *http.Request) {
			switch c.Answers[n%len(c.Answers)] {
			case "500":
				w.WriteHeader(500)
			case "cut": // it came, and the sender never learns of it
				panic(http.ErrAbortHandler)
			case "hang":
				<-req.Context().Done()
			}
		}}
		w := r.serve()
		d := NewDispatcher(Options{Alarms: hooks(c.Spec), queue: c.Queue, dial: w.dial})
		for _, pause := range c.Pauses {
			d.OnEvent(event(coordinator.EventStateLost, "flights"))
			time.Sleep(pause)
		}
		if c.Patience {
			time.Sleep(50 * time.Hour)
		}
		shut(d)
		r.stop(t)
		synctest.Wait()
		s, got = d.Hooks()[0], r.requests()
	})
	return s, got
}

// Whatever a receiver does: what it gets is in order, each notice comes at
// least once or is counted as lost, and none that was delivered comes again.
func TestNoticesAreInOrderAndNoneIsLostUncounted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := course{
			Answers: rapid.SliceOfN(rapid.SampledFrom([]string{"ok", "ok", "500", "cut", "hang"}), 1, 20).Draw(rt, "answers"),
			Spec:    config.Hook{URL: target, Tries: rapid.IntRange(1, 4).Draw(rt, "tries"), MaxAge: config.Duration(rapid.Int64Range(int64(time.Second), int64(time.Hour)).Draw(rt, "age"))},
			Queue:   rapid.IntRange(1, 5).Draw(rt, "queue"), Patience: rapid.Bool().Draw(rt, "patience"),
		}
		for range rapid.IntRange(1, 30).Draw(rt, "events") {
			c.Pauses = append(c.Pauses, time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(rt, "pause")))
		}
		s, got := c.play(t)
		require.Equal(rt, len(c.Pauses), int(s.Delivered+s.GivenUp+s.Dropped), "%+v", s)
		came, done := map[uint64]bool{}, map[uint64]bool{}
		last := uint64(0)
		for i, q := range got {
			n := q.notice.Seq
			require.GreaterOrEqual(rt, n, last, "in order")
			require.False(rt, done[n], "%d comes after it was delivered", n)
			came[n], done[n], last = true, c.Answers[i%len(c.Answers)] == "ok", n
		}
		require.Equal(rt, int(s.Delivered), len(slices.DeleteFunc(slices.Collect(maps.Keys(done)), func(n uint64) bool { return !done[n] })))
		require.GreaterOrEqual(rt, len(came)+int(s.Dropped), len(c.Pauses), "each came, or was dropped before its first try")
	})
}
