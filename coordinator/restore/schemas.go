package restore

import (
	"context"
	"fmt"
	"strings"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// maxEntry bounds one entry of the schema registry, in bytes: a type's name
// and a number.
const maxEntry = 1 << 20

// whole joins the parts of each element's value and passes it on.
type whole struct {
	limit uint64
	emit  func(field, value []byte) error

	field, value []byte
	left         uint64
}

// Element takes the first part.
func (w *whole) Element(e snapshot.Element) error {
	if e.Size > w.limit {
		return fault.New(fault.Corrupt, "restore another checkpoint",
			"entry %.200q of the schema registry has %d bytes: want at most %d", e.Field, e.Size, w.limit)
	}
	w.field = append(w.field[:0], e.Field...)
	w.value = w.value[:0]
	w.left = e.Size
	return w.Part(e.Value)
}

// Part takes the next bytes.
func (w *whole) Part(b []byte) error {
	w.value = append(w.value, b...)
	w.left -= min(w.left, uint64(len(b)))
	if w.left > 0 {
		return nil
	}
	return w.emit(w.field, w.value)
}

// schemas compares the registry of a checkpoint with the live one, key by key,
// in batches: neither is ever held whole.
type schemas struct {
	ctx  context.Context // of the one pass that it lives for
	live statebackend.Records
	job  statebackend.Job

	names  [][]byte
	wants  []string
	differ uint64
	first  []string // the first few that differ, for people
}

const (
	schemaBatch = 256
	schemaShow  = 3
)

func (s *schemas) add(field, value []byte) error {
	s.names = append(s.names, append([]byte(nil), field...))
	s.wants = append(s.wants, string(value))
	if len(s.names) < schemaBatch {
		return nil
	}
	return s.flush()
}

func (s *schemas) flush() error {
	if len(s.names) == 0 {
		return nil
	}
	have, err := s.live.Schemas(s.ctx, s.job, s.names)
	if err != nil {
		return Fault(err, fault.Failed, "read the live schema registry of job %q", s.job.Name)
	}
	for i, h := range have {
		if h == "" || h == s.wants[i] {
			continue
		}
		s.differ++
		if len(s.first) < schemaShow {
			s.first = append(s.first, fmt.Sprintf("%.200q is %.200q in the checkpoint and %.200q now", s.names[i], s.wants[i], h))
		}
	}
	s.names, s.wants = s.names[:0], s.wants[:0]
	return nil
}

// differing is how many keys have another schema now.
func (s *schemas) differing() uint64 {
	if s == nil {
		return 0
	}
	return s.differ
}

// verdict refuses a difference that was not accepted.
func (s *schemas) verdict(accept bool) error {
	if s == nil || s.differ == 0 || accept {
		return nil
	}
	more := ""
	if s.differ > uint64(len(s.first)) {
		more = fmt.Sprintf("; and %d more", s.differ-uint64(len(s.first)))
	}
	return fault.New(fault.Refused, "--accept-schema restores the checkpoint's schemas in place of the live ones",
		"the schema of %d keys differs: %s%s", s.differ, strings.Join(s.first, "; "), more)
}
