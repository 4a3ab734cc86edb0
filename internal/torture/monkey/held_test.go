package monkey

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	"keyframe/internal/torture/witness"
)

// heldCheck asks for one more thing while nobody writes, and compares every
// byte: a restore, a rescale, or a checkpoint, which must leave all as it was.
func (r *rig) heldCheck(rng *rand.Rand, l *look) ([]witness.Finding, error) {
	switch rng.IntN(6) {
	case 0, 1:
		return r.restoreCheck(l)
	case 2:
		return r.rescaleCheck(l, 1+rng.IntN(8))
	case 3:
		return r.untouchedCheck(l)
	}
	return nil, nil
}

// must runs a command that has to succeed, and looks at what is there then.
func (r *rig) must(words ...string) (*look, error) {
	if out := r.a.run(patience, words...); out.code != 0 {
		return nil, fmt.Errorf("coordinator %v: exit %d: %s", words, out.code, out.err)
	}
	return r.look()
}

// restoreCheck restores the newest checkpoint (I3).
func (r *rig) restoreCheck(l *look) ([]witness.Finding, error) {
	id := newestOf(l)
	after, err := r.must("restore", jobName, "--checkpoint", strconv.FormatUint(id, 10), "--yes", "--no-undo")
	if err != nil {
		return nil, err
	}
	r.crew.forget(after.at)
	r.tally.add("checks", "restores compared byte by byte")
	return witness.CheckRestore(root, l.states[id], l.seen, after.seen, nil, after.now), nil
}

// rescaleCheck changes the parallelism (I4).
func (r *rig) rescaleCheck(l *look, parallelism int) ([]witness.Finding, error) {
	a, err := l.seen.State.Assignment()
	if err != nil {
		return nil, err
	}
	if a.Parallelism == parallelism {
		parallelism++
	}
	after, err := r.must("rescale", jobName, "--parallelism", strconv.Itoa(parallelism), "--yes", "--allow-idle")
	if err != nil {
		return nil, err
	}
	r.tally.add("checks", "rescales compared byte by byte")
	return witness.CheckRescale(root, l.seen.State, after.seen.State, parallelism, after.now), nil
}

// untouchedCheck takes a checkpoint (I9), which is then what is live (I2).
func (r *rig) untouchedCheck(l *look) ([]witness.Finding, error) {
	after, err := r.must("checkpoint", "create", jobName)
	if err != nil {
		return nil, err
	}
	r.tally.add("checks", "checkpoints that left every byte as it was")
	out := witness.CheckUntouched(l.seen, after.seen, after.now)
	for _, d := range witness.Diff(after.states[newestOf(after)], after.seen.State, after.now) {
		out = append(out, witness.Finding{Invariant: "I2", Text: "checkpoint | live: " + d})
	}
	return out, nil
}
