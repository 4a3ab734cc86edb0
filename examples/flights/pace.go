package flights

import (
	"context"
	"sync"
	"time"
)

// pace spaces records out: each gets the next slot of 1/rate seconds. Slots
// that nobody took while the job had nothing to do are not made up for.
type pace struct {
	step time.Duration // 0 for no limit

	mu   sync.Mutex
	next time.Time
}

func newPace(rate int) *pace {
	if rate == 0 {
		return &pace{}
	}
	return &pace{step: time.Second / time.Duration(rate)}
}

// wait waits for a slot; false when ctx is done before.
func (p *pace) wait(ctx context.Context) bool {
	if p.step == 0 {
		return ctx.Err() == nil
	}
	p.mu.Lock()
	if now := time.Now(); p.next.Before(now) {
		p.next = now
	}
	slot := p.next
	p.next = slot.Add(p.step)
	p.mu.Unlock()
	t := time.NewTimer(time.Until(slot))
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
