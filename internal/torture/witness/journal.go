package witness

import (
	"fmt"
	"slices"
	"sync"
)

// Journal remembers what a run has shown of one job and tells what must not
// be. Each method that looks at something new gives the findings of that look;
// Findings gives all. Safe for concurrent use.
type Journal struct {
	mu       sync.Mutex
	all      []Finding
	rows     map[uint64]Checkpoint // as last listed
	greatest uint64                // id ever seen, in any store file
	deleted  map[uint64]bool       // by the caller's wish

	epoch     uint64
	positions map[uint64]int64 // of completed checkpoints, by the model
	floors    []floor
	lostAt    uint64 // greatest id when state was lost and not yet restored
	isLost    bool
	salvaged  bool // since the last look
}

// floor says that from an id on the state's position is at least that.
type floor struct {
	after    uint64 // ids above it
	position int64
}

// NewJournal begins a run.
func NewJournal() *Journal {
	return &Journal{rows: map[uint64]Checkpoint{}, deleted: map[uint64]bool{}, positions: map[uint64]int64{}}
}

// Findings are all findings so far, in order.
func (j *Journal) Findings() []Finding {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.all)
}

// found is a list of findings that one look gives.
type found []Finding

func (f *found) add(invariant, format string, args ...any) {
	*f = append(*f, Finding{invariant, fmt.Sprintf(format, args...)})
}

// keep remembers the findings of a look. The journal is locked.
func (j *Journal) keep(f found) []Finding {
	j.all = append(j.all, f...)
	return f
}

// Add takes findings of the Check functions into the journal.
func (j *Journal) Add(f ...Finding) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all = append(j.all, f...)
}

// Deleted says that the caller had a checkpoint deleted, or is about to.
func (j *Journal) Deleted(id uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.deleted[id] = true
}

// NewStore says that the store file is a new one, or an older copy of it: what
// was listed need not be there. Ids go on all the same (I10).
func (j *Journal) NewStore() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.rows = map[uint64]Checkpoint{}
}

// Salvaged says that the store file was damaged and made anew of what was whole
// in it: what was listed need not be there, and what had been removed since may
// be there again, since its pages were.
func (j *Journal) Salvaged() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.salvaged = true
}

// Listed takes the history as a look at the store shows it, of all states and
// in the order of ids, and last, the greatest id that the store says the job
// ever had (0: it doesn't tell). It judges I10 (ids only grow, also over
// deletions, failures and new files), I6 (what must not be gone), I1 (what is
// completed stays it, with the same content) and I7 (epochs of checkpoints).
func (j *Journal) Listed(all []Checkpoint, last uint64) []Finding {
	j.mu.Lock()
	defer j.mu.Unlock()
	var f found
	now := make(map[uint64]Checkpoint, len(all))
	before, top := uint64(0), j.greatest
	for _, c := range all {
		if c.ID <= before {
			f.add("I10", "id %d is listed after %d", c.ID, before)
		}
		before = c.ID
		now[c.ID] = c
		if old, known := j.rows[c.ID]; known {
			f.changed(old, c)
		} else if c.ID <= j.greatest && !(j.salvaged && c.State == stateCompleted) {
			f.add("I10", "id %d is new, and %d was there before", c.ID, j.greatest)
		}
		top = max(top, c.ID)
	}
	if last > 0 && last < top {
		f.add("I10", "the store says that the greatest id ever was %d, and %d was seen", last, top)
	}
	if !j.salvaged {
		j.gone(&f, now)
	}
	f.epochs(all)
	j.rows, j.greatest, j.salvaged = now, max(top, last), false
	return j.keep(f)
}

// changed holds a row to what it was: an attempt ends once, and what a
// completed checkpoint holds stays.
func (f *found) changed(old, c Checkpoint) {
	switch {
	case old.State == stateCompleted && c.State != stateCompleted:
		f.add("I1", "checkpoint %d was completed and is now %s", c.ID, c.State)
	case old.State == stateFailed && c.State != stateFailed:
		f.add("I1", "checkpoint %d had failed and is now %s", c.ID, c.State)
	case old.State == stateCompleted && (old.Keys != c.Keys || old.Missing != c.Missing || old.Elements != c.Elements || old.Epoch != c.Epoch):
		f.add("I1", "completed checkpoint %d had %d keys, %d missing, %d elements, epoch %d, and has now %d, %d, %d, %d",
			c.ID, old.Keys, old.Missing, old.Elements, old.Epoch, c.Keys, c.Missing, c.Elements, c.Epoch)
	}
}

// gone judges what was listed before and isn't now (I6). A rescale's own
// checkpoint may go when the rescale was not made: it is not counted as the
// newest as long as an older restorable one stays.
func (j *Journal) gone(f *found, now map[uint64]Checkpoint) {
	var newest, newestNow uint64
	for id, c := range j.rows {
		if c.Restorable() && c.Trigger != triggerRescale && !j.deleted[id] {
			newest = max(newest, id)
		}
		if _, there := now[id]; there || j.deleted[id] {
			continue
		}
		switch {
		case c.Kind == kindSavepoint && c.State == stateCompleted && c.Trigger != triggerRescale:
			f.add("I6", "savepoint %d (%s) is gone", id, c.Name)
		case c.Pinned:
			f.add("I6", "checkpoint %d is gone, and was pinned", id)
		}
	}
	for id, c := range now {
		if c.Restorable() {
			newestNow = max(newestNow, id)
		}
	}
	if _, there := now[newest]; !there && newestNow < newest {
		f.add("I6", "checkpoint %d, the newest restorable one, is gone; the newest is now %d", newest, newestNow)
	}
}

// epochs judges the epochs of completed checkpoints: they don't fall with
// growing ids. An import brings its own.
func (f *found) epochs(all []Checkpoint) {
	var before Checkpoint
	for _, c := range all {
		if c.State != stateCompleted || c.Trigger == triggerImport {
			continue
		}
		if c.Epoch < before.Epoch {
			f.add("I7", "checkpoint %d has epoch %d, %d had %d", c.ID, c.Epoch, before.ID, before.Epoch)
		}
		before = c
	}
}
