package alarm

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
)

// paper is a journal in memory, which can fail.
type paper struct {
	mu     sync.Mutex
	all    map[string][]byte
	writes int
	fault  error
}

var _ Journal = (*paper)(nil)

func (p *paper) Put(_ context.Context, bucket, key string, value []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault != nil {
		return p.fault
	}
	if p.all == nil {
		p.all = map[string][]byte{}
	}
	p.all[bucket+"/"+key] = value
	p.writes++
	return nil
}

func (p *paper) Get(_ context.Context, bucket, key string) ([]byte, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	value, ok := p.all[bucket+"/"+key]
	return value, ok, nil
}

func (p *paper) Delete(_ context.Context, bucket, key string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, bucket+"/"+key)
	p.writes++
	return p.fault
}

// lives runs one life of a coordinator after the other on the same journal and
// the same receiver.
func lives(t *testing.T, r *receiver, p *paper, each ...func(d *Dispatcher, l *told)) {
	synctest.Test(t, func(t *testing.T) {
		w := r.serve()
		for _, f := range each {
			l := &told{}
			d := NewDispatcher(Options{Alarms: hooks(config.Hook{Name: "chat", URL: target, Tries: 1000, MaxAge: config.Duration(time.Hour)}), Tell: l, dial: w.dial, Journal: p})
			f(d, l)
			shut(d)
		}
		r.stop(t)
		synctest.Wait()
	})
}

func jobsOf(r *receiver) (all []string) {
	for _, q := range r.requests() {
		all = append(all, q.notice.Event.Job)
	}
	return all
}

func TestWhatCouldNotBeDeliveredIsDeliveredAfterARestart(t *testing.T) {
	r, p := &receiver{answer: status(503)}, &paper{}
	lives(t, r, p, func(d *Dispatcher, l *told) {
		for _, job := range []string{"one", "two", "three"} {
			d.OnEvent(event(coordinator.EventStateLost, job))
		}
		time.Sleep(10 * time.Second)
		s := d.Hooks()[0]
		require.Equal(t, 2, s.Queued)
		require.True(t, s.Trying)
		require.NotNil(t, s.LastFailedAt)
		require.Nil(t, s.LastDeliveredAt)
		shut(d)
		require.EqualValues(t, 3, d.Hooks()[0].Kept)
		require.Zero(t, d.Hooks()[0].Dropped)
		require.NotContains(t, l.kinds(), coordinator.EventHookDropped)
		r.answers(nil)
	}, func(d *Dispatcher, _ *told) {
		before := len(r.requests())
		d.OnEvent(event(coordinator.EventStateLost, "four"))
		synctest.Wait()
		require.Equal(t, []string{"one", "two", "three", "four"}, jobsOf(r)[before:])
		s := d.Hooks()[0]
		require.EqualValues(t, 4, s.Delivered)
		require.NotNil(t, s.LastDeliveredAt)
		require.False(t, s.Trying)
		require.Empty(t, p.all, "the journal is empty again")
	}, func(*Dispatcher, *told) {
		n := len(r.requests())
		time.Sleep(time.Hour)
		require.Len(t, r.requests(), n, "each once")
	})
}

// A kill after a failed try loses nothing; a receiver that works costs no
// writes; what became too old meanwhile is given up.
func TestAKilledCoordinatorsNoticesAreNotLost(t *testing.T) {
	r, p := &receiver{}, &paper{}
	var left []byte
	lives(t, r, p, func(d *Dispatcher, _ *told) {
		for range 200 {
			d.OnEvent(event(coordinator.EventStateLost, "well"))
		}
		synctest.Wait()
		require.Zero(t, p.writes)
		r.answers(status(503))
		d.OnEvent(event(coordinator.EventStateLost, "late"))
		synctest.Wait()
		left = p.all["hooks/chat"] // as a kill would leave it
		require.NotEmpty(t, left)
		r.answers(nil)
	}, func(*Dispatcher, *told) {
		p.all["hooks/chat"] = left
	}, func(d *Dispatcher, _ *told) {
		synctest.Wait()
		all := jobsOf(r)
		require.Equal(t, "late", all[len(all)-1])
		require.EqualValues(t, 1, d.Hooks()[0].Delivered)
		p.all["hooks/chat"] = left
		time.Sleep(2 * time.Hour)
		r.answers(status(503))
	}, func(d *Dispatcher, _ *told) {
		synctest.Wait()
		require.EqualValues(t, 1, d.Hooks()[0].GivenUp)
		require.Empty(t, p.all)
	})
}

func TestAJournalThatFailsIsToldAndStopsNoDelivery(t *testing.T) {
	r, p := &receiver{answer: status(503)}, &paper{fault: errors.New("the disk is full"), all: map[string][]byte{"hooks/chat": []byte("{")}}
	lives(t, r, p, func(d *Dispatcher, l *told) {
		require.Contains(t, l.text(), "what waited before the start can't be read")
		d.OnEvent(event(coordinator.EventStateLost, "one"))
		time.Sleep(time.Minute)
		require.Contains(t, l.text(), "what waits can't be kept over a restart: the disk is full")
		shut(d)
		require.EqualValues(t, 1, d.Hooks()[0].Dropped)
		require.Contains(t, l.kinds(), coordinator.EventHookDropped)
	})
}
