package copies

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/snapshot/archive"
)

// dir is one directory of copies; run is its only worker.
type dir struct {
	k    *Keeper
	path string
	wake chan struct{}

	mu      sync.Mutex        // guards what follows
	records map[string]record // by name of the copy
	folders map[string]folder // as last seen
	names   map[key]string    // of the copies of the store's checkpoints
	refused map[key]string    // checkpoints that can't be read, and why
	waiting []waiting         // for a copy, in the order in which they get one
	checks  map[string]check  // how copies were found when they were last read, by name
	count   Counts
	lost    int  // copies of checkpoints that the store doesn't have
	told    bool // of those
	seen    bool
	err     error // of the last try
	since   time.Time
	tries   int // that failed in a row
	next    time.Time
	begun   uint64        // passes
	passed  uint64        // the last of them that has ended
	passEnd chan struct{} // closed when the next one ends
}

// waiting is a checkpoint without a copy.
type waiting struct {
	key
	since time.Time // when it was completed
	rank  int       // 0 for the newest of its job
}

// run looks at the directory when it is woken, now and then, and after a
// failure later and later.
func (d *dir) run(ctx context.Context) {
	for {
		timer := time.NewTimer(d.passes(ctx))
		wake := d.wake
		if d.failing() {
			wake = nil // its time comes
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (d *dir) failing() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err != nil
}

// settle notes how a pass ended, tells of a failure, and gives the time until
// the next.
func (d *dir) settle(ctx context.Context, err error) time.Duration {
	if ctx.Err() != nil {
		return lookEvery
	}
	now := d.k.o.Now()
	d.mu.Lock()
	if err == nil {
		d.err, d.tries, d.since, d.next = nil, 0, time.Time{}, time.Time{}
		d.mu.Unlock()
		return lookEvery
	}
	if d.err == nil {
		d.since = now
	}
	d.err = err
	d.count.Failures++
	wait := min(firstRetry<<min(d.tries, 16), lastRetry)
	d.tries++
	d.next = now.Add(wait)
	n := len(d.waiting)
	d.mu.Unlock()
	d.k.o.Tell(Event{Kind: Failed, Path: d.path, Message: fmt.Sprintf("copies in %s: %v; %d checkpoints wait, next try in %s", d.path, err, n, wait)})
	return wait
}

// pass brings the directory up to what the store has: it makes what is missing
// and removes what was deleted. The error is the directory's.
func (d *dir) pass(ctx context.Context) error {
	if err := d.compare(ctx); err != nil {
		return err // with what is missing as it was
	}
	if err := d.present(ctx); err != nil {
		return err
	}
	found, err := d.scan(ctx)
	if err != nil {
		return err
	}
	d.saw(found)
	if err := d.setAside(ctx); err != nil {
		return err
	}
	if err := d.forgetGone(ctx); err != nil {
		return err
	}
	if err := d.copyAll(ctx); err != nil {
		return err
	}
	if err := d.sayLive(ctx); err != nil { // of a folder that is new, too
		return err
	}
	return d.removeDoomed(ctx)
}

// copyAll makes what is missing, after what is live was written down.
func (d *dir) copyAll(ctx context.Context) error {
	for said := false; ; said = true {
		// Again after each copy: a checkpoint that is newer goes first.
		if err := d.compare(ctx); err != nil {
			return err
		}
		d.tellLost(ctx)
		if !said {
			if err := d.sayLive(ctx); err != nil {
				return err
			}
		}
		next, ok := d.first()
		if !ok {
			return nil
		}
		if err := d.copy(ctx, next.key); err != nil {
			return err
		}
	}
}

// saw takes what a scan found.
func (d *dir) saw(found map[string]folder) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.folders, d.seen = found, true
}

func (d *dir) lies(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.liesLocked(name)
}

func (d *dir) liesLocked(name string) bool {
	_, ok := d.folders[filepath.Dir(name)].files[filepath.Base(name)]
	return ok
}

// first is what is copied next.
func (d *dir) first() (waiting, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.waiting {
		if d.refused[w.key] == "" {
			return w, true
		}
	}
	return waiting{}, false
}

// compare finds out what waits for a copy: completed checkpoints that are not
// marked bad, the newest of each job first.
func (d *dir) compare(ctx context.Context) error {
	jobs, err := d.k.o.Store.Jobs(ctx)
	if err != nil {
		return fmt.Errorf("list the store's jobs: %w", err)
	}
	var missing []waiting
	kept := map[key]string{}
	for _, job := range jobs {
		history, err := d.k.o.Store.List(ctx, job)
		if err != nil {
			return fmt.Errorf("list checkpoints of %q: %w", job, err)
		}
		rank := 0
		for i := len(history) - 1; i >= 0; i-- {
			c := history[i]
			if !c.Restorable() {
				continue
			}
			name, lies, err := d.place(ctx, c)
			if err != nil {
				return err
			}
			kept[key{job, c.ID}] = name
			if !lies {
				missing = append(missing, waiting{key{job, c.ID}, completed(c), rank})
			}
			rank++
		}
	}
	slices.SortStableFunc(missing, func(a, b waiting) int { return cmp.Compare(a.rank, b.rank) })
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting, d.names = missing, kept
	for c := range d.refused {
		if _, ok := kept[c]; !ok {
			delete(d.refused, c)
		}
	}
	return nil
}

func completed(c snapshot.Checkpoint) time.Time {
	if c.CompletedAt != nil {
		return *c.CompletedAt
	}
	return c.StartedAt
}

// place is the name of a checkpoint's copy and whether it lies there. One that
// was there without our knowledge (from before the store was lost, and imported
// again) follows the checkpoint from now on. A manifest that can't be read has
// no name.
func (d *dir) place(ctx context.Context, c snapshot.Checkpoint) (string, bool, error) {
	d.mu.Lock()
	name := d.names[key{c.Job, c.ID}]
	d.mu.Unlock()
	if name == "" {
		m, err := d.k.o.Store.Manifest(ctx, c.Job, c.ID)
		switch {
		case errors.Is(err, snapshot.ErrClosed) || ctx.Err() != nil:
			return "", false, err
		case err != nil:
			d.refuse(key{c.Job, c.ID}, err)
			return "", false, nil
		}
		name = nameOf(m)
	}
	d.mu.Lock()
	f, lies := d.folders[filepath.Dir(name)].files[filepath.Base(name)]
	_, known := d.records[name]
	d.mu.Unlock()
	if lies && !known {
		return name, true, d.keep(ctx, name, record{Job: c.Job, ID: c.ID, Bytes: f.bytes, MadeAt: f.at})
	}
	return name, lies, nil
}

// refuse notes that a checkpoint itself can't be copied, and tells of it once.
func (d *dir) refuse(c key, err error) {
	d.mu.Lock()
	told := d.refused[c] == err.Error()
	d.refused[c] = err.Error()
	if !told {
		d.count.Failures++
	}
	d.mu.Unlock()
	if !told {
		d.k.o.Tell(Event{Kind: Failed, Job: c.job, ID: c.id, Path: d.path, Message: fmt.Sprintf(
			"checkpoint %d can't be read to be copied to %s: %v; `coordinator checkpoint verify` tells more", c.id, d.path, err)})
	}
}

// keep remembers a copy.
func (d *dir) keep(ctx context.Context, name string, r record) error {
	value, err := json.Marshal(r)
	if err == nil {
		err = d.k.o.Journal.Put(ctx, bucketCopies, d.path+"\x00"+name, value)
	}
	if err != nil {
		return fmt.Errorf("remember the copy %s: %w", filepath.Join(d.path, name), err)
	}
	d.mu.Lock()
	d.records[name] = r
	d.mu.Unlock()
	return nil
}

// copy makes one copy. An error is the directory's; that the checkpoint can't
// be read, or is gone, is noted and is none.
func (d *dir) copy(ctx context.Context, c key) error {
	release, err := d.k.o.Store.Hold(ctx, c.job, c.id)
	if err != nil {
		return d.unlessSource(ctx, c, err)
	}
	defer release()
	m, err := d.k.o.Store.Manifest(ctx, c.job, c.id)
	if err != nil {
		return d.unlessSource(ctx, c, err)
	}
	name := nameOf(m)
	path := filepath.Join(d.path, name)
	if err := d.makeFolder(filepath.Dir(path)); err != nil {
		return err
	}
	info, err := archive.SaveCheckpoint(ctx, d.k.o.Disk, path, d.k.o.Store, m)
	var source *archive.SourceError
	switch {
	case errors.As(err, &source):
		return d.unlessSource(ctx, c, source)
	case errors.Is(err, fs.ErrExist):
		// Somebody else's, since the scan: the same checkpoint by its name.
		return d.added(name)
	case err != nil:
		return fmt.Errorf("checkpoint %d of job %q: %w", c.id, c.job, err)
	}
	return d.made(ctx, c, name, int64(info.Bytes))
}

// made remembers a copy and tells of it.
func (d *dir) made(ctx context.Context, c key, name string, bytes int64) error {
	// Before the hold ends: what is deleted from then on is known to have a copy.
	if err := d.keep(ctx, name, record{Job: c.job, ID: c.id, Bytes: bytes, MadeAt: d.k.o.Now()}); err != nil {
		return err
	}
	crashpoint.At(crashpoint.CopyRemembered)
	if err := d.added(name); err != nil {
		return err
	}
	if err := d.replaced(ctx, name); err != nil {
		return err
	}
	d.mu.Lock()
	d.count.Made++
	d.count.MadeBytes += uint64(bytes)
	d.mu.Unlock()
	d.k.o.Tell(Event{Kind: Made, Job: c.job, ID: c.id, Path: d.path, Message: fmt.Sprintf("checkpoint %d copied to %s: %d bytes", c.id, filepath.Join(d.path, name), bytes)})
	return nil
}

// added looks at a copy that a scan has not seen.
func (d *dir) added(name string) error {
	info, err := os.Stat(filepath.Join(d.path, name))
	if err != nil {
		return fmt.Errorf("look at the new copy: %w", err)
	}
	id, _ := idOf(filepath.Base(name)) // it is a name of ours
	a, err := archive.Open(filepath.Join(d.path, name))
	if err != nil {
		return fmt.Errorf("the new copy: %w", err)
	}
	of := a.Manifest()
	_ = a.Close() // it was only read
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.folders[filepath.Dir(name)]
	if !ok {
		f.files = map[string]file{}
	}
	f.job, f.server = of.Checkpoint.Job, of.Identity.Server
	f.files[filepath.Base(name)] = file{id: id, bytes: info.Size(), at: info.ModTime().UTC()}
	d.folders[filepath.Dir(name)] = f
	return nil
}

func (d *dir) unlessSource(ctx context.Context, c key, err error) error {
	if ctx.Err() != nil || errors.Is(err, snapshot.ErrClosed) {
		return err
	}
	if !errors.Is(err, snapshot.ErrNoCheckpoint) { // deleted since: it needs no copy
		d.refuse(c, err)
	}
	return nil
}

// makeFolder makes a job's folder, durably.
func (d *dir) makeFolder(path string) error {
	err := os.Mkdir(path, 0o700)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return fmt.Errorf("make the job's folder: %w", err)
	}
	if err := d.k.o.Disk.SyncDir(d.path); err != nil {
		return fmt.Errorf("sync %s: %w", d.path, err)
	}
	crashpoint.At(crashpoint.CopyFolder)
	return nil
}
