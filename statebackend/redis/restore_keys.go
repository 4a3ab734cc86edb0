package redis

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// batch gathers the arguments of one command.
type batch struct {
	bytes []byte
	ends  []int
	items int // elements, each of one or two arguments
}

func (b *batch) add(arg []byte) {
	b.bytes = append(b.bytes, arg...)
	b.ends = append(b.ends, len(b.bytes))
}

// full says that the batch has reached the size of a command.
func (b *batch) full() bool {
	return len(b.ends) >= stageElements || len(b.bytes) >= stageBytes
}

// emptied is the batch without content, with its memory unless that has grown
// beyond the usual.
func (b batch) emptied() batch {
	if cap(b.bytes) > 4*stageBytes {
		return batch{}
	}
	return batch{bytes: b.bytes[:0], ends: b.ends[:0]}
}

// skipReason says why a key of the checkpoint isn't staged.
type skipReason uint8

const (
	skipNot     skipReason = iota
	skipMissing            // only its name is, in the index
	skipExpired            // so is it here: the name stays in the index, as if the key had expired in its place
	skipForeign            // it isn't the job's: only its name is, in the index
	skipRequest            // the request says otherwise: the assignment, sources without positions
)

// skips decides by the key alone, so that Prove decides the same.
func (s *staging) skips(k snapshot.Key) skipReason {
	switch {
	case k.Section == snapshot.SectionSource && len(s.req.Positions) == 0:
		return skipRequest
	case k.Section == snapshot.SectionMeta && string(k.Name) == s.req.Job.Assignment():
		return skipRequest
	case isState(k) && !s.req.Job.Owns(k.Name):
		return skipForeign
	case k.Type == snapshot.TypeMissing:
		return skipMissing
	case k.ExpireAt > 0 && k.ExpireAt <= s.req.AsOf.UnixMilli():
		return skipExpired
	}
	return skipNot
}

// isState tells keys that the index lists.
func isState(k snapshot.Key) bool {
	return k.Section == snapshot.SectionKeyed || k.Section == snapshot.SectionOperator
}

// checkKey refuses keys that a restore must not write.
func (s *staging) checkKey(k snapshot.Key) error {
	if !k.Type.Valid() || !k.Section.Valid() {
		return fmt.Errorf("%s in %s", k.Type, k.Section)
	}
	if s.req.Scope == statebackend.ScopeOperator && k.Section != snapshot.SectionOperator {
		return fmt.Errorf("a key of section %s in a restore of operator state", k.Section)
	}
	job, name := s.req.Job, string(k.Name)
	switch k.Section {
	case snapshot.SectionMeta:
		if name != job.Registry() && name != job.OperatorStates() && name != job.Assignment() {
			return fmt.Errorf("not a bookkeeping key of job %q that this version knows", job.Root())
		}
	case snapshot.SectionSource:
		return s.checkSourceKey(k)
	}
	return nil
}

// EndKey closes a key: it enters the mapping and, when it is state, the index.
func (s *staging) EndKey(e snapshot.KeyEnd) error {
	if err := s.usable(); err != nil {
		return err
	}
	c := &s.cur
	if !c.open || c.left > 0 {
		return s.fail(fmt.Errorf("key %q ends out of order: %d bytes of its last element are missing", c.key.Name, c.left))
	}
	c.open = false
	if c.skip == skipNot && e.Expired {
		c.skip = skipExpired
		c.pending = c.pending.emptied()
		if err := s.dropStaged(); err != nil {
			return err
		}
	}
	switch c.skip {
	case skipExpired:
		s.expired++
	case skipNot:
		if err := s.mapKey(e); err != nil {
			return err
		}
	}
	if isState(c.key) {
		if err := s.enterOutcome(c); err != nil {
			return err
		}
	}
	if err := s.enterName(c.key.Name, c.skip == skipNot, isState(c.key)); err != nil {
		return err
	}
	if s.mapped.full() || s.odd.full() || s.unproved.full() {
		return s.prove()
	}
	return nil
}

// enterOutcome notes state that isn't staged.
func (s *staging) enterOutcome(c *stagedKey) error {
	switch c.skip {
	case skipMissing:
		return s.addName(&s.absent, c.key.Name)
	case skipExpired:
		return s.addName(&s.lapsed, c.key.Name)
	}
	return nil
}

// dropStaged takes back what was written for a key that expired while it was
// being read; its number is used again.
func (s *staging) dropStaged() error {
	if s.cur.stored == 0 {
		return nil
	}
	return s.pipe.command(sentCommand{key: s.cur.key.Name, verb: "UNLINK", want: 1}, s.cur.target)
}

func (s *staging) mapKey(end snapshot.KeyEnd) error {
	c := &s.cur
	if c.elements == 0 {
		return s.fail(&statebackend.KeyError{Key: c.key.Name, Op: "stage", Err: fmt.Errorf("a %s without elements can't exist", c.key.Type)})
	}
	if c.elements != end.Count {
		return s.fail(&statebackend.KeyError{Key: c.key.Name, Op: "stage", Err: fmt.Errorf("it has %d elements, and %d came", end.Count, c.elements)})
	}
	byPayload := c.gather
	if byPayload {
		if err := s.sendPayload(end); err != nil {
			return err
		}
	} else if err := errors.Join(s.flushElements(), s.dropFiller()); err != nil {
		return err
	}
	s.keep(c.key)
	odd := oddEntry(s.keys, c.key)
	if odd != nil {
		s.odd.add(odd)
		s.odds++
	}
	s.unproved.add(s.expect(end, byPayload, odd))
	s.keys++
	return nil
}

// keep remembers what the flip must know of the key with the next number.
func (s *staging) keep(k snapshot.Key) {
	switch k.Section {
	case snapshot.SectionMeta:
		s.registry = s.registry || string(k.Name) == s.req.Job.Registry()
		s.modes = s.modes || string(k.Name) == s.req.Job.OperatorStates()
	case snapshot.SectionSource:
		s.sources[string(k.Name)] = s.keys
	}
}

// The letters of oddEntry.
const (
	oddState   = 's' // state that expires
	oddOther   = 'o' // bookkeeping and commit frontiers
	oddPending = 'p' // pending entries: read by the flip, not put in place
)

// oddEntry says of key n what is unlike most keys, which are state that
// doesn't expire (nil for these): its number, a letter and its expiry in ms
// since 1970, 0 for none.
func oddEntry(n uint64, k snapshot.Key) []byte {
	kind := byte(oddOther)
	if isState(k) {
		kind = oddState
	} else if _, _, ok := ParsePendingKey(k.Name); ok && k.Section == snapshot.SectionSource {
		kind = oddPending
	}
	if kind == oddState && k.ExpireAt <= 0 {
		return nil
	}
	entry := append(strconv.AppendUint(nil, n, 10), kind)
	return strconv.AppendInt(entry, max(0, k.ExpireAt), 10)
}

func (s *staging) sendMapped() error {
	if len(s.odd.ends) > 0 {
		cmd := sentCommand{verb: "RPUSH", want: int64(s.odds)}
		if err := s.sendBatch(cmd, []byte(s.prefix+stageOdd), &s.odd); err != nil {
			return err
		}
	}
	if len(s.mapped.ends) == 0 {
		return nil
	}
	return s.sendBatch(sentCommand{verb: "RPUSH", want: int64(s.keys)}, []byte(s.prefix+stageMap), &s.mapped)
}

// stagedNames is a staged set of names.
type stagedNames struct {
	key   string // below the staging's prefix
	count uint64
	batch batch // not sent yet
}

func (s *staging) addName(set *stagedNames, name []byte) error {
	set.batch.add(name)
	set.count++
	if !set.batch.full() {
		return nil
	}
	return s.sendNames(set)
}

func (s *staging) sendNames(set *stagedNames) error {
	n := len(set.batch.ends)
	if n == 0 {
		return nil
	}
	first := bytes.Clone(set.batch.bytes[:set.batch.ends[0]])
	cmd := sentCommand{verb: "SADD", want: int64(n), hint: fmt.Sprintf("the names of %d keys from %q on", n, first)}
	return s.sendBatch(cmd, []byte(s.prefix+set.key), &set.batch)
}

// finishStaging sends what is gathered and waits for every reply.
func (s *staging) finishStaging() error {
	if err := s.usable(); err != nil {
		return err
	}
	if s.cur.open {
		return s.fail(fmt.Errorf("key %q has not ended", s.cur.key.Name))
	}
	if err := errors.Join(s.prove(), s.sendCoded()); err != nil {
		return err
	}
	for _, set := range []*stagedNames{&s.index, &s.absent, &s.lapsed} {
		if err := s.sendNames(set); err != nil {
			return err
		}
	}
	return s.pipe.finish()
}

func (s *staging) usable() error {
	switch {
	case s.pipe.err != nil:
		return s.pipe.err
	case s.result != nil:
		return fmt.Errorf("restore %s has gone live already", s.req.ID)
	case s.ended:
		return fmt.Errorf("restore %s was aborted", s.req.ID)
	}
	return nil
}

func (s *staging) fail(err error) error { return s.pipe.fail(err) }
