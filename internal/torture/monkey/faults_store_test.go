package monkey

import (
	"fmt"
	"os"
	"time"
)

// storeFaults are what happens to the store's file, while the coordinator is
// down.
func storeFaults() []fault {
	return []fault{
		{"store file removed", "coordinator", (*act).removeStore},
		{"store file damaged, one byte", "coordinator", func(a *act) error { return a.damage(1, 1) }},
		{"store file damaged in many places", "coordinator", func(a *act) error { return a.damage(2+a.rng.IntN(30), 1) }},
		{"store file with pages of zeros", "coordinator", func(a *act) error { return a.damage(1+a.rng.IntN(3), 4096) }},
		{"store file cut off", "coordinator", (*act).truncate},
	}
}

func (a *act) removeStore() error {
	a.a.kill()
	a.f.note(func(f *facts) { f.removed = true })
	if err := a.emptyDisk(); err != nil {
		return err
	}
	return a.a.start()
}

// damage changes bytes at random places: one to another value, a run to zeros.
func (a *act) damage(places, length int) error {
	a.a.kill()
	a.f.note(func(f *facts) { f.damaged = true })
	file, err := os.OpenFile(a.a.store, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("damage: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	for range places {
		at := a.rng.Int64N(max(1, info.Size()-int64(length)))
		run := make([]byte, length)
		if length == 1 {
			if _, err := file.ReadAt(run, at); err != nil {
				return err
			}
			run[0] ^= byte(1 + a.rng.IntN(255))
		}
		if _, err := file.WriteAt(run, at); err != nil {
			return err
		}
	}
	if err := file.Close(); err != nil {
		return err
	}
	a.wait(0, 300*time.Millisecond)
	return a.a.start()
}

// truncate cuts the file's end off.
func (a *act) truncate() error {
	a.a.kill()
	a.f.note(func(f *facts) { f.damaged = true })
	info, err := os.Stat(a.a.store)
	if err != nil {
		return err
	}
	if err := os.Truncate(a.a.store, info.Size()/2+a.rng.Int64N(info.Size()/2+1)); err != nil {
		return err
	}
	return a.a.start()
}
