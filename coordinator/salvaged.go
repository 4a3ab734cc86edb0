package coordinator

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"keyframe/snapshot"
)

// Salvage is a store that a start has found damaged and replaced.
type Salvage struct {
	File string    `json:"file"` // the damaged one, kept aside
	At   time.Time `json:"at"`   // zero when nothing but the file is known
	// Now says that it was this start.
	Now bool `json:"-"`
	// Nothing says that nothing of a store was found in the file, and that the
	// new one began empty.
	Nothing bool                  `json:"nothing,omitempty"`
	Jobs    map[string]SalvagedOf `json:"jobs"`
}

// SalvagedOf is what became of one job's checkpoints.
type SalvagedOf struct {
	Kept   []snapshot.ID `json:"kept"`
	Lost   []snapshot.ID `json:"lost"`
	Unsure []snapshot.ID `json:"unsure"` // kept, but their marks are not known, so they are pinned
}

// left reports whether the damaged file is still there: who has looked moves it
// away.
func (s Salvage) left() bool {
	_, err := os.Stat(s.File)
	return !errors.Is(err, fs.ErrNotExist)
}

// lostText is text where nothing was found.
func (s Salvage) lostText(job string, copies []string) string {
	from := "an exported file or a backup (store.copies is not configured)"
	dir := "FILE"
	if len(copies) > 0 {
		from, dir = "the copies in "+strings.Join(copies, ", "), copies[0]
	}
	if job == "" {
		job = "JOB"
	}
	return fmt.Sprintf("the checkpoint store was found damaged at %s, and nothing could be saved: the store began anew, empty, and no checkpoint from before is in it; "+
		"the damaged file is kept as %s: bring checkpoints back from %s by `coordinator checkpoint import -f %s`, or the state by `coordinator restore %s --from %s`, "+
		"check the disk, and then move the damaged file to another folder, which ends this warning",
		s.At.UTC().Format(time.RFC3339), s.File, from, dir, job, dir)
}

// text says what was salvaged of a job ("" for all), where the rest is, and what
// to do. copies are the directories that second copies lie in.
func (s Salvage) text(job string, copies []string) string {
	if s.Nothing {
		return s.lostText(job, copies)
	}
	var all SalvagedOf
	for name, of := range s.Jobs {
		if job == "" || job == name {
			all.Kept, all.Lost = append(all.Kept, of.Kept...), append(all.Lost, of.Lost...)
			all.Unsure = append(all.Unsure, of.Unsure...)
		}
	}
	var b strings.Builder
	b.WriteString("the checkpoint store was found damaged, and what was whole in it was salvaged")
	if !s.At.IsZero() {
		fmt.Fprintf(&b, " at %s: %d checkpoints were kept, %d are lost", s.At.UTC().Format(time.RFC3339), len(all.Kept), len(all.Lost))
	}
	if job != "" && len(all.Lost) > 0 {
		fmt.Fprintf(&b, " (%s)", idList(all.Lost))
	}
	if job != "" && len(all.Unsure) > 0 {
		fmt.Fprintf(&b, "; %s are pinned, since their marks are not known", idList(all.Unsure))
	}
	fmt.Fprintf(&b, "; the damaged file is kept as %s: see `coordinator checkpoint list`, bring back what is lost from a copy or a backup by `coordinator checkpoint import`, "+
		"check the disk, and then move that file to another folder, which ends this warning", s.File)
	return b.String()
}

func idList(all []snapshot.ID) string {
	slices.Sort(all)
	const most = 20
	var words []string
	for _, id := range all[:min(len(all), most)] {
		words = append(words, id.String())
	}
	if len(all) > most {
		words = append(words, fmt.Sprintf("and %d more", len(all)-most))
	}
	return strings.Join(words, ", ")
}

// tellSalvaged tells of what this start has salvaged.
func (c *Coordinator) tellSalvaged() {
	for _, s := range c.opts.Salvaged {
		if s.Now {
			c.emit(Event{Kind: EventStoreSalvaged, Reason: s.File, Message: s.text("", c.opts.Copies)})
		}
	}
}

// salvageWarnings are those of a job, while the damaged files are there.
func (c *Coordinator) salvageWarnings(job string) (all []string) {
	for _, s := range c.opts.Salvaged {
		if s.left() {
			all = append(all, s.text(job, c.opts.Copies))
		}
	}
	return all
}

// warnings are what a job's health says beside what a look has seen.
func (j *job) warnings() []string {
	name := j.config().Name
	return slices.Concat(j.c.copyWarnings(name), j.c.salvageWarnings(name))
}

func (c *Coordinator) storeErr() error {
	if c.opts.StoreErr == nil {
		return nil
	}
	return c.opts.StoreErr()
}

// hearStore tells once that the store has stopped.
func (c *Coordinator) hearStore() {
	err := c.storeErr()
	if err == nil {
		c.storeSays.Store(nil) // a folder that could not be looked into can be again
		return
	}
	text := "no checkpoint is stored any more: " + err.Error()
	if c.storeSays.Swap(&text) == nil {
		c.emit(Event{Kind: EventStoreStopped, Message: text})
	}
}
