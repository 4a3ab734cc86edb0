package bench

import "syscall"

// dieWithParent has the system end a child when this process ends, however it
// does.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
