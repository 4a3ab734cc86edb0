package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// bucketSeen is the journal's: job name → JSON of seenRecord. There is one while
// the newest checkpoint of the state is known to be in another store.
const bucketSeen = "seen"

// seenRecord is what a coordinator that stood by saw of a leader's checkpoints.
type seenRecord struct {
	Checkpoint   snapshot.ID         `json:"checkpoint"`
	CheckpointAt time.Time           `json:"checkpointAt"`
	Cut          snapshot.ID         `json:"cut"`
	Epoch        uint64              `json:"epoch"`
	Incarnation  string              `json:"incarnation"`
	RunID        string              `json:"runId"`
	Taker        statebackend.Leader `json:"taker"` // without an id when it isn't known
}

// recall takes up what an earlier process with this store saw. Only the actor
// calls it, before its first look.
func (j *job) recall(ctx context.Context) error {
	name := j.config().Name
	value, ok, err := j.c.opts.Journal.Get(ctx, bucketSeen, name)
	var r seenRecord
	if err == nil && ok {
		err = json.Unmarshal(value, &r)
	}
	if err != nil {
		return fmt.Errorf("what was seen of other coordinators' checkpoints of job %q: %w", name, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !ok || j.saw.record.Incarnation != "" {
		return nil
	}
	j.saw.record = statebackend.Record{Checkpoint: r.Checkpoint, CheckpointAt: r.CheckpointAt, Cut: r.Cut, Epoch: r.Epoch, Incarnation: r.Incarnation}
	j.saw.runID, j.saw.taker, j.saw.others, j.saw.kept = r.RunID, r.Taker, true, r
	return nil
}

// claimedByLocked tells whose the newest checkpoint of the state is that was
// just looked at: another store's as long as this one has none as new, of an
// epoch as new.
func (j *job) claimedByLocked(g statebackend.Glimpse) {
	me, l := j.c.opts.Lease.Owner, g.Leader
	ours := l.ID == me.ID || me.Store != "" && l.Store == me.Store && l.Host == me.Host
	behind := g.Record.Checkpoint > j.newest.id || g.Record.Epoch > max(j.flip.Epoch, j.newest.epoch)
	switch {
	case !behind || g.Record.Checkpoint == 0:
		j.saw.others, j.saw.taker = false, statebackend.Leader{}
	case l.ID != "" && !ours:
		j.saw.others, j.saw.taker = true, l
	}
}

// othersLed notes that others have led since this store's last term: what the
// record names and this store hasn't is theirs.
func (j *job) othersLed() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.saw.others = true
}

// keepSeen writes down what was seen when that has changed. A failure is told
// once: until it works, a restart forgets.
func (j *job) keepSeen(ctx context.Context) {
	j.mu.Lock()
	s, name := j.saw, j.spec.Name
	j.mu.Unlock()
	var r seenRecord
	if s.others {
		r = seenRecord{Checkpoint: s.record.Checkpoint, CheckpointAt: s.record.CheckpointAt, Cut: s.record.Cut, Epoch: s.record.Epoch,
			Incarnation: s.record.Incarnation, RunID: s.runID, Taker: s.taker}
		r.Taker.Until = time.Time{} // grows all the time
	}
	if r == s.kept {
		return
	}
	var err error
	if s.others {
		err = j.c.put(ctx, bucketSeen, name, r)
	} else {
		err = j.c.opts.Journal.Delete(ctx, bucketSeen, name)
	}
	j.mu.Lock()
	told := j.saw.keepTold
	j.saw.keepTold = err != nil
	if err == nil {
		j.saw.kept = r
	}
	j.mu.Unlock()
	if err != nil && !told {
		j.c.emit(Event{Kind: EventRecordFailed, Job: name, Message: "remember where the newest checkpoint is: " + err.Error()})
	}
}

// accepted forgets that newer checkpoints are elsewhere: somebody has decided
// what is live.
func (j *job) accepted(ctx context.Context) {
	j.mu.Lock()
	j.saw.others, j.saw.taker, j.saw.record = false, statebackend.Leader{}, statebackend.Record{}
	j.mu.Unlock()
	j.keepSeen(ctx)
}

// newerLocked reports whether another store is known to have a newer checkpoint
// than those that this one could recover the state from.
func (j *job) newerLocked() bool {
	r := j.saw.record
	return j.saw.others && r.Checkpoint != 0 && (r.Checkpoint > j.headLocked() || r.Epoch > max(j.flip.Epoch, j.newest.epoch))
}

// elsewhere says where a newer checkpoint is than those that this store could
// recover the state from, and what to do; "" when there is none that is known
// of. Lost state is then left to a person, and to that coordinator: what this
// one has is older, and nobody who restores it by itself would notice.
func (j *job) elsewhere() string {
	j.mu.Lock()
	s, name, own, newer := j.saw, j.spec.Name, j.best, j.newerLocked()
	j.mu.Unlock()
	if !newer {
		return ""
	}
	var b strings.Builder
	now, id := j.c.opts.Now(), s.record.Checkpoint
	fmt.Fprintf(&b, "checkpoint %d", id)
	if at := s.record.CheckpointAt; !at.IsZero() {
		fmt.Fprintf(&b, ", completed at %s (%s ago)", at.UTC().Format(time.RFC3339), now.Sub(at).Round(time.Second))
	}
	fmt.Fprintf(&b, " in epoch %d, was the state's newest and is in %s; ", s.record.Epoch, takerText(s.taker))
	if own == nil {
		b.WriteString("this store has none that can be restored")
	} else {
		fmt.Fprintf(&b, "the newest that this store can restore is %d, %s old", own.ID, age(*own, now))
	}
	b.WriteString(", so nothing is restored by itself: start that coordinator again, which recovers the state")
	if file := j.c.copyOf(name, id); file != "" {
		fmt.Fprintf(&b, "; or restore the copy that is here: `coordinator restore %s --from %s`", name, file)
	} else {
		fmt.Fprintf(&b, "; or restore a copy of it: `coordinator restore %s --from FILE`", name)
	}
	if own != nil {
		fmt.Fprintf(&b, "; or accept the older one: `coordinator restore %s --checkpoint %d`", name, own.ID)
	}
	return b.String()
}

func takerText(l statebackend.Leader) string {
	if l.ID == "" {
		return "another store (another coordinator's, or one that was here before this one)"
	}
	text := "the store of coordinator " + l.ID
	if l.Store != "" {
		text = fmt.Sprintf("the store %s of coordinator %s", l.Store, l.ID)
	}
	if l.Host != "" {
		text += " on host " + l.Host
	}
	if l.Address != "" {
		text += " (API at " + l.Address + ")"
	}
	return text
}

// leftToOthers says so of state that is lost.
func (j *job) leftToOthers(h HealthState) string {
	if !h.Lost() {
		return ""
	}
	return j.elsewhere()
}

// refuseOlder refuses to choose an older checkpoint for somebody who named none.
func (j *job) refuseOlder(req RestoreRequest) error {
	why := j.leftToOthers(j.state())
	if why == "" || req.Checkpoint != "" || req.As != "" {
		return nil
	}
	return fault.New(fault.Refused, "name the checkpoint with --checkpoint to accept an older one", "job %q: %s", j.config().Name, why)
}

// copyOf is the file of a checkpoint's copy in one of the directories of this
// coordinator, "" when none is known.
func (c *Coordinator) copyOf(job string, id snapshot.ID) string {
	if c.copies == nil {
		return ""
	}
	return c.copies.Find(job, c.opts.Backend.Server(), id)
}
