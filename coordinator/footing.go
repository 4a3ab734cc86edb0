package coordinator

import (
	"context"
	"errors"
	"fmt"

	"keyframe/coordinator/cut"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// footing is what a job's next checkpoint may stand on. It is known in memory
// only: after a start of the coordinator the first checkpoint is a full one.
type footing struct {
	base *cut.Base
	none cut.Full // why there is no base; the zero value is cut.Restarted
	// wary: a self-check has failed, and the next checkpoint does without
	// tracking where the grade is auto.
	wary bool
	// lost counts attempts in a row that failed because tracking was lost in
	// their middle. After lostMost the next one does without it, in grade auto:
	// whatever goes on at the server, checkpoints must not stop for it.
	lost int
}

// lostMost is how many attempts may be lost in a row; one alone is most likely
// a link that broke.
const lostMost = 2

// FullReasons is the closed list of codes that an EventCheckpointCompleted of a
// full checkpoint has as its Reason.
func FullReasons() []string {
	var all []string
	for _, c := range cut.FullCodes {
		all = append(all, string(c))
	}
	return all
}

// take keeps what a completed checkpoint has left. One that did without
// tracking after lost attempts proves nothing of it: one more that is lost, and
// the next does without again.
func (f *footing) take(b *cut.Base) {
	lost := 0
	if f.lost >= lostMost {
		lost = lostMost - 1
	}
	*f = footing{base: b, lost: lost}
}

// lose forgets the base.
func (f *footing) lose(why cut.Full) { f.base, f.none = nil, why }

// place tells a request what the checkpoint may stand on.
func (j *job) place(req *cut.Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f := j.footing
	req.Base, req.NoBase, req.Before = f.base, f.none, j.shrink.base
	if req.Grade != "" || j.spec.Checkpoint.Grade != snapshot.GradeAuto || req.VerifyLive {
		return
	}
	if f.wary {
		req.Grade = snapshot.GradePaused
	} else if f.lost >= lostMost {
		req.Grade, req.NoBase = snapshot.GradePaused, cut.LostAgain(f.lost)
	}
}

// failedBy counts attempts that were lost with the tracking.
func (j *job) failedBy(reason snapshot.FailureReason) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if reason == snapshot.FailTracking {
		j.footing.lost++
	} else {
		j.footing.lost = 0
	}
}

// unfoot forgets the base, and lets the state store forget what it remembers
// of writes: the next checkpoint is a full one.
func (j *job) unfoot(why cut.Full) {
	j.mu.Lock()
	j.footing.lose(why)
	j.mu.Unlock()
	j.forget()
}

// forget lets the state store forget what it remembers of the job.
func (j *job) forget() {
	if f, ok := j.c.opts.Backend.(statebackend.Forgetter); ok {
		f.Forget(j.key())
	}
}

// distrust does what follows from a self-check that found a difference: the
// checkpoints that rest on what tracking believed are marked bad, and the next
// one is full, without tracking where it may be.
func (j *job) distrust(ctx context.Context, out cut.Outcome, err error) {
	var wrong *cut.TrackingError
	if !errors.As(err, &wrong) {
		return
	}
	ctx = context.WithoutCancel(ctx)
	name, id := j.config().Name, snapshot.ID(0)
	if out.Checkpoint != nil {
		id = out.Checkpoint.ID
	}
	j.unfoot(cut.Distrusted(id))
	j.mu.Lock()
	j.footing.wary = true
	j.gen++ // who reads the history just now must read it again
	j.mu.Unlock()
	j.c.emit(Event{Kind: EventSelfCheckFailed, Job: name, ID: id, Message: wrong.Error()})
	if err := j.condemn(ctx, wrong); err != nil {
		j.c.emit(Event{Kind: EventRecordFailed, Job: name, ID: id, Message: "after the self-check: " + err.Error()})
	}
}

// condemn marks the checkpoints bad that rest on tracking that was wrong.
func (j *job) condemn(ctx context.Context, wrong *cut.TrackingError) error {
	name := j.config().Name
	history, err := j.c.opts.Store.List(ctx, name)
	if err != nil {
		return fmt.Errorf("list checkpoints of %q: %w", name, err)
	}
	var all []error
	for _, cp := range suspects(history, wrong.Base) {
		if cp.Bad == "" {
			all = append(all, j.markBad(ctx, cp, wrong))
		}
	}
	return errors.Join(append(all, j.learn(ctx))...)
}

// suspects are the checkpoints that rest on what tracking believed up to base:
// base and what it stands on, down to the last that read everything. That one
// is among them only when it is base itself and was read while writers ran. A
// pure function of the history (oldest first). Where one in between was
// deleted, the newest that is older is taken to be what it stood on.
func suspects(history []snapshot.Checkpoint, base snapshot.ID) []snapshot.Checkpoint {
	var all []snapshot.Checkpoint
	for i := len(history) - 1; i >= 0; i-- {
		cp := history[i]
		switch {
		case cp.State != snapshot.StateCompleted || cp.ID > base:
			continue
		case cp.Incremental:
			all = append(all, cp)
			base = min(cp.Parent, cp.ID-1) // never above, whatever the record says
		default:
			if len(all) == 0 && cp.Tracking != "" {
				all = append(all, cp)
			}
			return all
		}
	}
	return all
}
