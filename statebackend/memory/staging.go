package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// staging is one restore under way. Its keys lie in the store beside the live
// ones, under the job's staging prefix and without their expiry: the flip
// gives it to them.
type staging struct {
	s      *Store
	req    statebackend.RestoreRequest
	lease  statebackend.Lease // of the one who began
	prefix string

	names   map[string]struct{} // of the index
	keys    map[string]staged   // by live name
	meta    map[string]staged   // the same for the job's own keys
	expired uint64

	open    bool
	key     snapshot.Key
	skip    bool
	object  *object
	element snapshot.Element // whose value is still coming
	left    uint64
	count   uint64

	err     error // sticky
	proved  bool  // nothing was staged since
	flipped bool
	ended   bool
}

type staged struct {
	expireAt int64
	summary  statebackend.KeySummary // what it has to be
}

var (
	_ statebackend.Staging = (*staging)(nil)

	restoreID = regexp.MustCompile(`^[a-z0-9]+$`)
)

// Room implements [statebackend.Restorer].
func (s *Store) Room(ctx context.Context, keys, elements, want uint64) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if s.limit == 0 {
		return nil
	}
	var used uint64
	for name, o := range s.keys {
		used += uint64(len(name)) + o.bytes()
	}
	if used > s.limit || want > s.limit-used {
		return fmt.Errorf("%w: %s holds %d bytes of at most %d, and %d more (%d keys, %d elements) are needed",
			statebackend.ErrNoRoom, s.Server(), used, s.limit, want, keys, elements)
	}
	return nil
}

// Stage implements [statebackend.Restorer].
func (s *Store) Stage(ctx context.Context, req statebackend.RestoreRequest) (statebackend.Staging, error) {
	if err := s.checkRequest(req); err != nil {
		return nil, fmt.Errorf("restore %q of job %q: %w", req.ID, req.Job.Root(), err)
	}
	if err := s.begin(ctx, req.Job); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	lease := statebackend.LeaseOf(ctx, req.Job)
	if err := s.fenced(lease); err != nil {
		return nil, fmt.Errorf("restore %q: %w", req.ID, err)
	}
	r, _, err := s.record(req.Job)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Restore != nil:
		return nil, fmt.Errorf("restore %q of job %q: %w: restore %q", req.ID, req.Job.Root(), statebackend.ErrMarked, r.Restore.ID)
	case r.Flipped == req.ID:
		return nil, fmt.Errorf("restore %q of job %q went live before: give a new id", req.ID, req.Job.Root())
	case r.Epoch != req.Epoch:
		return nil, fenced(req, r.Epoch)
	}
	kind := "restore"
	if req.Scope == statebackend.ScopeOperator {
		kind = "rescale"
	}
	r.Restore = &statebackend.Mark{ID: req.ID, Kind: kind, Checkpoint: req.Checkpoint, StartedAt: req.StartedAt, Token: lease.Token}
	if err := s.keep(req.Job, r); err != nil {
		return nil, err
	}
	return &staging{s: s, req: req, lease: lease, prefix: req.Job.Staging(req.ID), names: map[string]struct{}{},
		keys: map[string]staged{}, meta: map[string]staged{}}, nil
}

func fenced(req statebackend.RestoreRequest, have uint64) error {
	return fmt.Errorf("restore %q of job %q: %w: the record holds epoch %d, and %d is expected: look at the job again",
		req.ID, req.Job.Root(), statebackend.ErrFenced, have, req.Epoch)
}

func (s *Store) checkRequest(req statebackend.RestoreRequest) error {
	switch {
	case !restoreID.MatchString(req.ID):
		return errors.New("an id is lower-case letters and digits")
	case req.Scope != statebackend.ScopeAll && req.Scope != statebackend.ScopeOperator:
		return fmt.Errorf("scope %q: want %s or %s", req.Scope, statebackend.ScopeAll, statebackend.ScopeOperator)
	case req.NewEpoch <= req.Epoch:
		return fmt.Errorf("new epoch %d: want more than %d", req.NewEpoch, req.Epoch)
	case req.Incarnation == "":
		return errors.New("the incarnation is empty: give a random one")
	case len(req.Positions) > 0:
		return fmt.Errorf("%w: %s holds no streams, so it can't set the position of source %q",
			statebackend.ErrUnsupported, s.Server(), req.Positions[0].Topic)
	}
	return nil
}

func (g *staging) fail(err error) error {
	if err != nil && g.err == nil {
		g.err = err
	}
	return err
}

func (g *staging) failKey(format string, args ...any) error {
	return g.fail(&statebackend.KeyError{Key: bytes.Clone(g.key.Name), Op: "stage", Err: fmt.Errorf(format, args...)})
}

func (g *staging) usable() error {
	if g.err == nil && (g.flipped || g.ended) {
		return fmt.Errorf("restore %q has ended", g.req.ID)
	}
	return g.err
}

// Expired implements [statebackend.Staging].
func (g *staging) Expired() uint64 { return g.expired }

// BeginKey opens a key.
func (g *staging) BeginKey(k snapshot.Key) error {
	if err := g.usable(); err != nil {
		return err
	}
	if g.open {
		return g.failKey("the next key begins before this one has ended")
	}
	k.Name = bytes.Clone(k.Name)
	g.key, g.open, g.count, g.object, g.proved = k, true, 0, nil, false
	if err := g.check(k); err != nil {
		return err
	}
	g.skip = g.skips(k)
	if !g.skip {
		g.object = newObject(k.Type, g.s.nextToken())
	}
	return nil
}

// skips says which keys of a checkpoint aren't put back: those that were
// missing or have expired, those that aren't the job's, the assignment (which
// the request brings), and sources, which this store doesn't have.
func (g *staging) skips(k snapshot.Key) bool {
	return k.Section == snapshot.SectionSource || string(k.Name) == g.req.Job.Assignment() || g.foreign(k) ||
		k.Type == snapshot.TypeMissing || g.past(k)
}

func (g *staging) past(k snapshot.Key) bool {
	return k.ExpireAt > 0 && k.ExpireAt <= g.req.AsOf.UnixMilli()
}

// check refuses keys that this restore may not write.
func (g *staging) check(k snapshot.Key) error {
	job, name := g.req.Job, string(k.Name)
	_, twice := g.names[name]
	state := isState(k)
	switch {
	case !k.Type.Valid() || !k.Section.Valid():
		return g.failKey("type %s in section %s is unknown", k.Type, k.Section)
	case g.req.Scope == statebackend.ScopeOperator && k.Section != snapshot.SectionOperator:
		return g.failKey("it is of section %s, and this restore replaces operator state only", k.Section)
	case k.Section == snapshot.SectionSource:
	case state && twice:
		return g.failKey("it comes twice")
	case state && !job.Owns(k.Name): // only its name is staged
	case k.Type == snapshot.TypeOpaque:
		return g.failKey("%w: it is a %s as server %s dumped it, which only such a server can load: restore into Redis",
			statebackend.ErrUnsupported, k.TypeName, k.Server)
	case k.Section == snapshot.SectionMeta:
		if name != job.Registry() && name != job.OperatorStates() && name != job.Assignment() {
			return g.failKey("it is none of the job's own keys")
		}
	}
	return nil
}

// isState tells keys that the index lists.
func isState(k snapshot.Key) bool {
	return k.Section == snapshot.SectionKeyed || k.Section == snapshot.SectionOperator
}

// foreign tells a name of the index that isn't the job's.
func (g *staging) foreign(k snapshot.Key) bool { return isState(k) && !g.req.Job.Owns(k.Name) }

func (s *Store) nextToken() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token()
}

// Element takes an element of the open key.
func (g *staging) Element(e snapshot.Element) error {
	if err := g.usable(); err != nil {
		return err
	}
	if !g.open || g.left > 0 || uint64(len(e.Value)) > e.Size {
		return g.failKey("an element of %d bytes is out of order", e.Size)
	}
	g.element = snapshot.Element{Field: bytes.Clone(e.Field), Score: e.Score, Size: e.Size, Value: bytes.Clone(e.Value)}
	g.left = e.Size - uint64(len(e.Value))
	return g.whole()
}

// Part takes the next bytes of a long value.
func (g *staging) Part(b []byte) error {
	if err := g.usable(); err != nil {
		return err
	}
	if uint64(len(b)) > g.left {
		return g.failKey("a part of %d bytes, and %d are missing", len(b), g.left)
	}
	g.left -= uint64(len(b))
	if !g.skip {
		g.element.Value = append(g.element.Value, b...)
	}
	return g.whole()
}

// whole adds the element when all of its value has come.
func (g *staging) whole() error {
	if g.left > 0 {
		return nil
	}
	g.count++
	if g.skip {
		return nil
	}
	if g.key.Type == snapshot.TypeString && g.count > 1 {
		return g.failKey("a string with a second element")
	}
	if !g.object.add(g.element) {
		return g.failKey("element %d comes twice", g.count)
	}
	return nil
}

// EndKey closes a key: what was staged appears beside the live keys.
func (g *staging) EndKey(e snapshot.KeyEnd) error {
	if err := g.usable(); err != nil {
		return err
	}
	if !g.open || g.left > 0 {
		return g.failKey("it ends out of order: %d bytes are missing", g.left)
	}
	g.open = false
	state := isState(g.key)
	if state {
		g.names[string(g.key.Name)] = struct{}{}
	}
	switch {
	case g.foreign(g.key):
		return nil
	case state && (e.Expired || g.past(g.key)):
		g.expired++
		return nil
	case g.skip:
		return nil
	case g.count == 0:
		return g.failKey("a %s without elements can't exist", g.key.Type)
	case e.Count != g.count:
		return g.failKey("it has %d elements, and %d came", e.Count, g.count)
	}
	return g.place(e)
}

func (g *staging) place(e snapshot.KeyEnd) error {
	if err := g.s.lock(context.Background()); err != nil { // a Sink has no context
		return g.fail(err)
	}
	defer g.s.mu.Unlock()
	name := string(g.key.Name)
	g.s.keys[g.prefix+name] = g.object
	want := statebackend.KeySummary{Name: g.key.Name, Type: g.key.Type, Count: e.Count, Digest: e.Digest}
	if g.key.Section == snapshot.SectionMeta {
		g.meta[name] = staged{summary: want}
	} else {
		g.keys[name] = staged{expireAt: g.key.ExpireAt, summary: want}
	}
	return nil
}
