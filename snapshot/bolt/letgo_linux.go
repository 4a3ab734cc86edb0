package bolt

import (
	"os"
	"syscall"
	"unsafe"

	"go.etcd.io/bbolt"
)

// letGo tells the system that the pages below a value need not stay mapped, so
// that reading many chunks does not make the process look as large as the
// file. They stay in the system's cache. The value stays readable.
func letGo(tx *bbolt.Tx, b []byte) {
	page := uintptr(os.Getpagesize())
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	end := start + uintptr(len(b))
	// Only what lies in the mapping: of the Go heap the advice would erase it.
	first := tx.DB().Info().Data
	if start < first || end > first+uintptr(tx.Size()) {
		return
	}
	from, to := (start+page-1)/page*page, end/page*page
	if from >= to {
		return
	}
	// Advice: without it everything works as well.
	_ = syscall.Madvise(b[from-start:to-start], syscall.MADV_DONTNEED)
}
