package copies

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"keyframe/internal/crashpoint"
)

// doom marks the copy of a checkpoint as to be removed, or takes that back.
func (d *dir) doom(ctx context.Context, c key, doomed bool) error {
	d.mu.Lock()
	changed := map[string]record{}
	for name, r := range d.records {
		if r.Job == c.job && r.ID == c.id && r.Doomed != doomed {
			r.Doomed = doomed
			changed[name] = r
		}
	}
	d.mu.Unlock()
	for name, r := range changed {
		if err := d.keep(ctx, name, r); err != nil {
			return err
		}
	}
	return nil
}

// doomed are the records that are marked, by name.
func (d *dir) doomed() map[string]record {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := maps.Clone(d.records)
	maps.DeleteFunc(all, func(_ string, r record) bool { return !r.Doomed })
	return all
}

// removeDoomed removes the copies of checkpoints that were deleted. A mark
// alone is not enough: the checkpoint must be gone.
func (d *dir) removeDoomed(ctx context.Context) error {
	doomed := d.doomed()
	for _, name := range slices.Sorted(maps.Keys(doomed)) {
		r := doomed[name]
		history, err := d.k.o.Store.List(ctx, r.Job)
		if err != nil {
			return fmt.Errorf("list checkpoints of %q: %w", r.Job, err)
		}
		if has(history, r.ID) || d.lastOfMore(name, r.Job) {
			continue
		}
		path := filepath.Join(d.path, name)
		if err := d.k.o.Disk.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the copy of checkpoint %d of job %q, which was deleted: %w", r.ID, r.Job, err)
		}
		crashpoint.At(crashpoint.CopyRemoved)
		d.removeLive(name)
		if err := d.replaced(ctx, name); err != nil {
			return err
		}
		if err := d.k.o.Journal.Delete(ctx, bucketCopies, d.path+"\x00"+name); err != nil {
			return fmt.Errorf("forget the copy %s: %w", path, err)
		}
		crashpoint.At(crashpoint.CopyForgotten)
		d.mu.Lock()
		delete(d.records, name)
		delete(d.folders[filepath.Dir(name)].files, filepath.Base(name))
		d.mu.Unlock()
		d.k.o.Tell(Event{Kind: Removed, Job: r.Job, ID: r.ID, Path: d.path, Message: fmt.Sprintf("copy of checkpoint %d removed from %s: the checkpoint was deleted", r.ID, d.path)})
	}
	return nil
}

// lastOfMore reports whether a copy is its job's newest while a checkpoint of
// the job waits for a copy: without it there might be none.
func (d *dir) lastOfMore(name, job string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	newest, _ := d.folders[filepath.Dir(name)].newest()
	if newest != filepath.Base(name) {
		return false
	}
	return slices.ContainsFunc(d.waiting, func(w waiting) bool { return w.job == job })
}
