package main

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// gate passes bytes between clients and a server, and holds a connection when
// it comes to a certain word.
type gate struct {
	addr   string
	server string

	mu    sync.Mutex
	word  []byte // nil: open
	seen  chan struct{}
	leave chan struct{}
	wg    sync.WaitGroup
	conns map[net.Conn]bool
}

func newGate(t *testing.T, server string) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gate{addr: l.Addr().String(), server: server, conns: map[net.Conn]bool{}}
	g.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			g.wg.Go(func() { g.serve(conn) })
		}
	})
	t.Cleanup(func() {
		g.open()
		require.NoError(t, l.Close())
		g.mu.Lock()
		for c := range g.conns {
			_ = c.Close() // ends its copies
		}
		g.mu.Unlock()
		g.wg.Wait()
	})
	return g
}

func (g *gate) serve(client net.Conn) {
	server, err := net.Dial("tcp", g.server)
	if err != nil {
		_ = client.Close() // as a server that isn't there
		return
	}
	g.mu.Lock()
	g.conns[client], g.conns[server] = true, true
	g.mu.Unlock()
	g.wg.Go(func() {
		_, _ = io.Copy(client, server) // until one of them ends
		_ = client.Close()             // both ends are told
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			break
		}
		g.pass(buf[:n])
		if _, err := server.Write(buf[:n]); err != nil {
			break
		}
	}
	_ = server.Close() // ends the copy
}

// pass waits while the word is in b.
func (g *gate) pass(b []byte) {
	g.mu.Lock()
	word, leave := g.word, g.leave
	if word == nil || !bytes.Contains(b, word) {
		g.mu.Unlock()
		return
	}
	close(g.seen)
	g.word = nil // what comes next, such as the end of a pause, goes through
	g.mu.Unlock()
	<-leave
}

// arm makes the gate hold the next connection that sends a word; reached is
// closed when it does.
func (g *gate) arm(word string) (reached <-chan struct{}) {
	g.open()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.word, g.seen, g.leave = []byte(word), make(chan struct{}), make(chan struct{})
	return g.seen
}

// open lets everything through.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leave != nil {
		close(g.leave)
	}
	g.word, g.leave = nil, nil
}
