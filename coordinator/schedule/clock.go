package schedule

import (
	"time"

	"github.com/robfig/cron/v3"
)

// lastYear is the last year that RFC 3339 can write.
const lastYear = 9999

// nextWallClock goes through the periods between two changes of the zone's
// clock, beginning with the one that holds after: inside a period the distance
// to UTC is constant, so due times are found by wall clock alone, and the
// changes are handled where the periods meet.
func (s Schedule) nextWallClock(after time.Time) time.Time {
	for at := after.In(s.zone); at.Year() <= lastYear; {
		start, end := at.ZoneBounds()
		from := wall(at) // what is due at this wall clock doesn't count
		skipped, again := change(start)
		if start.After(after) {
			if !s.anyHour && s.dueWithin(wall(start).Add(-skipped), skipped) {
				return start.UTC()
			}
			from = justBefore(from) // the period's first moment counts
		}
		if second := justBefore(wall(start).Add(again)); !s.anyHour && again > 0 && from.Before(second) {
			from = second // what the first pass has counted
		}
		due := nextWall(s.cron, from)
		if due.IsZero() {
			return time.Time{}
		}
		if t := toInstant(due, at); end.IsZero() || t.Before(end) {
			return t
		}
		at = end.In(s.zone)
	}
	return time.Time{}
}

// change tells by how much the clock was put forward (skipped) or back (again)
// at the start of a period; both are 0 for a zone's first period.
func change(start time.Time) (skipped, again time.Duration) {
	if start.IsZero() {
		return 0, 0
	}
	_, before := start.Add(-time.Second).Zone()
	_, now := start.Zone()
	d := time.Duration(now-before) * time.Second
	return max(d, 0), max(-d, 0)
}

// dueWithin reports whether a wall clock w with from ≤ w < from+d is due.
func (s Schedule) dueWithin(from time.Time, d time.Duration) bool {
	w := nextWall(s.cron, justBefore(from))
	return !w.IsZero() && w.Before(from.Add(d))
}

func justBefore(t time.Time) time.Time { return t.Add(-time.Nanosecond) }

// wall is t's wall clock, written as if it were UTC.
func wall(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// toInstant undoes wall with the distance to UTC that holds at the time at.
func toInstant(w, at time.Time) time.Time {
	_, offset := at.Zone()
	return w.Add(-time.Duration(offset) * time.Second)
}

// nextWall is the first due wall clock after w, zero when there is none within
// eleven years. The library gives up after five, but February 29 can be eight
// years away (2096 to 2104).
func nextWall(c *cron.SpecSchedule, w time.Time) time.Time {
	due := c.Next(w)
	if due.IsZero() {
		due = c.Next(justBefore(time.Date(w.Year()+6, 1, 1, 0, 0, 0, 0, time.UTC)))
	}
	if due.Year() > lastYear {
		return time.Time{}
	}
	return due
}
