package witness

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
)

// wild are commands of all kinds over two keys, a member and a random number:
// many are of the wrong type, which changes nothing.
var wild = []func(a, b, m string, n int) []any{
	func(a, b, m string, n int) []any { return []any{"RENAME", a, b} },
	func(a, b, m string, n int) []any { return []any{"DEL", a} },
	func(a, b, m string, n int) []any { return []any{"COPY", a, b, "REPLACE"} },
	func(a, b, m string, n int) []any { return []any{"PEXPIRE", a, n % 200} },
	func(a, b, m string, n int) []any { return []any{"PERSIST", a} },
	func(a, b, m string, n int) []any { return []any{"XADD", a, "*", "f", m} },
	func(a, b, m string, n int) []any { return []any{"XTRIM", a, "MAXLEN", 3} },
	func(a, b, m string, n int) []any { return []any{"XGROUP", "CREATE", a, m, "0", "MKSTREAM"} },
	func(a, b, m string, n int) []any {
		return []any{"XREADGROUP", "GROUP", m, "c", "COUNT", 2, "STREAMS", a, ">"}
	},
	func(a, b, m string, n int) []any { return []any{"LPUSH", a, m, m} },
	func(a, b, m string, n int) []any { return []any{"LTRIM", a, 0, n % 4} },
	func(a, b, m string, n int) []any { return []any{"LMOVE", a, b, "LEFT", "RIGHT"} },
	func(a, b, m string, n int) []any { return []any{"SPOP", a, n % 3} },
	func(a, b, m string, n int) []any { return []any{"SADD", a, m, m + "\xff"} },
	func(a, b, m string, n int) []any { return []any{"SMOVE", a, b, m} },
	func(a, b, m string, n int) []any { return []any{"SUNIONSTORE", a, b, a} },
	func(a, b, m string, n int) []any { return []any{"ZADD", a, float64(n) / 7, m, "-0", m + "z"} },
	func(a, b, m string, n int) []any { return []any{"ZADD", a, "INCR", "inf", m} },
	func(a, b, m string, n int) []any { return []any{"ZREMRANGEBYRANK", a, 0, n % 3} },
	func(a, b, m string, n int) []any { return []any{"ZUNIONSTORE", a, 2, b, a} },
	func(a, b, m string, n int) []any { return []any{"HINCRBYFLOAT", a, m, "0.1"} },
	func(a, b, m string, n int) []any { return []any{"HDEL", a, "f1", "f2", m} },
	func(a, b, m string, n int) []any { return []any{"SETRANGE", a, n % 5000, m} },
	manyFields, manyFields, manyFields,
}

func manyFields(a, _, m string, _ int) []any {
	args := []any{"HSET", a}
	for i := range 150 {
		args = append(args, fmt.Sprintf("f%d", i), m)
	}
	return args
}

// wild sends n commands, and changes index, registry and operator modes
// between them.
func (r *rig) wild(rng *rand.Rand, n int) {
	p := r.client.Pipeline()
	do := func(args ...any) { p.Do(r.t.Context(), args...) }
	for range n {
		a, b, m := r.name("wild", rng.IntN(40)), r.name("wild", rng.IntN(40)), fmt.Sprintf("m%d", rng.IntN(300))
		if rng.IntN(10) == 0 {
			a = r.operator([]string{"offsets", "seen", "rules", "late"}[rng.IntN(4)], rng.IntN(3))
		}
		do("SADD", r.job.Index(), a)
		switch rng.IntN(20) {
		case 0:
			do("SREM", r.job.Index(), b)
		case 1:
			do("HSET", r.job.Registry(), a, m)
		case 2:
			do("HDEL", r.job.Registry(), b)
		case 3:
			do([]string{"HSET", "HDEL"}[rng.IntN(2)], r.job.OperatorStates(), "src\x01late", `{"mode":"list"}`)
		default:
			do(wild[rng.IntN(len(wild))](a, b, m, rng.IntN(1e6))...)
		}
	}
	_, _ = p.Exec(r.t.Context()) // many are of the wrong type, and change nothing
}

// TestWhateverIsWrittenTheCheckpointIsTheState writes at random, and holds each
// checkpoint, full or an increment, and each restore to what the witness sees.
// KEYFRAME_WITNESS_SEED repeats a run, KEYFRAME_WITNESS_ROUNDS makes it longer.
func TestWhateverIsWrittenTheCheckpointIsTheState(t *testing.T) {
	seed, rounds := rand.Uint64(), 6
	var err error
	if s := os.Getenv("KEYFRAME_WITNESS_SEED"); s != "" {
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	if s := os.Getenv("KEYFRAME_WITNESS_ROUNDS"); s != "" {
		rounds, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	r := newRig(t)
	r.populate()
	r.spec.Retention.Keep = 3
	r.apply()
	r.checkpoint()
	j := NewJournal()
	for round := range rounds {
		at := fmt.Sprintf("KEYFRAME_WITNESS_SEED=%d, round %d", seed, round)
		r.wild(rng, 5+rng.IntN(300))
		before := r.look()
		cp := r.checkpoint()
		after, s := r.look(), r.open()
		require.Empty(t, CheckUntouched(before, after, r.now()), at)
		stored, err := s.State(r.spec.Name, uint64(cp.ID))
		require.NoError(t, err, at)
		require.Empty(t, Diff(stored, after.State, r.now()), at)
		all, err := s.Checkpoints(r.spec.Name)
		require.NoError(t, err, at)
		require.Empty(t, j.Listed(all, uint64(cp.ID)), at)
		if round%5 == 3 {
			r.wild(rng, 100)
			before := r.look()
			r.done(r.c.Restore(t.Context(), r.spec.Name, coordinator.RestoreRequest{Checkpoint: cp.ID.String(), AcceptSchema: true}))
			require.Empty(t, CheckRestore(r.job.Root(), stored, before, r.look(), nil, r.now()), at)
		}
	}
}
