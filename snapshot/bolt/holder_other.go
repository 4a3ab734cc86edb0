//go:build !unix

package bolt

import "io/fs"

func inodeOf(fs.FileInfo) (uint64, bool) { return 0, false }
