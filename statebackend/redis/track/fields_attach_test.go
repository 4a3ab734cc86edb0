package track

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
)

// startFields makes a tracker with short pauses.
func startFields(t testing.TB, o Options, tm timing) *fields {
	t.Helper()
	if tm.retry == 0 {
		tm.retry = 5 * time.Millisecond
	}
	f := newFields(o, tm)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

func TestTwoRightsAreEnough(t *testing.T) {
	s := redistest.Start(t)
	s.Do("ACL", "SETUSER", "tracker", "on", ">word", "-@all", "+psync", "+replconf")
	f := startFields(t, Options{Dial: dialer(t, s, login{"tracker", "word"}), Server: s.Addr}, timing{})
	w := watch(t, f, Scope{Root: "j"})
	s.Do("HSET", "j:h", "f", "v")
	require.Equal(t, []string{"f"}, fieldsOf(settled(t, s, w), "j:h"))
}

func TestEachRightThatLacksIsNamedAndNoticedWhenGiven(t *testing.T) {
	s := redistest.Start(t)
	for lacking, words := range map[string]string{"+psync": "PSYNC", "+replconf": "REPLCONF"} {
		s.Do("ACL", "SETUSER", "tracker", "reset", "on", ">word", "-@all", "+psync", "+replconf", "-"+lacking[1:])
		f := startFields(t, Options{Dial: dialer(t, s, login{"tracker", "word"}), Server: s.Addr}, timing{denied: 10 * time.Millisecond})
		err := f.Attached(patient(t))
		require.ErrorIs(t, err, ErrDenied)
		require.ErrorContains(t, err, words)
		require.ErrorContains(t, err, lacking)
		w, err := f.Watch(t.Context(), Scope{Root: "j"})
		require.NoError(t, err)
		require.ErrorIs(t, w.Barrier(t.Context(), position(t, s)), ErrLost)

		s.Do("ACL", "SETUSER", "tracker", lacking)
		require.Eventually(t, func() bool { return f.Attached(t.Context()) == nil }, patient10, time.Millisecond)
		require.True(t, w.Take().All)
		s.Do("SET", "j:v", "1")
		require.True(t, whole(settled(t, s, w), "j:v"))
	}
}

const patient10 = 10 * time.Second

// TestTheServerSeesAReplicaThatVouchesForNothing: WAIT must not count it.
func TestTheServerSeesAReplicaThatVouchesForNothing(t *testing.T) {
	s := redistest.Start(t)
	f := startFields(t, Options{Dial: dialer(t, s, login{}), Server: s.Addr}, timing{})
	attached(t, f)
	c := s.Client().Conn()
	defer func() { require.NoError(t, c.Close()) }()
	require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
	n, err := c.Do(t.Context(), "WAIT", 1, 50).Int()
	require.NoError(t, err)
	require.Zero(t, n)
	info := fmt.Sprint(s.Do("INFO", "replication"))
	require.Contains(t, info, "port=0,state=online,offset=0")
}

func TestTheOffsetIsCountedExactly(t *testing.T) {
	s := redistest.Start(t, redistest.Setting("repl-ping-replica-period 1"))
	f := startFields(t, Options{Dial: dialer(t, s, login{}), Server: s.Addr}, timing{})
	w := watch(t, f, Scope{Root: "j"})
	exact := func() {
		t.Helper()
		for end := time.Now().Add(patience); ; {
			at := position(t, s)
			require.NoError(t, w.Barrier(patient(t), at))
			if f.offset.Load() == at.Offset {
				return
			}
			require.True(t, time.Now().Before(end), "the server is at %d, the stream at %d", at.Offset, f.offset.Load())
		}
	}
	exact()
	before := f.offset.Load()
	require.Eventually(t, func() bool { return f.offset.Load() >= before+2*14 }, patience, time.Millisecond, "PINGs count")
	exact()
	for _, line := range suiteLines {
		s.Do(args("SET j:before 1")...)
		_ = s.Client().Do(t.Context(), args(strings.Split(line, " -> ")[0])...) // also those that are refused
	}
	s.Do("SET", "j:big", strings.Repeat("x", 3<<20))
	exact()
	killLinks(s)
	s.Do("HSET", "j:h", "f", "v")
	reattached(t, s, w)
	exact()
}

func TestDatabasesAreToldApart(t *testing.T) {
	s := redistest.Start(t)
	f := startFields(t, Options{Dial: dialer(t, s, login{}), Server: s.Addr}, timing{})
	zero, three := watch(t, f, Scope{Root: "j"}), watch(t, f, Scope{DB: 3, Root: "j"})
	in3 := func(args ...any) {
		c := s.Client().Conn()
		require.NoError(t, c.Select(t.Context(), 3).Err())
		require.NoError(t, c.Do(t.Context(), args...).Err())
		require.NoError(t, c.Close())
	}
	in3("HSET", "j:h", "f", "v")
	s.Do("HSET", "j:g", "f", "v")
	require.Equal(t, []string{"j:g"}, keysOf(settled(t, s, zero)))
	require.Equal(t, []string{"j:h"}, keysOf(settled(t, s, three)))

	killLinks(s) // the stream's database outlives the link
	s.Do("HSET", "j:i", "f", "v")
	m := reattached(t, s, zero)
	require.False(t, m.All)
	require.Equal(t, []string{"j:i"}, keysOf(m))
	require.Empty(t, keysOf(settled(t, s, three)))

	in3("FLUSHDB")
	require.False(t, settled(t, s, zero).All)
	require.True(t, settled(t, s, three).All)
	for _, command := range []string{"MOVE j:g 3", "COPY j:i j:i DB 3"} {
		s.Do(args(command)...)
		require.Len(t, keysOf(settled(t, s, zero)), 1, command)
		require.Len(t, keysOf(settled(t, s, three)), 1, command)
	}
	s.Do("SWAPDB", 0, 3)
	for _, w := range []Watch{zero, three} {
		m := settled(t, s, w)
		require.True(t, m.All)
		require.Contains(t, m.Reason, "SWAPDB")
	}
}

func keysOf(m Marks) (all []string) {
	for name := range m.Keys {
		all = append(all, name)
	}
	return all
}

// TestAReplicaIsFollowedThroughAFailover: a replica has its master's stream,
// and when it becomes a master the history goes on under a new name.
func TestAReplicaIsFollowedThroughAFailover(t *testing.T) {
	master := redistest.Start(t)
	replica := redistest.Start(t, redistest.Setting("replicaof "+strings.Replace(master.Addr, ":", " ", 1)))
	synced := func() bool {
		return strings.Contains(fmt.Sprint(replica.Do("INFO", "replication")), "master_link_status:up")
	}
	require.Eventually(t, synced, patience, 5*time.Millisecond)
	f := startFields(t, Options{Dial: dialer(t, replica, login{}), Server: replica.Addr}, timing{})
	w := watch(t, f, Scope{Root: "j"})
	master.Do("HSET", "j:h", "f", "v")
	require.Equal(t, []string{"f"}, fieldsOf(settled(t, master, w), "j:h"))

	old := position(t, replica)
	replica.Do("REPLICAOF", "NO", "ONE")
	replica.Do("HSET", "j:h", "g", "v")
	m := reattached(t, replica, w)
	require.False(t, m.All, m.Reason)
	require.Equal(t, []string{"g"}, fieldsOf(m, "j:h"))
	err := w.Barrier(t.Context(), old)
	require.ErrorIs(t, err, ErrLost, "that history has ended")
	require.ErrorContains(t, err, old.ReplID)
}

// TestARestartWithItsDataGoesOn: the server remembers where its stream was.
func TestARestartWithItsDataGoesOn(t *testing.T) {
	s := redistest.Start(t)
	f := startFields(t, Options{Dial: dialer(t, s, login{}), Server: s.Addr}, timing{})
	w := watch(t, f, Scope{Root: "j"})
	s.Do("HSET", "j:h", "f", "v")
	require.Equal(t, []string{"f"}, fieldsOf(settled(t, s, w), "j:h"))
	c := s.Client()
	saved := func() bool { return c.Save(t.Context()).Err() == nil } // refused while the tracker's own snapshot ends
	require.Eventually(t, saved, patience, time.Millisecond)
	s.Restart()
	s.Do("HSET", "j:h", "g", "v")
	m := reattached(t, s, w)
	require.False(t, m.All, m.Reason)
	require.Equal(t, []string{"g"}, fieldsOf(m, "j:h"))

	require.Eventually(t, saved, patience, time.Millisecond)
	s.Do("HSET", "j:h", "lost", "v")
	require.Equal(t, []string{"lost"}, fieldsOf(settled(t, s, w), "j:h"))
	s.Restart() // with an older state than the stream has seen
	require.True(t, reattached(t, s, w).All)
	s.Do("HSET", "j:h", "h", "v")
	require.Equal(t, []string{"h"}, fieldsOf(settled(t, s, w), "j:h"))
}

func TestAttachingUnderLoadMissesNothing(t *testing.T) {
	s := redistest.Start(t)
	stop := make(chan struct{})
	last := make(chan int, 1)
	c := s.Client()
	go func() {
		defer close(last)
		for i := 0; ; i++ {
			if err := c.HSet(context.Background(), "j:h", fmt.Sprint(i), "v").Err(); err != nil {
				t.Errorf("write: %v", err)
				return
			}
			select {
			case <-stop:
				last <- i
				return
			default:
			}
		}
	}()
	for range 10 {
		f := startFields(t, Options{Dial: dialer(t, s, login{}), Server: s.Addr}, timing{})
		w := watch(t, f, Scope{Root: "j"})
		from := int(s.Do("HLEN", "j:h").(int64))
		require.Eventually(t, func() bool { return s.Do("HLEN", "j:h").(int64) > int64(from+50) }, patience, time.Millisecond)
		to := int(s.Do("HLEN", "j:h").(int64))
		m := settled(t, s, w)
		for i := from; i < to; i++ {
			require.True(t, covers(m, "j:h", fmt.Sprint(i)), "%d of %d to %d", i, from, to)
		}
		require.NoError(t, f.Close())
	}
	close(stop)
	_, ok := <-last
	require.True(t, ok)
}

func TestCloseDoesNotWaitForADial(t *testing.T) {
	dialing := make(chan struct{})
	f := newFields(Options{Server: "nowhere:1", Dial: func(ctx context.Context) (net.Conn, error) {
		close(dialing)
		<-ctx.Done()
		return nil, ctx.Err()
	}}, timing{})
	<-dialing
	require.NoError(t, within(t, f.Close))
	_, err := f.Watch(t.Context(), Scope{})
	require.ErrorIs(t, err, ErrClosed)
}

func TestWatchRefusesWhatItCannotCompare(t *testing.T) {
	s := redistest.Start(t)
	f := startFields(t, Options{Dial: dialer(t, s, login{}), Server: s.Addr}, timing{})
	_, err := f.Watch(t.Context(), Scope{Root: strings.Repeat("r", longestRoot+1)})
	require.ErrorContains(t, err, "65537")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = f.Watch(ctx, Scope{Root: "j"})
	require.ErrorIs(t, err, context.Canceled)
}
