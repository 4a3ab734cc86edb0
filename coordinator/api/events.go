package api

import (
	"sync"

	"keyframe/coordinator"
)

// EventLog remembers the newest events of all jobs. Safe for concurrent use.
type EventLog struct {
	mu     sync.Mutex
	events []coordinator.Event // a ring
	next   int
}

// rememberedEvents bounds an EventLog.
const rememberedEvents = 2000

var _ coordinator.Listener = (*EventLog)(nil)

// OnEvent implements coordinator.Listener.
func (l *EventLog) OnEvent(e coordinator.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.events) < rememberedEvents {
		l.events = append(l.events, e)
		return
	}
	l.events[l.next] = e
	l.next = (l.next + 1) % rememberedEvents
}

// Newest are the remembered events, newest first, of one job when job isn't
// empty.
func (l *EventLog) Newest(job string) []coordinator.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []coordinator.Event
	for i := range l.events {
		e := l.events[(l.next+len(l.events)-1-i+len(l.events))%len(l.events)]
		if job == "" || e.Job == job {
			out = append(out, e)
		}
	}
	return out
}
