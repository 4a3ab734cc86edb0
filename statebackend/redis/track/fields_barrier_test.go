package track

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// barriers is a tracker without a server, at offset 100, and a watch of it.
func barriers(t *testing.T) (*fields, Watch) {
	f := offline(t, Options{Server: "here"})
	f.reached(100)
	return f, watch(t, f, Scope{Root: "j"})
}

// waiting opens a Barrier and returns once it waits.
func waiting(t *testing.T, f *fields, w Watch, offset int64) chan error {
	t.Helper()
	count := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.waiters)
	}
	before := count()
	done := inBackground(func() error { return w.Barrier(context.Background(), Position{idA, offset}) })
	require.Eventually(t, func() bool { return count() == before+1 }, patience, 100*time.Microsecond)
	return done
}

func returned(t *testing.T, done chan error) error {
	t.Helper()
	return within(t, func() error { return <-done })
}

// TestBarriersWakeAtTheirOffset: at that very byte, each at its own, the
// lowest first, whatever order they came in.
func TestBarriersWakeAtTheirOffset(t *testing.T) {
	f, w := barriers(t)
	require.NoError(t, w.Barrier(t.Context(), Position{idA, 100}))
	high, low, middle := waiting(t, f, w, 300), waiting(t, f, w, 200), waiting(t, f, w, 250)
	f.reached(199)
	require.Empty(t, low)
	f.reached(200)
	require.NoError(t, returned(t, low))
	f.reached(249)
	require.Empty(t, middle)
	f.reached(260)
	require.NoError(t, returned(t, middle))
	require.Empty(t, high)
	require.EqualValues(t, 300, f.wanted.Load())
	f.reached(300)
	require.NoError(t, returned(t, high))
	require.EqualValues(t, int64(noOffset), f.wanted.Load(), "nobody is woken in vain afterwards")
}

// TestABarrierThatGivesUpLeavesTheOthers: and says how far the stream was.
func TestABarrierThatGivesUpLeavesTheOthers(t *testing.T) {
	f, w := barriers(t)
	ctx, cancel := context.WithCancel(t.Context())
	stays := waiting(t, f, w, 200)
	gives := inBackground(func() error { return w.Barrier(ctx, Position{idA, 150}) })
	require.Eventually(t, func() bool { return f.wanted.Load() == 150 }, patience, 100*time.Microsecond)
	cancel()
	err := returned(t, gives)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "is at 100, reaches 150")
	require.EqualValues(t, 200, f.wanted.Load())
	f.reached(200)
	require.NoError(t, returned(t, stays))
}

// TestALostLinkEndsTheWait: at once, since writers may be paused meanwhile.
func TestALostLinkEndsTheWait(t *testing.T) {
	f, w := barriers(t)
	done := waiting(t, f, w, 200)
	f.detach(context.DeadlineExceeded, false, false)
	require.ErrorIs(t, returned(t, done), ErrLost)
	require.ErrorIs(t, w.Barrier(t.Context(), Position{idA, 1}), ErrLost)
}

func TestAnEndedWatchEndsTheWait(t *testing.T) {
	f, w := barriers(t)
	other := watch(t, f, Scope{Root: "k"})
	done, stays := waiting(t, f, w, 200), waiting(t, f, other, 200)
	w.Close()
	require.ErrorIs(t, returned(t, done), ErrClosed)
	require.Eventually(t, func() bool { return f.wanted.Load() == 200 }, patience, 100*time.Microsecond, "the other waits again")
	f.reached(200)
	require.NoError(t, returned(t, stays))
}

// TestBeforeTheFirstSelectTheDatabaseIsUnknown: then all are marked.
func TestBeforeTheFirstSelectTheDatabaseIsUnknown(t *testing.T) {
	stream := sent("HSET j:h f v")
	_, o := newFake(t, after("+FULLRESYNC "+idA+" 0\r\n$0\r\n"+sent("SELECT 3")+"<close>"),
		after("+FULLRESYNC "+idB+" 0\r\n$0\r\n"))
	f := startFields(t, o, timing{})
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.on && f.replID == idB
	}, patience, time.Millisecond)
	require.Equal(t, anyDB, func() int { require.NoError(t, f.Close()); return f.db }(), "a full resync begins without a database")

	g := offline(t, Options{})
	zero, three := watch(t, g, Scope{Root: "j"}), watch(t, g, Scope{DB: 3, Root: "j"})
	require.Error(t, feed(g, []byte(stream)))
	for _, w := range []Watch{zero, three} {
		require.Equal(t, "j:h:f", text(w.Take()))
	}
}
