package track

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// keyFake is a server that says what real ones say seldom: it answers each
// command with a set text.
type keyFake struct {
	listener net.Listener
	done     sync.WaitGroup

	mu      sync.Mutex
	answers map[string]string // by the command's first word; "" for silence
	held    string            // a command whose answers, and all that follow, wait
	freed   chan struct{}
	conns   []net.Conn
	heard   []string
}

var keyStatsAnswer = fmt.Sprintf("=%d\r\ntxt:%s\r\n", len(keyStatsText)+4, keyStatsText)

func newKeyFake(t *testing.T) *keyFake {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &keyFake{listener: l, freed: make(chan struct{}), answers: map[string]string{
		"HELLO": "%1\r\n+proto\r\n:3\r\n", "CLIENT": "+OK\r\n", "PING": "+PONG\r\n",
		"INFO": keyStatsAnswer,
	}}
	f.done.Go(f.accept)
	t.Cleanup(func() {
		f.release()
		require.NoError(t, l.Close())
		f.cut()
		f.done.Wait()
	})
	return f
}

func (f *keyFake) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", f.listener.Addr().String())
}

// answer changes what a command gets from now on.
func (f *keyFake) answer(command, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[command] = text
}

// hold keeps the answers back from the next such command on.
func (f *keyFake) hold(command string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = command
}

func (f *keyFake) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = ""
	close(f.freed)
	f.freed = make(chan struct{})
}

// cut closes all connections.
func (f *keyFake) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, nc := range f.conns {
		_ = nc.Close() // the other side may have closed it
	}
	f.conns = nil
}

// push writes to all connections, unasked.
func (f *keyFake) push(t *testing.T, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, nc := range f.conns {
		_, err := io.WriteString(nc, text)
		require.NoError(t, err)
	}
}

// count is how often a command was received.
func (f *keyFake) count(command string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.heard {
		if h == command {
			n++
		}
	}
	return n
}

func (f *keyFake) accept() {
	for {
		nc, err := f.listener.Accept()
		if err != nil {
			return // the test is over
		}
		f.mu.Lock()
		f.conns = append(f.conns, nc)
		f.mu.Unlock()
		f.done.Go(func() { f.serve(nc) })
	}
}

func (f *keyFake) hangUp(nc net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns = slices.DeleteFunc(f.conns, func(c net.Conn) bool { return c == nc })
	_ = nc.Close() // it may be closed
}

func (f *keyFake) serve(nc net.Conn) {
	defer f.hangUp(nc)
	r := bufio.NewReader(nc)
	for {
		args, err := readKeyCommand(r)
		if err != nil {
			return
		}
		f.mu.Lock()
		f.heard = append(f.heard, args[0])
		held, freed := f.held == args[0], f.freed
		f.mu.Unlock()
		if held {
			<-freed
		}
		f.mu.Lock()
		text := f.answers[args[0]]
		f.mu.Unlock()
		if _, err := io.WriteString(nc, text); err != nil {
			return
		}
	}
}

func readKeyCommand(r *bufio.Reader) ([]string, error) {
	var n int
	if _, err := fmt.Fscanf(r, "*%d\r\n", &n); err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		var size int
		if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		args[i] = strings.TrimSuffix(string(b), "\r\n")
	}
	return args, nil
}
