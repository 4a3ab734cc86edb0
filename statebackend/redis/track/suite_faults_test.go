package track

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
)

// killLinks cuts the tracker's connections of either level on the server.
func killLinks(s *redistest.Server) {
	s.Do("CLIENT", "KILL", "TYPE", "replica")
	s.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	s.Do("CLIENT", "KILL", "TYPE", "pubsub")
}

func suiteCutLink(t *testing.T, make func(Options) Tracker, _ Level) {
	s := redistest.Start(t)
	w := watch(t, start(t, s, make), Scope{Root: "j"})
	for i := range 5 {
		key := fmt.Sprintf("j:%d", i)
		s.Do("SET", key+":before", "1")
		killLinks(s)
		s.Do("HSET", key, "f", "v")
		m := reattached(t, s, w)
		require.True(t, covers(m, key, "f"))
		require.True(t, touched(m, key+":before"))
		s.Do("HSET", key, "g", "v")
		require.True(t, covers(settled(t, s, w), key, "g"))
	}
}

func suiteRestartedEmpty(t *testing.T, make func(Options) Tracker, _ Level) {
	s := redistest.Start(t)
	w := watch(t, start(t, s, make), Scope{Root: "j"})
	s.Do("SET", "j:v", "1")
	before := position(t, s)
	s.RestartEmpty()
	m := reattached(t, s, w)
	require.True(t, m.All)
	require.NotEmpty(t, m.Reason)
	s.Do("SET", "j:v", "2")
	m = settled(t, s, w)
	require.False(t, m.All, m.Reason)
	require.True(t, whole(m, "j:v"))
	require.NotEqual(t, before.ReplID, position(t, s).ReplID)
}

func suiteUnreachable(t *testing.T, make func(Options) Tracker, _ Level) {
	addr := redistest.FreeAddr(t)
	tr := startWith(t, make, Options{Dial: dialerTo(t, addr, "", login{}), Server: addr})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := tr.Attached(ctx)
	require.ErrorIs(t, err, ErrLost)
	require.ErrorContains(t, err, addr)
	w, err := tr.Watch(t.Context(), Scope{Root: "j"})
	require.NoError(t, err)
	defer w.Close()
	require.ErrorIs(t, w.Barrier(t.Context(), Position{ReplID: strings.Repeat("a", 40)}), ErrLost)
	for range 3 {
		m := w.Take()
		require.True(t, m.All)
		require.NotEmpty(t, m.Reason)
	}
}

func suiteDenied(t *testing.T, make func(Options) Tracker, _ Level) {
	s := redistest.Start(t)
	s.Do("ACL", "SETUSER", "weak", "on", ">secretword", "~*", "&*", "-@all", "+ping")
	tr := startWith(t, make, Options{Dial: dialer(t, s, login{"weak", "secretword"}), Server: s.Addr})
	err := tr.Attached(patient(t))
	require.ErrorIs(t, err, ErrDenied)
	require.ErrorContains(t, err, s.Addr)
	require.NotContains(t, err.Error(), "secretword")
	w, err := tr.Watch(t.Context(), Scope{Root: "j"})
	require.NoError(t, err)
	defer w.Close()
	require.True(t, w.Take().All)

	wrong := startWith(t, make, Options{Dial: dialer(t, s, login{"weak", "otherword"}), Server: s.Addr})
	err = wrong.Attached(patient(t))
	require.ErrorIs(t, err, ErrDenied)
	require.NotContains(t, err.Error(), "otherword")
}

func suiteSecure(t *testing.T, make func(Options) Tracker, _ Level) {
	s := redistest.Start(t, redistest.Password("pw"), redistest.TLS())
	tr := startWith(t, make, Options{Dial: dialer(t, s, login{"default", "pw"}), Server: s.Addr})
	w := watch(t, tr, Scope{Root: "j"})
	s.Do("HSET", "j:h", "f", strings.Repeat("v", 1<<20))
	require.True(t, covers(settled(t, s, w), "j:h", "f"))
	killLinks(s)
	s.Do("HSET", "j:h", "g", "v")
	require.True(t, covers(reattached(t, s, w), "j:h", "g"))
}

// suiteStopped: a server that answers nothing holds nobody longer than asked.
func suiteStopped(t *testing.T, make func(Options) Tracker, _ Level) {
	s := redistest.Start(t)
	tr := start(t, s, make)
	w := watch(t, tr, Scope{Root: "j"})
	at := position(t, s)
	at.Offset += 1000 // what was never written
	s.Signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	err := w.Barrier(ctx, at)
	require.Error(t, err)
	require.True(t, errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrLost), "%v", err)
	require.Less(t, time.Since(began), 5*time.Second)
	closed := within(t, func() error { return tr.Close() })
	require.NoError(t, closed, "Close waits for no server")
	s.Signal(syscall.SIGCONT)
}

// within runs f and fails the test when it takes too long.
func within(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		require.FailNow(t, "it hangs")
		return nil
	}
}

func suiteBytes(t *testing.T, make func(Options) Tracker, _ Level) {
	s := redistest.Start(t)
	w := watch(t, start(t, s, make), Scope{Root: "j"})
	names := []string{"", "\x00", "\r\n", "\xff\xfe", "*3\r\n$3\r\nDEL", "NX", strings.Repeat("long", 20_000), "π"}
	for i, name := range names {
		s.Do("HSET", "j:"+name, name, fmt.Sprint("value", i), fmt.Sprint("other", i), name)
		s.Do("ZADD", "j:z", i, name)
		s.Do("SET", "j:v:"+name, name)
	}
	m := settled(t, s, w)
	require.False(t, m.All, m.Reason)
	for i, name := range names {
		require.True(t, covers(m, "j:"+name, name), "%d", i)
		require.True(t, covers(m, "j:"+name, fmt.Sprint("other", i)), "%d", i)
		require.True(t, covers(m, "j:z", name), "%d", i)
		require.True(t, whole(m, "j:v:"+name), "%d", i)
	}
	require.Len(t, m.Keys, 2*len(names)+1)
}

func suiteTooMuch(t *testing.T, make func(Options) Tracker, _ Level) {
	s := redistest.Start(t)
	tr := startWith(t, make, Options{Dial: dialer(t, s, login{}), Server: s.Addr, Limits: Limits{Bytes: 20_000}})
	w, small := watch(t, tr, Scope{Root: "j"}), watch(t, tr, Scope{Root: "k"})
	s.Do("SET", "k:v", "1")
	for i := range 200 {
		s.Do("SET", fmt.Sprintf("j:%d", i), "1") // 200 * (64 + 5) bytes
	}
	require.Len(t, settled(t, s, w).Keys, 200)
	for i := range 400 {
		s.Do("SET", fmt.Sprintf("j:%d", i), "1")
	}
	m := settled(t, s, w)
	require.True(t, m.All)
	require.NotEmpty(t, m.Reason)
	require.Len(t, settled(t, s, small).Keys, 1, "one job's limit is its own")
	s.Do("SET", "j:x", "1")
	require.Len(t, settled(t, s, w).Keys, 1)
}

func suiteClosed(t *testing.T, make func(Options) Tracker, _ Level) {
	s := redistest.Start(t)
	tr := make(Options{Dial: dialer(t, s, login{}), Server: s.Addr})
	w := watch(t, tr, Scope{Root: "j"})
	gone := watch(t, tr, Scope{Root: "j"})
	gone.Close()
	gone.Close()
	require.ErrorIs(t, gone.Barrier(t.Context(), position(t, s)), ErrClosed)
	require.True(t, gone.Take().All)
	s.Do("SET", "j:v", "1")
	require.True(t, touched(settled(t, s, w), "j:v"))

	at := position(t, s)
	at.Offset += 1 << 40
	waits := inBackground(func() error {
		for {
			if err := w.Barrier(t.Context(), at); err != nil {
				return err
			}
		}
	})
	require.NoError(t, tr.Close())
	require.NoError(t, tr.Close())
	require.ErrorIs(t, <-waits, ErrClosed)
	require.ErrorIs(t, tr.Attached(t.Context()), ErrClosed)
	_, err := tr.Watch(t.Context(), Scope{Root: "j"})
	require.ErrorIs(t, err, ErrClosed)
	require.True(t, w.Take().All)
	w.Close()
	require.Eventually(t, func() bool {
		return strings.Count(fmt.Sprint(s.Do("CLIENT", "LIST")), "id=") == 1
	}, patience, time.Millisecond, "its connections are gone from the server")
}

func inBackground(f func() error) chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// suiteConcurrent: writers, takers and barriers at once; nothing is lost
// between two Takes.
func suiteConcurrent(t *testing.T, make func(Options) Tracker, _ Level) {
	s := redistest.Start(t)
	w := watch(t, start(t, s, make), Scope{Root: "j"})
	c := s.Client()
	var writers sync.WaitGroup
	for n := range 4 {
		writers.Go(func() {
			for i := range 500 {
				if err := c.HSet(t.Context(), fmt.Sprintf("j:%d:%d", n, i%50), fmt.Sprint(i), "v").Err(); err != nil {
					t.Errorf("write: %v", err)
					return
				}
			}
		})
	}
	done := inBackground(func() error { writers.Wait(); return nil })
	var all Marks
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
			all.Merge(w.Take())
		}
	}
	all.Merge(settled(t, s, w))
	require.False(t, all.All, all.Reason)
	for n := range 4 {
		for i := range 500 {
			require.True(t, covers(all, fmt.Sprintf("j:%d:%d", n, i%50), fmt.Sprint(i)), "%d %d", n, i)
		}
	}
}
