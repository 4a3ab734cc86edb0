package coordinator

import (
	"fmt"
	"time"

	"keyframe/coordinator/schedule"
	"keyframe/snapshot"
)

// silence is what is known of the time since a job's last good checkpoint.
// job.mu guards it.
type silence struct {
	since time.Time // the job has been watched since then
	// from: what was before it doesn't count, since the schedule was kept by
	// nobody or was another one: the job was resumed, applied with another
	// schedule, or taken over. Zero for none.
	from time.Time

	// base is what the promise is counted from. How long ago that is, is how
	// old it was when it became the base, and what the monotonic clock has
	// counted since: so a wall clock that jumps raises no alarm and hides none.
	base time.Time
	age  time.Duration
	seen time.Time

	terms terms // due is computed from
	due   time.Time
	told  bool // that it is overdue
}

// terms is all that a due time depends on.
type terms struct {
	base              time.Time
	schedule          string
	minPause, timeout time.Duration
	misses            int
}

// notDueLocked says why nothing is promised, "" when something is.
func (j *job) notDueLocked() string {
	switch {
	case j.schedule == nil:
		return "on demand only"
	case j.paused:
		return "paused"
	case j.health.State == HealthStandby:
		return "another coordinator leads"
	}
	return ""
}

// dueLocked is when, by the job's schedule, a good checkpoint must have been
// completed, and whether that time has passed. The zero time when nothing is
// promised.
func (j *job) dueLocked() (due time.Time, overdue bool) {
	s := &j.silence
	if j.notDueLocked() != "" {
		return time.Time{}, false
	}
	if base := j.baseLocked(); s.seen.IsZero() || !base.Equal(s.base) {
		s.base, s.seen = base, time.Now()
		s.age = max(0, j.c.opts.Now().Sub(base))
	}
	spec := j.spec.Checkpoint
	t := terms{base: s.base, schedule: j.schedule.String(), minPause: time.Duration(spec.MinPause), timeout: time.Duration(spec.Timeout), misses: spec.Misses()}
	if t != s.terms {
		p := schedule.Promise{Schedule: *j.schedule, MinPause: t.minPause, Timeout: t.timeout, Misses: t.misses}
		s.terms, s.due = t, p.Due(s.base).UTC()
	}
	if s.due.IsZero() {
		return time.Time{}, false
	}
	return s.due, s.age+time.Since(s.seen) > s.due.Sub(s.base)
}

// baseLocked is what the promise is counted from: the end of the last good
// checkpoint, also one from before this coordinator was started, since the
// state has had none for as long.
func (j *job) baseLocked() time.Time {
	s := &j.silence
	base := s.since
	if at := goodAt(j.good); at != nil && j.health.State != HealthStarting {
		base = *at
	}
	if s.from.After(base) {
		base = s.from
	}
	return base
}

func goodAt(good *snapshot.Checkpoint) *time.Time {
	if good == nil || good.CompletedAt == nil {
		return nil
	}
	at := good.CompletedAt.UTC()
	return &at
}

// promiseAnewLocked lets what was before now not count.
func (j *job) promiseAnewLocked() { j.silence.from = j.c.opts.Now() }

// overdueText says since when and by what promise.
func (j *job) overdueTextLocked(due time.Time) string {
	t := j.silence.terms
	last := "no good checkpoint yet; watched since " + j.silence.base.UTC().Format(time.RFC3339)
	if at := goodAt(j.good); at != nil {
		last = fmt.Sprintf("no good checkpoint since %d, completed %s", j.good.ID, at.Format(time.RFC3339))
	}
	text := fmt.Sprintf("%s: schedule %q with %d tolerable misses and timeout %s promised one by %s", last, t.schedule, t.misses, t.timeout, due.Format(time.RFC3339))
	if m := j.health.Message; m != "" {
		text += " (" + string(j.health.State) + ": " + m + ")"
	}
	return text
}

// silenceLocked fills what a status says of it.
func (j *job) silenceLocked(s *JobStatus) {
	s.LastGoodAt, s.NotDue = goodAt(j.good), j.notDueLocked()
	due, overdue := j.dueLocked()
	if due.IsZero() {
		return
	}
	s.DueAt, s.Overdue = &due, overdue
	if overdue {
		// A copy: the slice is the one that the last look has set.
		s.Health.Warnings = append(append([]string(nil), s.Health.Warnings...), "overdue: "+j.overdueTextLocked(due))
	}
}

// hearSilence judges all jobs again and again. It is no part of the actors: a
// checkpoint that hangs is silence too.
func (c *Coordinator) hearSilence() {
	defer c.wg.Done()
	tick := time.NewTicker(c.opts.Poll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-c.store.quit.Done():
			return
		}
		c.hearStore()
		c.mu.Lock()
		jobs := make([]*job, 0, len(c.jobs))
		for _, j := range c.jobs {
			jobs = append(jobs, j)
		}
		c.mu.Unlock()
		for _, j := range jobs {
			j.judgeSilence()
		}
	}
}

// judgeSilence tells of the beginning and of the end of a job's silence, each
// once.
func (j *job) judgeSilence() {
	j.mu.Lock()
	due, overdue := j.dueLocked()
	was := j.silence.told
	j.silence.told = overdue
	e := Event{Job: j.spec.Name}
	switch {
	case overdue == was:
		j.mu.Unlock()
		return
	case overdue:
		e.Kind, e.Message = EventCheckpointOverdue, j.overdueTextLocked(due)
	default:
		e.Kind, e.Reason = EventCheckpointOverdueEnded, j.notDueLocked()
		e.Message = "no longer overdue: " + e.Reason
		if e.Reason == "" && j.good != nil && goodAt(j.good).Equal(j.silence.base) {
			e.ID, e.Message = j.good.ID, fmt.Sprintf("no longer overdue: checkpoint %d is good", j.good.ID)
		} else if e.Reason == "" {
			e.Reason, e.Message = "promised anew", "no longer overdue: the schedule's promise begins anew, the next good checkpoint is due by "+due.Format(time.RFC3339)
		}
	}
	j.mu.Unlock()
	j.c.emit(e)
}
