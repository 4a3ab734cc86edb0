package audit

import (
	"os"
	"syscall"
)

// keepSize is FALLOC_FL_KEEP_SIZE of fallocate(2).
const keepSize = 1

// allocate gives a file room on the disk behind its end, without making it
// longer.
func allocate(f *os.File, from, size int64) error {
	for {
		err := syscall.Fallocate(int(f.Fd()), keepSize, from, size)
		if err != syscall.EINTR {
			return err
		}
	}
}
