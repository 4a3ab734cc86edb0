//go:build !linux

package bolt

import (
	"errors"
	"os"
)

// allocate can't be done here.
func allocate(*os.File, int64) error { return errors.ErrUnsupported }
