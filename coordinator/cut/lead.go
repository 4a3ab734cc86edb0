package cut

import (
	"context"
	"errors"
	"fmt"
	"time"

	"keyframe/statebackend"
)

// leadsTime bounds the question before a commit: a state store that doesn't
// answer must not keep a checkpoint from being committed.
const leadsTime = 2 * time.Second

// commit commits the checkpoint, unless another coordinator has taken the job
// over meanwhile.
func (a *attempt) commit(ctx context.Context) error {
	if err := a.leads(ctx); err != nil {
		return err
	}
	if err := a.w.Commit(ctx, a.m); err != nil {
		return &storeError{err}
	}
	return nil
}

// leads asks the state store, right before the commit, whether the lease that
// ctx carries is still the job's. The commit is in a store of our own, which
// nothing fences: a coordinator that stood still, or whose machine was
// suspended (the monotonic clock then stands still too), finds out here that
// the job has gone on under somebody else. Where the state store can't be asked,
// the end of the term decides, which ends ctx; and where it came back without
// the lease (see statebackend.FencedError.Lost), nobody else has led, and the
// checkpoint is what the state is recovered from.
func (a *attempt) leads(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, leadsTime)
	defer cancel()
	err := a.t.Backend.Leads(within, a.req.Job.Key())
	var f *statebackend.FencedError
	if errors.As(err, &f) && !f.Lost() {
		return fmt.Errorf("not committed, since the job was taken over while the checkpoint was taken: %w", err)
	}
	return context.Cause(ctx)
}
