package torture

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/fault"
	"keyframe/internal/redistest"
	"keyframe/snapshot"
)

// squeeze sets the memory limit just above what is used, now and then, so that
// the server evicts while checkpoints are taken.
func (r *rig) squeeze(i int) {
	t := r.t
	c := r.monkey.c
	switch i % 8 {
	case 0:
		r.crew.lossy.Store(true)
		r.relax()
		pipe := c.Pipeline()
		for n := range coldKeys {
			name := coldKey(n)
			pipe.SAdd(t.Context(), job.Index(), name)
			pipe.Set(t.Context(), name, strings.Repeat(fmt.Sprintf("cold %d ", n), 150), 0)
		}
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
	case 2:
		info, err := c.InfoMap(t.Context(), "memory").Result()
		require.NoError(t, err)
		var used int64
		_, err = fmt.Sscan(info["Memory"]["used_memory"], &used)
		require.NoError(t, err)
		require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", fmt.Sprint(used-400<<10)).Err())
	case 7:
		r.relax()
	}
}

// relax takes the limit away and counts what was evicted.
func (r *rig) relax() {
	if !r.way.evict {
		return
	}
	require.NoError(r.t, r.monkey.c.ConfigSet(r.t.Context(), "maxmemory", "0").Err())
	info, err := r.monkey.c.InfoMap(r.t.Context(), "stats").Result()
	require.NoError(r.t, err)
	var n int
	_, err = fmt.Sscan(info["Stats"]["evicted_keys"], &n)
	require.NoError(r.t, err)
	r.tally.add("written", "keys evicted", max(n-r.gone, 0)) // CONFIG RESETSTAT begins anew
	r.gone = n
}

// evicted reports whether the server has evicted what makes the job's state
// its own, the record or the index: then it is lost, and nothing of it may be
// checkpointed until a person says so.
func (r *rig) evicted(st coordinator.Status) bool {
	t := r.t
	lost := st.Error != nil && st.Error.Code == fault.StateLost
	if !lost && (st.Checkpoint == nil || st.Checkpoint.Failure == nil || st.Checkpoint.Failure.Reason != snapshot.FailState) {
		return false
	}
	newest := r.newestCompleted()
	require.Eventually(t, func() bool {
		r.relax()
		op, err := r.c.Adopt(context.Background(), job.Name)
		require.NoError(t, err)
		last, err := op.Wait(context.Background())
		require.NoError(t, err)
		if last.State == coordinator.OpDone {
			return true
		}
		t.Log(last.Error)
		s, err := r.c.Job(job.Name) // an index is there again when a writer writes a new name
		return err == nil && s.Health.State == coordinator.HealthOK
	}, 30*time.Second, 100*time.Millisecond, r.repeat)
	require.Equal(t, newest, r.newestCompleted(), r.repeat)
	r.tally.count("failed", "state: the record or the index was evicted ("+r.way.name+")")
	return true
}

// loss is a way to lose the state.
type loss struct {
	name string
	do   func(r *rig)
}

var lossesOfSoak = []loss{
	{"killed, came back empty", func(r *rig) { r.server.RestartEmpty() }},
	{"FLUSHALL", func(r *rig) { r.server.Do("FLUSHALL") }},
	{"failed over to an empty server", func(r *rig) {
		other := redistest.Start(r.t)
		r.crew.addr.Store(&other.Addr)
		r.link.target.Store(&other.Addr)
		r.server.Kill()
		r.link.cut()
		r.server, r.monkey.server, r.monkey.c = other, other, patient(other)
	}},
	{"came back with an older state", func(r *rig) { r.server.Restart() }},
}

// loseState takes the state away under writers that write on, sees that
// nothing of what is there then is checkpointed, and restores.
func (r *rig) loseState() {
	t := r.t
	t.Helper()
	what := lossesOfSoak[r.rng.IntN(len(lossesOfSoak))]
	require.Eventually(t, func() bool { return r.monkey.c.Save(t.Context()).Err() == nil }, 30*time.Second, 10*time.Millisecond, "SAVE, after any BGSAVE")
	r.crew.lossy.Store(true)
	r.crew.start(t)
	r.harmed = time.Now()
	// The file is older than the newest checkpoint only once one has been
	// completed after it was saved: an attempt may fail by what is done to it.
	for before := r.newestCompleted(); r.newestCompleted() == before; r.take(0) {
		r.harmed = time.Now()
	}
	r.underWay(what)
	newest := r.lastID
	r.refuses(what.name)
	require.Equal(t, newest, r.newestCompleted(), "state that was lost (%s) was checkpointed; %s", what.name, r.repeat)
	r.crew.stop()
	r.comesBack(what.name)
	r.tally.count("state lost and restored", what.name)
}

// underWay loses the state at some moment of a checkpoint.
func (r *rig) underWay(what loss) {
	t := r.t
	r.mu.Lock()
	r.copies, r.digests, r.copied, r.copyErr = true, false, nil, nil
	r.mu.Unlock()
	op, err := r.c.Checkpoint(context.Background(), job.Name, coordinator.CheckpointRequest{})
	require.NoError(t, err, r.repeat)
	r.monkey.linger(r.usual)
	what.do(r)
	st, err := op.Wait(t.Context())
	require.NoError(t, err)
	c, hold, copyErr := r.pickUp()
	if st.State == coordinator.OpFailed {
		r.tally.count("a checkpoint in whose middle the state was lost", "failed")
		return
	}
	// It was of the state before: by its counters, which are no smaller than
	// those of the checkpoint before, and by the copy.
	r.tally.count("a checkpoint in whose middle the state was lost", "was complete before")
	r.completed(st, hold)
	r.check(st.Checkpoint, c, copyErr != nil)
}

// refuses waits until the guard has noticed, and asks for checkpoints all the
// time.
func (r *rig) refuses(what string) {
	t := r.t
	t.Helper()
	noticed := 0
	require.Eventually(t, func() bool {
		op, err := r.c.Checkpoint(context.Background(), job.Name, coordinator.CheckpointRequest{})
		require.NoError(t, err)
		st, err := op.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, coordinator.OpFailed, st.State, "a checkpoint after the state was lost (%s): %+v; %s", what, st.Checkpoint, r.repeat)
		if st.Error.Code == fault.StateLost {
			noticed++
		}
		return noticed == 5
	}, 30*time.Second, 10*time.Millisecond, "the guard doesn't say that the state is lost (%s); %s", what, r.repeat)
	s, err := r.c.Job(job.Name)
	require.NoError(t, err)
	require.True(t, s.Health.State.Lost(), "%+v", s.Health)
}

func (r *rig) newestCompleted() (newest snapshot.ID) {
	history, err := r.db.List(context.Background(), job.Name)
	require.NoError(r.t, err)
	for _, cp := range history {
		if cp.State == snapshot.StateCompleted {
			newest = max(newest, cp.ID)
		}
	}
	return newest
}

// comesBack restores the newest checkpoint, holds the live state to it, and
// goes on.
func (r *rig) comesBack(what string) {
	t := r.t
	t.Helper()
	op, err := r.c.Restore(context.Background(), job.Name, coordinator.RestoreRequest{NoUndo: true})
	require.NoError(t, err, r.repeat)
	st, err := op.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, coordinator.OpDone, st.State, "restore after %s: %+v; %s", what, st.Error, r.repeat)
	require.Equal(t, r.lastID, st.Restore.Checkpoint)
	live, err := copyJob(r.server.Addr, job, false)
	require.NoError(t, err)
	now, err := live.facts()
	require.NoError(t, err)
	want := r.last.facts
	delete(want, job.Assignment()) // it has a new epoch
	delete(now, job.Assignment())
	require.Empty(t, differentFacts(want, now, live.at), "checkpoint %d and the state after its restore; %s", r.lastID, r.repeat)
	r.harmed = time.Now()
	r.lossy = true // counters of writers that wrote into an empty server
	for before, i := r.lastID, 0; r.lastID == before; i++ {
		r.take(4 * i)
	}
}
