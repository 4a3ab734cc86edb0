package memory

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

var _ statebackend.Inspector = (*Store)(nil)

// Inspect looks at the keys as they were when the call began. The store has no
// roles, rights, policy or idle times to tell of.
func (s *Store) Inspect(ctx context.Context, req statebackend.InspectRequest, to statebackend.InspectSink) (statebackend.Inspection, error) {
	if err := req.Job.Validate(); err != nil {
		return statebackend.Inspection{}, err
	}
	began := time.Now()
	before, err := s.under(ctx, req.Job)
	if err != nil {
		return statebackend.Inspection{}, err
	}
	for _, k := range before {
		if err := ctx.Err(); err != nil {
			return statebackend.Inspection{}, err
		}
		if err := tell(k, to); err != nil {
			return statebackend.Inspection{}, err
		}
	}
	broken, err := s.tellIndex(ctx, req.Job, to)
	if err != nil {
		return statebackend.Inspection{}, err
	}
	more, err := s.tellRegistry(ctx, req.Job, to)
	if err != nil {
		return statebackend.Inspection{}, err
	}
	timer := time.NewTimer(req.Watch - time.Since(began))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return statebackend.Inspection{}, ctx.Err()
	}
	after, err := s.under(ctx, req.Job)
	if err != nil {
		return statebackend.Inspection{}, err
	}
	return statebackend.Inspection{Broken: append(broken, more...), Activity: statebackend.Activity{
		Over: time.Since(began), By: statebackend.ByTracking, Unheard: "the memory store doesn't count them", Writes: !slices.EqualFunc(state(req.Job, before), state(req.Job, after), sameObject),
	}}, nil
}

// seen is a key as an inspection saw it.
type seen struct {
	name    string
	o       *object // frozen: whoever writes to the key puts another there
	indexed bool
}

// state leaves the bookkeeping out, which the coordinator writes.
func state(job statebackend.Job, all []seen) []seen {
	return slices.DeleteFunc(all, func(k seen) bool { return !job.Owns([]byte(k.name)) })
}

func sameObject(a, b seen) bool { return a.name == b.name && a.o == b.o }

// under gives the keys under the job's root, by name.
func (s *Store) under(ctx context.Context, job statebackend.Job) ([]seen, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	index := s.live(job.Index())
	var all []seen
	for name := range s.keys {
		if !strings.HasPrefix(name, job.Root()+":") || s.live(name) == nil {
			continue
		}
		k := seen{name: name, o: s.freeze(name)}
		if index != nil && index.typ == snapshot.TypeSet {
			_, k.indexed = index.hash.get(name)
		}
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b seen) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

func tell(k seen, to statebackend.InspectSink) error {
	want, err := to.Key(statebackend.KeyFacts{
		Name: []byte(k.name), Type: k.o.typ.String(), ExpireAt: k.o.expireAt,
		Bytes: int64(k.o.bytes()), Indexed: k.indexed, Idle: -1, Freq: -1,
	})
	if err != nil || !want || k.o.typ == snapshot.TypeList || k.o.typ == snapshot.TypeString {
		return err
	}
	for e := range k.o.elements() {
		member := e.Value
		if k.o.typ == snapshot.TypeHash {
			member = e.Field
		}
		if err := to.Element(member); err != nil {
			return err
		}
	}
	return nil
}

// tellIndex tells of the names of the index as they are now.
func (s *Store) tellIndex(ctx context.Context, job statebackend.Job, to statebackend.InspectSink) ([]statebackend.BrokenKey, error) {
	index, err := s.hold(ctx, job.Index(), snapshot.TypeSet)
	switch {
	case errors.Is(err, statebackend.ErrWrongType):
		return []statebackend.BrokenKey{{Name: job.Index(), Need: "set", For: "the names of the index"}}, nil
	case err != nil || index == nil:
		return nil, readError(job.Index(), err)
	}
	for e := range index.elements() {
		n, err := s.nameFacts(ctx, job, string(e.Value))
		if err == nil {
			err = to.Name(n)
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// tellRegistry tells of the names that only the registry has.
func (s *Store) tellRegistry(ctx context.Context, job statebackend.Job, to statebackend.InspectSink) ([]statebackend.BrokenKey, error) {
	registry, err := s.hold(ctx, job.Registry(), snapshot.TypeHash)
	switch {
	case errors.Is(err, statebackend.ErrWrongType):
		return []statebackend.BrokenKey{{Name: job.Registry(), Need: "hash", For: "the schemas of the state"}}, nil
	case err != nil || registry == nil:
		return nil, readError(job.Registry(), err)
	}
	index, err := s.hold(ctx, job.Index(), snapshot.TypeSet)
	if err != nil {
		return nil, nil // it was told of, or comes again
	}
	for e := range registry.elements() {
		if index != nil {
			if _, listed := index.hash.get(string(e.Field)); listed {
				continue
			}
		}
		n, err := s.nameFacts(ctx, job, string(e.Field))
		if err == nil {
			n.Unlisted = true
			err = to.Name(n)
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// hold gives a key of a type as it is now, which nobody changes any more; nil
// when it isn't there.
func (s *Store) hold(ctx context.Context, key string, typ snapshot.KeyType) (*object, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	o, err := s.typed(key, typ)
	if o != nil {
		o.frozen = true
	}
	return o, err
}

func (s *Store) nameFacts(ctx context.Context, job statebackend.Job, name string) (statebackend.NameFacts, error) {
	n := statebackend.NameFacts{Name: []byte(name)}
	if err := s.lock(ctx); err != nil {
		return n, err
	}
	defer s.mu.Unlock()
	n.Exists = s.live(name) != nil
	if r := s.live(job.Registry()); r != nil && r.typ == snapshot.TypeHash {
		if schema, there := r.hash.get(name); there {
			n.Schema = append([]byte{}, schema...)
		}
	}
	return n, nil
}

// Holds tells for each question whether there is such a key or element.
func (s *Store) Holds(ctx context.Context, asks []statebackend.HoldsAsk) ([]bool, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	held := make([]bool, len(asks))
	for i, a := range asks {
		o := s.live(a.Key)
		switch {
		case o == nil:
		case a.Member == nil:
			held[i] = true
		case o.typ.String() != a.Type:
		case o.typ == snapshot.TypeHash:
			_, held[i] = o.hash.get(string(a.Member))
		case o.typ == snapshot.TypeZSet:
			_, held[i] = o.zset.get(string(a.Member))
		}
	}
	return held, nil
}
