package memory

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Options are what a store may be told. The zero Options are usable.
type Options struct {
	// Name tells stores apart in a checkpoint's identity; "" is "default".
	Name string
	// Now is the clock that keys expire by; time.Now when nil.
	Now func() time.Time
	// Limit is how many logical bytes (names, fields, values) the store may
	// hold for Room; 0 is no limit. Writes aren't refused.
	Limit uint64
}

// Store is a state store inside the process. Safe for concurrent use.
type Store struct {
	name  string
	now   func() time.Time
	limit uint64

	mu     sync.Mutex
	keys   map[string]*object
	leases map[statebackend.Job]statebackend.Leader
	runID  string
	tokens uint64 // the last one given out
	closed bool
}

var _ statebackend.Backend = (*Store)(nil)

// New gives an empty store.
func New(o Options) *Store {
	s := &Store{name: o.Name, now: o.Now, limit: o.Limit, keys: make(map[string]*object), leases: make(map[statebackend.Job]statebackend.Leader), runID: newRunID()}
	if s.name == "" {
		s.name = "default"
	}
	if s.now == nil {
		s.now = time.Now
	}
	return s
}

func newRunID() string { return rand.Text() }

// Server is memory://name.
func (s *Store) Server() string { return "memory://" + s.name }

// Lose forgets everything and gives the store a new run id, as a server that
// crashed and came back empty.
func (s *Store) Lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = make(map[string]*object)
	s.leases = make(map[statebackend.Job]statebackend.Leader)
	s.runID = newRunID()
}

// Keys gives the names of all keys that have not expired, in no order.
func (s *Store) Keys() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all [][]byte
	for name := range s.keys {
		if s.live(name) != nil {
			all = append(all, []byte(name))
		}
	}
	return all
}

// Close forgets everything; calls after it give ErrClosed. It may be called
// twice.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.keys = nil
	return nil
}

// lock begins every call: it fails when the store is closed or the caller is
// gone, and then holds no lock.
func (s *Store) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return fmt.Errorf("%s: %w", s.Server(), statebackend.ErrClosed)
	}
	return nil
}

// live gives a key's object, nil when there is none or it has expired.
func (s *Store) live(key string) *object {
	o := s.keys[key]
	if o == nil || o.expireAt == 0 || o.expireAt > s.now().UnixMilli() {
		return o
	}
	delete(s.keys, key)
	return nil
}

func (s *Store) token() uint64 {
	s.tokens++
	return s.tokens
}

// typed gives a key's object if it is of type t; nil when there is none.
func (s *Store) typed(key string, t snapshot.KeyType) (*object, error) {
	o := s.live(key)
	if o != nil && o.typ != t {
		return nil, wrongType(key, o.typ, t)
	}
	return o, nil
}

// writable gives a key's object of type t that may be written, made when there
// is none.
func (s *Store) writable(key string, t snapshot.KeyType) (*object, error) {
	o, err := s.typed(key, t)
	switch {
	case err != nil:
		return nil, err
	case o == nil:
		o = newObject(t, s.token())
	case o.frozen:
		o = o.fork(s.token())
	}
	s.keys[key] = o
	return o, nil
}

// dropEmpty removes a key that has lost its last element, as Redis does.
func (s *Store) dropEmpty(key string) {
	if o := s.keys[key]; o != nil && o.count() == 0 {
		delete(s.keys, key)
	}
}

// freeze gives a key's object as a snapshot that may be read without the lock.
func (s *Store) freeze(key string) *object {
	o := s.live(key)
	if o != nil {
		o.frozen = true
	}
	return o
}

// fields gives the fields of a hash; the values are the store's own.
func (s *Store) fields(key string) (map[string][]byte, error) {
	o, err := s.typed(key, snapshot.TypeHash)
	if o == nil || err != nil {
		return nil, err
	}
	all := make(map[string][]byte, o.hash.n)
	for f, v := range o.hash.all() {
		all[f] = v
	}
	return all, nil
}

// putFields replaces a hash, or removes it when there are no fields.
func (s *Store) putFields(key string, fields map[string][]byte) {
	delete(s.keys, key)
	if len(fields) == 0 {
		return
	}
	o := newObject(snapshot.TypeHash, s.token())
	for f, v := range fields {
		o.hash.set(f, bytes.Clone(v))
	}
	s.keys[key] = o
}

func (s *Store) putString(key string, value []byte) {
	s.keys[key] = &object{typ: snapshot.TypeString, text: value}
}

// Each gives the elements of a key as they were when the call began.
func (s *Store) Each(ctx context.Context, key string, t snapshot.KeyType, fn func(snapshot.Element) error) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	o, err := s.typed(key, t)
	if o != nil {
		o.frozen = true
	}
	s.mu.Unlock()
	if o == nil || err != nil {
		return err
	}
	for e := range o.elements() {
		if err := ctx.Err(); err != nil {
			return err
		}
		e.Value = bytes.Clone(e.Value)
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}
