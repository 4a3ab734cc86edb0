package rescale

import (
	"context"
	"errors"
	"fmt"

	"keyframe/snapshot"
)

// errEnough stops a replay that has given all that is needed of it.
var errEnough = errors.New("enough")

// streamer is a Sink that passes on the slices of one new part, in their
// order, for as long as the replay gives the old parts in that order.
type streamer struct {
	parse Parse
	field string
	run   []Slice
	at    int // the slice that comes next
	m     *emitter
	err   error // sticky

	active bool // the open key is the next slice's
	index  int  // of the current element
	pass   bool // the current element is passed on
}

var _ snapshot.Sink = (*streamer)(nil)

// stream writes the elements of a new part straight from as many replays as it
// takes: one when the replay has the old parts in the order of the slices.
func (x Execution) stream(ctx context.Context, m *emitter, field string, run []Slice) error {
	s := &streamer{parse: x.Parse, field: field, run: run, m: m}
	for s.at < len(run) {
		before := s.at
		err := x.Replay(ctx, s)
		switch {
		case s.err == nil && err != nil:
			return fmt.Errorf("read operator state: %w", err)
		case s.err != nil && !errors.Is(s.err, errEnough):
			return s.err
		case s.at == before:
			next := run[s.at]
			return fmt.Errorf("%w: items %d to %d of subtask %d were planned, and the checkpoint has no such part",
				ErrInput, next.From, next.To, next.Subtask)
		}
	}
	return nil
}

func (s *streamer) BeginKey(k snapshot.Key) error {
	s.active, s.index, s.pass = false, -1, false
	if s.err == nil && s.at == len(s.run) {
		s.err = errEnough
	}
	if s.err != nil || passOver(k) {
		return s.err
	}
	state, subtask, err := locate(s.parse, k)
	if err != nil {
		s.err = err
		return s.err
	}
	s.active = Field(state) == s.field && subtask == s.run[s.at].Subtask
	return nil
}

func (s *streamer) Element(e snapshot.Element) error {
	if s.err != nil || !s.active {
		return s.err
	}
	s.index++
	next := s.run[s.at]
	if s.pass = s.index >= next.From && s.index < next.To; s.pass {
		s.err = s.m.element(e)
	}
	return s.err
}

func (s *streamer) Part(b []byte) error {
	if s.err == nil && s.active && s.pass {
		s.err = s.m.part(b)
	}
	return s.err
}

// EndKey moves on to the next slice. The reader has checked the key's digest
// by now, so a replay may be stopped after the last one.
func (s *streamer) EndKey(snapshot.KeyEnd) error {
	if s.err != nil || !s.active {
		return s.err
	}
	s.active = false
	if next := s.run[s.at]; s.index+1 < next.To {
		s.err = fmt.Errorf("%w: items %d to %d of subtask %d were planned, and the checkpoint has %d",
			ErrInput, next.From, next.To, next.Subtask, s.index+1)
		return s.err
	}
	if s.at++; s.at == len(s.run) {
		s.err = errEnough
	}
	return s.err
}
