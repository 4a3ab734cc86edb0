package bolt

import (
	"os"
	"path/filepath"
	"sync"
)

// Bounds of the reserve: a sixteenth of the file, which is more than the index,
// and never more than an eighth of what is free.
const (
	reserveLeast = 256 << 10
	reserveMost  = 64 << 20
)

// reserve is room on the disk that is given up when there is no other: to
// delete a checkpoint takes a transaction, which needs pages before it frees
// any. It is a file without a name, so that it ends with the process.
type reserve struct {
	mu   sync.Mutex
	file *os.File
	size int64
}

// keepReserve makes or enlarges the reserve where there is room. Best effort: without
// it a deletion may have to wait for room.
func (db *DB) keepReserve() {
	r := &db.spare
	db.swap.RLock()
	info, err := db.handle.Stat()
	db.swap.RUnlock()
	if err != nil {
		return
	}
	want := min(max(info.Size()/16, reserveLeast), reserveMost)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.size >= want/2 || db.ending.Err() != nil {
		return
	}
	room, known, err := freeRoom(filepath.Dir(db.path))
	if err != nil || !known {
		return
	}
	if want = min(want, int64(min(room/8, reserveMost))); want <= r.size {
		return
	}
	if r.file == nil {
		if r.file, err = nameless(db.path); err != nil {
			r.file = nil
			return
		}
	}
	if allocate(r.file, want) == nil {
		r.size = want
	}
}

// giveUp gives the room back, and reports whether there was any.
func (r *reserve) giveUp() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	had := r.size > 0
	if r.file != nil {
		_ = r.file.Close() // nothing is in it
	}
	r.file, r.size = nil, 0
	return had
}

// nameless makes a file beside the store, and removes its name. What a kill in
// between leaves, the next Open removes.
func nameless(path string) (*os.File, error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+newSuffix+"reserve-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close() // of no interest beside the first error
		return nil, err
	}
	return f, nil
}

// removing runs what removes something, and again with the reserve given up
// where the disk has no room. Then the reserve is made again, if it can be.
func (db *DB) removing(remove func() error) error {
	err := remove()
	if err != nil && outOfSpace(err) && db.Err() == nil && db.spare.giveUp() {
		err = remove()
	}
	db.keepReserve()
	return err
}
