package copies

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"keyframe/snapshot"
	"keyframe/snapshot/archive"
)

// bucketChecks of the journal: directory, zero byte and name of a copy → JSON of
// check.
const bucketChecks = "copychecks"

// asideSuffix is what is added to the name of a copy that is damaged, until a
// new one is there.
const asideSuffix = ".bad"

// check is how a copy was found when it was last read whole.
type check struct {
	At  time.Time `json:"at"`
	Bad string    `json:"bad,omitempty"` // what is wrong with it
}

// recheck reads one copy after the other whole, one in each CheckEvery, the one
// first that was not read for the longest time. It only marks: run, the
// directory's worker, makes a damaged copy anew.
func (d *dir) recheck(ctx context.Context) {
	last := d.lastCheck()
	for {
		timer := time.NewTimer(max(0, last.Add(d.k.o.CheckEvery).Sub(d.k.o.Now())))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		d.checkNext(ctx)
		last = d.k.o.Now()
	}
}

// lastCheck is when a copy was last read, so that a restart neither delays the
// next time nor brings it forward; now where none was.
func (d *dir) lastCheck() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	var last time.Time
	for _, c := range d.checks {
		if c.At.After(last) {
			last = c.At
		}
	}
	if now := d.k.o.Now(); last.IsZero() || last.After(now) {
		return now
	}
	return last
}

// checkNext reads the copy whose turn it is.
func (d *dir) checkNext(ctx context.Context) {
	name, ok := d.oldestCheck()
	if !ok {
		return
	}
	err := d.readWhole(ctx, name)
	switch {
	case ctx.Err() != nil, errors.Is(err, fs.ErrNotExist): // removed since
		return
	case err != nil && !isDamage(err):
		d.mu.Lock()
		d.count.ChecksFailed++
		d.mu.Unlock()
		d.k.o.Tell(Event{Kind: Failed, Path: d.path, Message: fmt.Sprintf("copies in %s: %s could not be read to be checked: %v", d.path, name, err)})
		return
	}
	if err := d.noteCheck(ctx, name, err); err != nil && ctx.Err() == nil {
		d.k.o.Tell(Event{Kind: Failed, Path: d.path, Message: fmt.Sprintf("copies in %s: %v", d.path, err)})
	}
}

// isDamage says that an error is about the copy itself, and not about the way to
// it. A disk tells a sector that it can't read by EIO.
func isDamage(err error) bool {
	for _, known := range []error{snapshot.ErrCorrupt, snapshot.ErrNoChunk, snapshot.ErrNewerFormat, syscall.EIO, errWrong} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

var errWrong = errors.New("it is not the checkpoint that its name says")

// oldestCheck is the copy that nobody has read for the longest time; one that
// was just made has been read then. Those that are known to be bad come in their
// turn too: somebody may have put a sound file there.
func (d *dir) oldestCheck() (string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	type candidate struct {
		name string
		at   time.Time
	}
	var all []candidate
	for folder, f := range d.folders {
		for base, one := range f.files {
			name := filepath.Join(folder, base)
			at := d.madeLocked(name, one)
			if c, ok := d.checks[name]; ok {
				at = c.At
			}
			all = append(all, candidate{name, at})
		}
	}
	if len(all) == 0 {
		return "", false
	}
	first := slices.MinFunc(all, func(a, b candidate) int { return cmp.Or(a.at.Compare(b.at), strings.Compare(a.name, b.name)) })
	return first.name, true
}

// madeLocked is when a copy was made: by the record, else by the file.
func (d *dir) madeLocked(name string, f file) time.Time {
	if r, ok := d.records[name]; ok {
		return r.MadeAt
	}
	return f.at
}

// readWhole reads a copy to its end, not faster than CheckRate: each byte against
// its checksum, each chunk and total against the manifest, and the manifest
// against the name.
func (d *dir) readWhole(ctx context.Context, name string) error {
	path := filepath.Join(d.path, name)
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	a, err := archive.New(&paced{r: f, ctx: ctx, rate: d.k.o.CheckRate}, info.Size(), path)
	if err != nil {
		return err
	}
	problems, err := a.Verify(ctx)
	switch {
	case err != nil:
		return err
	case len(problems) > 0:
		return fmt.Errorf("%d problems, the first: %s: %w", len(problems), problems[0], snapshot.ErrCorrupt)
	case nameOf(a.Manifest()) != name:
		c := a.Manifest().Checkpoint
		return fmt.Errorf("%w: it holds checkpoint %d of job %q", errWrong, c.ID, c.Job)
	}
	return nil
}

// noteCheck remembers how a copy was found, and tells of one that is newly bad.
func (d *dir) noteCheck(ctx context.Context, name string, bad error) error {
	d.mu.Lock()
	before := d.checks[name].Bad
	job, id := d.ofLocked(name)
	d.count.Checks++
	if bad != nil {
		d.count.ChecksBad++
	}
	d.mu.Unlock()
	c := check{At: d.k.o.Now()}
	if bad != nil {
		c.Bad = bad.Error()
	}
	if bad != nil && before == "" {
		d.k.o.Tell(Event{Kind: Bad, Job: job, ID: id, Path: d.path, Message: fmt.Sprintf(
			"the copy of checkpoint %d in %s is damaged: %v; a new one is made when the store has the checkpoint", id, d.path, bad)})
	}
	if err := d.keepCheck(ctx, name, c); err != nil {
		return err
	}
	if bad != nil {
		d.wakeUp()
	}
	return nil
}

// ofLocked is the checkpoint that a copy is of.
func (d *dir) ofLocked(name string) (string, snapshot.ID) {
	if r, ok := d.records[name]; ok {
		return r.Job, r.ID
	}
	f := d.folders[filepath.Dir(name)]
	return f.job, f.files[filepath.Base(name)].id
}

func (d *dir) keepCheck(ctx context.Context, name string, c check) error {
	value, err := json.Marshal(c)
	if err == nil {
		err = d.k.o.Journal.Put(ctx, bucketChecks, d.path+"\x00"+name, value)
	}
	d.mu.Lock()
	d.checks[name] = c // also when it can't be kept: until a restart it is known
	d.mu.Unlock()
	if err != nil {
		return fmt.Errorf("remember the check of the copy %s: %w", filepath.Join(d.path, name), err)
	}
	return nil
}

// forgetCheck is for a copy that is gone, or is a new one.
func (d *dir) forgetCheck(ctx context.Context, name string) error {
	d.mu.Lock()
	_, known := d.checks[name]
	delete(d.checks, name)
	d.mu.Unlock()
	if !known {
		return nil
	}
	if err := d.k.o.Journal.Delete(ctx, bucketChecks, d.path+"\x00"+name); err != nil {
		return fmt.Errorf("forget the check of the copy %s: %w", filepath.Join(d.path, name), err)
	}
	return nil
}

// setAside gives the damaged copies of checkpoints that the store has another
// name: what is missing is made anew. The bytes stay until that is done. One
// whose checkpoint only the copy has is left: nothing could replace it.
func (d *dir) setAside(ctx context.Context) error {
	for _, name := range d.damagedHere() {
		path := filepath.Join(d.path, name)
		if err := d.k.o.Disk.Remove(path + asideSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make room for the damaged copy: %w", err)
		}
		if err := d.k.o.Disk.Publish(path, path+asideSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set the damaged copy aside: %w", err)
		}
		d.mu.Lock()
		delete(d.folders[filepath.Dir(name)].files, filepath.Base(name))
		d.mu.Unlock()
	}
	return nil
}

// damagedHere are the damaged copies of what the store has, sorted. A checkpoint
// that can't be read in the store makes no new copy.
func (d *dir) damagedHere() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for c, name := range d.names {
		if name != "" && d.checks[name].Bad != "" && d.refused[c] == "" && d.liesLocked(name) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// replaced ends what is known of a copy that was made anew.
func (d *dir) replaced(ctx context.Context, name string) error {
	if err := d.forgetCheck(ctx, name); err != nil {
		return err
	}
	if err := d.k.o.Disk.Remove(filepath.Join(d.path, name+asideSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the damaged copy: %w", err)
	}
	return nil
}

// paced reads not faster than rate bytes in a second; 0 is no bound. It is for
// one reader.
type paced struct {
	r    io.ReaderAt
	ctx  context.Context
	rate int64
}

var _ io.ReaderAt = (*paced)(nil)

// ReadAt implements io.ReaderAt.
func (p *paced) ReadAt(b []byte, off int64) (int, error) {
	if err := p.ctx.Err(); err != nil {
		return 0, context.Cause(p.ctx)
	}
	n, err := p.r.ReadAt(b, off)
	if p.rate <= 0 {
		return n, err
	}
	timer := time.NewTimer(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return n, err
	case <-p.ctx.Done():
		return 0, context.Cause(p.ctx)
	}
}

// loadChecks reads how copies were found.
func (k *Keeper) loadChecks(ctx context.Context) error {
	var bad error
	err := k.o.Journal.Each(ctx, bucketChecks, func(name string, value []byte) error {
		path, rel, _ := strings.Cut(name, "\x00")
		var c check
		if err := json.Unmarshal(value, &c); err != nil {
			bad = fmt.Errorf("record of the check of copy %q: %w", name, err)
			return bad
		}
		for _, d := range k.dirs {
			if d.path == path {
				d.checks[rel] = c
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read what is known of copies: %w", err)
	}
	return nil
}

// forgetGone ends what is known of copies that nobody has or wants any more.
func (d *dir) forgetGone(ctx context.Context) error {
	d.mu.Lock()
	wanted := map[string]bool{}
	for _, name := range d.names {
		wanted[name] = true
	}
	var gone []string
	for name := range d.checks {
		if _, known := d.records[name]; !known && !wanted[name] && !d.liesLocked(name) {
			gone = append(gone, name)
		}
	}
	d.mu.Unlock()
	for _, name := range gone {
		if err := d.forgetCheck(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// damageWarning is what a job's health is to say of its damaged copies.
func (d *dir) damageWarning(job string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var first string
	n := 0
	for name, c := range d.checks {
		of, _ := d.ofLocked(name)
		if c.Bad == "" || of != job {
			continue
		}
		if n++; first == "" || name < first {
			first = name
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d damaged copies in %s, one is %s: %s", n, d.path, first, d.checks[first].Bad)
}
