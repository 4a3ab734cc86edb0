package bolt

import (
	"fmt"
	"syscall"
)

// freeRoom is how many bytes a process without privileges may still write to
// the file system of a folder.
func freeRoom(dir string) (bytes uint64, known bool, err error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, false, fmt.Errorf("folder %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), true, nil
}
