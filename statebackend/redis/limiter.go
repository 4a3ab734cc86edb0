package redis

import (
	"context"
	"net"
	"time"
)

// meter bounds how fast a connection is read, so that a busy server stays
// usable: what has come is paid for in time before more is taken. It is used
// by the one goroutine that reads.
type meter struct {
	net.Conn
	ctx  context.Context
	rate int64     // bytes per second; 0 for no bound
	free time.Time // when what was read is paid for
	read int64     // bytes so far
}

// Read takes at most a tenth of a second's bytes at once, so that the server
// is asked in an even stream and not in bursts.
func (m *meter) Read(b []byte) (int, error) {
	if m.rate <= 0 {
		n, err := m.Conn.Read(b)
		m.read += int64(n)
		return n, err
	}
	if err := m.wait(); err != nil {
		return 0, err
	}
	if most := max(m.rate/10, 1); int64(len(b)) > most {
		b = b[:most]
	}
	n, err := m.Conn.Read(b)
	m.read += int64(n)
	now := time.Now()
	if m.free.Before(now) {
		m.free = now
	}
	m.free = m.free.Add(time.Duration(float64(n) / float64(m.rate) * float64(time.Second)))
	return n, err
}

func (m *meter) wait() error {
	left := time.Until(m.free)
	if left <= 0 {
		return nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-m.ctx.Done():
		return context.Cause(m.ctx)
	}
}

// open takes the bound away: inside a pause nothing may wait.
func (m *meter) open() { m.rate = 0 }
