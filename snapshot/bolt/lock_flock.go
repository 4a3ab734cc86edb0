//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

const lockRetry = 20 * time.Millisecond

// lockShared takes a shared lock, which keeps writers out while the file is
// inspected. bbolt turns it into its exclusive one, as it is given the same
// open file.
func lockShared(ctx context.Context, f *os.File, timeout time.Duration) error {
	end := time.NewTimer(timeout)
	defer end.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return fmt.Errorf("can't lock it: %w", err)
		}
		retry := time.NewTimer(lockRetry)
		select {
		case <-retry.C:
		case <-end.C:
			retry.Stop()
			return held(f.Name(), timeout)
		case <-ctx.Done():
			retry.Stop()
			return ctx.Err()
		}
	}
}

// canCompact says that a file can be put in another's place while it is open,
// and locked under the name that it had before.
const canCompact = true

// relock makes the lock that this process has on f exclusive, or shared, so
// that others may read.
func relock(f *os.File, exclusive bool) error {
	how := syscall.LOCK_SH
	if exclusive {
		how = syscall.LOCK_EX
	}
	if err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("%s: lock: %w", f.Name(), err)
	}
	return nil
}

// lockedByNone reports whether no one has the file locked.
func lockedByNone(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}
