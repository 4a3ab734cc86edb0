// Package monkey is the torture: everything that can be done to the product on
// one machine, drawn at random, for as long as one likes (TestTorture).
//
// The job under torture counts real flights. Its workers are processes of their
// own that write with plain Redis commands, each batch of records together with
// the position that it ends at, so that every byte of the state follows from
// the positions in it: the model counts the flights again and says what must be
// there. The coordinator is the built binary, spoken to by command line and API
// only; nothing of the product is imported. What a store's file and a server
// hold is read by internal/torture/witness.
//
// Environment: TORTURE is for how long (1h; two minutes without it),
// KEYFRAME_SEED repeats a run's draws, MONKEY_FAULT draws only faults with that
// in their name, MONKEY_ROUND begins with that round.
package monkey

import (
	"fmt"
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

// TestMain builds the coordinator. The same test binary is the worker when its
// parent says so.
func TestMain(m *testing.M) {
	if os.Getenv(envWorker) != "" {
		os.Exit(workerMain())
	}
	dir, err := os.MkdirTemp("", "keyframe-monkey")
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
	// The proxy's library leaves what a cut connection had not passed on.
	left := func(name string) goleak.Option {
		return goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2" + name)
	}
	goleak.VerifyTestMain(m, left(".(*ToxicLink).read"), left(".(*ToxicLink).write"), left("/toxics.(*ToxicStub).Run"), goleak.Cleanup(func(code int) {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
		os.Exit(code)
	}))
}

// gateSeed is the short form's: the gate draws the same faults each time, and
// what is new is for the long runs to find.
const gateSeed = 4242

// runSeed is what the run's draws come from, printed so that it can be repeated.
func runSeed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if os.Getenv("TORTURE") == "" {
		seed = gateSeed
	}
	if text := os.Getenv("KEYFRAME_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "KEYFRAME_SEED=%q: give the number that a run has printed", text)
	}
	t.Logf("KEYFRAME_SEED=%d repeats this run's draws", seed)
	return seed
}

// runTime is for how long the monkey is let loose.
func runTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("TORTURE")
	if text == "" {
		return 90 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "TORTURE=%q: give a duration such as 10m", text)
	require.Positive(t, d, "TORTURE")
	return d
}
