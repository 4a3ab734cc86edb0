package track

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
)

// gate is a proxy before a server whose links a test cuts, freezes and refuses.
type gate struct {
	l net.Listener

	mu     sync.Mutex
	closed bool // new links are cut at once
	frozen bool // the server's bytes go nowhere
	links  map[net.Conn]struct{}
	all    sync.WaitGroup
}

func newGate(t testing.TB, to string) *gate {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gate{l: l, links: map[net.Conn]struct{}{}}
	g.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.all.Go(func() { g.link(c, to) })
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		g.set(func() { g.closed = true })
		g.cut()
		g.all.Wait()
	})
	return g
}

func (g *gate) set(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

func (g *gate) is(what *bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return *what
}

// cut breaks all links.
func (g *gate) cut() {
	g.set(func() {
		for c := range g.links {
			_ = c.Close() // it may have ended by itself
		}
	})
}

func (g *gate) link(c net.Conn, to string) {
	s, err := net.Dial("tcp", to)
	if err != nil || g.is(&g.closed) {
		_ = c.Close() // what the test wants
		if err == nil {
			_ = s.Close()
		}
		return
	}
	g.set(func() { g.links[c], g.links[s] = struct{}{}, struct{}{} })
	var both sync.WaitGroup
	both.Go(func() { g.copy(s, c, false) })
	both.Go(func() { g.copy(c, s, true) })
	both.Wait()
	g.set(func() { delete(g.links, c); delete(g.links, s) })
}

func (g *gate) copy(to, from net.Conn, down bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !(down && g.is(&g.frozen)) {
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		if err != nil {
			// Either end's end is the other's.
			_, _ = to.Close(), from.Close()
			return
		}
	}
}

func (g *gate) options(t testing.TB) Options {
	addr := g.l.Addr().String()
	return Options{Dial: dialerTo(t, addr, "", login{}), Server: addr}
}

// TestABrokenLinkIsResumed: while the backlog lasts nothing is lost, and
// nothing but what was written is marked.
func TestABrokenLinkIsResumed(t *testing.T) {
	s := redistest.Start(t)
	g := newGate(t, s.Addr)
	f := startFields(t, g.options(t), timing{})
	w := watch(t, f, Scope{Root: "j"})
	for i := range 8 {
		s.Do("HSET", "j:h", fmt.Sprint("before", i), "v")
		g.set(func() { g.closed = true })
		g.cut()
		s.Do("HSET", "j:h", fmt.Sprint("during", i), strings.Repeat("v", 10_000))
		require.Eventually(t, func() bool { return errors.Is(w.Barrier(t.Context(), position(t, s)), ErrLost) }, patience, time.Millisecond)
		g.set(func() { g.closed = false })
		m := reattached(t, s, w)
		require.False(t, m.All, m.Reason)
		require.ElementsMatch(t, []string{fmt.Sprint("before", i), fmt.Sprint("during", i)}, fieldsOf(m, "j:h"))
		require.Len(t, m.Keys, 1)
	}
}

// TestALinkThatBreaksAtAnyByteIsResumed cuts inside of commands.
func TestALinkThatBreaksAtAnyByteIsResumed(t *testing.T) {
	s := redistest.Start(t)
	g := newGate(t, s.Addr)
	f := startFields(t, g.options(t), timing{})
	w := watch(t, f, Scope{Root: "j"})
	c := s.Client()
	var all Marks
	for i := range 15 {
		wrote := inBackground(func() error {
			pipe := c.Pipeline()
			for n := range 50 {
				pipe.HSet(t.Context(), "j:h", fmt.Sprintf("%d:%d", i, n), strings.Repeat("v", 500))
			}
			_, err := pipe.Exec(t.Context())
			return err
		})
		g.cut()
		require.NoError(t, <-wrote)
		all.Merge(reattached(t, s, w))
		require.False(t, all.All, all.Reason)
	}
	require.Len(t, all.Keys, 1)
	require.Len(t, all.Keys["j:h"].Fields, 15*50)
}

func TestABacklogThatIsOverrunMarksAll(t *testing.T) {
	s := redistest.Start(t, redistest.Setting("repl-backlog-size 16kb"))
	g := newGate(t, s.Addr)
	f := startFields(t, g.options(t), timing{})
	w := watch(t, f, Scope{Root: "j"})
	g.set(func() { g.closed = true })
	g.cut()
	for i := range 100 {
		s.Do("SET", fmt.Sprint("other:", i), strings.Repeat("x", 1000))
	}
	// Marks that were taken before the loss is known don't count as whole.
	w.Take()
	require.ErrorIs(t, w.Barrier(t.Context(), position(t, s)), ErrLost)
	g.set(func() { g.closed = false })
	require.Eventually(t, func() bool { return f.Attached(t.Context()) == nil && w.Barrier(t.Context(), position(t, s)) != nil },
		patience, time.Millisecond)
	require.ErrorContains(t, w.Barrier(t.Context(), position(t, s)), "attached anew")
	m := w.Take()
	require.True(t, m.All)
	require.Contains(t, m.Reason, "no longer")
	s.Do("HSET", "j:h", "f", "v")
	require.Equal(t, []string{"f"}, fieldsOf(settled(t, s, w), "j:h"))
}

// TestASilentLinkIsDead: no byte for long is an end, though the connection
// stands.
func TestASilentLinkIsDead(t *testing.T) {
	s := redistest.Start(t, redistest.Setting("repl-ping-replica-period 1"))
	g := newGate(t, s.Addr)
	f := startFields(t, g.options(t), timing{silence: 2500 * time.Millisecond})
	w := watch(t, f, Scope{Root: "j"})
	g.set(func() { g.frozen = true })
	s.Do("HSET", "j:h", "f", "v")
	at := position(t, s)
	err := w.Barrier(patient(t), at)
	require.ErrorIs(t, err, ErrLost)
	require.ErrorContains(t, err, "no byte came")
	g.set(func() { g.frozen = false })
	g.cut()
	m := reattached(t, s, w)
	require.Equal(t, []string{"f"}, fieldsOf(m, "j:h"))
}

func TestAStoppedServerIsFollowedAgain(t *testing.T) {
	s := redistest.Start(t)
	f := startFields(t, Options{Dial: dialer(t, s, login{}), Server: s.Addr}, timing{silence: 200 * time.Millisecond})
	w := watch(t, f, Scope{Root: "j"})
	s.Do("HSET", "j:h", "f", "v")
	at := position(t, s)
	require.NoError(t, w.Barrier(patient(t), at))
	s.Signal(syscall.SIGSTOP)
	at.Offset++
	require.ErrorIs(t, w.Barrier(patient(t), at), ErrLost)
	s.Signal(syscall.SIGCONT)
	s.Do("HSET", "j:h", "g", "v")
	require.True(t, covers(reattached(t, s, w), "j:h", "g"))
}
