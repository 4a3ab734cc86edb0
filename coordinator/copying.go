package coordinator

import (
	"context"
	"time"

	"keyframe/coordinator/copies"
	"keyframe/snapshot"
)

// CopyStatus is how the copies in one directory stand, Copy where one
// checkpoint's copy is.
type (
	CopyStatus = copies.Status
	Copy       = copies.Copy
)

// CopyMade is the state of a copy that is there, CopyWaiting of one that is yet to
// be made, CopyDamaged of one that was
// found damaged when it was read again.
const (
	CopyMade    = copies.CopyMade
	CopyWaiting = copies.CopyWaiting
	CopyDamaged = copies.CopyDamaged
)

// CopyCheck says how often a copy of each directory is read again (0: never),
// and how many bytes of it in a second (0: no bound).
type CopyCheck struct {
	Every time.Duration
	Rate  int64
}

// lookAtCopies is how long a start waits for the directories of copies: what
// they hold makes new ids begin above it.
const lookAtCopies = 10 * time.Second

// copyEvents are the events of copies as the coordinator tells them.
var copyEvents = map[copies.EventKind]EventKind{
	copies.Made: EventCopyMade, copies.Failed: EventCopyFailed, copies.Removed: EventCopyRemoved, copies.Found: EventCopiesFound, copies.Bad: EventCopyBad,
}

// useCopies puts the keeper of copies before the store.
func (c *Coordinator) useCopies() {
	if len(c.opts.Copies) == 0 {
		return
	}
	c.copies = copies.New(copies.Options{Store: c.opts.Store, Journal: c.opts.Journal, Paths: c.opts.Copies, Now: c.opts.Now,
		CheckEvery: c.opts.CopyCheck.Every, CheckRate: c.opts.CopyCheck.Rate, Flip: c.liveOf,
		Tell: func(e copies.Event) {
			c.emit(Event{Kind: copyEvents[e.Kind], Job: e.Job, ID: e.ID, Reason: e.Path, Message: e.Message})
		}})
	c.opts.Store = c.copies.Store()
}

func (c *Coordinator) loadCopies(ctx context.Context) error {
	if c.copies == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookAtCopies)
	defer cancel()
	return c.copies.Load(ctx)
}

// keepCopies makes copies until finishCopies ends it.
func (c *Coordinator) keepCopies() {
	if c.copies == nil {
		return
	}
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan struct{})
	c.store.keepEnd(func() {
		end()
		<-ended
	})
	go func() {
		defer close(ended)
		c.copies.Run(ctx)
	}()
}

// finishCopies makes the copies that are due until ctx ends, and no more from
// then on. What it leaves is told, and made by the next start.
func (c *Coordinator) finishCopies(ctx context.Context) {
	end := c.store.keepEnd(nil)
	if end == nil {
		return
	}
	if ctx.Err() == nil {
		c.copies.Finish(ctx)
	}
	end()
}

// liveOf is what the last flip of a job left live, for the directories of
// copies; false where it isn't known here, or another coordinator leads.
func (c *Coordinator) liveOf(name string) (copies.Flip, bool) {
	j, err := c.find(name)
	if err != nil {
		return copies.Flip{}, false // a history without a job
	}
	stopping := false
	select {
	case <-j.quit:
		stopping = true // it has led, or nobody else is known to
	default:
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	leads := j.term != nil || stopping && j.leader == nil
	if r := j.flip; leads && !r.Unknown && r.Newest != 0 && r.Base != 0 {
		return copies.Flip{Base: r.Base, Newest: r.Newest, Epoch: r.Epoch}, true
	}
	return copies.Flip{}, false
}

// wakeCopies has the keeper look when something it is to copy was completed.
func (c *Coordinator) wakeCopies(kind EventKind) {
	if c.copies == nil {
		return
	}
	switch kind {
	case EventCheckpointCompleted, EventRescaleCompleted, EventRestoreCompleted, EventRecovered, EventLeading, EventCheckpointImported, EventResumed,
		EventStateLost: // what others have copied is named to who is to restore it
		c.copies.Wake()
	}
}

func (c *Coordinator) copyWarnings(job string) []string {
	if c.copies == nil {
		return nil
	}
	all := c.copies.Warnings(job)
	for _, l := range c.copies.Forgotten(job) {
		all = append(all, l.Hint(job))
	}
	return all
}

// Copies says how the copies in each directory stand; nil when there are none
// to be made.
func (c *Coordinator) Copies() []CopyStatus {
	if c.copies == nil {
		return nil
	}
	return c.copies.Status()
}

// CopiesOf says where a completed checkpoint's copies are, and why not.
func (c *Coordinator) CopiesOf(m *snapshot.Manifest) []Copy {
	if c.copies == nil {
		return nil
	}
	return c.copies.Of(m)
}

// CopyTally is how many directories have a checkpoint's copy, of how many.
type CopyTally = copies.Tally

// CopyTally counts a checkpoint's copies; nil where none are to be made.
func (c *Coordinator) CopyTally(cp snapshot.Checkpoint) *CopyTally {
	if c.copies == nil || !cp.Restorable() {
		return nil
	}
	t := c.copies.Tally(cp.Job, cp.ID)
	return &t
}
