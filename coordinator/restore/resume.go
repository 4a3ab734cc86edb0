package restore

import (
	"context"
	"errors"
	"fmt"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/internal/crashpoint"
	"keyframe/statebackend"
)

// dropAfter removes the entry after a failure, unless the end is unknown. A
// failing removal harms nothing (the entry is resolved again later), but the
// caller hears of it.
func (e *Executor) dropAfter(ctx context.Context, job string, cause error) error {
	if errors.Is(cause, ErrUnresolved) {
		return cause
	}
	if err := e.drop(ctx, job); err != nil {
		f := fault.As(cause)
		return &fault.Error{Code: f.Code, Hint: f.Hint, Err: errors.Join(cause, err),
			Message: fmt.Sprintf("%s; and its journal entry stays until the next start: %s", cause, err)}
	}
	return cause
}

// Resume ends the restores of a job that a crash left behind; the engine calls
// it at start, before anything else touches the job. It gives one Resumed for
// the journal's entry of kind restore, and one (Foreign) for a mark in the live
// record that the journal doesn't know. Entries of kind rescale are the
// rescaler's: call its Resume first.
//
// When the state store can't be reached it returns an error, the entry stays,
// and the job counts as marked: call it again later. Idempotent.
func (e *Executor) Resume(ctx context.Context, job config.Job) ([]Resumed, error) {
	var all []Resumed
	entry, err := GetEntry(ctx, e.Journal, job.Name)
	if err != nil {
		return nil, err
	}
	if entry != nil && entry.Kind == KindRestore {
		done, err := e.resume(ctx, job, *entry)
		if err != nil {
			return nil, err
		}
		all = append(all, done)
		entry = nil
	}
	live, err := e.Backend.Look(ctx, job.Key())
	if err != nil {
		return all, Fault(err, fault.Unreachable, "look at the state of job %q in %s", job.Name, e.Backend.Server())
	}
	mark := live.Record.Restore
	if mark == nil || entry != nil && entry.ID == mark.ID {
		return all, nil
	}
	// One of an earlier term can't go live any more: its leader was deposed.
	if lease := statebackend.LeaseOf(ctx, job.Key()); mark.Token != 0 && mark.Token < lease.Token {
		done, err := Settle(ctx, e.Backend, job, entryOf(job, *mark))
		if err != nil {
			return all, err
		}
		done.Message = fmt.Sprintf("the %s of checkpoint %d that another coordinator had begun as the job's leader is ended: nothing was changed", mark.Kind, mark.Checkpoint)
		return append(all, done), nil
	}
	return append(all, Resumed{
		ID: mark.ID, Job: job.Name, Kind: mark.Kind, Checkpoint: mark.Checkpoint, StartedAt: mark.StartedAt, Foreign: true,
		Message: fmt.Sprintf("a %s of checkpoint %d (id %s) has been in progress since %s, and this coordinator's store doesn't know it",
			mark.Kind, mark.Checkpoint, mark.ID, mark.StartedAt.UTC().Format("2006-01-02 15:04:05Z")),
		Hint: "when another coordinator runs it, stop this one; when none does (its store file was lost), force its end: " +
			"the live state is whole either way",
	}), nil
}

func (e *Executor) resume(ctx context.Context, job config.Job, entry Entry) (Resumed, error) {
	done, err := Settle(ctx, e.Backend, job, entry)
	if err != nil {
		return Resumed{}, err
	}
	crashpoint.At(crashpoint.ResumeSettled)
	if done.Flipped {
		return done, e.end(ctx, entry)
	}
	err = DropEntry(ctx, e.Journal, job.Name)
	crashpoint.At(crashpoint.ResumeEnded)
	return done, err
}

// resolver is what Settle needs of a state store.
type resolver interface {
	Resolve(ctx context.Context, job statebackend.Job, restore string) (flipped bool, err error)
}

// Settle asks the state store how the restore of an entry ended and removes
// what is left of it there. The entry stays. Idempotent.
func Settle(ctx context.Context, backend resolver, job config.Job, entry Entry) (Resumed, error) {
	at := job.Key()
	at.Prefix = entry.Prefix // where it ran, whatever the configuration says now
	flipped, err := backend.Resolve(ctx, at, entry.ID)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrUnresolved, err)
		return Resumed{}, Fault(err, fault.Unreachable, "%s %s of job %q", entry.Kind, entry.ID, job.Name)
	}
	r := Resumed{ID: entry.ID, Job: job.Name, Kind: entry.Kind, Checkpoint: entry.Checkpoint, From: entry.From,
		Undo: entry.Undo, StartedAt: entry.StartedAt, Flipped: flipped}
	if !flipped {
		r.Message = fmt.Sprintf("the %s of checkpoint %d was interrupted (%s): nothing was changed, what was staged is removed",
			entry.Kind, entry.Checkpoint, entry.Phase)
		r.Hint = "run it again if it is still wanted"
		return r, nil
	}
	r.Message = fmt.Sprintf("the %s of checkpoint %d had been done when the coordinator stopped", entry.Kind, entry.Checkpoint)
	r.Result = &Result{Job: job.Name, Checkpoint: entry.Checkpoint, Keys: entry.Keys, Elements: entry.Elements,
		Expired: entry.Expired, Removed: entry.Removed, Epoch: entry.Epoch, Undo: entry.Undo}
	r.Detail = entry.Detail
	return r, nil
}

// Force ends the restore whose mark stands in the live record, whoever began
// it: what was staged and the mark go, the live state stays. For a mark that
// Resume called Foreign, when nobody runs that restore any more; a coordinator
// that still does is fenced, since its flip finds the mark gone.
// NoOperation when there is no mark.
func (e *Executor) Force(ctx context.Context, job config.Job) (Resumed, error) {
	live, err := e.Backend.Look(ctx, job.Key())
	if err != nil {
		return Resumed{}, Fault(err, fault.Unreachable, "look at the state of job %q in %s", job.Name, e.Backend.Server())
	}
	mark := live.Record.Restore
	if mark == nil {
		return Resumed{}, fault.New(fault.NoOperation, "", "job %q has no restore in progress", job.Name)
	}
	entry, err := GetEntry(ctx, e.Journal, job.Name)
	if err != nil {
		return Resumed{}, err
	}
	if entry != nil && entry.ID == mark.ID {
		return Resumed{}, fault.New(fault.Refused, "let it be resolved in the ordinary way",
			"job %q: %s %s is this coordinator's own", job.Name, mark.Kind, mark.ID)
	}
	done, err := Settle(ctx, e.Backend, job, entryOf(job, *mark))
	done.Foreign = true
	return done, err
}

// entryOf is the entry of a restore that only its mark is known of.
func entryOf(job config.Job, mark statebackend.Mark) Entry {
	return Entry{ID: mark.ID, Job: job.Name, Prefix: job.Prefix,
		Kind: mark.Kind, Checkpoint: mark.Checkpoint, StartedAt: mark.StartedAt, Phase: "forced"}
}
