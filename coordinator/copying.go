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

// CopyMade is the state of a copy that is there, CopyDamaged of one that was
// found damaged when it was read again.
const (
	CopyMade    = copies.CopyMade
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
		CheckEvery: c.opts.CopyCheck.Every, CheckRate: c.opts.CopyCheck.Rate,
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

// keepCopies makes copies until a stop, which gives up one that is being made:
// the next start makes it.
func (c *Coordinator) keepCopies() {
	if c.copies == nil {
		return
	}
	c.wg.Go(func() { c.copies.Run(c.store.quit) })
}

// wakeCopies has the keeper look when something it is to copy was completed.
func (c *Coordinator) wakeCopies(kind EventKind) {
	if c.copies == nil {
		return
	}
	switch kind {
	case EventCheckpointCompleted, EventRescaleCompleted, EventCheckpointImported, EventResumed,
		EventStateLost: // what others have copied is named to who is to restore it
		c.copies.Wake()
	}
}

func (c *Coordinator) copyWarnings(job string) []string {
	if c.copies == nil {
		return nil
	}
	return c.copies.Warnings(job)
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
