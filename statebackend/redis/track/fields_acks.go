package track

import (
	"net"
	"sync/atomic"
	"time"
)

// acknowledgement names offset 0, always: the server only wants to hear that
// its replica lives. A true offset would let WAIT count a replica that stores
// nothing.
const acknowledgement = "*3\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$1\r\n0\r\n"

// acks sends acknowledgements: often until the stream flows, since the server
// holds it back until it has got one after its snapshot's end (and with one a
// second writers that wait for a Barrier would wait that long), then seldom.
type acks struct {
	nc      net.Conn
	timing  timing
	asked   chan struct{}
	stop    chan struct{}
	done    chan struct{}
	flowing atomic.Bool
}

func newAcks(nc net.Conn, tm timing) *acks {
	a := &acks{nc: nc, timing: tm, asked: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go a.run()
	return a
}

// ask sends one at once.
func (a *acks) ask() {
	select {
	case a.asked <- struct{}{}:
	default: // one is due already
	}
}

// flows says that the stream has begun.
func (a *acks) flows() {
	if !a.flowing.Load() {
		a.flowing.Store(true)
	}
}

func (a *acks) end() {
	close(a.stop)
	<-a.done
}

// patientAfter bounds the time of hurry: an idle server sends its first byte
// when its next PING is due.
const patientAfter = 3 * time.Second

func (a *acks) run() {
	defer close(a.done)
	began := time.Now()
	for {
		if err := a.send(); err != nil {
			_ = a.nc.Close() // the reader tells that the link is broken
			return
		}
		pause := a.timing.ack
		if !a.flowing.Load() {
			pause = a.timing.ackFirst
			if time.Since(began) > patientAfter {
				pause = min(10*pause, a.timing.ack)
			}
		}
		select {
		case <-a.stop:
			return
		case <-a.asked:
		case <-time.After(pause):
		}
	}
}

func (a *acks) send() error {
	if err := a.nc.SetWriteDeadline(time.Now().Add(a.timing.silence)); err != nil {
		return err
	}
	_, err := a.nc.Write([]byte(acknowledgement))
	return err
}
