package schedule

import "time"

// Promise is what a schedule lets people expect of a job: that a good
// checkpoint follows the one before within a time that can be computed. It is
// immutable.
type Promise struct {
	Schedule Schedule
	MinPause time.Duration // least time between two runs: it moves the ones after
	Timeout  time.Duration // how long the run that comes last may take
	Misses   int           // how many runs in a row may fail or be left out
}

// Due is when the next good run must have ended at the latest, if the last one
// ended at the given time: the (Misses+1)th due time after it, and Timeout. It
// is counted from the end and not from the start of the last one, since a run
// that takes longer than the schedule's interval leaves out what is due
// meanwhile. The zero time when nothing is promised: there is no schedule, or
// it has no more due times.
func (p Promise) Due(last time.Time) time.Time {
	at := last
	for range p.Misses + 1 {
		next := p.Schedule.Next(at)
		if next.IsZero() {
			return time.Time{}
		}
		if free := at.Add(p.MinPause); free.After(next) {
			next = free
		}
		at = next
	}
	return at.Add(p.Timeout)
}
