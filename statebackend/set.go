package statebackend

import (
	"context"

	"keyframe/snapshot"
)

// SetState keeps a set for each typed key. Members are told apart by their
// JSON. Safe for concurrent use. What it reads are copies, in no order.
type SetState[T any] struct{ home *home }

// NewSetState gives a handle. It touches nothing in the store.
func NewSetState[T any](space Space, d Descriptor[T]) (*SetState[T], error) {
	h, err := plainHome("set", space, d)
	if err != nil {
		return nil, err
	}
	return &SetState[T]{h}, nil
}

// member gives the state key and the command that a value makes.
func (s *SetState[T]) member(op Op, key Key, value T) (string, Cmd, error) {
	at, err := s.home.at(key)
	if err != nil {
		return "", Cmd{}, err
	}
	b, err := EncodeJSON(value)
	return at, Cmd{Op: op, Key: at, Args: [][]byte{b}}, err
}

// Add puts a value in and reports whether it is new. In a batch the answer
// isn't known yet, and is false.
func (s *SetState[T]) Add(ctx context.Context, key Key, value T) (bool, error) {
	at, cmd, err := s.member(OpSAdd, key, value)
	if err != nil {
		return false, err
	}
	return counted(s.home.write(ctx, at, cmd))
}

// Remove takes a value out and reports whether it was there. In a batch the
// answer isn't known yet, and is false.
func (s *SetState[T]) Remove(ctx context.Context, key Key, value T) (bool, error) {
	at, cmd, err := s.member(OpSRem, key, value)
	if err != nil {
		return false, err
	}
	return counted(s.home.remove(ctx, at, cmd))
}

// counted reads the reply of a write; a batch has none.
func counted(replies []Reply, err error) (bool, error) {
	return err == nil && len(replies) > 0 && replies[0].Int > 0, err
}

// Contains reports whether a value is in the set.
func (s *SetState[T]) Contains(ctx context.Context, key Key, value T) (bool, error) {
	at, cmd, err := s.member(OpSIsMember, key, value)
	if err != nil {
		return false, err
	}
	return s.home.truth(ctx, at, cmd)
}

// Get reads the whole set.
func (s *SetState[T]) Get(ctx context.Context, key Key) ([]T, error) {
	at, err := s.home.at(key)
	if err != nil {
		return nil, err
	}
	var all []T
	err = s.home.each(ctx, at, snapshot.TypeSet, func(e snapshot.Element) error {
		v, err := DecodeJSON[T](e.Value)
		all = append(all, v)
		return err
	})
	return ifDone(all, err)
}

// Size counts the members.
func (s *SetState[T]) Size(ctx context.Context, key Key) (int, error) {
	at, err := s.home.at(key)
	if err != nil {
		return 0, err
	}
	replies, err := s.home.read(ctx, at, Command(OpSCard, at))
	if err != nil {
		return 0, err
	}
	return int(replies[0].Int), nil
}

// IsEmpty reports whether the set has no member.
func (s *SetState[T]) IsEmpty(ctx context.Context, key Key) (bool, error) {
	n, err := s.Size(ctx, key)
	return n == 0 && err == nil, err
}

// Clear removes the whole set.
func (s *SetState[T]) Clear(ctx context.Context, key Key) error {
	at, err := s.home.at(key)
	if err != nil {
		return err
	}
	_, err = s.home.remove(ctx, at, Command(OpDel, at))
	return err
}
