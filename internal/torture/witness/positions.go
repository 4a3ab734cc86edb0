package witness

import "fmt"

// Taken says at which position of the caller's model a completed checkpoint
// stands: a number that grows with each acknowledged operation and that a
// restore sets back. from and to are the bounds that I2 gives: the position
// that was acknowledged when the checkpoint began, and the newest that may have
// been written when it had ended. Judged are I2 (the bounds) and I5: the
// position is not below that of its parent (what its state descends from), and
// after a loss not below what Lost and Restored said.
func (j *Journal) Taken(c Checkpoint, position, from, to int64) []Finding {
	j.mu.Lock()
	defer j.mu.Unlock()
	var f found
	if position < from || position > to {
		f.add("I2", "checkpoint %d holds position %d: while it was taken the state went from %d to %d", c.ID, position, from, to)
	}
	if parent, known := j.positions[c.Parent]; known && position < parent {
		f.add("I5", "checkpoint %d holds position %d, and its parent %d holds %d", c.ID, position, c.Parent, parent)
	}
	if j.isLost && c.ID > j.lostAt {
		f.add("I5", "checkpoint %d was completed after a loss (newest was %d), before anything was restored", c.ID, j.lostAt)
	}
	for i := len(j.floors) - 1; i >= 0; i-- {
		if at := j.floors[i]; c.ID > at.after {
			if position < at.position {
				f.add("I5", "checkpoint %d holds position %d; what was live after checkpoint %d held %d", c.ID, position, at.after, at.position)
			}
			break
		}
	}
	j.positions[c.ID] = position
	return j.keep(f)
}

// Lost says that the live state was lost or came back older, and that newest is
// the greatest id that the store had then. Until Restored is called no
// checkpoint above it may be completed (I5).
func (j *Journal) Lost(newest uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.isLost {
		j.isLost, j.lostAt = true, newest
	}
}

// Restored says that a restore (a recovery, an undo) went live with the content
// of a checkpoint, which holds that position, and that newest is the greatest
// id that had been completed before. Checkpoints above it hold that position or
// a later one (I5).
func (j *Journal) Restored(newest uint64, position int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.isLost = false
	j.floors = append(j.floors, floor{newest, position})
}

// Epoch takes an epoch (or a lease's token) as a job that is well shows it: it
// never falls (I7).
func (j *Journal) Epoch(epoch uint64) []Finding {
	j.mu.Lock()
	defer j.mu.Unlock()
	var f found
	if epoch < j.epoch {
		f.add("I7", "the epoch is %d and was %d", epoch, j.epoch)
	}
	j.epoch = max(j.epoch, epoch)
	return j.keep(f)
}

// Write takes a write that was seen and the epoch that it carries: an epoch
// below one that was current before belongs to somebody who was fenced (I7).
func (j *Journal) Write(epoch uint64, what string) []Finding {
	j.mu.Lock()
	defer j.mu.Unlock()
	var f found
	if epoch < j.epoch {
		f.add("I7", "a write of epoch %d after epoch %d: %s", epoch, j.epoch, what)
	}
	return j.keep(f)
}

// Actors takes how many actors of one job work at one moment, and who (I7).
func (j *Journal) Actors(who ...string) []Finding {
	j.mu.Lock()
	defer j.mu.Unlock()
	var f found
	if len(who) > 1 {
		f.add("I7", "%d act on the job at once: %q", len(who), who)
	}
	return j.keep(f)
}

// Memory takes the high-water mark of a coordinator's memory, in bytes (I8).
func (j *Journal) Memory(highWater, bound uint64) []Finding {
	j.mu.Lock()
	defer j.mu.Unlock()
	var f found
	if highWater > bound {
		f.add("I8", "the process has had %s in memory, the bound is %s", mib(highWater), mib(bound))
	}
	return j.keep(f)
}

func mib(n uint64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
