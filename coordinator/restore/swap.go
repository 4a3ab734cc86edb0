package restore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"keyframe/coordinator/fault"
	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// How long the steps that must not be cut short may take: their context
// outlives the caller's.
const (
	flipTimeout  = 5 * time.Minute
	cleanTimeout = 30 * time.Second
)

// defaultWaits come before each attempt to ask the state store how a restore
// ended.
var defaultWaits = []time.Duration{0, 50 * time.Millisecond, 500 * time.Millisecond}

// Swap carries one restore through: stage, prove, flip. The flip is its one
// commit point. It is what restores and rescales have in common; the journal's
// entry must have been written before (Note does), and is the caller's to drop
// afterwards, unless the error is ErrUnresolved.
type Swap struct {
	Journal snapshot.Journal
	Backend statebackend.Backend
	Entry   Entry
	Request statebackend.RestoreRequest
	// Feed pushes the keys, each time the same: it is called again when the
	// state store wants them in another form.
	Feed func(ctx context.Context, sink snapshot.Sink) error
	// Staged is called when all keys are staged and proved. What fails in it
	// changes nothing; it may complete the Entry. May be nil.
	Staged   func(ctx context.Context) error
	Progress Progress
	// Waits come before each attempt to ask the state store how it ended;
	// nil is three attempts within a second.
	Waits []time.Duration

	warning string
}

// Note writes the entry with the phase that begins.
func (s *Swap) Note(ctx context.Context, phase string) error {
	s.Entry.Phase = phase
	return PutEntry(ctx, s.Journal, s.Entry)
}

// Run does it. After an error nothing was changed and nothing is left of it in
// the state store, unless the error is ErrUnresolved. A flip whose answer was
// lost and that had happened is no error: the numbers are the entry's then.
// Cancelling ctx stops it before the flip, and not after.
func (s *Swap) Run(ctx context.Context) (statebackend.FlipResult, error) {
	staging, err := s.stage(ctx)
	if errors.Is(err, statebackend.ErrPayloadRefused) && !s.Request.Plain {
		s.warning = fmt.Sprintf("keys were staged a second time, with plain commands, which is slower: %v", err)
		s.Request.Plain = true
		if err := s.again(ctx, staging); err != nil {
			return s.giveUp(ctx, staging, err)
		}
		staging, err = s.stage(ctx)
	}
	switch {
	case err != nil && staging == nil && refused(err):
		return statebackend.FlipResult{}, s.unchanged(err)
	case err != nil:
		return s.giveUp(ctx, staging, err)
	}
	if err := s.ready(ctx); err != nil {
		return s.giveUp(ctx, staging, err)
	}
	return s.flip(ctx, staging)
}

// stage begins, stages and proves. After an error of the staging it gives the
// staging too.
func (s *Swap) stage(ctx context.Context) (statebackend.Staging, error) {
	staging, err := s.Backend.Stage(ctx, s.Request)
	if err != nil {
		return nil, err
	}
	m := (&Meter{Next: staging, Phase: PhaseStage, Progress: s.Progress}).Begin()
	if err := s.Feed(ctx, m); err != nil {
		return staging, fmt.Errorf("%s: %w", PhaseStage, err)
	}
	m.End()
	crashpoint.At(crashpoint.RestoreStaged)
	s.Progress.Tell(PhaseProve, m.keys, m.elements, m.bytes)
	if err := staging.Prove(ctx); err != nil {
		return staging, fmt.Errorf("%s: %w", PhaseProve, err)
	}
	crashpoint.At(crashpoint.RestoreProved)
	return staging, context.Cause(ctx)
}

// again ends the staging whose form the state store refused.
func (s *Swap) again(ctx context.Context, staging statebackend.Staging) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return staging.Abort(ctx)
}

// ready makes sure of everything that can be known before the flip.
func (s *Swap) ready(ctx context.Context) error {
	if s.Staged != nil {
		if err := s.Staged(ctx); err != nil {
			return err
		}
	}
	if err := s.Note(ctx, PhaseFlip); err != nil {
		return err
	}
	crashpoint.At(crashpoint.RestoreReady)
	return context.Cause(ctx)
}

// refused tells an answer by which Stage has written nothing: the mark is the
// first thing that it writes. There is nothing to clean up then, and where the
// right to write is what lacks, cleaning up would fail as well.
func refused(err error) bool {
	for _, is := range []error{statebackend.ErrMarked, statebackend.ErrFenced, statebackend.ErrReadOnly,
		statebackend.ErrPermission, statebackend.ErrAuth} {
		if errors.Is(err, is) {
			return !errors.Is(err, statebackend.ErrUnreachable)
		}
	}
	return false
}

func (s *Swap) flip(ctx context.Context, staging statebackend.Staging) (statebackend.FlipResult, error) {
	s.Progress.Tell(PhaseFlip, s.Entry.Keys, s.Entry.Elements, 0)
	within, cancel := detached(ctx, flipTimeout)
	defer cancel()
	res, err := staging.Flip(within)
	if s.warning != "" {
		res.Warning = s.warning
	}
	if err == nil {
		return res, nil
	}
	// Whatever went wrong, only the state store knows whether it happened.
	flipped, unresolved := s.resolve(ctx)
	within, cancel = detached(ctx, cleanTimeout)
	defer cancel()
	switch {
	case unresolved != nil:
		return statebackend.FlipResult{}, s.unresolved(err, unresolved)
	case flipped:
		return statebackend.FlipResult{Keys: s.Entry.Keys, Expired: s.Entry.Expired,
			Removed: s.Entry.Removed, Epoch: s.Entry.Epoch}, nil
	}
	// Resolve has removed everything; this only frees what the value holds.
	_ = staging.Abort(within)
	return statebackend.FlipResult{}, s.unchanged(err)
}

// giveUp cleans up before the flip.
func (s *Swap) giveUp(ctx context.Context, staging statebackend.Staging, cause error) (statebackend.FlipResult, error) {
	if staging != nil {
		within, cancel := detached(ctx, cleanTimeout)
		defer cancel()
		if staging.Abort(within) == nil {
			return statebackend.FlipResult{}, s.unchanged(cause)
		}
		// What Abort could not do, Resolve repeats.
	}
	if _, err := s.resolve(ctx); err != nil {
		return statebackend.FlipResult{}, s.unresolved(cause, err)
	}
	return statebackend.FlipResult{}, s.unchanged(cause)
}

// resolve asks the state store, again after a short wait when it fails: a
// lost connection is often back at once.
func (s *Swap) resolve(ctx context.Context) (flipped bool, err error) {
	within, cancel := detached(ctx, cleanTimeout)
	defer cancel()
	waits := s.Waits
	if waits == nil {
		waits = defaultWaits
	}
	for _, wait := range waits {
		select {
		case <-within.Done():
			return false, errors.Join(err, context.Cause(within))
		case <-time.After(wait):
		}
		if flipped, err = s.Backend.Resolve(within, s.Request.Job, s.Request.ID); err == nil {
			return flipped, nil
		}
	}
	return false, err
}

func (s *Swap) unchanged(cause error) error {
	return Fault(cause, fault.Failed, "%s of job %q to checkpoint %d: nothing was changed",
		s.Entry.Kind, s.Entry.Job, s.Entry.Checkpoint)
}

func (s *Swap) unresolved(cause, why error) error {
	err := fmt.Errorf("%w (%w; asking the state store how it ended: %w)", ErrUnresolved, cause, why)
	return fault.Wrap(err, fault.Unreachable,
		"the job stays marked; it is resolved by itself once the state store answers, or at the next start",
		"%s %s of job %q to checkpoint %d", s.Entry.Kind, s.Entry.ID, s.Entry.Job, s.Entry.Checkpoint)
}

// detached is a context that outlives ctx's cancellation for a bounded time.
func detached(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}
