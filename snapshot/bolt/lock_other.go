//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package bolt

import (
	"context"
	"os"
	"time"
)

// lockShared does nothing here: bbolt's own lock comes right after.
func lockShared(context.Context, *os.File, time.Duration) error { return nil }

// lockedByNone can't tell here, so nothing is taken for abandoned.
func lockedByNone(*os.File) bool { return false }

// canCompact: here an open file can't be replaced.
const canCompact = false

// relock does nothing here.
func relock(*os.File, bool) error { return nil }
