package witness

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// HighWater is the most memory that a process has had at a time so far, in
// bytes: VmHWM of /proc.
func HighWater(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		if len(words) == 3 && words[0] == "VmHWM:" && words[2] == "kB" {
			n, err := strconv.ParseUint(words[1], 10, 54)
			if err != nil {
				return 0, fmt.Errorf("memory of process %d: %q: %w", pid, line, err)
			}
			return n << 10, nil
		}
	}
	return 0, fmt.Errorf("memory of process %d: its status has no VmHWM (it has ended)", pid)
}
