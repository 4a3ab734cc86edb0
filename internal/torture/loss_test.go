package torture

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/api"
	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
)

// Every checkpoint of a test is kept, so that each can be looked at.
const lossJobs = `
  - name: torture
    parallelism: 2
    maxParallelism: 16
    checkpoint: {schedule: "@every 1s", timeout: 30s, maxPause: 2s}
    retention: {keep: 10000}
`

// recoveryTime is within how long a job is well again once its Redis answers:
// it is looked at each second, and a first attempt that failed is repeated
// after one more.
const recoveryTime = 15 * time.Second

// losses is one run in which Redis dies again and again.
type losses struct {
	t      *testing.T
	rng    *rand.Rand
	server *redistest.Server
	c      *redis.Client
	d      *daemon
	fleet  *fleet
	memory *replays
	static map[string]entry

	newest seqs        // of the newest completed checkpoint
	last   snapshot.ID // its id
	cases  map[string]int
	slow   time.Duration // the longest that a job was not well after its Redis was back
}

// TestLostStateIsNeverCheckpointed kills Redis, which comes back empty or with
// what it saved some time before, while writers write on as if nothing had
// happened: I5 by force. No completed checkpoint may hold a state that is
// behind the one before it.
func TestLostStateIsNeverCheckpointed(t *testing.T) {
	t.Parallel()
	n := rounds(t, "KEYFRAME_LOSSES", 10)
	server := redistest.Start(t)
	l := &losses{t: t, rng: seeded(t), server: server, c: patient(server), memory: &replays{}, static: bulk(), cases: map[string]int{}}
	populate(t, l.c)
	l.fleet = newFleet(l.c, true, l.memory)
	l.fleet.start(t)
	l.d = newDaemon(t, server, lossJobs)
	l.d.start()
	l.checkpointed(0)
	for range n {
		l.round()
	}
	for what, times := range l.cases {
		t.Logf("%4d times %s", times, what)
	}
	t.Logf("%d losses, newest checkpoint %d, well again after at most %s", n, l.last, l.slow.Round(time.Millisecond))
	l.fleet.hold()
	l.d.stop()
}

// checkpointed waits for a completed checkpoint after an id, and gives its.
func (l *losses) checkpointed(after snapshot.ID) snapshot.ID {
	l.t.Helper()
	var found snapshot.ID
	l.d.until("checkpoint", func() (string, bool) {
		for _, cp := range l.d.history(job.Name) {
			if cp.ID > after && cp.State == snapshot.StateCompleted {
				found = cp.ID
			}
		}
		return fmt.Sprintf("none after %d", after), found != 0
	})
	return found
}

// round takes Redis away once, and sees the job recover.
func (l *losses) round() {
	t, d := l.t, l.d
	l.fleet.open()
	post[api.Job](d, jobPath(job.Name)+"/resume", nil)
	l.checkpointed(l.last)
	what := l.takeAway()
	l.cases[what]++
	back := time.Now()
	if l.rng.IntN(4) == 0 { // once more, in the middle of the recovery
		l.wait(1200)
		l.server.RestartEmpty()
		back = time.Now()
	}
	d.healthy(job.Name)
	took := time.Since(back)
	require.Less(t, took, recoveryTime, "until the job was well again, after Redis %s", what)
	l.slow = max(l.slow, took)
	history := d.history(job.Name)
	l.checkpointed(history[len(history)-1].ID)
	l.sound(what)
}

// wait waits a random time of at most so many ms.
func (l *losses) wait(most int) {
	select {
	case <-time.After(time.Duration(l.rng.IntN(most)) * time.Millisecond):
	case <-l.d.done:
	}
}

// takeAway kills Redis at some moment and starts it again, without its state
// or with an older one.
func (l *losses) takeAway() string {
	switch l.rng.IntN(4) {
	case 0:
		l.wait(1500)
		l.server.RestartEmpty()
		return "came back empty"
	case 1:
		l.server.Do("SAVE")
		l.checkpointed(l.record())
		l.wait(1500)
		l.server.Restart()
		return "came back with a state older than the newest checkpoint"
	case 2:
		l.wait(1000)
		l.server.Do("SAVE")
		l.wait(800)
		l.server.Restart()
		return "came back with a state saved at any moment"
	}
	l.attempted()
	l.server.Do("SAVE")
	l.checkpointed(l.record() - 1)
	l.wait(300)
	l.server.Restart()
	return "came back with a state saved just as a checkpoint began"
}

// record is the newest attempt that the job's record in Redis knows.
func (l *losses) record() snapshot.ID {
	l.t.Helper()
	n, _, err := number(l.c.HGet(l.t.Context(), job.Record(), "attempt"))
	require.NoError(l.t, err)
	return snapshot.ID(n)
}

// attempted waits until the next attempt has been written down in Redis.
func (l *losses) attempted() {
	l.t.Helper()
	was := l.record()
	l.d.until("next attempt", func() (string, bool) {
		// A tight loop: what follows is to come before the cut.
		for range 200 {
			if l.record() > was {
				return "", true
			}
		}
		return fmt.Sprint(was), false
	})
}

// sound looks at everything: the live state and each new checkpoint keep the
// rules, and no checkpoint is behind the one before.
func (l *losses) sound(what string) {
	t, d := l.t, l.d
	t.Helper()
	d.quiet(job.Name)
	l.fleet.hold()
	now := readLive(t, l.c, job)
	require.Empty(t, now.staged)
	require.Empty(t, violations(now.content, l.static, l.memory), "the live state after Redis %s", what)
	d.withStore(func(db *bolt.DB) {
		for _, cp := range d.history(job.Name) {
			if cp.ID <= l.last || cp.State != snapshot.StateCompleted {
				continue
			}
			c, _ := reading(t, db, cp.ID)
			require.Empty(t, violations(c, l.static, l.memory), "checkpoint %d after Redis %s", cp.ID, what)
			at := progressOf(c)
			require.Empty(t, at.olderThan(l.newest), "checkpoint %d after checkpoint %d, after Redis %s", cp.ID, l.last, what)
			require.Empty(t, l.fleet.chains.lost(l.newest, at), "checkpoint %d after checkpoint %d, after Redis %s", cp.ID, l.last, what)
			l.newest, l.last = at, cp.ID
		}
	})
	require.Empty(t, l.fleet.chains.lost(l.newest, progressOf(now.content)), "the live state after checkpoint %d, after Redis %s", l.last, what)
	require.Empty(t, progressOf(now.content).olderThan(l.newest), "the live state after checkpoint %d, after Redis %s", l.last, what)
	require.Equal(t, coordinator.HealthOK, get[api.Job](d, jobPath(job.Name)).Health.State)
}
