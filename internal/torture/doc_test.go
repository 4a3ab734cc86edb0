// Package torture proves by force what the other packages' tests argue for:
// the built binary is killed at random moments while writers write, its Redis
// dies under it, and it is fed a state that is far larger than its memory.
//
// Nothing here trusts the product's own word for what a state is. Live state is
// read with a client of its own, checkpoints are read out of a copy of the
// store file, and both are compared with a model that knows, from a number,
// every byte that a writer must have written until then.
//
// Environment: KEYFRAME_SEED repeats a run's choices (each run prints its
// own), KEYFRAME_KILLS and KEYFRAME_LOSSES say how many rounds, KEYFRAME_LARGE=1
// asks for the full size. SOAK, SOAK_RATE and SOAK_ROUND are told of at TestSoak.
package torture

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// binary is the product as it is shipped: built once, without race detector.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "keyframe-torture")
	if err == nil {
		binary = filepath.Join(dir, "coordinator")
		var out []byte
		if out, err = exec.Command("go", "build", "-o", binary, "keyframe/cmd/coordinator").CombinedOutput(); err != nil {
			err = fmt.Errorf("build the coordinator: %w: %s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
		os.Exit(code)
	}))
}

// rounds is how many rounds a test makes.
func rounds(t *testing.T, env string, usual int) int {
	t.Helper()
	text := os.Getenv(env)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "%s=%q: give a number of rounds", env, text)
	require.Positive(t, n, "%s: give at least 1", env)
	return n
}

// seeded is the run's source of choices, printed so that it can be repeated.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("KEYFRAME_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "KEYFRAME_SEED=%q: give the number that a run has printed", text)
	}
	t.Logf("KEYFRAME_SEED=%d repeats this run's choices", seed)
	return rand.New(rand.NewPCG(seed, 7))
}
