package coordinator

import (
	"context"
	"encoding/json"
	"fmt"

	"keyframe/snapshot"
)

// bucketAside is the journal's: job name → JSON of asideRecord. Ids are never
// given twice, so that an entry of a checkpoint that is gone says nothing.
const bucketAside = "aside"

// asideRecord holds imported checkpoints that are not of the live branch, as far
// as was known when they were imported, and why. They are restored only when
// somebody names them.
type asideRecord struct {
	Why map[snapshot.ID]string `json:"why"`
}

// Branch is what is known of an import: whether the state that was live last
// descends from it.
type Branch string

// The branches. Where it isn't said, an undo checkpoint is taken for one that
// was given up.
const (
	BranchUnknown Branch = ""
	BranchLive    Branch = "live"
	BranchGivenUp Branch = "given-up"
)

// whyAside says why an import is not chosen by itself, "" when it may be.
func whyAside(b Branch, t snapshot.Trigger) string {
	switch {
	case b == BranchLive:
		return ""
	case undoes(t):
		return fmt.Sprintf("it was taken to undo what came after it (%s)", t)
	case b == BranchGivenUp:
		return "it was given up: the state that was live last does not descend from it"
	}
	return ""
}

func (c *Coordinator) aside(ctx context.Context, job string) (asideRecord, error) {
	r := asideRecord{}
	value, ok, err := c.opts.Journal.Get(ctx, bucketAside, job)
	if err == nil && ok {
		err = json.Unmarshal(value, &r)
	}
	if err != nil {
		return r, fmt.Errorf("imports of job %q that are set aside: %w", job, err)
	}
	if r.Why == nil {
		r.Why = map[snapshot.ID]string{}
	}
	return r, nil
}

// setAside notes why an import is not chosen, before it is there.
func (c *Coordinator) setAside(ctx context.Context, job string, id snapshot.ID, why string) error {
	if why == "" {
		return nil
	}
	r, err := c.aside(ctx, job)
	if err != nil {
		return err
	}
	r.Why[id] = why
	return c.put(ctx, bucketAside, job, r)
}

// newestImport is what is chosen of a job that has nothing but imports: the
// newest that is not set aside, or the newest where all are; and the newer ones
// that are passed over, each with the reason.
func (c *Coordinator) newestImport(ctx context.Context, name string, history []snapshot.Checkpoint) (*snapshot.Checkpoint, []string, error) {
	r, err := c.aside(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	var newest *snapshot.Checkpoint
	var passed []string
	for i := len(history) - 1; i >= 0; i-- {
		cp := &history[i]
		if !cp.Restorable() || cp.Trigger != snapshot.TriggerImport {
			continue
		}
		if newest == nil {
			newest = cp
		}
		why := r.Why[cp.ID]
		if why == "" {
			return cp, passed, nil
		}
		passed = append(passed, fmt.Sprintf("checkpoint %d is newer, and is passed over: %s; to restore it all the same: --checkpoint %d", cp.ID, why, cp.ID))
	}
	return newest, nil, nil
}

// importsPassedOver are the newer ones, for a plan; an error was told already.
func (c *Coordinator) importsPassedOver(ctx context.Context, name string) []string {
	history, err := c.Checkpoints(ctx, name)
	if err != nil {
		return nil
	}
	_, flip, err := c.lineage(ctx, name, nil)
	if err != nil || len(candidates(history, flip)) > 0 {
		return nil
	}
	_, passed, err := c.newestImport(ctx, name, history)
	if err != nil {
		return nil
	}
	return passed
}
