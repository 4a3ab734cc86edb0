package monkey

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/torture/witness"
)

// noTime is before every expiry: nothing is excused for having expired.
var noTime = time.UnixMilli(0)

// TestTorture is the whole: rounds of one to three faults each, at random, for
// TORTURE long. After each round everything is healed, the coordinator must say
// that all is well and take a checkpoint, and invariants I1 to I10 are held
// against what is there.
func TestTorture(t *testing.T) {
	seed, limit := runSeed(t), runTime(t)
	r := newRig(t)
	began := time.Now()
	first := 0
	if text := os.Getenv("MONKEY_ROUND"); text != "" {
		var err error
		first, err = strconv.Atoi(text)
		require.NoError(t, err, "MONKEY_ROUND=%q: give a round's number", text)
	}
	rounds := 0
	for round := first; time.Since(began) < limit; round++ {
		f := &facts{}
		findings, err := r.round(rand.New(rand.NewPCG(seed, uint64(round))), f)
		rounds++
		for _, one := range findings[:min(len(findings), findingsShown)] {
			t.Errorf("round %d of seed %d: %s", round, seed, one)
		}
		if err != nil || len(findings) > 0 {
			t.Logf("%d findings", len(findings))
			r.summary(rounds, time.Since(began))
			require.NoError(t, err, "round %d of seed %d (%s)", round, seed, f)
			require.Fail(t, "stopped", "round %d of seed %d: %s", round, seed, f)
		}
	}
	r.summary(rounds, time.Since(began))
	if limit >= 30*time.Minute && os.Getenv("MONKEY_FAULT") == "" {
		for _, one := range faults() {
			require.NotZero(t, r.tally.count("faults", one.name), "%s never happened", one.name)
		}
	}
}

// findingsShown is how many findings of one round are printed: they repeat for
// each key.
const findingsShown = 10

// round draws faults, does them, heals, and looks at everything.
func (r *rig) round(rng *rand.Rand, f *facts) ([]witness.Finding, error) {
	if err := r.misbehave(rng, f); err != nil {
		return nil, err
	}
	if err := r.heal(f); err != nil {
		return nil, fmt.Errorf("heal: %w", err)
	}
	pause(time.Duration(rng.Int64N(int64(500 * time.Millisecond))))
	if err := r.wellAgain(f); err != nil {
		return nil, err
	}
	if err := r.rest(); err != nil {
		return nil, err
	}
	if err := r.crew.hold(); err != nil {
		return nil, err
	}
	r.account()
	if err := r.afterDamage(f); err != nil {
		return nil, err
	}
	l, findings := r.check(f)
	if l != nil {
		r.crew.forget(l.at)
	}
	if l != nil && len(findings) == 0 {
		more, err := r.heldCheck(rng, l)
		if err != nil {
			return nil, err
		}
		findings = more
	}
	if err := r.begin(); err != nil {
		return nil, err
	}
	return findings, nil
}

// misbehave does the faults that are drawn, at random moments.
func (r *rig) misbehave(rng *rand.Rand, f *facts) error {
	var wg sync.WaitGroup
	all := drawn(rng)
	errs := make([]error, len(all))
	for i, one := range all {
		a := &act{rig: r, f: f, rng: rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64()))}
		f.note(func(f *facts) { f.did = append(f.did, one.name) })
		wg.Go(func() {
			a.wait(0, 1500*time.Millisecond)
			errs[i] = one.do(a)
			switch {
			case errs[i] == nil:
				r.tally.add("faults", one.name)
			case errors.Is(errs[i], errNot):
				errs[i] = nil
				r.tally.add("faults that could not be done", one.name)
			default:
				errs[i] = fmt.Errorf("%s: %w", one.name, errs[i])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// rest stops the schedule and waits until nothing runs.
func (r *rig) rest() error {
	since := time.Now()
	if out := r.a.run(patience, "job", "pause", jobName); out.code != 0 {
		return fmt.Errorf("job pause: exit %d: %s", out.code, out.err)
	}
	return until("rest", patience, func() (string, bool) {
		ops, err := r.a.operations()
		if err != nil {
			return err.Error(), false
		}
		running := 0
		for _, op := range ops {
			if !op.final() {
				running++
			}
		}
		if running > 0 {
			since = time.Now()
		}
		return fmt.Sprintf("%d operations run", running), time.Since(since) > 150*time.Millisecond
	})
}

// begin sets everything going again for the next round.
func (r *rig) begin() error {
	if out := r.a.run(patience, "job", "resume", jobName); out.code != 0 {
		return fmt.Errorf("job resume: exit %d: %s", out.code, out.err)
	}
	return r.crew.release()
}

// account counts what the job's history shows.
func (r *rig) account() {
	history, err := r.a.history()
	if err != nil {
		return // what is wrong with it shows in the check
	}
	for _, c := range history {
		if c.ID <= r.book.counted {
			continue
		}
		r.book.counted = c.ID
		switch {
		case c.completed():
			r.tally.add("checkpoints", "completed, "+c.Trigger+", "+c.Grade)
		case c.Failure != nil:
			r.tally.add("checkpoints", "failed, "+c.Failure.Reason)
		}
	}
}

// summary prints what the run has shown.
func (r *rig) summary(rounds int, took time.Duration) {
	log := r.a.tail(1 << 30)
	r.tally.addN("state", "recoveries by itself", uint64(strings.Count(log, "state recovered from checkpoint")))
	r.tally.addN("state", "writes that failed and were made again", r.crew.errors())
	r.t.Logf("%d rounds in %s; all was well again after at most %s; memory of a coordinator at most %d MiB; losses of data: 0\n%s",
		rounds, took.Round(time.Second), r.tally.slow.Round(time.Millisecond), max(r.a.memory(), r.b.memory())>>20, r.tally.table())
}
