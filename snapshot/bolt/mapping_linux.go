package bolt

import (
	"strconv"
	"syscall"
)

// mapBytes is how much of a file's address space is mapped from the start on,
// however short the file is: bbolt maps a file anew whenever it outgrows its
// mapping, which doubles up to 1 GiB. It does so within the transaction that
// grows the file, after copying all that this has read or put, some megabytes
// each time. From 1 GiB on a mapping grows by as much at a time, which is rare.
const mapBytes = 1 << 30

// initialMap is bbolt's InitialMmapSize for a file that is going to grow. It
// costs addresses, no memory: pages are there once they are touched. So it is
// right where addresses abound, and not where they are counted: in 32 bits, or
// below a limit (ulimit -v) under which the store should open all the same.
// Other systems may make the file as long as its mapping (Windows does).
func initialMap() int {
	var limit syscall.Rlimit
	if strconv.IntSize < 64 || syscall.Getrlimit(syscall.RLIMIT_AS, &limit) != nil || limit.Cur < 1<<63 {
		return 0
	}
	return mapBytes
}
