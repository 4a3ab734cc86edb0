package bolt

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// holder names the process that has the file locked, as far as the system's
// list of locks says (Linux only); "" otherwise.
func holder(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	inode, ok := inodeOf(info)
	if !ok {
		return ""
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return ""
	}
	pid := lockHolder(string(locks), inode)
	if pid == 0 {
		return ""
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(name)))
}

// lockHolder finds the pid that has an flock on an inode in the text of
// /proc/locks: "1: FLOCK  ADVISORY  WRITE 4242 fe:00:123456 0 EOF". A line
// with "->" is a process that waits. The device is not compared: its number
// in that list differs from stat's on some file systems.
func lockHolder(locks string, inode uint64) int {
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" {
			continue
		}
		at := strings.Split(f[5], ":")
		if at[len(at)-1] != strconv.FormatUint(inode, 10) {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
			return pid
		}
	}
	return 0
}
