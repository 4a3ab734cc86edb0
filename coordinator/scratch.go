package coordinator

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"keyframe/coordinator/doctor"
	"keyframe/coordinator/drill"
	"keyframe/statebackend"
)

// sweepTimeout bounds one walk over the names of the database and the removal
// of what was found.
const sweepTimeout = 10 * time.Minute

// scratchID is the id of a drill's scratch job: the token of the term that the
// drill began in, which it ends with, and something random. Without a term the
// token is 0: nobody else can tell whether such a drill lives.
func (j *job) scratchID() string {
	token := uint64(0)
	if t := j.leading(); t != nil {
		token = t.lease.Token
	}
	return fmt.Sprintf("%d-%s", token, randomID(6))
}

// tokenOf is the token in a scratch job's id, 0 for none.
func tokenOf(id string) uint64 {
	word, _, ok := strings.Cut(id, "-")
	token, err := strconv.ParseUint(word, 10, 64)
	if !ok || err != nil {
		return 0
	}
	return token
}

// scratches are the scratch jobs that lie beside a job's state, by their ids,
// and how many keys each has; nil where the state store can't tell.
func (c *Coordinator) scratches(ctx context.Context, job statebackend.Job) (map[string]int64, error) {
	finder, ok := c.opts.Backend.(statebackend.ScratchFinder)
	if !ok {
		return nil, nil
	}
	// What stands around the id in the names of all of a scratch job's keys.
	begin, end, _ := strings.Cut(drill.ScratchJob(job, "\x00").Root()+":", "\x00")
	return finder.FindScratch(ctx, begin, end)
}

// sweepDead removes, once in each term, the scratch jobs of drills that began
// in terms before: their drills are over, and when the process was killed the
// note of them is in a journal that nobody may ever open again. A failure is
// told once for each term, and it is tried again.
func (c *Coordinator) sweepDead(swept, told map[string]uint64) {
	if !c.drillsBeside() {
		return
	}
	for _, s := range c.Jobs() {
		j, err := c.find(s.Name)
		if err != nil {
			continue // deleted since
		}
		t := j.leading()
		if t == nil || swept[s.Root] == t.lease.Token {
			continue
		}
		n, err := c.removeDead(j.key(), t.lease.Token)
		if err == nil {
			swept[s.Root] = t.lease.Token
		}
		switch {
		case err != nil && told[s.Root] != t.lease.Token:
			told[s.Root] = t.lease.Token
			c.emit(Event{Kind: EventDrillFailed, Job: s.Name, Message: "look for what drills of earlier leaders have left: " + err.Error()})
		case n > 0:
			c.emit(Event{Kind: EventScratchRemoved, Job: s.Name, Message: fmt.Sprintf("%d scratch keys of drills that ended with an earlier leader were removed", n)})
		}
	}
}

func (c *Coordinator) removeDead(job statebackend.Job, token uint64) (removed int64, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, sweepTimeout)
	defer cancel()
	defer context.AfterFunc(c.store.quit, cancel)()
	all, err := c.scratches(ctx, job)
	if err != nil {
		return 0, err
	}
	scratch, ok := c.opts.Backend.(statebackend.Scratch)
	for id := range all {
		of := drill.ScratchJob(job, id)
		if dead := tokenOf(id); !ok || dead == 0 || dead >= token || c.drills.works(of.Root()) {
			continue
		}
		n, err := scratch.Purge(ctx, of)
		removed += n
		if err != nil {
			return removed, fmt.Errorf("remove %s:*: %w", of.Root(), err)
		}
	}
	return removed, nil
}

// orphans are scratch jobs beside a job's state that no drill owns, as far as
// can be told: those of this coordinator's drills and of the leader's are left
// out.
func (c *Coordinator) orphans(ctx context.Context, j *job) ([]doctor.Scratch, error) {
	all, err := c.scratches(ctx, j.key())
	if err != nil || len(all) == 0 {
		return nil, err
	}
	g, err := c.opts.Backend.Look(ctx, j.key())
	if err != nil {
		return nil, err
	}
	var found []doctor.Scratch
	for id, keys := range all {
		of := drill.ScratchJob(j.key(), id)
		others := g.Leader.ID != "" && g.Leader.ID != c.opts.Lease.Owner.ID
		if c.drills.works(of.Root()) || others && tokenOf(id) >= g.Leader.Token {
			continue
		}
		found = append(found, doctor.Scratch{Root: of.Root(), Keys: uint64(max(keys, 1))})
	}
	return found, nil
}
