//go:build !linux

package bolt

// initialMap leaves it to bbolt to let the mapping grow with the file.
func initialMap() int { return 0 }
