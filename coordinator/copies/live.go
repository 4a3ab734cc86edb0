package copies

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"keyframe/snapshot"
	"keyframe/snapshot/archive"
)

// Flip is what the last restore, rescale or undo of a job left live.
type Flip struct {
	Base   snapshot.ID // what was put in place
	Newest snapshot.ID // the newest completed checkpoint then
	Epoch  uint64      // that began
}

// sayLive writes down, beside the copies of each job, what is live: after a loss
// of store and state nothing else tells an undo checkpoint from what was put in
// place.
func (d *dir) sayLive(ctx context.Context) error {
	if d.k.o.Flip == nil {
		return nil
	}
	d.mu.Lock()
	jobs := map[string]bool{}
	for c := range d.names {
		jobs[c.job] = true
	}
	d.mu.Unlock()
	for job := range jobs {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if f, ok := d.k.o.Flip(job); ok {
			if err := d.sayOf(job, f); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *dir) sayOf(job string, f Flip) error {
	want, folder, ok := d.liveOf(job, f)
	if !ok {
		return nil
	}
	path := filepath.Join(d.path, folder)
	have, err := archive.ReadLive(path)
	switch {
	case err == nil && have.Same(want), errors.Is(err, snapshot.ErrNewerFormat):
		return nil // a newer program's is left to that one
	case err != nil && !archive.NoLive(err) && !errors.Is(err, snapshot.ErrCorrupt):
		return fmt.Errorf("what is live of job %q: %w", job, err)
	}
	return archive.SaveLive(d.k.o.Disk, path, want)
}

// liveOf is what a folder is to say; false where nothing can be said of it.
func (d *dir) liveOf(job string, f Flip) (archive.Live, string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name := d.names[key{job, f.Base}]
	in, ok := d.folders[filepath.Dir(name)]
	m := copyName.FindStringSubmatch(filepath.Base(name))
	if !ok || m == nil {
		return archive.Live{}, "", false
	}
	l := archive.Live{Job: job, Base: f.Base, Cut: m[2], Newest: max(f.Newest, f.Base), Flip: f.Newest, Epoch: f.Epoch, WrittenAt: d.k.o.Now().UTC()}
	for file, one := range in.files {
		// What the store never had was there before: its ids begin above it.
		if _, known := d.records[filepath.Join(filepath.Dir(name), file)]; !known {
			l.Newest = max(l.Newest, one.id)
		}
	}
	return l, filepath.Dir(name), true
}

// removeLive removes what says which checkpoint is live where the copy that was
// just removed was the last: it must not speak of later ones. Best effort: who
// reads it compares the cut.
func (d *dir) removeLive(name string) {
	d.mu.Lock()
	n := len(d.folders[filepath.Dir(name)].files)
	d.mu.Unlock()
	if n == 1 {
		_ = d.k.o.Disk.Remove(filepath.Join(d.path, filepath.Dir(name), archive.LiveFile))
	}
}

// Lost are the copies in one folder of a job that the store has nothing of.
type Lost struct {
	Folder string
	Copies int
	Newest snapshot.ID
	At     string // when that copy was made, RFC 3339
}

// Forgotten are the copies of a job of which the store has no checkpoint that
// can be restored; none before the first look has ended.
func (k *Keeper) Forgotten(job string) (all []Lost) {
	for _, d := range k.dirs {
		all = append(all, d.forgotten(job)...)
	}
	return all
}

func (d *dir) forgotten(job string) (all []Lost) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.told || d.newestLocked(job) != 0 {
		return nil
	}
	for name, f := range d.folders {
		if f.job != job || len(f.files) == 0 {
			continue
		}
		file, id := f.newest()
		all = append(all, Lost{Folder: filepath.Join(d.path, name), Copies: len(f.files), Newest: id, At: f.files[file].at.UTC().Format("2006-01-02T15:04:05Z")})
	}
	return all
}

// Tally is how many directories have a copy of a checkpoint of the store, of
// how many.
type Tally struct {
	Made int `json:"made"`
	Of   int `json:"of"`
}

// Tally counts the copies of a checkpoint that are there and not damaged.
func (k *Keeper) Tally(job string, id snapshot.ID) Tally {
	t := Tally{Of: len(k.dirs)}
	for _, d := range k.dirs {
		d.mu.Lock()
		name := d.names[key{job, id}]
		if name != "" && d.liesLocked(name) && d.checks[name].Bad == "" {
			t.Made++
		}
		d.mu.Unlock()
	}
	return t
}

// restoreHint is the command that brings a folder's live checkpoint back.
func restoreHint(job, folder string) string {
	return fmt.Sprintf("`coordinator restore %s --from %s`", shellWord(job), shellWord(folder))
}

// shellWord quotes what a shell would take apart.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+,=", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Hint says what a folder has and how to bring it back.
func (l Lost) Hint(job string) string {
	return fmt.Sprintf("the store has no checkpoint of this job, but %s has %d copies, the newest of checkpoint %d, made at %s: %s brings the live one of them back",
		l.Folder, l.Copies, l.Newest, l.At, restoreHint(job, l.Folder))
}
