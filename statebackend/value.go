package statebackend

import (
	"context"
	"fmt"

	"keyframe/keygroups"
)

// ValueState keeps one value for each typed key. Safe for concurrent use.
type ValueState[T any] struct {
	home   *home
	shards int
	// preset is the JSON of the default: each reader gets a copy of its own.
	preset []byte
}

// NewValueState gives a handle. It touches nothing in the store.
func NewValueState[T any](space Space, d Descriptor[T]) (*ValueState[T], error) {
	if err := d.validate(); err != nil {
		return nil, err
	}
	schema, err := d.Schema()
	if err != nil {
		return nil, err
	}
	h, err := newHome(space, d.Name, schema)
	if err != nil {
		return nil, err
	}
	v := &ValueState[T]{home: h, shards: d.Shards}
	if d.Default != nil {
		if v.preset, err = EncodeJSON(*d.Default); err != nil {
			return nil, fmt.Errorf("default of state %q: %w", d.Name, err)
		}
	}
	return v, nil
}

// Get reads the value of a key; where there is none, the descriptor's default;
// where there is no default either, ErrAbsent (wrapped).
func (v *ValueState[T]) Get(ctx context.Context, key Key) (T, error) {
	got, ok, err := v.Lookup(ctx, key)
	if ok || err != nil {
		return got, err
	}
	if v.preset == nil {
		return got, fmt.Errorf("state %q of key %.100q: %w", v.home.name, string(key), ErrAbsent)
	}
	return DecodeJSON[T](v.preset)
}

// Lookup reads the value that is stored; ok is false when there is none,
// whatever the default. A stored null is none, as in Java.
func (v *ValueState[T]) Lookup(ctx context.Context, key Key) (value T, ok bool, err error) {
	var zero T
	at, err := v.at(key)
	if err != nil {
		return zero, false, err
	}
	replies, err := v.home.read(ctx, at, Command(OpHGet, at, string(key)))
	if err != nil {
		return zero, false, err
	}
	if replies[0].Nil || isNull(replies[0].Bytes) {
		return zero, false, nil
	}
	got, err := DecodeJSON[T](replies[0].Bytes)
	if err != nil {
		return zero, false, &KeyError{Key: []byte(at), Op: fmt.Sprintf("read field %.100q of", string(key)), Err: err}
	}
	return got, true, nil
}

// Update stores the value of a key.
func (v *ValueState[T]) Update(ctx context.Context, key Key, value T) error {
	at, err := v.at(key)
	if err != nil {
		return err
	}
	b, err := EncodeJSON(value)
	if err != nil {
		return err
	}
	_, err = v.home.write(ctx, at, Cmd{Op: OpHSet, Key: at, Args: [][]byte{[]byte(key), b}})
	return err
}

// Clear removes the value of a key.
func (v *ValueState[T]) Clear(ctx context.Context, key Key) error {
	at, err := v.at(key)
	if err != nil {
		return err
	}
	_, err = v.home.remove(ctx, at, Command(OpHDel, at, string(key)))
	return err
}

// at gives the state key in which the typed key's field lies.
func (v *ValueState[T]) at(key Key) (string, error) {
	scope, err := v.home.space.at(key)
	if err != nil {
		return "", err
	}
	if v.shards == 0 {
		return v.home.space.Job.StateKey(scope, v.home.name), nil
	}
	k := int(keygroups.HashString(string(key))) % v.shards
	if k < 0 {
		k += v.shards
	}
	return v.home.space.Job.ShardKey(scope, v.home.name, k), nil
}
