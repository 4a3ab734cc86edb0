package statebackend

import (
	"context"

	"keyframe/snapshot"
)

// list is a state key that holds JSON items.
type list[T any] struct{ home *home }

// pushAtOnce is how many items go in one command: Redis takes about a million
// arguments, and a reader of its log or of a replica stream far fewer with ease.
const pushAtOnce = 1000

// pushes are the commands that append values, after those in cmds.
func (l list[T]) pushes(cmds []Cmd, at string, values []T) ([]Cmd, error) {
	for from := 0; from < len(values); from += pushAtOnce {
		part := values[from:min(from+pushAtOnce, len(values))]
		push := Cmd{Op: OpRPush, Key: at, Args: make([][]byte, len(part))}
		for i, v := range part {
			b, err := EncodeJSON(v)
			if err != nil {
				return nil, err
			}
			push.Args[i] = b
		}
		cmds = append(cmds, push)
	}
	return cmds, nil
}

func (l list[T]) add(ctx context.Context, at string, values []T) error {
	if len(values) == 0 {
		return nil
	}
	cmds, err := l.pushes(nil, at, values)
	if err != nil {
		return err
	}
	_, err = l.home.write(ctx, at, cmds...)
	return err
}

func (l list[T]) get(ctx context.Context, at string) ([]T, error) {
	var all []T
	err := l.home.each(ctx, at, snapshot.TypeList, func(e snapshot.Element) error {
		v, err := DecodeJSON[T](e.Value)
		all = append(all, v)
		return err
	})
	return ifDone(all, err)
}

func (l list[T]) update(ctx context.Context, at string, values []T) error {
	if len(values) == 0 {
		return l.clear(ctx, at)
	}
	cmds, err := l.pushes([]Cmd{Command(OpDel, at)}, at, values)
	if err != nil {
		return err
	}
	_, err = l.home.write(ctx, at, cmds...)
	return err
}

func (l list[T]) clear(ctx context.Context, at string) error {
	_, err := l.home.remove(ctx, at, Command(OpDel, at))
	return err
}

// ListState keeps a list for each typed key. Safe for concurrent use. What it
// reads are copies.
type ListState[T any] struct{ list list[T] }

// NewListState gives a handle. It touches nothing in the store.
func NewListState[T any](space Space, d Descriptor[T]) (*ListState[T], error) {
	h, err := plainHome("list", space, d)
	if err != nil {
		return nil, err
	}
	return &ListState[T]{list[T]{h}}, nil
}

// Add appends an item.
func (l *ListState[T]) Add(ctx context.Context, key Key, value T) error {
	return l.AddAll(ctx, key, []T{value})
}

// AddAll appends items in one step.
func (l *ListState[T]) AddAll(ctx context.Context, key Key, values []T) error {
	at, err := l.list.home.at(key)
	if err != nil {
		return err
	}
	return l.list.add(ctx, at, values)
}

// Get reads the list in its order.
func (l *ListState[T]) Get(ctx context.Context, key Key) ([]T, error) {
	at, err := l.list.home.at(key)
	if err != nil {
		return nil, err
	}
	return l.list.get(ctx, at)
}

// Update replaces the list in one step: nobody sees it empty or half written.
// Without values it removes the list.
func (l *ListState[T]) Update(ctx context.Context, key Key, values []T) error {
	at, err := l.list.home.at(key)
	if err != nil {
		return err
	}
	return l.list.update(ctx, at, values)
}

// Clear removes the list.
func (l *ListState[T]) Clear(ctx context.Context, key Key) error {
	at, err := l.list.home.at(key)
	if err != nil {
		return err
	}
	return l.list.clear(ctx, at)
}
