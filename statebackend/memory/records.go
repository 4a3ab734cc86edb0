package memory

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// head is a job's own keys; the lock is held.
type head struct {
	record    statebackend.Record
	assigned  *statebackend.Assignment
	operators []snapshot.OperatorState
	index     *object // nil when there is none
	recorded  bool    // the record is there
}

func (s *Store) head(job statebackend.Job) (head, error) {
	var h head
	var err error
	if h.record, h.recorded, err = s.record(job); err != nil {
		return head{}, err
	}
	if h.index, err = s.typed(job.Index(), snapshot.TypeSet); err != nil {
		return head{}, err
	}
	if h.assigned, err = s.assignment(job); err != nil {
		return head{}, err
	}
	modes, err := s.fields(job.OperatorStates())
	if err == nil {
		h.operators, err = statebackend.DecodeOperatorStates(modes)
	}
	return h, readError(job.OperatorStates(), err)
}

func readError(key string, err error) error {
	if err == nil {
		return nil
	}
	return &statebackend.KeyError{Key: []byte(key), Op: "read", Err: err}
}

func (s *Store) record(job statebackend.Job) (statebackend.Record, bool, error) {
	fields, err := s.fields(job.Record())
	if err != nil {
		return statebackend.Record{}, false, err
	}
	r, err := statebackend.DecodeRecord(fields)
	return r, len(fields) > 0, readError(job.Record(), err)
}

// keep writes the record's known fields over what is there, so that fields of
// a newer version stay.
func (s *Store) keep(job statebackend.Job, r statebackend.Record) error {
	known, err := statebackend.EncodeRecord(r)
	if err != nil {
		return err
	}
	fields, err := s.fields(job.Record())
	if err != nil {
		return err
	}
	all := make(map[string][]byte, len(fields)+len(known))
	for f, v := range fields {
		all[f] = v
	}
	for _, f := range []string{statebackend.FieldIncarnation, statebackend.FieldEpoch, statebackend.FieldAttempt, statebackend.FieldCut,
		statebackend.FieldCheckpoint, statebackend.FieldCheckpointAt, statebackend.FieldRestore, statebackend.FieldFlipped} {
		delete(all, f)
	}
	for f, v := range known {
		all[f] = v
	}
	s.putFields(job.Record(), all)
	return nil
}

func (s *Store) assignment(job statebackend.Job) (*statebackend.Assignment, error) {
	o, err := s.typed(job.Assignment(), snapshot.TypeString)
	if o == nil || err != nil {
		return nil, err
	}
	a, err := statebackend.DecodeAssignment(o.text)
	if err != nil {
		return nil, readError(job.Assignment(), err)
	}
	return &a, nil
}

func (s *Store) info() snapshot.ServerInfo { return snapshot.ServerInfo{RunID: s.runID} }

// begin checks the job and takes the lock.
func (s *Store) begin(ctx context.Context, job statebackend.Job) error {
	if err := job.Validate(); err != nil {
		return err
	}
	return s.lock(ctx)
}

// Look implements [statebackend.Records].
func (s *Store) Look(ctx context.Context, job statebackend.Job) (statebackend.Glimpse, error) {
	if err := s.begin(ctx, job); err != nil {
		return statebackend.Glimpse{}, err
	}
	defer s.mu.Unlock()
	h, err := s.head(job)
	if err != nil {
		return statebackend.Glimpse{}, err
	}
	g := statebackend.Glimpse{Server: s.info(), At: s.now(), Record: h.record, Leader: s.leases[job], Assigned: h.assigned}
	if h.index != nil {
		g.Indexed = uint64(h.index.count())
	}
	if h.index == nil && !h.recorded {
		g.Where = s.where(job)
	}
	return g, nil
}

func (s *Store) where(job statebackend.Job) string {
	if len(s.keys) == 0 {
		return s.Server() + " is empty"
	}
	return fmt.Sprintf("%s has %d keys, and none of the job's own under %q", s.Server(), len(s.keys), job.Root())
}

// Adopt implements [statebackend.Records].
func (s *Store) Adopt(ctx context.Context, job statebackend.Job, incarnation string, a statebackend.Assignment) (statebackend.Record, error) {
	if incarnation == "" {
		return statebackend.Record{}, fmt.Errorf("adopt job %q: the incarnation is empty: give a random one", job.Root())
	}
	if err := s.begin(ctx, job); err != nil {
		return statebackend.Record{}, err
	}
	defer s.mu.Unlock()
	if err := s.fence(ctx, job); err != nil {
		return statebackend.Record{}, err
	}
	r, _, err := s.record(job)
	if err != nil {
		return statebackend.Record{}, err
	}
	assigned, err := s.typed(job.Assignment(), snapshot.TypeString)
	if err != nil {
		return statebackend.Record{}, err
	}
	if r.Incarnation == "" {
		r.Incarnation = incarnation
	}
	r.Epoch = max(r.Epoch, 1)
	a.Epoch = r.Epoch
	text, err := statebackend.EncodeAssignment(a)
	if err != nil {
		return statebackend.Record{}, err
	}
	if err := s.keep(job, r); err != nil {
		return statebackend.Record{}, err
	}
	if assigned == nil {
		s.putString(job.Assignment(), text)
	}
	return r, nil
}

// Note implements [statebackend.Records].
func (s *Store) Note(ctx context.Context, job statebackend.Job, incarnation string, n statebackend.Notes) error {
	if err := s.begin(ctx, job); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := s.fence(ctx, job); err != nil {
		return err
	}
	r, _, err := s.record(job)
	if err != nil {
		return err
	}
	if incarnation == "" || r.Incarnation != incarnation {
		return lost(job, incarnation, r.Incarnation)
	}
	if n.Attempt != 0 {
		r.Attempt = n.Attempt
	}
	if n.Cut != 0 {
		r.Cut = n.Cut
	}
	if n.Checkpoint != 0 {
		r.Checkpoint = n.Checkpoint
	}
	if !n.CheckpointAt.IsZero() {
		r.CheckpointAt = n.CheckpointAt
	}
	return s.keep(job, r)
}

func lost(job statebackend.Job, want, have string) error {
	if have == "" {
		return fmt.Errorf("%w: the record of job %q holds no incarnation, and %q is expected: restore a checkpoint",
			statebackend.ErrStateLost, job.Root(), want)
	}
	return fmt.Errorf("%w: the record of job %q holds incarnation %q, and %q is expected: somebody else began it anew",
		statebackend.ErrStateLost, job.Root(), have, want)
}

// Index implements [statebackend.Records]: the index as it is when called.
func (s *Store) Index(ctx context.Context, job statebackend.Job, fn func(name []byte) error) error {
	if err := job.Validate(); err != nil {
		return err
	}
	return s.Each(ctx, job.Index(), snapshot.TypeSet, func(e snapshot.Element) error { return fn(e.Value) })
}

// Schemas implements [statebackend.Records].
func (s *Store) Schemas(ctx context.Context, job statebackend.Job, names [][]byte) ([]string, error) {
	if err := s.begin(ctx, job); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	registry, err := s.typed(job.Registry(), snapshot.TypeHash)
	if err != nil {
		return nil, err
	}
	all := make([]string, len(names))
	for i, n := range names {
		if registry != nil {
			v, _ := registry.hash.get(string(n)) // absent is ""
			all[i] = string(v)
		}
	}
	return all, nil
}

// Streams implements [statebackend.Records]: there are none here.
func (s *Store) Streams(_ context.Context, asks []statebackend.StreamAsk) ([]statebackend.StreamNow, error) {
	if len(asks) == 0 {
		return nil, nil
	}
	return nil, fmt.Errorf("%w: %s holds no streams, such as %q", statebackend.ErrUnsupported, s.Server(), asks[0].Stream)
}

// Partitions implements [statebackend.Records]: the field partitionCount of
// the topic's meta hash, as a number or a JSON string of one.
func (s *Store) Partitions(ctx context.Context, topic string) (int, error) {
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	key := "streaming:mq:topic:" + topic + ":meta"
	o, err := s.typed(key, snapshot.TypeHash)
	if o == nil || err != nil {
		return 0, err
	}
	text, ok := o.hash.get("partitionCount")
	if !ok {
		return 0, nil
	}
	n, err := strconv.Atoi(string(bytes.Trim(text, `"`)))
	if err != nil || n < 1 {
		return 0, readError(key, fmt.Errorf("field partitionCount is %.50q: want a whole number from 1 on", text))
	}
	return n, nil
}
