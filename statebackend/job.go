package statebackend

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// DefaultPrefix is the key prefix of redis-streaming's runtime.
const DefaultPrefix = "streaming:runtime"

// Job is where one job's state lies in a store. Any bytes are allowed in both
// names; both must be non-empty.
type Job struct {
	Prefix string
	Name   string
}

// Validate refuses empty names.
func (j Job) Validate() error {
	if j.Prefix == "" {
		return errors.New("job prefix is empty: give one, such as " + DefaultPrefix)
	}
	if j.Name == "" {
		return errors.New("job name is empty: give one")
	}
	return nil
}

// Root is the beginning of every key of the job: {prefix}:{job}.
func (j Job) Root() string { return j.Prefix + ":" + j.Name }

// Index is the set of all state keys.
func (j Job) Index() string { return j.Root() + ":stateKeys" }

// Registry is the hash state key → "type name|version".
func (j Job) Registry() string { return j.Root() + ":stateSchema" }

// OperatorStates is the hash operator U+0001 name → {"mode":…}.
func (j Job) OperatorStates() string { return j.Root() + ":operatorState" }

// Assignment is the string key that publishes who owns which key groups.
func (j Job) Assignment() string { return j.Root() + ":assignment" }

// Record is the coordinator's own hash beside the state.
func (j Job) Record() string { return j.Root() + ":coordinator" }

// Lease is the hash that says who leads the job, and with which token.
func (j Job) Lease() string { return j.Root() + ":coordinator:lease" }

// Staging is the beginning of every key that the restore with this id writes
// beside the live ones.
func (j Job) Staging(restore string) string { return j.Root() + ":coordinator:stage:" + restore + ":" }

// Owns tells whether a name that the index lists is state of the job: it begins
// with {root}: and is none of the job's own bookkeeping (index, registry,
// operator states, assignment, record, lease, and what a restore stages). Anybody may
// put a name into the index; a restore writes and deletes owned ones only.
func (j Job) Owns(name []byte) bool {
	rest, ok := j.underRoot(name)
	if !ok {
		return false
	}
	switch string(rest) {
	case "stateKeys", "stateSchema", "operatorState", "assignment", "coordinator", "coordinator:lease":
		return false
	}
	return !bytes.HasPrefix(rest, []byte("coordinator:stage:"))
}

// underRoot gives what follows {root}:, without building the root: this is
// asked for every key.
func (j Job) underRoot(name []byte) (rest []byte, ok bool) {
	n := len(j.Prefix) + 1 + len(j.Name)
	if len(name) <= n || name[n] != ':' ||
		string(name[:len(j.Prefix)]) != j.Prefix || name[len(j.Prefix)] != ':' ||
		string(name[len(j.Prefix)+1:n]) != j.Name {
		return nil, false
	}
	return name[n+1:], true
}

// Scope is one operator's place in the layout: the source it reads and the
// partition, which in this layout is the key group.
type Scope struct {
	Group     string // consumer group
	Topic     string
	Partition int
	Operator  string
}

// Solo is the identity of un-keyed use, SoloKey its typed key.
var Solo = Scope{Group: "standalone", Topic: "standalone", Partition: 0, Operator: "standalone"}

// SoloKey is the typed key of the solo identity.
const SoloKey = "s:solo"

// StateKey is {root}:cg:{group}:topic:{topic}:p:{n}:state:{operator}:{name}: a
// value state's hash, and the beginning of the keys of the other kinds.
func (j Job) StateKey(s Scope, name string) string {
	return j.partition(s.Group, s.Topic, s.Partition) + ":state:" + s.Operator + ":" + name
}

// KeyedKey is the key of a map, list or set state for one typed key.
func (j Job) KeyedKey(s Scope, name, typedKey string) string {
	return j.StateKey(s, name) + ":" + typedKey
}

// ShardKey is the key of shard k of a sharded value state.
func (j Job) ShardKey(s Scope, name string, k int) string {
	return j.StateKey(s, name) + ":shard:" + strconv.Itoa(k)
}

// WindowDueKey is the zset of due times that belongs to a window state.
func (j Job) WindowDueKey(s Scope, name string) string {
	return j.partition(s.Group, s.Topic, s.Partition) + ":windowDue:" + s.Operator + ":" + name
}

// OperatorKey is the key of one subtask's part of an operator state.
func (j Job) OperatorKey(group, topic string, subtask int, operator, name string) string {
	return j.partition(group, topic, subtask) + ":opstate:" + operator + ":" + name
}

func (j Job) partition(group, topic string, n int) string {
	return j.Root() + ":cg:" + group + ":topic:" + topic + ":p:" + strconv.Itoa(n)
}

// OperatorField is the field of an operator state in the job's modes hash.
func OperatorField(operator, name string) string { return operator + "\x01" + name }

// ParseOperatorField splits what OperatorField joined, at the first U+0001.
func ParseOperatorField(field string) (operator, name string, err error) {
	operator, name, ok := strings.Cut(field, "\x01")
	if !ok {
		return "", "", fmt.Errorf("operator state field %q has no U+0001 between operator and name", field)
	}
	return operator, name, nil
}
