package statebackend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"time"

	"keyframe/snapshot"
)

// The fields of the coordinator's record hash. A field that is zero in a
// [Record] isn't in the hash.
const (
	FieldIncarnation  = "incarnation"
	FieldEpoch        = "epoch"
	FieldAttempt      = "attempt"
	FieldCut          = "cut"
	FieldCheckpoint   = "checkpoint"
	FieldCheckpointAt = "checkpointAt" // RFC 3339, UTC
	FieldRestore      = "restore"      // JSON of Mark
	FieldFlipped      = "flipped"
)

// EncodeRecord gives the fields of the record's hash; zero ones are left out.
func EncodeRecord(r Record) (map[string][]byte, error) {
	f := make(map[string][]byte)
	put := func(name, value string) {
		if value != "" {
			f[name] = []byte(value)
		}
	}
	number := func(name string, n uint64) {
		if n != 0 {
			put(name, strconv.FormatUint(n, 10))
		}
	}
	put(FieldIncarnation, r.Incarnation)
	number(FieldEpoch, r.Epoch)
	number(FieldAttempt, uint64(r.Attempt))
	number(FieldCut, uint64(r.Cut))
	number(FieldCheckpoint, uint64(r.Checkpoint))
	if !r.CheckpointAt.IsZero() {
		put(FieldCheckpointAt, r.CheckpointAt.UTC().Format(time.RFC3339Nano))
	}
	put(FieldFlipped, r.Flipped)
	if r.Restore != nil {
		mark, err := EncodeMark(*r.Restore)
		if err != nil {
			return nil, err
		}
		f[FieldRestore] = mark
	}
	return f, nil
}

// damaged is an ErrDamaged that says which part, and the remedy.
func damaged(remedy, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrDamaged, fmt.Sprintf(format, args...), remedy)
}

// damagedField is about a field of the coordinator's record.
func damagedField(field string, value []byte, want string) error {
	return damaged(fmt.Sprintf("put the field right (HSET), or remove it (HDEL …:coordinator %s) and take or restore a checkpoint", field),
		"field %s of the coordinator's record is %.200q: %s", field, value, want)
}

// DecodeRecord reads the fields of the record's hash. An empty hash is the
// zero Record; fields that it doesn't know are a newer version's and stay out.
// ErrDamaged when a field can't be read.
func DecodeRecord(fields map[string][]byte) (Record, error) {
	r := Record{
		Incarnation: string(fields[FieldIncarnation]),
		Flipped:     string(fields[FieldFlipped]),
	}
	var attempt, cut, checkpoint uint64
	for _, n := range []struct {
		name string
		to   *uint64
	}{{FieldEpoch, &r.Epoch}, {FieldAttempt, &attempt}, {FieldCut, &cut}, {FieldCheckpoint, &checkpoint}} {
		text, ok := fields[n.name]
		if !ok {
			continue
		}
		v, err := strconv.ParseUint(string(text), 10, 64)
		if err != nil {
			return Record{}, damagedField(n.name, text, "want a whole number")
		}
		*n.to = v
	}
	r.Attempt, r.Cut, r.Checkpoint = snapshot.ID(attempt), snapshot.ID(cut), snapshot.ID(checkpoint)
	if text, ok := fields[FieldCheckpointAt]; ok {
		at, err := time.Parse(time.RFC3339Nano, string(text))
		if err != nil || !writable(at) {
			return Record{}, damagedField(FieldCheckpointAt, text, "want an RFC 3339 time")
		}
		r.CheckpointAt = at.UTC()
	}
	if text, ok := fields[FieldRestore]; ok {
		r.Restore = new(Mark)
		if err := decodeOne(text, r.Restore); err != nil {
			return Record{}, damagedField(FieldRestore, text, err.Error())
		}
		if !writable(r.Restore.StartedAt) {
			return Record{}, damagedField(FieldRestore, text, "startedAt is before the year 0 or after 9999 in UTC")
		}
	}
	return r, nil
}

// writable reports whether JSON has a form for a time in UTC: by its offset, one
// that could be read may lie outside.
func writable(t time.Time) bool {
	y := t.UTC().Year()
	return y >= 0 && y <= 9999
}

// EncodeMark gives the JSON of the record's restore field.
func EncodeMark(m Mark) ([]byte, error) {
	m.StartedAt = m.StartedAt.UTC()
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("mark of restore %q: %w", m.ID, err)
	}
	return b, nil
}

// EncodeAssignment gives the JSON of the assignment key.
func EncodeAssignment(a Assignment) ([]byte, error) {
	b, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("assignment of epoch %d: %w", a.Epoch, err)
	}
	return b, nil
}

// assignmentRemedy: an assignment that isn't there is written anew.
const assignmentRemedy = "delete the key (DEL …:assignment), and the coordinator publishes it anew"

// DecodeAssignment reads the JSON of the assignment key; ErrDamaged when it
// isn't one.
func DecodeAssignment(b []byte) (Assignment, error) {
	var a Assignment
	if err := decodeOne(b, &a); err != nil {
		return Assignment{}, damaged(assignmentRemedy, "assignment %.200q: %v", b, err)
	}
	if a.MaxParallelism < 1 || a.Parallelism < 1 {
		return Assignment{}, damaged(assignmentRemedy, "assignment has parallelism %d and max parallelism %d: both must be at least 1",
			a.Parallelism, a.MaxParallelism)
	}
	return a, nil
}

// operatorMode is a value of the operator state modes hash.
type operatorMode struct {
	Mode   snapshot.OperatorMode `json:"mode"`
	Handed *snapshot.Handed      `json:"handed,omitempty"`
}

// EncodeOperatorMode gives the value of a registered operator state in the
// modes hash; its field is [OperatorField].
func EncodeOperatorMode(s snapshot.OperatorState) ([]byte, error) {
	if err := checkMode(s.Mode); err != nil {
		return nil, fmt.Errorf("operator state %q of operator %q: %w", s.Name, s.Operator, err)
	}
	return json.Marshal(operatorMode{Mode: s.Mode, Handed: s.Handed})
}

// DecodeOperatorStates reads the modes hash, in the order of operator and name.
// nil when it is empty.
func DecodeOperatorStates(fields map[string][]byte) ([]snapshot.OperatorState, error) {
	var all []snapshot.OperatorState
	for field, value := range fields {
		s, err := DecodeOperatorState(field, value)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	sort.Slice(all, func(i, j int) bool {
		if all[i].Operator != all[j].Operator {
			return all[i].Operator < all[j].Operator
		}
		return all[i].Name < all[j].Name
	})
	return all, nil
}

// DecodeOperatorState reads one field of the modes hash with its value;
// ErrDamaged when they aren't what EncodeOperatorMode writes.
func DecodeOperatorState(field string, value []byte) (snapshot.OperatorState, error) {
	op, name, err := ParseOperatorField(field)
	const remedy = "put the field right (HSET), or remove it (HDEL …:operatorState) and let the job register it again"
	if err != nil {
		return snapshot.OperatorState{}, damaged(remedy, "%v", err)
	}
	var m operatorMode
	err = decodeOne(value, &m)
	if err == nil {
		err = checkMode(m.Mode)
	}
	if err != nil {
		return snapshot.OperatorState{}, damaged(remedy, "mode of operator state %q of operator %q is %.200q: %v", name, op, value, err)
	}
	return snapshot.OperatorState{Operator: op, Name: name, Mode: m.Mode, Handed: m.Handed}, nil
}

func checkMode(m snapshot.OperatorMode) error {
	switch m {
	case snapshot.ModeList, snapshot.ModeUnion, snapshot.ModeBroadcast:
		return nil
	}
	return fmt.Errorf("mode %q: want list, union or broadcast", m)
}

// decodeOne reads exactly one JSON document.
func decodeOne(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("not the JSON expected: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON document")
	}
	return nil
}
