//go:build !linux

package bench

import "syscall"

// dieWithParent is Linux's; elsewhere a child can outlive a run that is killed.
func dieWithParent() *syscall.SysProcAttr { return nil }
