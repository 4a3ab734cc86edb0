package memory

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Prove implements [statebackend.Staging]: it reads every staged key.
func (g *staging) Prove(ctx context.Context) error {
	if err := errors.Join(ctx.Err(), g.usable()); err != nil {
		return err
	}
	if g.open {
		return g.failKey("it was not staged whole")
	}
	for _, of := range []map[string]staged{g.keys, g.meta} {
		for name, want := range of {
			if err := g.compare(ctx, name, want.summary); err != nil {
				return err
			}
		}
	}
	g.proved = true
	return nil
}

func (g *staging) compare(ctx context.Context, name string, want statebackend.KeySummary) error {
	if err := g.s.lock(ctx); err != nil {
		return err
	}
	o := g.s.freeze(g.prefix + name)
	g.s.mu.Unlock()
	got := o.summary(name)
	differs := ""
	switch {
	case got.Type != want.Type:
		differs = fmt.Sprintf("a %s is staged, the checkpoint has a %s", got.Type, want.Type)
	case got.Count != want.Count:
		differs = fmt.Sprintf("a %s of %d elements is staged, the checkpoint has %d", got.Type, got.Count, want.Count)
	case got.Digest != want.Digest:
		differs = fmt.Sprintf("the content of the %s differs: %d elements in both, with digest %016x as staged and %016x in the checkpoint",
			got.Type, got.Count, got.Digest, want.Digest)
	default:
		return nil
	}
	return &statebackend.KeyError{Key: []byte(name), Op: "prove", Err: fmt.Errorf("%w: %s", statebackend.ErrMismatch, differs)}
}

// Flip implements [statebackend.Staging]. It checks everything under the lock
// and then only does what cannot fail.
func (g *staging) Flip(ctx context.Context) (statebackend.FlipResult, error) {
	if err := g.usable(); err != nil {
		return statebackend.FlipResult{}, err
	}
	if !g.proved {
		if err := g.Prove(ctx); err != nil {
			return statebackend.FlipResult{}, err
		}
	}
	if err := g.s.lock(ctx); err != nil {
		return statebackend.FlipResult{}, err
	}
	defer g.s.mu.Unlock()
	record, err := g.ready()
	if err != nil {
		return statebackend.FlipResult{}, err
	}
	assignment, assignErr := g.assignment()
	modes, modesErr := g.modes()
	if err := errors.Join(assignErr, modesErr); err != nil {
		return statebackend.FlipResult{}, err
	}
	// The one commit point: from here on nothing is refused.
	if err := g.s.keep(g.req.Job, g.after(record)); err != nil {
		return statebackend.FlipResult{}, err
	}
	g.flipped = true
	res := g.put(modes)
	delete(g.s.keys, g.req.Job.Assignment())
	if assignment != nil {
		g.s.putString(g.req.Job.Assignment(), assignment)
	}
	return res, nil
}

// after is the record of a job on which this restore went live. What it says
// of checkpoints is never less than before.
func (g *staging) after(r statebackend.Record) statebackend.Record {
	r.Restore, r.Flipped = nil, g.req.ID
	r.Incarnation, r.Epoch = g.req.Incarnation, g.req.NewEpoch
	if g.req.Attempt != 0 {
		r.Attempt, r.Cut = g.req.Attempt, g.req.Attempt
	}
	r.Checkpoint = max(r.Checkpoint, g.req.Checkpoint)
	return r
}

// assignment is the text of the assignment key after the flip, nil for none.
func (g *staging) assignment() ([]byte, error) {
	if g.req.Assignment == nil {
		return nil, nil
	}
	a := *g.req.Assignment
	a.Epoch = g.req.NewEpoch
	return statebackend.EncodeAssignment(a)
}

// ready checks, before the first write, that this restore may go live.
func (g *staging) ready() (statebackend.Record, error) {
	s, job := g.s, g.req.Job
	r, _, err := s.record(job)
	deposed := s.fenced(g.lease)
	switch {
	case err != nil:
		return r, err
	case deposed != nil:
		return r, fmt.Errorf("restore %q: %w", g.req.ID, deposed)
	case r.Restore == nil:
		return r, fmt.Errorf("restore %q of job %q: %w: its mark is gone: somebody resolved it, or the state was lost", g.req.ID, job.Root(), statebackend.ErrFenced)
	case r.Restore.ID != g.req.ID:
		return r, fmt.Errorf("restore %q of job %q: %w: restore %q has taken over", g.req.ID, job.Root(), statebackend.ErrMarked, r.Restore.ID)
	case r.Epoch != g.req.Epoch:
		return r, fenced(g.req, r.Epoch)
	}
	for _, part := range []map[string]staged{g.keys, g.meta} {
		for name := range part {
			if s.live(g.prefix+name) == nil {
				return r, &statebackend.KeyError{Key: []byte(name), Op: "flip", Err: fmt.Errorf("%w: its staged copy is gone", statebackend.ErrMismatch)}
			}
		}
	}
	if _, err := s.typed(job.Index(), snapshot.TypeSet); err != nil {
		return r, err
	}
	if _, err := s.typed(job.Registry(), snapshot.TypeHash); err != nil {
		return r, err
	}
	if g.req.Scope == statebackend.ScopeOperator {
		return r, g.unchanged()
	}
	return r, nil
}

// unchanged checks that the operator keys are still those that the plan was
// made from: none differs, and none has come.
func (g *staging) unchanged() error {
	s, job := g.s, g.req.Job
	read := make(map[string]bool, len(g.req.Unchanged))
	for _, want := range g.req.Unchanged {
		name := string(want.Name)
		read[name] = true
		got := s.live(name).summary(name)
		if got.Type != want.Type || got.Count != want.Count || got.Digest != want.Digest {
			return changed(name, "it is a %s of %d elements now, and was a %s of %d", got.Type, got.Count, want.Type, want.Count)
		}
	}
	if index := s.live(job.Index()); index != nil {
		for name := range index.hash.unordered() {
			if !read[name] && statebackend.Classify(job, []byte(name)) == snapshot.SectionOperator {
				return changed(name, "it has come since the operator state was read")
			}
		}
	}
	for name := range g.names {
		if !read[name] && job.Owns([]byte(name)) && s.live(name) != nil {
			return changed(name, "it has come since the operator state was read")
		}
	}
	return nil
}

func changed(name, format string, args ...any) error {
	return &statebackend.KeyError{Key: []byte(name), Op: "flip",
		Err: fmt.Errorf("%w: %s", statebackend.ErrChanged, fmt.Sprintf(format, args...))}
}

// modes is what the operator state modes hash holds after a flip of operator
// state.
func (g *staging) modes() (map[string][]byte, error) {
	fields := make(map[string][]byte, len(g.req.Operators))
	for _, o := range g.req.Operators {
		b, err := statebackend.EncodeOperatorMode(o)
		if err != nil {
			return nil, err
		}
		fields[statebackend.OperatorField(o.Operator, o.Name)] = b
	}
	return fields, nil
}

// put replaces the live keys, the index, the registry and the modes.
func (g *staging) put(modes map[string][]byte) statebackend.FlipResult {
	s, job := g.s, g.req.Job
	res := statebackend.FlipResult{Expired: g.expired, Epoch: g.req.NewEpoch}
	all := g.req.Scope == statebackend.ScopeAll
	for name := range g.replaced() {
		if s.live(name) != nil {
			if _, stays := g.keys[name]; !stays {
				res.Removed++
			}
			delete(s.keys, name)
		}
		if !all {
			s.forget(job, name)
		}
	}
	now := s.now().UnixMilli()
	for name, k := range g.keys {
		o := g.take(name)
		if k.expireAt > 0 && k.expireAt <= now {
			res.Expired++
			continue
		}
		o.expireAt = k.expireAt
		s.keys[name] = o
		res.Keys++
	}
	if all {
		g.putMeta()
	} else {
		s.putFields(job.OperatorStates(), modes)
		s.register(job, g.req.Schemas)
	}
	s.enter(job, g.names)
	return res
}

// putMeta replaces the index and what stands beside it.
func (g *staging) putMeta() {
	s, job := g.s, g.req.Job
	delete(s.keys, job.Index())
	for _, name := range []string{job.Registry(), job.OperatorStates()} {
		delete(s.keys, name)
		if _, ok := g.meta[name]; ok {
			s.keys[name] = g.take(name)
		}
	}
}

// replaced are the names whose live keys go: with ScopeAll all of the old and
// the new index that are the job's, otherwise the operator keys as they were read.
func (g *staging) replaced() map[string]struct{} {
	names := make(map[string]struct{})
	for name := range g.names {
		if g.req.Job.Owns([]byte(name)) {
			names[name] = struct{}{}
		}
	}
	if g.req.Scope == statebackend.ScopeOperator {
		for _, u := range g.req.Unchanged {
			names[string(u.Name)] = struct{}{}
		}
		return names
	}
	if index := g.s.live(g.req.Job.Index()); index != nil {
		for name := range index.hash.unordered() {
			if g.req.Job.Owns([]byte(name)) {
				names[name] = struct{}{}
			}
		}
	}
	return names
}

// take gives a staged object that may be put in place.
func (g *staging) take(name string) *object {
	o := g.s.keys[g.prefix+name]
	delete(g.s.keys, g.prefix+name)
	if o.frozen {
		o = o.fork(g.s.token())
	}
	return o
}

// forget takes a name out of the index and the registry. Both have the right
// type: ready looked.
func (s *Store) forget(job statebackend.Job, name string) {
	for key, t := range map[string]snapshot.KeyType{job.Index(): snapshot.TypeSet, job.Registry(): snapshot.TypeHash} {
		if s.live(key) == nil {
			continue
		}
		if o, err := s.writable(key, t); err == nil {
			o.hash.remove(name)
		}
		s.dropEmpty(key)
	}
}

func (s *Store) register(job statebackend.Job, schemas map[string]string) {
	for name, schema := range schemas {
		if o, err := s.writable(job.Registry(), snapshot.TypeHash); err == nil {
			o.hash.set(name, []byte(schema))
		}
	}
}

func (s *Store) enter(job statebackend.Job, names map[string]struct{}) {
	for name := range names {
		if o, err := s.writable(job.Index(), snapshot.TypeSet); err == nil {
			o.hash.set(name, nil)
		}
	}
}

// Abort implements [statebackend.Staging].
func (g *staging) Abort(ctx context.Context) error {
	if g.flipped || g.ended {
		return nil
	}
	if _, err := g.s.Resolve(statebackend.WithLease(ctx, g.lease), g.req.Job, g.req.ID); err != nil {
		return err
	}
	g.ended = true
	return nil
}

// Resolve implements [statebackend.Restorer].
func (s *Store) Resolve(ctx context.Context, job statebackend.Job, restore string) (bool, error) {
	if !restoreID.MatchString(restore) {
		return false, fmt.Errorf("restore %q: an id is lower-case letters and digits", restore)
	}
	if err := s.begin(ctx, job); err != nil {
		return false, err
	}
	defer s.mu.Unlock()
	r, _, err := s.record(job)
	if err != nil {
		return false, err
	}
	ours := r.Restore != nil && r.Restore.ID == restore
	deposed := s.fence(ctx, job)
	if now := s.leases[job]; deposed != nil && ours && now.ID != "" && now.Token == r.Restore.Token {
		return false, fmt.Errorf("restore %q: %w", restore, deposed)
	}
	for name := range s.keys {
		if strings.HasPrefix(name, job.Staging(restore)) {
			delete(s.keys, name)
		}
	}
	if ours && deposed == nil {
		r.Restore = nil
		if err := s.keep(job, r); err != nil {
			return false, err
		}
	}
	return r.Flipped == restore, nil
}
