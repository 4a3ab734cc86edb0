package statebackend

import (
	"context"
	"fmt"

	"keyframe/snapshot"
)

// Entry is one entry of a map state.
type Entry[K, V any] struct {
	Key   K
	Value V
}

// hash is a state key that holds JSON keys with JSON values.
type hash[K, V any] struct{ home *home }

func (h hash[K, V]) get(ctx context.Context, at string, k K) (value V, ok bool, err error) {
	var zero V
	field, err := EncodeJSON(k)
	if err != nil {
		return zero, false, err
	}
	replies, err := h.home.read(ctx, at, Cmd{Op: OpHGet, Key: at, Args: [][]byte{field}})
	if err != nil || replies[0].Nil {
		return zero, false, err
	}
	got, err := DecodeJSON[V](replies[0].Bytes)
	if err != nil {
		return zero, false, &KeyError{Key: []byte(at), Op: fmt.Sprintf("read field %.100q of", field), Err: err}
	}
	return got, true, nil
}

func (h hash[K, V]) put(ctx context.Context, at string, k K, v V) error {
	field, err := EncodeJSON(k)
	if err != nil {
		return err
	}
	value, err := EncodeJSON(v)
	if err != nil {
		return err
	}
	_, err = h.home.write(ctx, at, Cmd{Op: OpHSet, Key: at, Args: [][]byte{field, value}})
	return err
}

func (h hash[K, V]) remove(ctx context.Context, at string, k K) error {
	field, err := EncodeJSON(k)
	if err != nil {
		return err
	}
	_, err = h.home.remove(ctx, at, Cmd{Op: OpHDel, Key: at, Args: [][]byte{field}})
	return err
}

func (h hash[K, V]) contains(ctx context.Context, at string, k K) (bool, error) {
	field, err := EncodeJSON(k)
	if err != nil {
		return false, err
	}
	return h.home.truth(ctx, at, Cmd{Op: OpHExists, Key: at, Args: [][]byte{field}})
}

func (h hash[K, V]) empty(ctx context.Context, at string) (bool, error) {
	some, err := h.home.truth(ctx, at, Command(OpHLen, at))
	return !some && err == nil, err
}

func (h hash[K, V]) clear(ctx context.Context, at string) error {
	_, err := h.home.remove(ctx, at, Command(OpDel, at))
	return err
}

func (h hash[K, V]) keys(ctx context.Context, at string) ([]K, error) {
	var all []K
	err := h.home.each(ctx, at, snapshot.TypeHash, func(e snapshot.Element) error {
		k, err := DecodeJSON[K](e.Field)
		all = append(all, k)
		return err
	})
	return ifDone(all, err)
}

func (h hash[K, V]) values(ctx context.Context, at string) ([]V, error) {
	var all []V
	err := h.home.each(ctx, at, snapshot.TypeHash, func(e snapshot.Element) error {
		v, err := DecodeJSON[V](e.Value)
		all = append(all, v)
		return err
	})
	return ifDone(all, err)
}

func (h hash[K, V]) entries(ctx context.Context, at string) ([]Entry[K, V], error) {
	var all []Entry[K, V]
	err := h.home.each(ctx, at, snapshot.TypeHash, func(e snapshot.Element) error {
		k, err := DecodeJSON[K](e.Field)
		if err != nil {
			return err
		}
		v, err := DecodeJSON[V](e.Value)
		all = append(all, Entry[K, V]{Key: k, Value: v})
		return err
	})
	return ifDone(all, err)
}

// ifDone gives nothing with an error: half a list looks like a whole one.
func ifDone[T any](all []T, err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	return all, nil
}

// truth runs one command that counts and says whether it counted anything.
func (h *home) truth(ctx context.Context, at string, cmd Cmd) (bool, error) {
	replies, err := h.read(ctx, at, cmd)
	if err != nil {
		return false, err
	}
	return replies[0].Int > 0, nil
}

// MapState keeps a map for each typed key. Safe for concurrent use. What it
// reads are copies, in no order.
type MapState[K, V any] struct{ hash hash[K, V] }

// NewMapState gives a handle; the descriptor is of the map's values. It touches
// nothing in the store.
func NewMapState[K, V any](space Space, d Descriptor[V]) (*MapState[K, V], error) {
	h, err := plainHome("map", space, d)
	if err != nil {
		return nil, err
	}
	return &MapState[K, V]{hash[K, V]{h}}, nil
}

func plainHome[T any](kind string, space Space, d Descriptor[T]) (*home, error) {
	if err := d.plain(kind); err != nil {
		return nil, err
	}
	schema, err := d.Schema()
	if err != nil {
		return nil, err
	}
	return newHome(space, d.Name, schema)
}

// at gives the key of a map, list or set state for one typed key.
func (h *home) at(key Key) (string, error) {
	scope, err := h.space.at(key)
	if err != nil {
		return "", err
	}
	return h.space.Job.KeyedKey(scope, h.name, string(key)), nil
}

// Get reads the value of a map key; ok is false when there is none.
func (m *MapState[K, V]) Get(ctx context.Context, key Key, k K) (value V, ok bool, err error) {
	at, err := m.hash.home.at(key)
	if err != nil {
		var zero V
		return zero, false, err
	}
	return m.hash.get(ctx, at, k)
}

// Put stores the value of a map key.
func (m *MapState[K, V]) Put(ctx context.Context, key Key, k K, v V) error {
	at, err := m.hash.home.at(key)
	if err != nil {
		return err
	}
	return m.hash.put(ctx, at, k, v)
}

// Remove takes a map key away; it need not be there.
func (m *MapState[K, V]) Remove(ctx context.Context, key Key, k K) error {
	at, err := m.hash.home.at(key)
	if err != nil {
		return err
	}
	return m.hash.remove(ctx, at, k)
}

// Contains reports whether a map key is there.
func (m *MapState[K, V]) Contains(ctx context.Context, key Key, k K) (bool, error) {
	at, err := m.hash.home.at(key)
	if err != nil {
		return false, err
	}
	return m.hash.contains(ctx, at, k)
}

// Entries reads the whole map.
func (m *MapState[K, V]) Entries(ctx context.Context, key Key) ([]Entry[K, V], error) {
	at, err := m.hash.home.at(key)
	if err != nil {
		return nil, err
	}
	return m.hash.entries(ctx, at)
}

// Keys reads the map's keys.
func (m *MapState[K, V]) Keys(ctx context.Context, key Key) ([]K, error) {
	at, err := m.hash.home.at(key)
	if err != nil {
		return nil, err
	}
	return m.hash.keys(ctx, at)
}

// Values reads the map's values.
func (m *MapState[K, V]) Values(ctx context.Context, key Key) ([]V, error) {
	at, err := m.hash.home.at(key)
	if err != nil {
		return nil, err
	}
	return m.hash.values(ctx, at)
}

// IsEmpty reports whether the map has no entry.
func (m *MapState[K, V]) IsEmpty(ctx context.Context, key Key) (bool, error) {
	at, err := m.hash.home.at(key)
	if err != nil {
		return false, err
	}
	return m.hash.empty(ctx, at)
}

// Clear removes the whole map.
func (m *MapState[K, V]) Clear(ctx context.Context, key Key) error {
	at, err := m.hash.home.at(key)
	if err != nil {
		return err
	}
	return m.hash.clear(ctx, at)
}
