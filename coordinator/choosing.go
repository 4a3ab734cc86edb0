package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"keyframe/snapshot"
	"keyframe/snapshot/archive"
)

// ArchiveChoice is what a restore takes of the archives in one folder, and why.
type ArchiveChoice struct {
	Index int    // of the archive
	Why   string // it is that one
	// Passed are archives that are newer, by their index, each with why it is
	// not taken.
	Passed map[int]string
	// GaveUp are all archives that are not of the live branch, as far as is
	// known: those of Passed and what is older.
	GaveUp  map[int]bool
	TakenAt time.Time
}

// undoes reports whether a checkpoint was taken to undo a restore or rescale: it
// holds what was to be replaced.
func undoes(t snapshot.Trigger) bool {
	return t == snapshot.TriggerPreRestore || t == snapshot.TriggerPreRescale
}

// ChooseArchive says which of the archives of one folder holds what was live
// last; live is what the folder says of that, nil when it says nothing. A pure
// function. There is at least one archive; all are of one job.
//
// What the folder names, and what was taken since, is chosen as a recovery
// chooses (see candidates). Undo checkpoints are taken by nobody's wish but to
// go back: one is chosen only where the folder says that it is live, or where
// there is nothing else.
func ChooseArchive(all []*snapshot.Manifest, live *archive.Live) ArchiveChoice {
	order := make([]int, len(all))
	for i := range all {
		order[i] = i
	}
	if live != nil && anotherHistory(all, *live) {
		live = nil
	}
	if live != nil && !slices.ContainsFunc(all, func(m *snapshot.Manifest) bool { return m.Checkpoint.ID > live.Newest || m.Checkpoint.ID <= live.Base }) {
		live = nil // nothing of what it speaks of is there
	}
	slices.SortFunc(order, func(x, y int) int {
		a, b := all[x], all[y]
		if live == nil { // ids may be those of several stores
			return cmp.Or(a.CutAt.Compare(b.CutAt), cmp.Compare(a.Checkpoint.ID, b.Checkpoint.ID))
		}
		return cmp.Or(cmp.Compare(a.Checkpoint.ID, b.Checkpoint.ID), a.CutAt.Compare(b.CutAt))
	})
	line := lineOf(all, order, live)
	c := ArchiveChoice{Index: line[0], Passed: map[int]string{}, GaveUp: map[int]bool{}}
	m := all[c.Index]
	c.TakenAt, c.Why = m.CutAt, whyChosen(m, live)
	for i := len(order) - 1; i >= 0; i-- {
		if one := order[i]; !slices.Contains(line, one) {
			c.GaveUp[one] = true
		}
	}
	for i := len(order) - 1; i >= 0 && order[i] != c.Index; i-- {
		c.Passed[order[i]] = whyPassed(all[order[i]], live)
	}
	return c
}

// anotherHistory reports whether what a folder says was written of checkpoints
// before those that are there: one has the id of what was put in place, and none
// is that one.
func anotherHistory(all []*snapshot.Manifest, live archive.Live) bool {
	id := false
	for _, m := range all {
		if m.Checkpoint.ID != live.Base {
			continue
		}
		if archive.Fingerprint(m) == live.Cut {
			return false
		}
		id = true
	}
	return id
}

// lineOf are the archives of the live branch, best first; order is oldest first.
func lineOf(all []*snapshot.Manifest, order []int, live *archive.Live) (line []int) {
	var history []snapshot.Checkpoint
	var of []int
	for _, i := range order {
		m := all[i]
		if live != nil && m.Checkpoint.ID == live.Base && archive.Fingerprint(m) != live.Cut {
			continue // another store's
		}
		history, of = append(history, m.Checkpoint), append(of, i)
	}
	var flip lineageRecord
	if live != nil {
		flip = lineageRecord{Newest: live.Newest, Base: live.Base}
	} else {
		// Ids in the order of time.
		for n := range history {
			history[n].ID = snapshot.ID(n + 1)
		}
	}
	for n := range history {
		history[n].State, history[n].Bad = snapshot.StateCompleted, ""
	}
	var undo []int
	for _, cp := range candidates(history, flip) {
		n := slices.IndexFunc(history, func(h snapshot.Checkpoint) bool { return h.ID == cp.ID })
		if undoes(cp.Trigger) && (live == nil || cp.ID > live.Newest) {
			undo = append(undo, of[n])
			continue
		}
		line = append(line, of[n])
	}
	if len(line) == 0 {
		line = undo
	}
	if len(line) == 0 { // the branch is gone: the newest is the best guess
		line = []int{order[len(order)-1]}
	}
	return line
}

func whyChosen(m *snapshot.Manifest, live *archive.Live) string {
	id := m.Checkpoint.ID
	switch {
	case live == nil && undoes(m.Checkpoint.Trigger):
		return fmt.Sprintf("checkpoint %d is chosen: there is none but undo checkpoints, and no file %s says which is live", id, archive.LiveFile)
	case live == nil:
		return fmt.Sprintf("checkpoint %d is chosen: the newest that is no undo checkpoint (no file %s says which is live)", id, archive.LiveFile)
	case id == live.Base:
		return fmt.Sprintf("checkpoint %d is chosen: it was put in place last, as %s says", id, archive.LiveFile)
	case id > live.Newest:
		return fmt.Sprintf("checkpoint %d is chosen: the newest since checkpoint %d was put in place, as %s says", id, live.Base, archive.LiveFile)
	}
	return fmt.Sprintf("checkpoint %d is chosen: the newest that is here of those that checkpoint %d, which was put in place last, descends from", id, live.Base)
}

func whyPassed(m *snapshot.Manifest, live *archive.Live) string {
	id, taken := m.Checkpoint.ID, m.CutAt.UTC().Format(time.RFC3339)
	switch {
	case undoes(m.Checkpoint.Trigger):
		return fmt.Sprintf("checkpoint %d (cut at %s) is passed over: it was taken to undo what came after it (%s)", id, taken, m.Checkpoint.Trigger)
	case live != nil:
		return fmt.Sprintf("checkpoint %d (cut at %s) is passed over: it was given up when checkpoint %d was put in place", id, taken, live.Base)
	}
	return fmt.Sprintf("checkpoint %d (cut at %s) is passed over", id, taken)
}
