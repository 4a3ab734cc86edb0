package statebackend

import (
	"context"

	"keyframe/snapshot"
)

// operatorHome registers the mode beside the key. Scope.Partition is the
// subtask.
func operatorHome[T any](space Space, d Descriptor[T], mode snapshot.OperatorMode) (*home, string, error) {
	h, err := plainHome(string(mode)+" operator", space, d)
	if err != nil {
		return nil, "", err
	}
	h.mode = mode
	s := space.Scope
	return h, space.Job.OperatorKey(s.Group, s.Topic, s.Partition, s.Operator, d.Name), nil
}

// OperatorList is one subtask's part of a list operator state: when the
// parallelism changes, the parts are cut and dealt anew. Safe for concurrent
// use. What it reads are copies.
type OperatorList[T any] struct {
	list list[T]
	at   string
}

// NewOperatorList gives a handle on the part of the subtask
// space.Scope.Partition. It touches nothing in the store; the mode is
// registered with each write, and ErrMode comes when it is another one.
func NewOperatorList[T any](space Space, d Descriptor[T]) (*OperatorList[T], error) {
	h, at, err := operatorHome(space, d, snapshot.ModeList)
	if err != nil {
		return nil, err
	}
	return &OperatorList[T]{list[T]{h}, at}, nil
}

// Add appends an item.
func (o *OperatorList[T]) Add(ctx context.Context, value T) error {
	return o.list.add(ctx, o.at, []T{value})
}

// AddAll appends items in one step.
func (o *OperatorList[T]) AddAll(ctx context.Context, values []T) error {
	return o.list.add(ctx, o.at, values)
}

// Get reads the part in its order.
func (o *OperatorList[T]) Get(ctx context.Context) ([]T, error) { return o.list.get(ctx, o.at) }

// Update replaces the part in one step; without values it removes it.
func (o *OperatorList[T]) Update(ctx context.Context, values []T) error {
	return o.list.update(ctx, o.at, values)
}

// Clear removes the part.
func (o *OperatorList[T]) Clear(ctx context.Context) error { return o.list.clear(ctx, o.at) }

// OperatorUnion is one subtask's part of a union operator state: when the
// parallelism changes, and after a restore, every subtask gets all parts. Its
// methods are those of [OperatorList].
type OperatorUnion[T any] struct{ OperatorList[T] }

// NewOperatorUnion gives a handle, see [NewOperatorList].
func NewOperatorUnion[T any](space Space, d Descriptor[T]) (*OperatorUnion[T], error) {
	h, at, err := operatorHome(space, d, snapshot.ModeUnion)
	if err != nil {
		return nil, err
	}
	return &OperatorUnion[T]{OperatorList[T]{list[T]{h}, at}}, nil
}

// OperatorBroadcast is one subtask's copy of a broadcast operator state: a map
// that every subtask keeps alike. Safe for concurrent use. What it reads are
// copies, in no order.
type OperatorBroadcast[K, V any] struct {
	hash hash[K, V]
	at   string
}

// NewOperatorBroadcast gives a handle, see [NewOperatorList].
func NewOperatorBroadcast[K, V any](space Space, d Descriptor[V]) (*OperatorBroadcast[K, V], error) {
	h, at, err := operatorHome(space, d, snapshot.ModeBroadcast)
	if err != nil {
		return nil, err
	}
	return &OperatorBroadcast[K, V]{hash[K, V]{h}, at}, nil
}

// Get reads the value of a key; ok is false when there is none.
func (o *OperatorBroadcast[K, V]) Get(ctx context.Context, k K) (value V, ok bool, err error) {
	return o.hash.get(ctx, o.at, k)
}

// Put stores the value of a key.
func (o *OperatorBroadcast[K, V]) Put(ctx context.Context, k K, v V) error {
	return o.hash.put(ctx, o.at, k, v)
}

// Remove takes a key away; it need not be there.
func (o *OperatorBroadcast[K, V]) Remove(ctx context.Context, k K) error {
	return o.hash.remove(ctx, o.at, k)
}

// Contains reports whether a key is there.
func (o *OperatorBroadcast[K, V]) Contains(ctx context.Context, k K) (bool, error) {
	return o.hash.contains(ctx, o.at, k)
}

// Entries reads the whole copy.
func (o *OperatorBroadcast[K, V]) Entries(ctx context.Context) ([]Entry[K, V], error) {
	return o.hash.entries(ctx, o.at)
}

// Keys reads the keys.
func (o *OperatorBroadcast[K, V]) Keys(ctx context.Context) ([]K, error) {
	return o.hash.keys(ctx, o.at)
}

// Values reads the values.
func (o *OperatorBroadcast[K, V]) Values(ctx context.Context) ([]V, error) {
	return o.hash.values(ctx, o.at)
}

// IsEmpty reports whether the copy has no entry.
func (o *OperatorBroadcast[K, V]) IsEmpty(ctx context.Context) (bool, error) {
	return o.hash.empty(ctx, o.at)
}

// Clear removes the copy.
func (o *OperatorBroadcast[K, V]) Clear(ctx context.Context) error {
	return o.hash.clear(ctx, o.at)
}
