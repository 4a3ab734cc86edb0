package redis

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs the tests, or is a process that one of them kills.
func TestMain(m *testing.M) {
	if spec := os.Getenv(victimEnv); spec != "" {
		os.Exit(runVictim(spec))
	}
	goleak.VerifyTestMain(m)
}
