package copies

import (
	"context"
	"errors"
	"fmt"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
)

// Store is the keeper's store as the coordinator is to use it: new ids are
// above those of all copies, and what is deleted is deleted in the copies too.
func (k *Keeper) Store() snapshot.Store { return store{k.o.Store, k} }

type store struct {
	snapshot.Store
	k *Keeper
}

var _ snapshot.Store = store{}

// Begin implements [snapshot.Store].
func (s store) Begin(ctx context.Context, a snapshot.Attempt) (snapshot.Writer, error) {
	a.After = max(a.After, s.k.floor(a.Job))
	return s.Store.Begin(ctx, a)
}

// Delete implements [snapshot.Store]. The copies are marked first: a deletion
// after which they would stay for ever doesn't happen, and one that fails takes
// the marks back.
func (s store) Delete(ctx context.Context, job string, id snapshot.ID) error {
	if err := s.k.doom(ctx, key{job, id}, true); err != nil {
		return fmt.Errorf("checkpoint %d of job %q: %w", id, job, err)
	}
	crashpoint.At(crashpoint.CopyDoomed)
	if err := s.Store.Delete(ctx, job, id); err != nil {
		if errors.Is(err, snapshot.ErrNoCheckpoint) {
			return err // it is gone already
		}
		return errors.Join(err, s.k.doom(context.WithoutCancel(ctx), key{job, id}, false))
	}
	s.k.Wake()
	return nil
}

func (k *Keeper) doom(ctx context.Context, c key, doomed bool) error {
	var all []error
	for _, d := range k.dirs {
		all = append(all, d.doom(ctx, c, doomed))
	}
	return errors.Join(all...)
}

// BeginImport begins the import of a checkpoint from an archive. One whose copy
// a directory holds under this job, id and cut gets its old id again, as long as
// the store has had no id as high: it is the same checkpoint, and whoever wrote
// its id down finds it. Every other gets an id above those of all copies.
func (k *Keeper) BeginImport(ctx context.Context, a snapshot.Attempt, m *snapshot.Manifest) (snapshot.Writer, error) {
	old := m.Checkpoint.ID
	if a.Job != m.Checkpoint.Job || !k.holds(m) {
		return k.Store().Begin(ctx, a)
	}
	history, err := k.o.Store.List(ctx, a.Job)
	if err != nil {
		return nil, fmt.Errorf("list checkpoints of %q: %w", a.Job, err)
	}
	if n := len(history); n > 0 && history[n-1].ID >= old {
		return k.Store().Begin(ctx, a)
	}
	again := a
	again.After = old - 1
	w, err := k.o.Store.Begin(ctx, again)
	if err != nil || w.ID() == old {
		return w, err
	}
	// Something that was deleted since had a higher id: this one may be
	// another copy's.
	w.Abort()
	return k.Store().Begin(ctx, a)
}

func (k *Keeper) holds(m *snapshot.Manifest) bool {
	for _, d := range k.dirs {
		if d.lies(nameOf(m)) {
			return true
		}
	}
	return false
}
