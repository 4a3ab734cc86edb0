package coordinator

import (
	"context"
	"fmt"
	"slices"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

// A checkpoint that holds far less than the one before may be right (a clean-up,
// windows that closed) or show a loss that the guard can't see: an index or keys
// that were evicted or deleted, and partly written again before its next look.
// It is kept and flagged, with the same commit that makes it listed. Until a
// person accepts it, it is in doubt: retention removes nothing older, and a
// recovery restores what is not in doubt first. That costs a replay from older
// positions where the shrink was right, and both stay to be chosen from; to
// restore a loss would have workers go on, and write results, from it.

// shrinking is what a job's next checkpoint is compared with, and which ones
// are in doubt.
type shrinking struct {
	base *snapshot.Checkpoint // nil: with nothing
	open []snapshot.ID        // oldest first
	told snapshot.ID          // for which it was told that retention is held
}

// learn takes both from a history (oldest first) and the last flip.
func (s *shrinking) learn(history []snapshot.Checkpoint, flip lineageRecord) {
	s.base, s.open = shrinkBase(history, flip), nil
	for _, cp := range history {
		if cp.InDoubt() {
			s.open = append(s.open, cp.ID)
		}
	}
}

// take adds a checkpoint that was just completed.
func (s *shrinking) take(cp snapshot.Checkpoint) {
	if cp.InDoubt() {
		s.open = append(s.open, cp.ID)
		return
	}
	s.base = &cp
}

// settled drops a checkpoint that retention has removed.
func (j *job) settled(id snapshot.ID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.shrink.open = slices.DeleteFunc(j.shrink.open, func(open snapshot.ID) bool { return open == id })
}

// inDoubt is a copy of the list.
func (s *shrinking) inDoubt() []snapshot.ID { return slices.Clone(s.open) }

// shrinkBase is what the next checkpoint is compared with: the newest one of the
// live state that is restorable and not in doubt, or what the last flip put in
// place when there is none since. All checkpoints since a flip, and the one that
// it put in place, are of one incarnation. A pure function of the history
// (oldest first) and the last flip.
func shrinkBase(history []snapshot.Checkpoint, flip lineageRecord) *snapshot.Checkpoint {
	for i := len(history) - 1; i >= 0; i-- {
		cp := history[i]
		if cp.ID <= flip.Newest {
			break
		}
		if cp.Restorable() && !cp.InDoubt() && cp.Trigger != snapshot.TriggerImport {
			return &cp
		}
	}
	for _, cp := range history {
		// Whoever put it in place has decided, also where it was in doubt.
		if flip.Base != 0 && cp.ID == flip.Base && cp.Restorable() {
			return &cp
		}
	}
	return nil
}

// oldestInDoubt is 0 when there is none. One that was found bad since is still
// a question for a person.
func oldestInDoubt(history []snapshot.Checkpoint) snapshot.ID {
	for _, cp := range history {
		if cp.InDoubt() {
			return cp.ID
		}
	}
	return 0
}

func heldReason(doubt snapshot.ID) string {
	return fmt.Sprintf("older than checkpoint %d, which is far smaller than the one before and not accepted", doubt)
}

// trustedFirst moves what is in doubt behind all others and keeps the order
// otherwise. decided is what the last flip put in place (0 for nothing): whoever
// did that has decided, also where it was in doubt.
func trustedFirst(all []snapshot.Checkpoint, decided snapshot.ID) []snapshot.Checkpoint {
	sorted := make([]snapshot.Checkpoint, 0, len(all))
	for _, doubt := range []bool{false, true} {
		for _, cp := range all {
			if (cp.InDoubt() && cp.ID != decided) == doubt {
				sorted = append(sorted, cp)
			}
		}
	}
	return sorted
}

// recoverable are the checkpoints that a recovery tries, in its order: the newest
// one that is not in doubt before all that are. Those are used only when nothing
// else is left.
func recoverable(history []snapshot.Checkpoint, flip lineageRecord) []snapshot.Checkpoint {
	return trustedFirst(candidates(history, flip), flip.Base)
}

// trusted is recoverable for a recovery, which tells what it passes over, and
// when there is nothing but what is in doubt.
func (j *job) trusted(history []snapshot.Checkpoint, flip lineageRecord) []snapshot.Checkpoint {
	all, sorted := candidates(history, flip), recoverable(history, flip)
	now := j.c.opts.Now()
	switch {
	case len(all) == 0:
	case sorted[0].InDoubt() && sorted[0].ID != flip.Base:
		j.c.emit(Event{Kind: EventRecoveryFellBack, Job: sorted[0].Job, ID: sorted[0].ID, Message: fmt.Sprintf(
			"checkpoint %d (%s old) is far smaller than the one before (%s) and not accepted, but there is no other one to recover from: it is restored",
			sorted[0].ID, age(sorted[0], now), sorted[0].Shrunk)})
	case sorted[0].ID != all[0].ID:
		j.c.emit(Event{Kind: EventRecoveryFellBack, Job: all[0].Job, ID: sorted[0].ID, Message: fmt.Sprintf(
			"checkpoint %d (%s old) is far smaller than the one before and not accepted; checkpoint %d (%s old) is restored instead, and neither is removed",
			all[0].ID, age(all[0], now), sorted[0].ID, age(sorted[0], now))})
	}
	return sorted
}

// restorable is Resolve for what is going to be restored: "" is what a recovery
// would take.
func (c *Coordinator) restorable(ctx context.Context, name, which string) (snapshot.Checkpoint, error) {
	newest, err := c.Resolve(ctx, name, which)
	if err != nil || which != "" || !newest.InDoubt() {
		return newest, err
	}
	history, err := c.Checkpoints(ctx, name)
	if err != nil {
		return newest, err
	}
	_, flip, err := c.lineage(ctx, name, nil)
	if err != nil {
		return newest, Explain(err)
	}
	return append(recoverable(history, flip), newest)[0], nil
}

// passedOver warns when a restore takes an older checkpoint because a newer one
// is in doubt.
func (c *Coordinator) passedOver(ctx context.Context, name, which string, taken snapshot.ID) []string {
	newest, err := c.Resolve(ctx, name, which)
	if err == nil && newest.Trigger == snapshot.TriggerImport && newest.ID == taken {
		return c.importsPassedOver(ctx, name)
	}
	if err != nil || !newest.InDoubt() || newest.ID == taken { // an error was told already
		return nil
	}
	return []string{fmt.Sprintf("checkpoint %d is newer, but it is far smaller than the one before (%s) and not accepted; to restore it all the same: --checkpoint %d",
		newest.ID, newest.Shrunk, newest.ID)}
}

// shrinkWarningsLocked are for the job's health, as it is shown: they are true at
// once, not from the next look on.
func (j *job) shrinkWarningsLocked() []string {
	n := len(j.shrink.open)
	if n == 0 {
		return nil
	}
	which := fmt.Sprintf("checkpoint %d is", j.shrink.open[0])
	if n > 1 {
		which = fmt.Sprintf("checkpoints %d to %d (%d of them) are", j.shrink.open[0], j.shrink.open[n-1], n)
	}
	return []string{fmt.Sprintf("%s far smaller than the one before: nothing older is removed until somebody looks: `coordinator checkpoint accept %s %d` when it is right, a restore of an older one when not",
		which, j.spec.Name, j.shrink.open[n-1])}
}

// tellShrunk tells of a checkpoint that was flagged.
func (j *job) tellShrunk(cp snapshot.Checkpoint) {
	if cp.InDoubt() {
		j.c.emit(Event{Kind: EventCheckpointShrunk, Job: cp.Job, ID: cp.ID, Checkpoint: &cp, Message: fmt.Sprintf(
			"checkpoint %d is far smaller than the one before: %s; it and all older ones are kept until it is accepted", cp.ID, cp.Shrunk)})
	}
}

// tellHeld tells, once for each that is in doubt, what retention does not remove
// because of it.
func (j *job) tellHeld(history []snapshot.Checkpoint, decisions []Decision) {
	doubt, held := oldestInDoubt(history), 0
	for _, d := range decisions {
		if d.ID < doubt && d.Reason == heldReason(doubt) {
			held++
		}
	}
	j.mu.Lock()
	known := j.shrink.told == doubt
	if held > 0 {
		j.shrink.told = doubt
	}
	name := j.spec.Name
	j.mu.Unlock()
	if held > 0 && !known {
		j.c.emit(Event{Kind: EventRetentionHeld, Job: name, ID: doubt, Message: fmt.Sprintf(
			"retention keeps everything older than checkpoint %d (%d entries now), which is far smaller than the one before, until it is accepted or deleted", doubt, held)})
	}
}

// Accept says that a checkpoint which is far smaller than the one before is
// right: it is compared with from then on, and retention goes on. It answers
// for all others in doubt that were compared with the same one and are no
// shrink from it. Accepting it again changes nothing.
func (c *Coordinator) Accept(ctx context.Context, name string, id snapshot.ID, note string) (snapshot.Checkpoint, error) {
	history, err := c.Checkpoints(ctx, name)
	if err != nil {
		return snapshot.Checkpoint{}, err
	}
	limits, j := config.Shrink{}, (*job)(nil)
	if j, err = c.find(name); err == nil { // otherwise a history without a job
		limits = j.config().Checkpoint.Shrink
	}
	at, found := snapshot.Checkpoint{}, false
	for _, cp := range history {
		if cp.ID == id {
			at, found = cp, true
		}
	}
	switch {
	case !found:
		return at, c.orElsewhere(ctx, name, fault.New(fault.NoCheckpoint, "`coordinator checkpoint list "+name+"` shows them", "job %q has no checkpoint %d", name, id))
	case at.Shrunk == nil:
		return at, fault.New(fault.Refused, "`coordinator checkpoint list "+name+"` shows which are in doubt", "checkpoint %d of job %q is not flagged: there is nothing to accept", id, name)
	case !at.InDoubt():
		return at, nil
	}
	for _, cp := range answered(history, at, limits) {
		if err := c.accept(ctx, cp, note); err != nil {
			return at, err
		}
	}
	if at, err = c.Resolve(ctx, name, id.String()); err == nil && j != nil {
		err = j.learn(ctx)
	}
	if err != nil {
		return at, Explain(err)
	}
	return at, nil
}

// answered are the checkpoints that accepting one answers for, that one last:
// what was interrupted is found unfinished.
func answered(history []snapshot.Checkpoint, at snapshot.Checkpoint, limits config.Shrink) []snapshot.Checkpoint {
	var all []snapshot.Checkpoint
	for _, cp := range history {
		if cp.ID != at.ID && cp.InDoubt() && cp.Shrunk.Base == at.Shrunk.Base && limits.Flag(at, cp) == nil {
			all = append(all, cp)
		}
	}
	return append(all, at)
}

func (c *Coordinator) accept(ctx context.Context, cp snapshot.Checkpoint, note string) error {
	s, now := *cp.Shrunk, c.opts.Now().UTC()
	s.Accepted, s.AcceptedAt, s.Note = true, &now, note
	if _, err := c.opts.Store.Edit(ctx, cp.Job, cp.ID, snapshot.Change{Shrunk: &s}); err != nil {
		return Explain(fmt.Errorf("accept checkpoint %d of job %q: %w", cp.ID, cp.Job, err))
	}
	c.emit(Event{Kind: EventCheckpointAccepted, Job: cp.Job, ID: cp.ID, Message: fmt.Sprintf("checkpoint %d accepted as it is: %s", cp.ID, s)})
	return nil
}
