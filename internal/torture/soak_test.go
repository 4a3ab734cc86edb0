package torture

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// soakFor is how long the soak goes on: SOAK=1h.
func soakFor(t *testing.T) time.Duration {
	text := os.Getenv("SOAK")
	if text == "" {
		return 10 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "SOAK=%q: give a duration such as 10m", text)
	return d
}

// soakRate is how many commands a second the writers send together.
func soakRate(t *testing.T, short bool) int {
	if text := os.Getenv("SOAK_RATE"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err, "SOAK_RATE=%q: give a number", text)
		return n
	}
	if short {
		return 3000
	}
	return 20_000
}

// TestSoak takes checkpoints one after the other in each grade, under writers
// that do everything that writers do, while links break, trackers are killed
// and servers come back empty. After each checkpoint its counters agree, and it
// equals a copy that was taken in the same pause by other means (I2); some are
// restored elsewhere and compared key by key (I3); what is lost is never
// checkpointed (I5); and no writer sees an error or loses a write.
//
// SOAK says for how long, SOAK_RATE how many commands a second are written. A
// failure prints what repeats its choices: KEYFRAME_SEED and SOAK_ROUND. With
// SOAK_PRANK nothing else is done to it than what has that text in its name.
func TestSoak(t *testing.T) {
	total := soakFor(t)
	short, ways := total < time.Minute, ways
	if short {
		ways = ways[:4]
	}
	each := min(total/time.Duration(len(ways)), 90*time.Second)
	seed := seeded(t).Uint64()
	sum := newTally()
	first, only := 0, os.Getenv("SOAK_ROUND")
	if only != "" {
		var err error
		first, err = strconv.Atoi(only)
		require.NoError(t, err, "SOAK_ROUND=%q: give a number", only)
	}
	until := time.Now().Add(total)
	enough := func(i int) bool {
		return only != "" || i >= len(ways) && time.Now().Add(each/2).After(until) && (total < time.Hour || sum.least("grade") >= 500)
	}
	for i := first; i == first || !enough(i); i++ {
		w := ways[i%len(ways)]
		ok := t.Run(fmt.Sprintf("%d %s", i, w.name), func(t *testing.T) {
			repeat := fmt.Sprintf("repeat with SOAK=%s SOAK_ROUND=%d and this run's KEYFRAME_SEED", total, i)
			r := newRig(t, w, seed+uint64(i)*1_000_003, short, sum, repeat)
			r.run(time.Now().Add(each))
		})
		if !ok {
			break
		}
	}
	sum.print(t)
	if only == "" {
		for _, w := range ways {
			require.Positive(t, sum.of("completed", w.name), "checkpoints %s", w.name)
		}
	}
}

// run takes checkpoints until then, and loses the state in the end.
func (r *rig) run(until time.Time) {
	for i := 0; time.Now().Before(until) || r.lastID == 0; i++ {
		if i%40 == 39 {
			r.close()
			r.open()
		}
		if r.way.evict {
			r.squeeze(i)
		}
		r.take(i)
	}
	r.relax()
	r.crew.stop()
	if !r.way.evict {
		r.crew.requireLog(r.t, r.repeat)
	}
	r.tally.add("written", "commands acknowledged", int(r.crew.acked.Load()))
	for name, n := range r.monkey.did {
		r.tally.add("what was done meanwhile", name, n)
	}
	r.tally.longest("write that no copy of the test held: "+r.way.name, time.Duration(r.holds.longest.Load()))
	r.tally.longest("write that the test's copy held: "+r.way.name, time.Duration(r.holds.held.Load()))
	r.tally.longest("write while links were broken (a pause lasts 6 s at most): "+r.way.name, time.Duration(r.holds.broken.Load()))
	r.loseState()
}

// take takes one checkpoint and looks at it.
func (r *rig) take(i int) {
	t := r.t
	t.Helper()
	copies, digests := i%4 != 3 || i%10 == 5, i%10 == 5
	r.mu.Lock()
	r.copies, r.digests, r.copied, r.copyErr = copies, digests, nil, nil
	r.mu.Unlock()
	r.monkey.freed, r.monkey.last = false, "nothing"
	end := func() {}
	if r.rng.IntN(3) == 0 {
		var harmful bool
		if harmful, end = r.monkey.act(r.usual); harmful {
			r.harmed = time.Now()
		}
	}
	r.holds.rough.Store(time.Since(r.harmed) < roughTime)
	op, err := r.c.Checkpoint(context.Background(), job.Name, coordinator.CheckpointRequest{VerifyLive: i%15 == 7})
	require.NoError(t, err, r.repeat)
	st, err := op.Wait(t.Context())
	require.NoError(t, err)
	end()
	r.crew.requireUndisturbed(t, r.repeat)
	c, hold, copyErr := r.pickUp()
	if st.State == coordinator.OpFailed {
		r.failed(st)
		return
	}
	torn := r.monkey.freed || copyErr != nil
	if copyErr != nil {
		require.WithinDuration(t, time.Now(), r.harmed, harmTime, "the copy failed by itself: %v", copyErr)
	}
	if copies && !torn {
		require.NotNil(t, c, "checkpoint %d was taken without a pause; %s", st.Checkpoint.ID, r.repeat)
	}
	r.completed(st, hold)
	r.check(st.Checkpoint, c, torn)
}

// completed adds a completed checkpoint up.
func (r *rig) completed(st coordinator.Status, hold time.Duration) {
	cp := st.Checkpoint
	y := r.tally
	y.count("completed", r.way.name)
	kind := "incremental"
	if !cp.Incremental {
		kind = "full: " + cp.FullReason
		if cp.SelfChecked {
			kind = "full: self-check passed"
		}
	}
	name := string(cp.Grade) + " by " + cmp.Or(cp.Tracking, "nothing")
	y.count("completed, "+name, kind)
	y.count("grade", cmp.Or(map[string]string{"precopy": name}[string(cp.Grade)], string(cp.Grade)))
	if cp.GradeReason != "" && r.way.tracking != "off" && r.way.grade != snapshot.GradePaused {
		y.count("no better grade", cp.GradeReason)
	}
	took := st.EndedAt.Sub(*st.StartedAt)
	r.usual = (3*r.usual + took) / 4
	stall := time.Duration(cp.StallMs*float64(time.Millisecond)) - hold
	y.one("stall without the test's copy: "+name, stall)
	y.one("checkpoint with the test's copy: "+name+", "+kind[:4], took)
	if len(cp.Hot) > 0 && stall > statebackend.DefaultMaxStall {
		y.count("completed, "+name, "with hot keys (longer than maxStall)")
	}
}

// harmTime is within how long after a prank a checkpoint may fail by it: half
// open links are noticed by time-outs.
const harmTime = 15 * time.Second

// roughTime is within how long after a prank a write may wait for the end of a
// pause whose coordinator is cut off.
const roughTime = 7 * time.Second

// mayFail are the reasons by which broken links, lost trackers and other
// people's pauses make a checkpoint fail.
var mayFail = map[snapshot.FailureReason]bool{
	snapshot.FailConnection: true, snapshot.FailPause: true, snapshot.FailPermission: true, snapshot.FailTracking: true, snapshot.FailTimeout: true,
}

// failed adds a failed attempt up. Only what was done to it may have made it
// fail.
func (r *rig) failed(st coordinator.Status) {
	t := r.t
	t.Helper()
	if r.way.evict && r.evicted(st) {
		return
	}
	require.NotNil(t, st.Checkpoint, "%+v; %s", st.Error, r.repeat)
	require.NotNil(t, st.Checkpoint.Failure, r.repeat)
	f := st.Checkpoint.Failure
	r.tally.count("failed", fmt.Sprintf("%s (%s)", f.Reason, r.way.name))
	t.Logf("attempt %d failed (what was done: %s): %s: %s", st.Checkpoint.ID, r.monkey.last, f.Reason, f.Message)
	require.Less(t, time.Since(r.harmed), harmTime, "attempt %d failed though nothing was done to it: %s: %s; %s", st.Checkpoint.ID, f.Reason, f.Message, r.repeat)
	require.True(t, mayFail[f.Reason], "attempt %d: %s: %s; %s", st.Checkpoint.ID, f.Reason, f.Message, r.repeat)
}
