package witness

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// CheckReadable reads the newest most completed checkpoints of a job (0: all)
// that were not found bad, and gives a finding for each that can't be read
// whole, with its checksums, counts and totals (I1). The states that could be
// read come back by their ids.
func CheckReadable(s *Store, job string, most int) (map[uint64]*State, []Finding, error) {
	all, err := s.Checkpoints(job)
	if err != nil {
		return nil, nil, err
	}
	var f found
	read := map[uint64]*State{}
	for _, c := range slices.Backward(all) {
		if !c.Restorable() || most > 0 && len(read) >= most {
			continue
		}
		state, err := s.State(job, c.ID)
		if err != nil {
			f.add("I1", "%v", err)
			continue
		}
		read[c.ID] = state
	}
	return read, f, nil
}

// CheckContent holds a checkpoint's content to the caller's model: fits says
// what is wrong with it (I2).
func CheckContent(id uint64, s *State, fits func(*State) error) []Finding {
	var f found
	if err := fits(s); err != nil {
		f.add("I2", "checkpoint %d: %v", id, err)
	}
	return f
}

// Seen is what Live gave at one moment.
type Seen struct {
	State   *State
	Foreign map[string]Entry
}

// CheckRestore judges what is live after a restore of want (I3): state keys
// below root, index, schemas and operator state modes equal the checkpoint,
// foreign keys are as before. The assignment is the restore's own, and must
// give each group one owner. source tells foreign keys that a restore sets
// (streams with their groups, commit frontiers); nil for none. now is the
// server's time after the look.
func CheckRestore(root string, want *State, before, after Seen, source func(key string) bool, now time.Time) []Finding {
	var f found
	for _, d := range Diff(withoutAssignment(want.Owned(root)), withoutAssignment(after.State.Owned(root)), now) {
		f.add("I3", "checkpoint | live: %s", d)
	}
	was := maps.Clone(before.Foreign)
	// What had left the index and is in the checkpoint's becomes the job's again.
	for _, name := range want.Names {
		if owned(root, name) {
			delete(was, name)
		}
	}
	set := func(key string, _ Entry) bool { return source != nil && source(key) }
	is := maps.Clone(after.Foreign)
	maps.DeleteFunc(was, set)
	maps.DeleteFunc(is, set)
	for _, d := range DiffForeign(was, is, now) {
		f.add("I3", "before | after: %s", d)
	}
	if _, ok := after.State.Others[tailAssigned]; ok {
		f.addErr("I3", after.State.CheckAssignment())
	}
	return f
}

func (f *found) addErr(invariant string, err error) {
	if err != nil {
		f.add(invariant, "%v", err)
	}
}

func withoutAssignment(s *State) *State {
	out := *s
	out.Others = maps.Clone(s.Others)
	delete(out.Others, tailAssigned)
	return &out
}

// CheckUntouched judges that what lay between two looks, with writers held, has
// changed nothing (I9): no key, no expiry, no index, no foreign key; of the
// coordinator's record only the fields that a checkpoint writes.
func CheckUntouched(before, after Seen, now time.Time) []Finding {
	var f found
	for _, d := range Diff(before.State, after.State, now) {
		f.add("I9", "before | after: %s", d)
	}
	for _, d := range DiffForeign(before.Foreign, after.Foreign, now) {
		f.add("I9", "before | after: %s", d)
	}
	was, err1 := before.State.record()
	is, err2 := after.State.record()
	f.addErr("I9", errors.Join(err1, err2))
	for _, d := range diffTexts("field of the record", was, is) {
		f.add("I9", "before | after: %s", d)
	}
	before0, after0 := before.State.Others[tailAssigned], after.State.Others[tailAssigned]
	if before0 != after0 {
		f.add("I9", "assignment: %.300q | %.300q", before0, after0)
	}
	return f
}

// record gives the fields of the coordinator's record but those that a
// checkpoint writes.
func (s *State) record() (map[string]string, error) {
	text, ok := s.Others[tailRecord]
	if !ok {
		return nil, nil
	}
	e, err := ParseEntry(text)
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	fields, err := e.Fields()
	for _, name := range []string{"attempt", "cut", "checkpoint", "checkpointAt"} {
		delete(fields, name)
	}
	return fields, err
}

// Epoch is the epoch of a live state's record, 0 when there is none.
func (s *State) Epoch() (epoch uint64, err error) {
	fields, err := s.record()
	if err != nil || fields["epoch"] == "" {
		return 0, err
	}
	if _, err := fmt.Sscanf(fields["epoch"], "%d", &epoch); err != nil {
		return 0, fmt.Errorf("record: epoch %q: %w", fields["epoch"], err)
	}
	return epoch, nil
}

// Incarnation is that of a live state's record, "" when there is none.
func (s *State) Incarnation() (string, error) {
	fields, err := s.record()
	return fields["incarnation"], err
}
