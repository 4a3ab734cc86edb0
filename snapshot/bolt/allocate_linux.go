package bolt

import (
	"os"
	"syscall"
)

// allocate gives a file size bytes of room on the disk.
func allocate(f *os.File, size int64) error { return syscall.Fallocate(int(f.Fd()), 0, 0, size) }
