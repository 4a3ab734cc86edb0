//go:build crashpoints && linux

package crashpoint

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// seccomp(2), which package syscall doesn't know.
var seccompCall = map[string]uintptr{"amd64": 317, "arm64": 277}

const (
	prSetNoNewPrivs = 38
	setModeFilter   = 1
	flagThreads     = 1 // all of the process
	retErrno        = 0x00050000
	retAllow        = 0x7fff0000
)

// failSyncs has the kernel answer EIO to every fdatasync of this process, as it
// does when a disk fails: a store commits by it, and nothing else here uses it.
// It can't be taken back.
func failSyncs() {
	const load, jumpIf, give = 0x20, 0x15, 0x06
	filter := []syscall.SockFilter{
		{Code: load, K: 0}, // the number of the call
		{Code: jumpIf, Jf: 1, K: syscall.SYS_FDATASYNC},
		{Code: give, K: retErrno | uint32(syscall.EIO)},
		{Code: give, K: retAllow},
	}
	prog := syscall.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, _, no := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); no != 0 {
		fail(no)
	}
	if _, _, no := syscall.RawSyscall(seccompCall[runtime.GOARCH], setModeFilter, flagThreads, uintptr(unsafe.Pointer(&prog))); no != 0 {
		fail(no)
	}
}

// fail ends a process that can't do what it was asked to.
func fail(no syscall.Errno) {
	fmt.Fprintf(os.Stderr, "make fsync fail by seccomp: %v\n", no)
	os.Exit(2)
}
