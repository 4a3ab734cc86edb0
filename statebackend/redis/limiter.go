package redis

import (
	"context"
	"net"
	"sync"
	"time"
)

// limiter bounds how fast connections are read together, so that a busy server
// stays usable: what has come is paid for in time before more is taken. Safe
// for concurrent use.
type limiter struct {
	ctx context.Context

	mu   sync.Mutex
	rate int64     // bytes per second; 0 for no bound
	free time.Time // when what was read is paid for
}

// open takes the bound away: inside a pause nothing may wait.
func (l *limiter) open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate = 0
}

// most waits until reading is paid for, and gives how many bytes may be read
// at once: a tenth of a second's, so that the server is asked in an even
// stream and not in bursts. 0 for any number.
func (l *limiter) most() (int64, error) {
	l.mu.Lock()
	rate, left := l.rate, time.Until(l.free)
	l.mu.Unlock()
	if rate <= 0 {
		return 0, nil
	}
	if left > 0 {
		timer := time.NewTimer(left)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			return 0, context.Cause(l.ctx)
		}
	}
	return max(rate/10, 1), nil
}

// took notes what was read.
func (l *limiter) took(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rate <= 0 {
		return
	}
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(float64(n) / float64(l.rate) * float64(time.Second)))
}

// limitedConn is a connection that a limiter bounds.
type limitedConn struct {
	net.Conn
	limit *limiter
}

// Read reads what the limiter allows.
func (c *limitedConn) Read(b []byte) (int, error) {
	most, err := c.limit.most()
	if err != nil {
		return 0, err
	}
	if most > 0 && int64(len(b)) > most {
		b = b[:most]
	}
	n, err := c.Conn.Read(b)
	c.limit.took(n)
	return n, err
}
