package cut

import (
	"context"
	"errors"
	"fmt"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

// MaxLayers is how many layers a checkpoint may have that another stands on:
// more are as many to read side by side in a restore. The merging in the
// background keeps them well below. A variable for tests.
var MaxLayers = 16

// FullCode is why a checkpoint is a full one, from a closed list.
type FullCode string

// The closed list. FullNone is for an incremental one.
const (
	FullNone      FullCode = ""
	FullFirst     FullCode = "first"      // nothing is remembered of an earlier one: the coordinator has started since
	FullOff       FullCode = "off"        // checkpoint.incremental is false
	FullGrade     FullCode = "grade"      // the grade that was asked for reads everything
	FullTracking  FullCode = "tracking"   // the state store can't tell what was written since
	FullState     FullCode = "state"      // the state isn't the one that the earlier one was taken of
	FullBase      FullCode = "base"       // the earlier one is deleted, bad or out of order
	FullLayers    FullCode = "layers"     // too many layers would stand on each other
	FullSize      FullCode = "size"       // too many keys to keep count of
	FullSelfCheck FullCode = "self-check" // everything was read to compare it, or because a comparison failed
)

// FullCodes is the closed list without FullNone.
var FullCodes = []FullCode{FullFirst, FullOff, FullGrade, FullTracking, FullState, FullBase, FullLayers, FullSize, FullSelfCheck}

// Full says why a checkpoint is a full one: for code, and in a sentence for
// people. The zero value is for one that isn't.
type Full struct {
	Code FullCode
	Text string
}

func full(code FullCode, format string, args ...any) Full {
	return Full{Code: code, Text: fmt.Sprintf(format, args...)}
}

// Restarted is the reason when nothing is remembered of an earlier checkpoint.
var Restarted = full(FullFirst, "the first since the coordinator began with the job: what was written since an earlier one isn't known")

// StateChanged is the reason after the live state was replaced.
func StateChanged(by string) Full {
	return full(FullState, "the first since the live state was replaced (%s)", by)
}

// LostAgain is the reason after n attempts in a row in whose middle the writes
// could no longer be followed: the next one does without.
func LostAgain(n int) Full {
	return full(FullTracking, "tracking was lost in the middle of the last %d attempts, so this one is stop-and-copy", n)
}

// Distrusted is the reason after a self-check that found a difference.
func Distrusted(id snapshot.ID) Full {
	return full(FullSelfCheck, "the self-check of checkpoint %d found that tracking was wrong", id)
}

// Base is what the last completed checkpoint left for the next one to stand
// on: its content, the name of its cut, and the count of what it holds. It
// belongs to one attempt at a time.
type Base struct {
	Manifest *snapshot.Manifest
	Token    string
	none     Full // why none can stand on it
	ledger   *ledger
}

// newBase is what a completed checkpoint leaves.
func newBase(m *snapshot.Manifest, token, untracked string, d *draft) *Base {
	b := &Base{Manifest: m, Token: token, ledger: d.settle()}
	switch {
	case token == "":
		b.none = full(FullTracking, "what has been written since checkpoint %d isn't known: %s", m.Checkpoint.ID, untracked)
	case !m.Sorted:
		b.none = full(FullBase, "the keys of checkpoint %d are in no order that another could stand on", m.Checkpoint.ID)
	case b.ledger == nil:
		b.none = full(FullSize, "checkpoint %d has %d names, and count is kept of at most %d", m.Checkpoint.ID, m.Checkpoint.Keys+m.Checkpoint.Missing, MaxLedgerKeys)
	}
	return b
}

// none says why nothing can stand on what the request has, from what is known
// without asking anybody.
func (r Request) none() Full {
	b := r.Base
	switch {
	case !r.Job.Checkpoint.Increments():
		return full(FullOff, "checkpoint.incremental is false")
	case r.NoBase.Code != FullNone:
		return r.NoBase
	case b == nil:
		return Restarted
	case !tracks(r.grade()):
		return full(FullGrade, "grade %s reads everything", r.grade())
	case b.none.Code != FullNone:
		return b.none
	case b.Manifest.Checkpoint.Layers >= MaxLayers:
		return full(FullLayers, "checkpoint %d has %d layers already, at most %d may stand on each other", b.Manifest.Checkpoint.ID, b.Manifest.Checkpoint.Layers, MaxLayers)
	}
	return r.changed()
}

// changed says in what the live state isn't the one that the base was taken of.
func (r Request) changed() Full {
	m := r.Base.Manifest
	id := m.Checkpoint.ID
	switch {
	case r.Parent != id:
		return full(FullState, "the live state doesn't descend from checkpoint %d any more", id)
	case r.Incarnation != m.Incarnation:
		return full(FullState, "incarnation %s is live, checkpoint %d was taken of %s", r.Incarnation, id, m.Incarnation)
	case r.RunID != "" && r.RunID != m.Server.RunID:
		return full(FullState, "the server was started anew since checkpoint %d", id)
	case r.Epoch != m.Checkpoint.Epoch:
		return full(FullState, "epoch %d is live, checkpoint %d was taken of epoch %d", r.Epoch, id, m.Checkpoint.Epoch)
	case r.Job.Key().Root() != r.Base.ledger.job.Root() || r.Job.Rule() != m.KeyGroups:
		return full(FullState, "the job's definition has changed since checkpoint %d", id)
	}
	return Full{}
}

// tracks reports whether cuts of a grade may be incremental.
func tracks(g snapshot.Grade) bool {
	return g == snapshot.GradeAuto || g == snapshot.GradePrecopy
}

func (r Request) grade() snapshot.Grade {
	if r.Grade != "" {
		return r.Grade
	}
	return r.Job.Checkpoint.Grade
}

// maxStall is no more than what the pause itself allows.
func maxStall(c config.Checkpoint) config.Duration {
	if c.MaxPause > 0 {
		return min(c.MaxStall, c.MaxPause)
	}
	return c.MaxStall
}

// stand finds out whether the attempt can stand on the request's base, and
// holds it: its chunks must not go before the attempt names them too. release
// is never nil.
func (t Taker) stand(ctx context.Context, req Request) (base *Base, release func(), why Full, err error) {
	release = func() {}
	if why = req.none(); why.Code != FullNone {
		return nil, release, why, nil
	}
	job, id := req.Job.Name, req.Base.Manifest.Checkpoint.ID
	gone := full(FullBase, "checkpoint %d, which it would have stood on, was deleted", id)
	hold, err := t.Store.Hold(ctx, job, id)
	if errors.Is(err, snapshot.ErrNoCheckpoint) {
		return nil, release, gone, nil
	}
	if err != nil {
		return nil, release, Full{}, fault.Wrap(err, fault.Store, "see `coordinator store stats`", "hold checkpoint %d of job %q", id, job)
	}
	history, err := t.Store.List(ctx, job)
	if err != nil {
		hold()
		return nil, release, Full{}, fault.Wrap(err, fault.Store, "see `coordinator store stats`", "list checkpoints of job %q", job)
	}
	why = gone
	for _, c := range history {
		switch {
		case c.ID != id:
		case c.Restorable():
			return req.Base, hold, Full{}, nil
		case c.Bad != "":
			why = full(FullBase, "checkpoint %d, which it would have stood on, is bad: %s", id, c.Bad)
		}
	}
	hold()
	return nil, release, why, nil
}
