package track

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
)

// keyTimesOf makes trackers with other periods than the usual.
func keyTimesOf(change func(*keyTimes)) func(Options) Tracker {
	periods := defaultKeyTimes
	change(&periods)
	return func(o Options) Tracker { return newKeys(o, periods) }
}

var errKeyTest = errors.New("the test's own cause")

const keySomeRights = "+client|tracking +ping +info"

func keyUser(s *redistest.Server, rights string) login {
	args := []any{"ACL", "SETUSER", "narrow", "reset", "on", ">secretword"}
	for right := range strings.FieldsSeq(rights) {
		args = append(args, right)
	}
	s.Do(args...)
	return login{"narrow", "secretword"}
}

// The rights that NewKeys names are enough, and each of them is needed.
func TestKeysRights(t *testing.T) {
	s := redistest.Start(t)
	tr := startWith(t, NewKeys, Options{Dial: dialer(t, s, keyUser(s, keySomeRights)), Server: s.Addr})
	w := watch(t, tr, Scope{Root: "j"})
	s.Do("SET", "j:1", "v")
	require.Equal(t, []string{"j:1"}, keyNames(settled(t, s, w)))
	for right := range strings.FieldsSeq(keySomeRights) {
		require.Contains(t, keyRights, right)
		as := keyUser(s, strings.ReplaceAll(keySomeRights, right, ""))
		lacks := startWith(t, NewKeys, Options{Dial: dialer(t, s, as), Server: s.Addr})
		err := lacks.Attached(patient(t))
		require.ErrorIs(t, err, ErrDenied)
		require.ErrorContains(t, err, "NOPERM")
		require.ErrorContains(t, err, keyRights)
		require.ErrorContains(t, err, s.Addr)
		require.NotContains(t, err.Error(), "secretword")
	}
}

// A right that is given later is noticed, by the watch in its own time and by
// Attached at once.
func TestKeysRightGivenLater(t *testing.T) {
	s := redistest.Start(t)
	rare, often := NewKeys, keyTimesOf(func(k *keyTimes) { k.denied = 5 * time.Millisecond })
	for name, make := range map[string]func(Options) Tracker{"asked": rare, "by itself": often} {
		tr := startWith(t, make, Options{Dial: dialer(t, s, keyUser(s, "+ping")), Server: s.Addr})
		w, err := tr.Watch(patient(t), Scope{Root: "j"})
		require.NoError(t, err)
		defer w.Close()
		err = w.Barrier(patient(t), Position{})
		require.ErrorIs(t, err, ErrLost)
		require.ErrorIs(t, err, ErrDenied)
		require.ErrorIs(t, tr.Attached(patient(t)), ErrDenied, name)
		require.Contains(t, w.Take().Reason, "NOPERM")
		keyUser(s, keySomeRights)
		if name == "asked" {
			require.NoError(t, tr.Attached(patient(t)))
		}
		require.True(t, reattached(t, s, w).All, name)
	}
}

func TestKeysRightTakenAway(t *testing.T) {
	s := redistest.Start(t)
	w := watch(t, startWith(t, NewKeys, Options{Dial: dialer(t, s, keyUser(s, keySomeRights)), Server: s.Addr}), Scope{Root: "j"})
	s.Do("ACL", "SETUSER", "narrow", "-info")
	err := w.Barrier(patient(t), Position{})
	require.ErrorIs(t, err, ErrLost)
	require.ErrorIs(t, err, ErrDenied)
	require.True(t, w.Take().All)
}

// What a server may answer to the handshake, and what it means.
func TestKeysHandshake(t *testing.T) {
	for _, c := range []struct {
		command, text string
		denied        bool
		words         string
	}{
		{"HELLO", "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n", true, "Redis 6.0"},
		{"HELLO", "-NOPROTO unsupported protocol version\r\n", true, "Redis 6.0"},
		{"HELLO", "-NOAUTH HELLO must be called with the client already authenticated\r\n", true, "password"},
		{"CLIENT", "-ERR Unknown subcommand or wrong number of arguments for 'TRACKING'\r\n", true, "Redis 6.0"},
		{"INFO", "$11\r\n# Nothing\r\n\r\n", true, "commandstats"},
		{"PING", "-LOADING Redis is loading the dataset in memory\r\n", false, "LOADING"},
		{"HELLO", "-ERR max number of clients reached\r\n", false, "max number"},
		{"HELLO", "HTTP/1.1 400 Bad Request\r\n", false, "RESP3"},
	} {
		f := newKeyFake(t)
		f.answer(c.command, c.text)
		tr := startWith(t, NewKeys, Options{Dial: f.dial, Server: "fake"})
		w, err := tr.Watch(patient(t), Scope{Root: "j"})
		require.NoError(t, err)
		m := w.Take()
		require.True(t, m.All, c.text)
		m = w.Take()
		require.Contains(t, m.Reason, c.words)
		err = w.Barrier(patient(t), Position{})
		require.ErrorIs(t, err, ErrLost)
		require.Equal(t, c.denied, errors.Is(err, ErrDenied), "%v", err)
	}
}

// What nobody asked for means that the place in the stream is lost.
func TestKeysUnaskedAnswer(t *testing.T) {
	f := newKeyFake(t)
	w := watch(t, startWith(t, NewKeys, Options{Dial: f.dial, Server: "fake"}), Scope{Root: "j"})
	f.push(t, keyInvalidation("j:1", "other")+"+odd\r\n")
	require.Eventually(t, func() bool { keys, _ := w.Size(); return keys == -1 }, patience, time.Millisecond)
	require.Contains(t, w.Take().Reason, "nothing was asked for")
}

// A quiet link is asked for signs of life and kept, whatever the connection:
// the reader goes on after its timeouts.
func TestKeysQuietLinkIsKept(t *testing.T) {
	quick := keyTimesOf(func(k *keyTimes) { k.quiet = time.Millisecond; k.missed = 10_000 })
	for name, s := range map[string]*redistest.Server{"plain": redistest.Start(t), "TLS": redistest.Start(t, redistest.TLS())} {
		w := watch(t, start(t, s, quick), Scope{Root: "j"})
		for round := range 3 {
			before := keyCalls(t, s, "ping")
			require.Eventually(t, func() bool { return keyCalls(t, s, "ping") > before+20 }, patience, time.Millisecond)
			s.Do("SET", "j:k", strings.Repeat("x", round+1))
			m := settled(t, s, w)
			require.False(t, m.All, "%s: %s", name, m.Reason)
			require.Equal(t, []string{"j:k"}, keyNames(m))
		}
	}
}

func keyCalls(t *testing.T, s *redistest.Server, command string) uint64 {
	t.Helper()
	c, err := parseCalls(fmt.Sprint(s.Do("INFO", "commandstats")))
	require.NoError(t, err)
	return c.calls[command]
}

// A server that has gone without a word is found out without a call.
func TestKeysHalfOpenLink(t *testing.T) {
	s := redistest.Start(t)
	quick := keyTimesOf(func(k *keyTimes) { k.quiet = 20 * time.Millisecond })
	w := watch(t, start(t, s, quick), Scope{Root: "j"})
	s.Signal(syscall.SIGSTOP)
	require.Eventually(t, func() bool { keys, _ := w.Size(); return keys == -1 }, patience, time.Millisecond)
	require.Contains(t, w.Take().Reason, "has not answered 3 PINGs")
	require.ErrorIs(t, w.Barrier(patient(t), Position{}), ErrLost)
	s.Signal(syscall.SIGCONT)
	s.Do("SET", "j:1", "1")
	require.True(t, reattached(t, s, w).All)
	s.Do("SET", "j:2", "1")
	require.Equal(t, []string{"j:2"}, keyNames(settled(t, s, w)))
}

// Watch waits for a server that says nothing, but not for ever.
func TestKeysWatchOfASilentServer(t *testing.T) {
	f := newKeyFake(t)
	f.hold("HELLO")
	tr := startWith(t, keyTimesOf(func(k *keyTimes) { k.first = 20 * time.Millisecond }), Options{Dial: f.dial, Server: "fake"})
	w, err := tr.Watch(patient(t), Scope{Root: "j"})
	require.NoError(t, err)
	require.Contains(t, w.Take().Reason, "not attached")
	f.release()
	require.NoError(t, tr.Attached(patient(t)))
	require.ErrorIs(t, w.Barrier(patient(t), Position{}), ErrLost, "the marks were not taken since it was attached")
	require.True(t, w.Take().All)
	require.NoError(t, w.Barrier(patient(t), Position{}))
	require.False(t, w.Take().All)

	f.hold("HELLO")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errKeyTest)
	_, err = startWith(t, NewKeys, Options{Dial: f.dial, Server: "fake"}).Watch(ctx, Scope{Root: "j"})
	require.ErrorIs(t, err, errKeyTest)
	require.ErrorContains(t, err, "fake")
}

// A busy server refuses the PING; the Barrier waits until it is done.
func TestKeysBarrierOfABusyServer(t *testing.T) {
	s := redistest.Start(t, redistest.Setting("busy-reply-threshold 1"))
	c := s.Client()
	w := watch(t, start(t, s, NewKeys), Scope{Root: "j"})
	at := position(t, s)
	script := inBackground(func() error {
		return c.Eval(t.Context(), `redis.call('set', 'j:first', 1); local n = 0; for i = 1, 3e7 do n = n + i end
			redis.call('set', 'j:last', n); return n`, nil).Err()
	})
	require.Eventually(t, func() bool {
		err := c.Ping(t.Context()).Err()
		return err != nil && strings.Contains(err.Error(), "BUSY")
	}, patience, time.Millisecond)
	at.ReplID = "" // INFO is refused too until then, so the PING has to hold it up
	require.NoError(t, w.Barrier(patient(t), at))
	require.Equal(t, []string{"j:first", "j:last"}, keyNames(w.Take()))
	require.NoError(t, <-script)
}

// The second question may be refused too.
func TestKeysBarrierInsists(t *testing.T) {
	f := newKeyFake(t)
	w := watch(t, startWith(t, NewKeys, Options{Dial: f.dial, Server: "fake"}), Scope{Root: "j"})
	before := f.count("INFO")
	f.answer("INFO", "-LOADING Redis is loading the dataset in memory\r\n")
	done := inBackground(func() error { return w.Barrier(patient(t), Position{}) })
	require.Eventually(t, func() bool { return f.count("INFO") > before+3 }, patience, time.Millisecond)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errKeyTest)
	require.ErrorIs(t, w.Barrier(ctx, Position{}), errKeyTest)
	f.answer("INFO", keyStatsAnswer)
	require.NoError(t, <-done)
	require.False(t, w.Take().All)
}

// More than the server keeps for a client is a lost link.
func TestKeysOutputBufferLimit(t *testing.T) {
	s := redistest.Start(t, redistest.Setting("client-output-buffer-limit normal 200000 0 0"))
	w := watch(t, start(t, s, NewKeys), Scope{Root: "j"})
	s.Do("EVAL", `for i = 1, 20000 do redis.call('set', 'j:' .. i, i) end`, 0)
	m := reattached(t, s, w)
	require.True(t, m.All)
	require.NotEmpty(t, m.Reason)
	s.Do("SET", "j:1", "again")
	require.Equal(t, []string{"j:1"}, keyNames(settled(t, s, w)))
}

// More keys than the limit holds: the marks are All, and the link holds.
func TestKeysManyKeysUnderASmallLimit(t *testing.T) {
	s := redistest.Start(t)
	tr := startWith(t, NewKeys, Options{Dial: dialer(t, s, login{}), Server: s.Addr, Limits: Limits{Bytes: 1 << 20}})
	w := watch(t, tr, Scope{Root: "j"})
	for part := range 20 { // each well within a client's patience
		s.Do("EVAL", `for i = 1, 10000 do redis.call('set', 'j:' .. ARGV[1] .. ':' .. i, i) end`, 0, part)
	}
	m := settled(t, s, w)
	require.True(t, m.All)
	require.Contains(t, m.Reason, fmt.Sprint(1<<20))
	s.Do("EVAL", `for i = 1, 10000 do redis.call('set', 'j:' .. i, i) end`, 0)
	require.Len(t, settled(t, s, w).Keys, 10_000)
}

// Callers that give up leave questions behind, but not without end.
func TestKeysQuestionsAreBounded(t *testing.T) {
	s := redistest.Start(t)
	w := watch(t, start(t, s, NewKeys), Scope{Root: "j"})
	s.Signal(syscall.SIGSTOP)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errKeyTest)
	for range maxAsked {
		require.ErrorIs(t, w.Barrier(ctx, Position{}), errKeyTest)
	}
	err := w.Barrier(patient(t), Position{})
	require.ErrorIs(t, err, ErrLost)
	require.ErrorContains(t, err, "without an answer")
	s.Signal(syscall.SIGCONT)
	require.True(t, reattached(t, s, w).All)
}

// After a failover the old master says nothing of what the new one writes,
// or says it late. A Barrier of the new one's position finds that out, and
// the watch goes where Dial leads now.
func TestKeysFailover(t *testing.T) {
	old, new := redistest.Start(t), redistest.Start(t)
	var to atomic.Pointer[redistest.Server]
	to.Store(old)
	dial := func(ctx context.Context) (net.Conn, error) { return dialer(t, to.Load(), login{})(ctx) }
	w := watch(t, startWith(t, NewKeys, Options{Dial: dial, Server: "either"}), Scope{Root: "j"})
	require.NoError(t, w.Barrier(patient(t), position(t, old)))

	err := w.Barrier(patient(t), position(t, new))
	require.ErrorIs(t, err, ErrLost)
	require.ErrorContains(t, err, position(t, old).ReplID)
	require.True(t, reattached(t, old, w).All)

	host, port, err := net.SplitHostPort(new.Addr)
	require.NoError(t, err)
	old.Do("REPLICAOF", host, port)
	require.Eventually(t, func() bool {
		return strings.Contains(fmt.Sprint(old.Do("INFO", "replication")), "master_link_status:up")
	}, patience, time.Millisecond)
	to.Store(new)
	new.Do("SET", "j:1", "1")
	err = w.Barrier(patient(t), position(t, new))
	require.ErrorIs(t, err, ErrLost)
	require.ErrorContains(t, err, "not the master")
	require.True(t, reattached(t, new, w).All)
	new.Do("SET", "j:2", "1")
	require.Equal(t, []string{"j:2"}, keyNames(settled(t, new, w)))
}
