// Package crash has the built binary die at each point of package crashpoint, in
// the operations that come by it, on a real Redis and with real state. After
// each death the ordinary binary is started and everything is looked at: what
// was completed verifies, the state is the one before or the one after to the
// byte, nothing is half done or left over, ids only grow, and the operation can
// be made again.
//
// The states and their checkpoints are read with code of this package: live
// ones by plain commands, checkpoints out of a copy of the store file.
//
// KEYFRAME_CRASH_ALL=1 goes through all cases; otherwise each point is gone
// through once.
package crash

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// The product as it is shipped, and the same with points to die at.
var binary, dying string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "keyframe-crash")
	if err == nil {
		binary, dying = filepath.Join(dir, "coordinator"), filepath.Join(dir, "dying")
		err = build(binary)
	}
	if err == nil {
		err = build(dying, "-tags", "crashpoints")
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

func build(to string, flags ...string) error {
	args := append(append([]string{"build"}, flags...), "-o", to, "keyframe/cmd/coordinator")
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("go %v: %w: %s", args, err, out)
	}
	return nil
}
