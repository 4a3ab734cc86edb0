package torture

import (
	"context"
	"fmt"
	"sort"
	"time"

	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
)

// factSink turns a checkpoint into facts, and keeps whole those keys that the
// rules are about.
type factSink struct {
	facts   map[string]fact
	keep    func(name, field string) bool
	kept    map[string]map[string]string // name → field or member → value or score
	expired map[string]bool

	key   snapshot.Key
	value []byte
	field []byte
	score float64
	left  uint64
	f     fact
	skip  bool
}

var _ snapshot.Sink = (*factSink)(nil)

func newFactSink(keep func(name, field string) bool) *factSink {
	return &factSink{facts: map[string]fact{}, keep: keep, kept: map[string]map[string]string{}, expired: map[string]bool{}}
}

// BeginKey begins with a key; source keys are left out.
func (s *factSink) BeginKey(k snapshot.Key) error {
	s.key = k
	s.key.Name = append([]byte(nil), k.Name...)
	s.skip = k.Section == snapshot.SectionSource || k.Section == snapshot.SectionMeta && k.Type == snapshot.TypeMissing
	s.f = fact{kind: k.Type.String(), expire: k.ExpireAt}
	switch k.Type {
	case snapshot.TypeOpaque:
		s.f.kind = k.TypeName
	case snapshot.TypeMissing:
		s.f.kind = noKind
	}
	return nil
}

// Element notes an element, once it is whole.
func (s *factSink) Element(e snapshot.Element) error {
	s.field, s.score = append(s.field[:0], e.Field...), e.Score
	s.value = append(s.value[:0], e.Value...)
	s.left = e.Size - uint64(len(e.Value))
	return s.whole()
}

// Part goes on with a value.
func (s *factSink) Part(b []byte) error {
	s.value = append(s.value, b...)
	s.left -= uint64(len(b))
	return s.whole()
}

func (s *factSink) whole() error {
	if s.left > 0 || s.skip {
		return nil
	}
	field, value := string(s.field), ""
	switch s.key.Type {
	case snapshot.TypeHash:
		s.f.add(false, s.field, s.value)
		value = string(s.value)
	case snapshot.TypeZSet:
		s.f.add(false, s.value, scoreBits(s.score))
		field, value = string(s.value), fmt.Sprint(s.score)
	default:
		s.f.add(s.key.Type == snapshot.TypeList, s.value)
		field = string(s.value)
	}
	if name := string(s.key.Name); s.keep(name, field) {
		if s.kept[name] == nil {
			s.kept[name] = map[string]string{}
		}
		s.kept[name][field] = value
	}
	return nil
}

// EndKey ends the key.
func (s *factSink) EndKey(e snapshot.KeyEnd) error {
	if s.skip {
		return nil
	}
	name := string(s.key.Name)
	if _, twice := s.facts[name]; twice {
		return fmt.Errorf("key %q comes twice", name)
	}
	s.facts[name] = s.f
	if e.Expired {
		s.expired[name] = true
	}
	return nil
}

// readCheckpoint reads a checkpoint out of the store, and holds its manifest
// to what is in it.
func readCheckpoint(ctx context.Context, db *bolt.DB, id snapshot.ID, keep func(name, field string) bool) (*factSink, *snapshot.Manifest, error) {
	release, err := db.Hold(ctx, job.Name, id) // a merge may be under way
	if err != nil {
		return nil, nil, err
	}
	defer release()
	m, err := db.Manifest(ctx, job.Name, id)
	if err != nil {
		return nil, nil, err
	}
	s := newFactSink(keep)
	if err := snapshot.Walk(ctx, db, m, s); err != nil {
		return nil, nil, fmt.Errorf("walk over checkpoint %d: %w", id, err)
	}
	keys, missing := uint64(0), uint64(0)
	for name, f := range s.facts {
		switch {
		case name == job.Registry() || name == job.OperatorStates() || name == job.Assignment():
		case f.kind == noKind:
			missing++
		default:
			keys++
		}
	}
	if c := m.Checkpoint; c.Keys != keys || c.Missing != missing {
		return nil, nil, fmt.Errorf("checkpoint %d has %d keys and %d names without one, and says %d and %d", id, keys, missing, c.Keys, c.Missing)
	}
	return s, m, nil
}

// expiryDoubt is how long before its expiry a key may be missing in the copy,
// which is read a little later than the checkpoint.
const expiryDoubt = 3 * time.Second

// differentFacts compares a checkpoint with a copy. Keys that expired about
// then may be there or not.
func differentFacts(want, got map[string]fact, at time.Time) []string {
	var out []string
	doubt := at.Add(expiryDoubt).UnixMilli()
	unsure := func(f fact) bool { return f.expire != 0 && f.expire < doubt }
	for name, w := range want {
		g, ok := got[name]
		switch {
		case !ok:
			out = append(out, fmt.Sprintf("key %q is not there: must be %s", name, w))
		case w != g && !unsure(w) && !unsure(g):
			out = append(out, fmt.Sprintf("key %q: is %s, must be %s", name, g, w))
		}
	}
	for name, g := range got {
		if _, ok := want[name]; !ok {
			out = append(out, fmt.Sprintf("key %q is too much: %s", name, g))
		}
	}
	sort.Strings(out)
	return few(out)
}

func (f fact) String() string {
	return fmt.Sprintf("%s of %d, expires %d, sum %x", f.kind, f.count, f.expire, f.sum)
}
