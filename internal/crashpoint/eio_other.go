//go:build crashpoints && !linux

package crashpoint

import (
	"fmt"
	"os"
)

// failSyncs needs Linux.
func failSyncs() {
	fmt.Fprintln(os.Stderr, "fdatasync can be made to fail on Linux only")
	os.Exit(2)
}
