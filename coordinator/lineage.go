package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"keyframe/coordinator/cut"
	"keyframe/coordinator/restore"
	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Buckets of the journal: job name → JSON of lineageRecord, and the address of
// the state store that was last seen to hold the job's state.
const (
	bucketLineage = "lineage"
	bucketServer  = "server"
)

// undoRecord says what `undo` restores.
type undoRecord struct {
	Checkpoint snapshot.ID `json:"checkpoint"`
	Of         string      `json:"of"` // restore, rescale, undo
}

// lineageRecord says what the last flip left live while Newest was the newest
// completed checkpoint: the checkpoint that the live state descends from (those
// between it and Newest are of a branch that was given up), and the incarnation
// (a restore from another job's history brings one that this history doesn't
// know). Base is 0 when the state came from another job's history.
type lineageRecord struct {
	Newest      snapshot.ID `json:"newest"`
	Base        snapshot.ID `json:"base"`
	Incarnation string      `json:"incarnation"`
	Attempt     snapshot.ID `json:"attempt"`
	Epoch       uint64      `json:"epoch"`
	RunID       string      `json:"runId"`
	Names       uint64      `json:"names"` // in the index then
	// Unknown: the whole history was imported, and nothing of it is known to
	// be of the state that is live. All but Newest is empty then.
	Unknown bool `json:"unknown,omitempty"`
}

func (c *Coordinator) loadUndo(ctx context.Context, job string) (*undoRecord, error) {
	value, ok, err := c.opts.Journal.Get(ctx, bucketUndo, job)
	if err != nil || !ok {
		return nil, err
	}
	var u undoRecord
	if err := json.Unmarshal(value, &u); err != nil {
		return nil, fmt.Errorf("undo record of job %q: %w", job, err)
	}
	return &u, nil
}

// flipped keeps what must be known of a flip: what undoes it, and what is live
// now. It is told before the flip's entry leaves the journal.
func (j *job) flipped(ctx context.Context, e restore.Entry) error {
	if err := j.c.keepUndo(ctx, e); err != nil {
		return err
	}
	crashpoint.At(crashpoint.UndoKept)
	base := e.Checkpoint
	if e.From != "" {
		base = 0 // it is in another job's history
	}
	err := j.keepLineage(ctx, base, e.Epoch)
	crashpoint.At(crashpoint.LineageKept)
	return err
}

// keepUndo remembers what undoes a flip; one that left nothing to undo makes
// the one before it forgotten, or undo would go too far back.
func (c *Coordinator) keepUndo(ctx context.Context, e restore.Entry) error {
	if e.Undo == 0 {
		return c.dropUndo(ctx, e.Job)
	}
	if err := c.put(ctx, bucketUndo, e.Job, undoRecord{Checkpoint: e.Undo, Of: e.Kind}); err != nil {
		return fmt.Errorf("undo of job %q can't be remembered (restore checkpoint %d by hand instead): %w", e.Job, e.Undo, err)
	}
	return nil
}

func (c *Coordinator) dropUndo(ctx context.Context, job string) error {
	if err := c.opts.Journal.Delete(ctx, bucketUndo, job); err != nil {
		return fmt.Errorf("forget what undoes the last change of job %q: %w", job, err)
	}
	return nil
}

// knownEpoch is the newest epoch that is known of the job: it must only grow,
// also when the record that held it is lost.
func (j *job) knownEpoch() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return max(j.epoch, j.flip.Epoch, j.newest.epoch)
}

// keepLineage remembers what is live now, in an epoch that is no smaller.
func (j *job) keepLineage(ctx context.Context, base snapshot.ID, epoch uint64) error {
	name := j.config().Name
	history, err := j.c.opts.Store.List(ctx, name)
	if err != nil {
		return fmt.Errorf("list checkpoints of %q: %w", name, err)
	}
	r := lineageRecord{Base: base, Epoch: epoch}
	for _, cp := range history {
		if cp.State == snapshot.StateCompleted {
			r.Newest = cp.ID
		}
		if cp.ID == base {
			r.Names = cp.Keys + cp.Missing
		}
	}
	// Without an answer, or when an older state has come back since the flip, the
	// branch is remembered all the same; the incarnation is then taken to be
	// that of the newest checkpoint, as it mostly is.
	if g, err := j.c.opts.Backend.Look(ctx, j.key()); err == nil && g.Record.Epoch >= epoch {
		r.Incarnation, r.Attempt, r.RunID = g.Record.Incarnation, g.Record.Attempt, g.Server.RunID
		r.Epoch = g.Record.Epoch
	}
	return j.c.put(ctx, bucketLineage, name, r)
}

func (c *Coordinator) put(ctx context.Context, bucket, key string, record any) error {
	value, err := json.Marshal(record)
	if err == nil {
		err = c.opts.Journal.Put(ctx, bucket, key, value)
	}
	if err != nil {
		return fmt.Errorf("journal %s of job %q: %w", bucket, key, err)
	}
	return nil
}

// lineage is what the guard must know: the newest completed checkpoint, or
// what a later flip left live; and the record of that flip.
func (c *Coordinator) lineage(ctx context.Context, job string, last *snapshot.Checkpoint) (lineage, lineageRecord, error) {
	var r lineageRecord
	value, ok, err := c.opts.Journal.Get(ctx, bucketLineage, job)
	if err == nil && ok {
		err = json.Unmarshal(value, &r)
	}
	if err != nil {
		return lineage{}, r, fmt.Errorf("lineage record of job %q: %w", job, err)
	}
	// A record whose Newest isn't in the history still tells what is live: of an
	// import it is written first, and a person may have deleted the checkpoint.
	if last == nil || (r.Unknown && r.Newest >= last.ID) {
		return lineage{}, r, nil
	}
	m, err := c.opts.Store.Manifest(ctx, last.Job, last.ID)
	if err != nil {
		return lineage{}, r, fmt.Errorf("manifest of checkpoint %d of %q: %w", last.ID, last.Job, err)
	}
	l := lineageOf(m)
	if r.Newest >= l.id {
		l.epoch, l.names = max(l.epoch, r.Epoch), r.Names
	}
	if r.Newest >= l.id && r.Incarnation != "" {
		l.incarnation, l.attempt, l.runID = r.Incarnation, r.Attempt, r.RunID
	}
	return l, r, nil
}

// head is the checkpoint that the live state descends from: the newest one,
// or the one that a restore put in place since. 0 when there is none.
func (j *job) head() snapshot.ID {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.headLocked()
}

func (j *job) headLocked() snapshot.ID {
	if j.flip.Newest != 0 && j.flip.Newest >= j.newest.id {
		return j.flip.Base
	}
	return j.newest.id
}

// candidates are the checkpoints that lost state may be recovered from, best
// first: those taken since the last flip, newest first, then the one that was
// put in place, then what it descends from. Checkpoints of a branch that was
// given up by a restore (the undo checkpoint among them) are not among them. A
// pure function of the history (oldest first) and the last flip.
func candidates(history []snapshot.Checkpoint, flip lineageRecord) []snapshot.Checkpoint {
	byID := make(map[snapshot.ID]snapshot.Checkpoint, len(history))
	for _, cp := range history {
		byID[cp.ID] = cp
	}
	var all []snapshot.Checkpoint
	add := func(cp snapshot.Checkpoint) {
		if cp.Restorable() {
			all = append(all, cp)
		}
	}
	next := flip.Base
	for i := len(history) - 1; i >= 0; i-- {
		if flip.Newest == 0 || history[i].ID > flip.Newest {
			add(history[i])
		}
	}
	for flip.Newest != 0 && next != 0 {
		cp, there := byID[next]
		if !there {
			// Retention removed it: what is older than it is the best guess.
			for i := len(history) - 1; i >= 0; i-- {
				if history[i].ID < next {
					add(history[i])
				}
			}
			break
		}
		add(cp)
		if cp.Parent >= next {
			break // never written by us; a loop must not catch us
		}
		next = cp.Parent
	}
	return all
}

// afterFlip learns what a flip left live. A failure here is no failure of the
// restore: the next look at the state tells the same, at worst as an alarm.
func (j *job) afterFlip(ctx context.Context, by string) {
	j.unfoot(cut.StateChanged(by))
	j.mu.Lock()
	j.gen++ // who reads the history just now must read it again
	j.mu.Unlock()
	if err := j.learn(ctx); err != nil {
		j.c.emit(Event{Kind: EventRecordFailed, Job: j.config().Name, Message: "after the flip: " + err.Error()})
		return
	}
	j.accepted(ctx)
	j.recovered()
	// An error shows in the job's health.
	_, _ = j.lookNow(ctx)
}

// resume ends restores and rescales that a crash left behind: rolled forward
// when the flip had happened, cleaned away otherwise.
func (j *job) resume(ctx context.Context) error {
	spec := j.config()
	fromRescale, err := j.rescaler().Resume(ctx, spec)
	if err != nil {
		return fmt.Errorf("settle a rescale of job %q: %w", spec.Name, err)
	}
	fromRestore, err := j.restorer().Resume(ctx, spec)
	if err != nil {
		return fmt.Errorf("settle job %q: %w", spec.Name, err)
	}
	flipped := false
	for _, r := range append(fromRescale, fromRestore...) {
		j.c.emit(Event{Kind: EventResumed, Job: spec.Name, ID: r.Checkpoint, Reason: r.Kind, Message: r.Message})
		flipped = flipped || r.Flipped
	}
	if flipped {
		j.afterFlip(ctx, "a restore that was interrupted")
	}
	return nil
}

// keepUnresolved remembers that a restore or rescale ended in the dark.
func (j *job) keepUnresolved(err error) {
	if !errors.Is(err, restore.ErrUnresolved) {
		return
	}
	j.mu.Lock()
	j.unresolved = true
	j.mu.Unlock()
}

// resolve ends what keepUnresolved remembered; false while it can't be.
func (j *job) resolve(ctx context.Context) bool {
	j.mu.Lock()
	open := j.unresolved
	j.mu.Unlock()
	if !open {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	_, err := j.lead(ctx) // a new term begins with what is to be done here
	ctx, leave := j.underLease(ctx)
	defer leave()
	if err == nil {
		err = j.resume(ctx)
	}
	if err == nil {
		err = j.learn(ctx)
	}
	if errors.Is(err, statebackend.ErrNotLeader) {
		j.setHealth(healthOf(err), err.Error(), nil)
		return false
	}
	if err != nil {
		j.setHealth(HealthMarked, err.Error(), nil)
		return false
	}
	j.mu.Lock()
	j.unresolved = false
	j.mu.Unlock()
	return true
}

// keepServer remembers that this state store holds the job's own state, as its
// incarnation proves. After a change of address (or just of its spelling) the
// checkpoints from before are still this job's.
func (j *job) keepServer(ctx context.Context) {
	server := j.c.opts.Backend.Server()
	j.mu.Lock()
	known, name := j.server == server, j.spec.Name
	j.mu.Unlock()
	if known {
		return
	}
	if err := j.c.opts.Journal.Put(ctx, bucketServer, name, []byte(server)); err != nil {
		j.c.emit(Event{Kind: EventRecordFailed, Job: name, Message: "remember the state store's address: " + err.Error()})
		return
	}
	j.mu.Lock()
	j.server = server
	j.mu.Unlock()
}

// sameServer reports whether keepServer has remembered this state store.
func (j *job) sameServer() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.server == j.c.opts.Backend.Server()
}
