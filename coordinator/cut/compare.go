package cut

import (
	"context"
	"errors"
	"fmt"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// ErrTracking is wrapped by a *TrackingError.
var ErrTracking = errors.New("what tracking believed is wrong")

// TrackingError is what a self-check found: a key that has changed since the
// checkpoint before although nothing had been marked that would explain it.
type TrackingError struct {
	Key    []byte
	Detail string
	// Base is the checkpoint that it was compared with.
	Base snapshot.ID
}

// Error names the key.
func (e *TrackingError) Error() string {
	return fmt.Sprintf("what tracking believed of key %.200q since checkpoint %d is wrong: %s", e.Key, e.Base, e.Detail)
}

// Unwrap gives ErrTracking.
func (e *TrackingError) Unwrap() error { return ErrTracking }

// compare holds the state as it was read whole against the checkpoint before
// and what was marked since: whatever isn't marked must be equal. A comparison
// that can't be made is told in the checkpoint, and is no error.
func (a *attempt) compare(ctx context.Context) error {
	before := a.base.Manifest
	because := ""
	switch {
	case !a.cut.Marked.Known:
		because = a.cut.Marked.Reason
	case !a.m.Sorted:
		because = "the keys were read in no order (grade " + string(a.m.Checkpoint.Grade) + ")"
	}
	if because != "" {
		a.full = full(FullSelfCheck, "it was to be compared with checkpoint %d, and could not be: %s", before.Checkpoint.ID, because)
		a.m.Checkpoint.FullReason = a.full.Text
		return nil
	}
	if err := a.flush(ctx); err != nil {
		return err
	}
	j := &judge{
		marks: a.cut.Marked.Keys, index: a.cut.Marked.Keys[a.req.Job.Key().Index()], at: a.cut.At.UnixMilli(), base: before.Checkpoint.ID,
		progress: func(keys uint64) { a.tell(PhaseCompare, keys, a.m.Checkpoint.Elements, a.m.Checkpoint.Bytes) },
	}
	if err := j.compare(ctx, a.t.Store, before, a.m); err != nil {
		return err
	}
	a.m.Checkpoint.SelfChecked = true
	ended := a.t.Now()
	a.m.Checkpoint.CompletedAt, a.m.Checkpoint.DurationMs = &ended, ended.Sub(a.began).Milliseconds()
	return nil
}

// judge compares two checkpoints key by key.
type judge struct {
	marks    map[string]statebackend.MarkedKey
	index    statebackend.MarkedKey // what was written of the job's index
	at       int64                  // the instant of the later one, ms since 1970
	base     snapshot.ID
	progress func(keys uint64)
}

// compare walks both side by side. Memory: a few hundred keys' digests of each
// side, and what two walks need.
func (j *judge) compare(ctx context.Context, src snapshot.ChunkSource, before, now *snapshot.Manifest) error {
	ctx, cancel := context.WithCancel(ctx)
	old, fresh := j.open(ctx, src, before), j.open(ctx, src, now)
	err := j.join(old, fresh)
	cancel()
	// Both have ended when this returns. Why one was stopped is of no interest
	// once something is found.
	walks := errors.Join(old.end(), fresh.end())
	if err == nil {
		err = walks
	}
	return err
}

// join goes through both in the order of their names.
func (j *judge) join(old, fresh *side) error {
	a, err := old.next()
	if err != nil {
		return err
	}
	b, err := fresh.next()
	for keys := uint64(0); err == nil && (a != nil || b != nil); keys++ {
		if keys%progressEvery == 0 {
			j.progress(keys)
		}
		c := order(a, b)
		was, is := a, b
		if c > 0 {
			was = nil
		} else if c < 0 {
			is = nil
		}
		if err = j.key(was, is); err == nil && c <= 0 {
			a, err = old.next()
		}
		if err == nil && c >= 0 {
			b, err = fresh.next()
		}
	}
	return err
}

// order says which of two keys comes first; a side at its end has none, and
// comes last.
func order(a, b *brief) int {
	switch {
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return a.order(*b)
}

// key judges one name; nil stands for one that the index doesn't have.
func (j *judge) key(was, is *brief) error {
	one := was
	if one == nil {
		one = is
	}
	if was != nil && j.past(was.expireAt) || is != nil && (is.expired || j.past(is.expireAt)) {
		return nil // what its expiry did to it is nobody's write
	}
	mark, marked := j.marks[string(one.name)]
	if mark.Whole {
		return nil
	}
	if (was == nil) != (is == nil) {
		if _, member := j.index.Fields[string(one.name)]; member || j.index.Whole {
			return nil
		}
		if was == nil {
			return j.wrong(one, "its name is in the index now and was not, and the index isn't marked with it")
		}
		return j.wrong(one, "its name was in the index and is not now, and the index isn't marked with it")
	}
	if detail := differs(*was, *is, marked, len(mark.Fields) > 0); detail != "" {
		return j.wrong(one, detail)
	}
	return nil
}

func (j *judge) past(expireAt int64) bool { return expireAt != 0 && expireAt <= j.at }

func (j *judge) wrong(b *brief, detail string) error {
	return &TrackingError{Key: b.name, Detail: detail, Base: j.base}
}

// differs says in what two states of a key differ that no mark explains, ""
// for nothing. A key with marked fields may have come or gone with them; its
// other elements, which are all that was digested, must be equal.
func differs(was, is brief, marked, fields bool) string {
	here := func(b brief) bool { return b.kind != snapshot.TypeMissing }
	switch {
	case here(was) != here(is) && !fields:
		return fmt.Sprintf("it was %s and is %s, and isn't marked as written", was.kind, is.kind)
	case here(was) && here(is) && (was.kind != is.kind || was.label != is.label):
		return fmt.Sprintf("it was %s and is %s, and isn't marked as written whole", was.kind, is.kind)
	case here(was) && here(is) && was.expireAt != is.expireAt && !marked:
		return fmt.Sprintf("its expiry was %d and is %d, and it isn't marked as written", was.expireAt, is.expireAt)
	case was.count != is.count:
		return fmt.Sprintf("%d of its elements that are not marked as written were there, and %d are", was.count, is.count)
	case was.digest != is.digest:
		return fmt.Sprintf("the content of its %d elements that are not marked as written has changed", is.count)
	}
	return ""
}
