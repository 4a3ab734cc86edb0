package torture

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What the coordinator sends when it holds writers and when it frees them.
var (
	pauseWords   = []byte("\r\nPAUSE\r\n")
	unpauseWords = []byte("\r\nUNPAUSE\r\n")
)

// link is the network between the coordinator and its Redis: it breaks on
// request, and it sees the pauses. Before it lets the end of a pause through
// it calls held: what that reads from the server is the state at the instant
// of the cut, whatever the coordinator has read itself.
type link struct {
	addr string
	held func()

	listener net.Listener
	target   atomic.Pointer[string]
	delay    atomic.Int64 // ns that each packet waits
	dead     [2]gate      // closed: nothing passes to the server; from it
	seen     atomic.Bool  // this pause has been looked at
	frees    sync.Mutex
	pauses   atomic.Int64

	mu    sync.Mutex
	conns map[*wire]struct{}
	ended bool
	wg    sync.WaitGroup
}

// gate holds who passes while it is closed. The zero value is open.
type gate struct {
	mu   sync.Mutex
	wait chan struct{}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wait == nil {
		g.wait = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wait != nil {
		close(g.wait)
		g.wait = nil
	}
}

func (g *gate) pass(done <-chan struct{}) {
	g.mu.Lock()
	wait := g.wait
	g.mu.Unlock()
	if wait == nil {
		return
	}
	select {
	case <-wait:
	case <-done:
	}
}

// wire is one connection through the link.
type wire struct {
	client, server net.Conn
	done           chan struct{}
	once           sync.Once
}

func (w *wire) cut() {
	w.once.Do(func() {
		close(w.done)
		_, _ = w.client.Close(), w.server.Close() // a broken network says nothing either
	})
}

func newLink(t *testing.T, target string) *link {
	l := &link{conns: map[*wire]struct{}{}, held: func() {}}
	l.target.Store(&target)
	var err error
	l.listener, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l.addr = l.listener.Addr().String()
	l.wg.Add(1)
	go l.serve()
	t.Cleanup(l.end)
	return l
}

func (l *link) end() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	_ = l.listener.Close() // ends serve
	l.heal()
	l.cut()
	l.wg.Wait()
}

func (l *link) serve() {
	defer l.wg.Done()
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", *l.target.Load())
		if err != nil {
			_ = client.Close() // the server is down: refused
			continue
		}
		w := &wire{client: client, server: server, done: make(chan struct{})}
		l.mu.Lock()
		if l.ended {
			l.mu.Unlock()
			w.cut()
			return
		}
		l.conns[w] = struct{}{}
		l.wg.Add(2)
		l.mu.Unlock()
		go l.forward(w, w.client, w.server, 0, &pauseWatch{l: l})
		go l.forward(w, w.server, w.client, 1, nil)
	}
}

// forward passes on what from sends, as long as the link lives.
func (l *link) forward(w *wire, from, to net.Conn, direction int, watch *pauseWatch) {
	defer l.wg.Done()
	defer l.gone(w)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			l.late(w)
			l.dead[direction].pass(w.done)
			watch.look(buf[:n])
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				return
			}
			if half, ok := to.(*net.TCPConn); ok {
				_ = half.CloseWrite() // the other side may still have something to say
			}
			return
		}
	}
}

func (l *link) late(w *wire) {
	d := time.Duration(l.delay.Load())
	if d == 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.done:
	}
}

func (l *link) gone(w *wire) {
	w.cut()
	l.mu.Lock()
	delete(l.conns, w)
	l.mu.Unlock()
}

// cut breaks every connection.
func (l *link) cut() {
	l.mu.Lock()
	all := make([]*wire, 0, len(l.conns))
	for w := range l.conns {
		all = append(all, w)
	}
	l.mu.Unlock()
	for _, w := range all {
		w.cut()
	}
}

// heal ends slowness and silence.
func (l *link) heal() {
	l.delay.Store(0)
	l.dead[0].open()
	l.dead[1].open()
}

// pauseWatch finds the beginnings and the ends of pauses in what one
// connection sends, also when they are split.
type pauseWatch struct {
	l    *link
	tail []byte
}

func (p *pauseWatch) look(b []byte) {
	if p == nil {
		return
	}
	all := append(p.tail, b...)
	if bytes.Contains(all, pauseWords) {
		p.l.seen.Store(false)
	}
	if bytes.Contains(all, unpauseWords) {
		p.l.freed()
		all = nil
	}
	p.tail = append(p.tail[:0:0], all[max(0, len(all)-len(unpauseWords)+1):]...)
}

// freed looks at the server before its writers are freed: once for each pause,
// however often its end is asked for.
func (l *link) freed() {
	l.frees.Lock()
	defer l.frees.Unlock()
	if !l.seen.Swap(true) {
		l.pauses.Add(1)
		l.held()
	}
}
