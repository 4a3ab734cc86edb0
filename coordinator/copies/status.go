package copies

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"keyframe/snapshot"
)

// LagWarning is how long a checkpoint may wait for its copy before that is
// worth a warning, where nothing has failed.
const LagWarning = 15 * time.Minute

// Status is how the copies in one directory stand. Sizes are in bytes.
type Status struct {
	Path   string     `json:"path"`
	OK     bool       `json:"ok"`              // the last try went well
	Error  string     `json:"error,omitempty"` // of the last try
	Since  *time.Time `json:"since,omitempty"`
	Next   *time.Time `json:"nextTry,omitempty"`
	Copies int        `json:"copies"` // as last seen
	Bytes  int64      `json:"bytes"`
	// Waiting is how many completed checkpoints have no copy here, LagMs how
	// long the first of them has waited, Unreadable how many of them can't be
	// read in the store.
	Waiting    int   `json:"waiting"`
	LagMs      int64 `json:"lagMs"`
	Unreadable int   `json:"unreadable"`
	// OnlyHere is how many copies are of checkpoints that the store doesn't
	// have and didn't delete: `coordinator checkpoint import` brings them back.
	OnlyHere int `json:"onlyHere"`
	// NewestAt is when the newest copy was made. Bad is how many copies were
	// found damaged when they were read again and have not been made anew,
	// CheckedAt when one was last read.
	NewestAt   *time.Time `json:"newestAt,omitempty"`
	Bad        int        `json:"bad"`
	CheckedAt  *time.Time `json:"checkedAt,omitempty"`
	SinceStart Counts     `json:"sinceStart"`
}

// Counts is what was done in one directory since the start.
type Counts struct {
	Made         uint64 `json:"made"`
	MadeBytes    uint64 `json:"madeBytes"`
	Failures     uint64 `json:"failures"`     // tries that failed, and checkpoints that can't be read
	Checks       uint64 `json:"checks"`       // copies that were read again
	ChecksBad    uint64 `json:"checksBad"`    // of them damaged
	ChecksFailed uint64 `json:"checksFailed"` // that could not be read on
}

// Status gives each directory's, in the order of the configuration.
func (k *Keeper) Status() []Status {
	all := make([]Status, 0, len(k.dirs))
	for _, d := range k.dirs {
		all = append(all, d.status())
	}
	return all
}

func (d *dir) status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Status{Path: d.path, OK: d.err == nil && d.seen, Waiting: len(d.waiting), Unreadable: len(d.refused), OnlyHere: d.lost}
	if d.err != nil {
		since, next := d.since.UTC(), d.next.UTC()
		s.Error, s.Since, s.Next = d.err.Error(), &since, &next
	}
	var newest, checked time.Time
	for folder, f := range d.folders {
		for base, one := range f.files {
			s.Copies++
			s.Bytes += one.bytes
			newest = later(newest, d.madeLocked(filepath.Join(folder, base), one))
		}
	}
	for _, c := range d.checks {
		checked = later(checked, c.At)
		if c.Bad != "" {
			s.Bad++
		}
	}
	s.NewestAt, s.CheckedAt, s.SinceStart = known(newest), known(checked), d.count
	for _, w := range d.waiting {
		s.LagMs = max(s.LagMs, d.k.o.Now().Sub(w.since).Milliseconds())
	}
	return s
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// known is a time in UTC, nil for none.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// CopyState is how the copy of one checkpoint in one directory stands.
type CopyState string

// The states. A damaged copy is there, or aside until a new one is made.
const (
	CopyMade    CopyState = "made"
	CopyDamaged CopyState = "damaged"
	CopyWaiting CopyState = "waiting"
	CopyFailed  CopyState = "failed"
)

// Copy is the copy of one checkpoint in one directory.
type Copy struct {
	Path   string     `json:"path"` // the directory
	State  CopyState  `json:"state"`
	File   string     `json:"file,omitempty"`
	Bytes  int64      `json:"bytes,omitempty"`
	MadeAt *time.Time `json:"madeAt,omitempty"`
	Error  string     `json:"error,omitempty"` // why there is none
}

// Of says where a completed checkpoint's copies are, and why not.
func (k *Keeper) Of(m *snapshot.Manifest) []Copy {
	var all []Copy
	for _, d := range k.dirs {
		all = append(all, d.of(m))
	}
	return all
}

func (d *dir) of(m *snapshot.Manifest) Copy {
	name := nameOf(m)
	d.mu.Lock()
	defer d.mu.Unlock()
	c := Copy{Path: d.path, State: CopyWaiting}
	if f, ok := d.folders[filepath.Dir(name)].files[filepath.Base(name)]; ok {
		at := f.at
		if r, ok := d.records[name]; ok {
			at = r.MadeAt.UTC()
		}
		c = Copy{Path: d.path, State: CopyMade, File: filepath.Join(d.path, name), Bytes: f.bytes, MadeAt: &at}
		if why := d.checks[name].Bad; why != "" {
			c.State, c.Error = CopyDamaged, why
		}
		return c
	}
	if why := d.refused[key{m.Checkpoint.Job, m.Checkpoint.ID}]; why != "" {
		c.State, c.Error = CopyFailed, why
	} else if d.err != nil {
		c.State, c.Error = CopyFailed, d.err.Error()
	}
	return c
}

// Warnings are what a job's health is to say of its copies.
func (k *Keeper) Warnings(job string) []string {
	var all []string
	for _, d := range k.dirs {
		if w := d.warning(job); w != "" {
			all = append(all, w)
		}
		if w := d.damageWarning(job); w != "" {
			all = append(all, w)
		}
	}
	return all
}

func (d *dir) warning(job string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, why := 0, ""
	var longest time.Duration
	for _, w := range d.waiting {
		if w.job != job {
			continue
		}
		n++
		longest = max(longest, d.k.o.Now().Sub(w.since))
		if text := d.refused[w.key]; text != "" && why == "" {
			why = text
		}
	}
	if n == 0 {
		return ""
	}
	if d.err != nil {
		why = d.err.Error()
	}
	if why == "" && longest < LagWarning {
		return ""
	}
	text := fmt.Sprintf("%d checkpoints have no copy in %s, one for %s", n, d.path, longest.Round(time.Second))
	if why != "" {
		text += ": " + why
	}
	return text
}

// tellLost counts the copies that only the directory has: no record says that
// the store once had them. At the first look it tells of those that are newer
// than all that the store has of the job.
func (d *dir) tellLost(ctx context.Context) {
	d.mu.Lock()
	lost, told := 0, d.told
	newer := map[string]Event{}
	for name, f := range d.folders {
		found := Event{Kind: Found, Job: f.job, Path: d.path}
		n := 0
		for file, one := range f.files {
			rel := filepath.Join(name, file)
			if _, known := d.records[rel]; known {
				continue
			}
			lost++
			if one.id > d.newestLocked(f.job) {
				n++
				found.ID = max(found.ID, one.id)
			}
		}
		if n > 0 && f.job != "" {
			found.Message = fmt.Sprintf("%s has %d checkpoints of job %q (%s) that are newer than all in the store, the newest is %d: `coordinator checkpoint import -f %s` brings them in, %s the live one into the state",
				d.path, n, f.job, f.server, found.ID, filepath.Join(d.path, name), restoreHint(f.job, filepath.Join(d.path, name)))
			newer[name] = found
		}
	}
	d.lost, d.told = lost, true
	d.mu.Unlock()
	if told || ctx.Err() != nil {
		return
	}
	for _, e := range newer {
		d.k.o.Tell(e)
	}
}

// newestLocked is the newest checkpoint of a job that the store has and that is
// whole.
func (d *dir) newestLocked(job string) (most snapshot.ID) {
	for c := range d.names {
		if c.job == job {
			most = max(most, c.id)
		}
	}
	return most
}

// Find is the file of a checkpoint that one of the directories has of a job of
// that server, as the last look saw it, whether or not the store ever had it; ""
// when there is none. One that was found damaged doesn't count.
func (k *Keeper) Find(job, server string, id snapshot.ID) string {
	for _, d := range k.dirs {
		if file := d.find(job, server, id); file != "" {
			return file
		}
	}
	return ""
}

func (d *dir) find(job, server string, id snapshot.ID) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, f := range d.folders {
		for file, one := range f.files {
			rel := filepath.Join(name, file)
			if f.job == job && f.server == server && one.id == id && d.checks[rel].Bad == "" {
				return filepath.Join(d.path, rel)
			}
		}
	}
	return ""
}
