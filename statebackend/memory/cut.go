package memory

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// frozen is a key of a cut: its object isn't written any more.
type frozen struct {
	name    []byte
	section snapshot.Section
	object  *object // nil when the key isn't there
}

// Cut implements [statebackend.Cutter]. Its grade is GradeSnapshot: writers are
// held while the pointers of the job's keys are copied (that is the stall), and
// the sink is fed afterwards. Keys come in the order of their names within each
// section, so that equal states make equal streams.
func (s *Store) Cut(ctx context.Context, req statebackend.CutRequest, sink snapshot.Sink) (statebackend.Cut, error) {
	cut, keys, err := s.still(ctx, req)
	if err != nil {
		return statebackend.Cut{}, fmt.Errorf("cut of job %q: %w", req.Job.Root(), err)
	}
	slices.SortFunc(keys, func(a, b frozen) int {
		if a.section != b.section {
			return int(a.section) - int(b.section)
		}
		return bytes.Compare(a.name, b.name)
	})
	for _, k := range keys {
		if err := push(ctx, k, sink); err != nil {
			return statebackend.Cut{}, err
		}
	}
	return cut, nil
}

// still takes the cut: everything it gives is of one instant.
func (s *Store) still(ctx context.Context, req statebackend.CutRequest) (statebackend.Cut, []frozen, error) {
	switch req.Grade {
	case "", snapshot.GradeAuto, snapshot.GradeSnapshot:
	default:
		return statebackend.Cut{}, nil, fmt.Errorf("%w: %s makes cuts of grade %q, not %q: ask for that or for %q",
			statebackend.ErrGrade, s.Server(), snapshot.GradeSnapshot, req.Grade, snapshot.GradeAuto)
	}
	if len(req.Sources) > 0 {
		return statebackend.Cut{}, nil, fmt.Errorf("%w: %s holds no streams, so it can't cut source %q: leave the sources out",
			statebackend.ErrUnsupported, s.Server(), req.Sources[0].Topic)
	}
	if err := s.begin(ctx, req.Job); err != nil {
		return statebackend.Cut{}, nil, err
	}
	defer s.mu.Unlock()
	// The monotonic clock, also when keys expire by another one.
	start := time.Now()
	h, err := s.head(req.Job)
	if err == nil {
		err = cuttable(req, h)
	}
	if err == nil && req.RunID != "" && req.RunID != s.runID {
		err = fmt.Errorf("%w: the store was emptied since it was looked at (run id %s, then %s)", statebackend.ErrStateLost, req.RunID, s.runID)
	}
	if err != nil {
		return statebackend.Cut{}, nil, err
	}
	cut := statebackend.Cut{Grade: snapshot.GradeSnapshot, At: s.now(), Server: s.info(),
		Record: h.record, Assigned: h.assigned, Operators: h.operators}
	keys := s.freezeJob(req.Job, h.index)
	if r := h.record; r.Attempt != r.Cut && req.Incarnation != "" && s.fence(ctx, req.Job) == nil {
		r.Cut = r.Attempt
		if err := s.keep(req.Job, r); err != nil {
			return statebackend.Cut{}, nil, err
		}
	}
	cut.Stall = time.Since(start)
	return cut, keys, nil
}

// cuttable refuses a job whose state isn't what it should be.
func cuttable(req statebackend.CutRequest, h head) error {
	there := h.index != nil || h.recorded
	switch {
	case !there && req.Incarnation != "":
		return fmt.Errorf("%w: %w", lost(req.Job, req.Incarnation, ""), statebackend.ErrNoState)
	case !there:
		return fmt.Errorf("%w: neither an index nor a record: check the prefix and the name", statebackend.ErrNoState)
	case h.record.Restore != nil:
		return fmt.Errorf("%w: restore %q since %s", statebackend.ErrMarked,
			h.record.Restore.ID, h.record.Restore.StartedAt.Format(time.RFC3339))
	case req.Incarnation != "" && h.record.Incarnation != req.Incarnation:
		return lost(req.Job, req.Incarnation, h.record.Incarnation)
	}
	return nil
}

// freezeJob gives all keys of a job, frozen.
func (s *Store) freezeJob(job statebackend.Job, index *object) []frozen {
	var keys []frozen
	if index != nil {
		keys = make([]frozen, 0, index.count()+3)
		for name := range index.hash.unordered() {
			b := []byte(name)
			keys = append(keys, frozen{b, statebackend.Classify(job, b), s.freeze(name)})
		}
	}
	for _, name := range []string{job.Registry(), job.OperatorStates(), job.Assignment()} {
		if o := s.freeze(name); o != nil {
			keys = append(keys, frozen{[]byte(name), snapshot.SectionMeta, o})
		}
	}
	return keys
}

// push gives one key to the sink, long values in parts.
func push(ctx context.Context, k frozen, sink snapshot.Sink) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	key := snapshot.Key{Section: k.section, Name: k.name}
	if k.object != nil {
		key.Type, key.ExpireAt, key.Count = k.object.typ, k.object.expireAt, uint64(k.object.count())
	}
	if err := sink.BeginKey(key); err != nil {
		return err
	}
	if k.object != nil {
		for e := range k.object.elements() {
			if err := pushElement(ctx, e, sink); err != nil {
				return err
			}
		}
	}
	return sink.EndKey(snapshot.KeyEnd{})
}

func pushElement(ctx context.Context, e snapshot.Element, sink snapshot.Sink) error {
	rest := e.Value
	first := rest[:min(len(rest), snapshot.MaxPart)]
	e.Value, rest = first, rest[len(first):]
	if err := sink.Element(e); err != nil {
		return err
	}
	for len(rest) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := rest[:min(len(rest), snapshot.MaxPart)]
		if err := sink.Part(part); err != nil {
			return err
		}
		rest = rest[len(part):]
	}
	return nil
}
