// Package schedule says when a job's checkpoints are due.
//
// A schedule is a five-field cron line ("*/5 * * * *"), a descriptor
// (@hourly, @daily, @weekly, @monthly, @yearly) or "@every 30s". Times are UTC
// unless the line begins with CRON_TZ=Zone or TZ=Zone. What would never fire,
// fire at another moment than it says, or take the parser down is refused by
// [Parse], so that a schedule that parses is one that runs.
package schedule

import (
	"time"
	_ "time/tzdata" // zones work on systems without zone files

	"github.com/robfig/cron/v3"
)

// Schedule is a parsed schedule. The zero Schedule never fires. It is
// immutable and safe for concurrent use.
type Schedule struct {
	spec  string
	every time.Duration      // of an @every schedule, otherwise 0
	cron  *cron.SpecSchedule // matches wall clocks: its location is UTC
	zone  *time.Location
	// anyHour: the hour field is a wildcard, so the schedule means "again and
	// again" and not "at this time of day". See Next.
	anyHour bool
}

// Error is why a schedule was refused: the text as given, what is wrong with
// it, and what to write instead.
type Error struct {
	Spec    string
	Problem string
	Remedy  string
}

// Error names the schedule, the problem and the remedy.
func (e *Error) Error() string {
	return "schedule " + quote(e.Spec) + ": " + e.Problem + ": " + e.Remedy
}

// String is the schedule as it was given.
func (s Schedule) String() string { return s.spec }

// IsZero reports whether s is the zero Schedule, which never fires.
func (s Schedule) IsZero() bool { return s.every == 0 && s.cron == nil }

// Next is the first due time after the given one, in UTC; the zero time when
// there is none (only the zero Schedule, or dates beyond the year 9999).
//
// An @every schedule is due at the whole multiples of its duration since
// 1970-01-01T00:00:00Z. So it does not start anew when the coordinator does:
// one that restarts every hour still runs "@every 2h", a late run does not
// shift the ones after it, and two coordinators agree on what is due.
//
// On the days when a zone's clock is changed, a line that names its hours
// ("30 2 * * *") runs once a day as it says: what falls into the hour that
// does not exist is due at the moment the clock jumps, once, and in the hour
// that comes twice only the first pass counts. A line whose hour field is a
// wildcard ("*/15 * * * *", "0 */2 * * *") follows the clock as it is: nothing
// is due in the hour that does not exist, and the hour that comes twice counts
// twice.
func (s Schedule) Next(after time.Time) time.Time {
	switch {
	case s.every > 0:
		return nextMultiple(after, s.every)
	case s.cron != nil:
		return s.nextWallClock(after)
	}
	return time.Time{}
}

// Interval is the time from the first due time after the given one to the
// second: what the schedule promises between two runs at that time. It is what
// the age of the newest checkpoint is judged by; 0 when nothing is due.
func (s Schedule) Interval(after time.Time) time.Duration {
	first := s.Next(after)
	if first.IsZero() {
		return 0
	}
	second := s.Next(first)
	if second.IsZero() {
		return 0
	}
	return second.Sub(first)
}

// nextMultiple is the first whole multiple of d since 1970 after t; d is a
// whole number of seconds.
func nextMultiple(t time.Time, d time.Duration) time.Time {
	step := int64(d / time.Second)
	sec := t.Unix()
	n := sec / step
	if sec < 0 && sec%step != 0 {
		n-- // rounds down before 1970 too
	}
	return time.Unix((n+1)*step, 0).UTC()
}
