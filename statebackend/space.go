package statebackend

import (
	"errors"
	"fmt"
	"strconv"

	"keyframe/keygroups"
)

// Key is a typed key: the key of the stream's element that a state belongs to.
type Key string

// StringKey is the typed key of a string.
func StringKey(s string) Key { return Key("s:" + s) }

// NumberKey is the typed key of an integer.
func NumberKey(n int64) Key { return Key("n:" + strconv.FormatInt(n, 10)) }

// DoubleKey is the typed key of a floating-point number, in Java's digits.
func DoubleKey(f float64) Key { return Key(AppendDouble([]byte("n:"), f)) }

// JSONKey is the typed key of a structured value: its JSON ([EncodeJSON]).
func JSONKey(v any) (Key, error) {
	b, err := EncodeJSON(v)
	if err != nil {
		return "", err
	}
	return Key("j:" + string(b)), nil
}

// TextKey is the typed key of anything else, by its text.
func TextKey(text string) Key { return Key("t:" + text) }

// Space is where handles keep their state: a place in a job's layout in a
// store. The zero Scope is not one; [Solo] is, for un-keyed use.
type Space struct {
	Store Store
	Job   Job
	// Scope says the place. For operator state, Scope.Partition is the
	// subtask.
	Scope Scope
	// Partition, when set, gives the partition of a typed key instead of
	// Scope.Partition ([ByKeyGroup]). Operator state doesn't use it.
	Partition func(Key) (int, error)
}

// SoloSpace is the space of un-keyed use of a job; its key is [SoloKey].
func SoloSpace(store Store, job Job) Space {
	return Space{Store: store, Job: job, Scope: Solo}
}

// ByKeyGroup puts each typed key in the partition that is its key group.
func ByKeyGroup(rule keygroups.Rule) func(Key) (int, error) {
	return func(k Key) (int, error) {
		_, group, err := rule.GroupOfKey(string(k))
		return group, err
	}
}

func (s Space) validate() error {
	if s.Store == nil {
		return errors.New("space without a store: give it one")
	}
	if s.Scope.Group == "" || s.Scope.Topic == "" || s.Scope.Operator == "" || s.Scope.Partition < 0 {
		return fmt.Errorf("scope %+v: group, topic and operator must not be empty, the partition not negative (Solo is the scope of un-keyed use)", s.Scope)
	}
	return s.Job.Validate()
}

// at gives the scope in which a typed key lies.
func (s Space) at(k Key) (Scope, error) {
	if !isTypedKey(string(k)) {
		return Scope{}, fmt.Errorf("key %.100q is not a typed key: build it with StringKey, NumberKey, JSONKey or TextKey", string(k))
	}
	scope := s.Scope
	if s.Partition == nil {
		return scope, nil
	}
	n, err := s.Partition(k)
	if err != nil {
		return Scope{}, fmt.Errorf("partition of key %.100q: %w", string(k), err)
	}
	scope.Partition = n
	return scope, nil
}
