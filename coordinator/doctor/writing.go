package doctor

import (
	"fmt"
	"time"

	"keyframe/statebackend"
)

// A key is hot by its writes while it was watched when it was written hotRate
// times a second at least, and either took hotShare of all writes to the job's
// state, or was written hotTimes as often as the other written keys are on
// average; or, however the others are, hotAlways times a second: that is about a
// tenth of what a server can do. Announced writes are fewer than there are, so
// for them the comparison with the others is what counts.
const (
	hotRate   = 100
	hotShare  = 0.1
	hotTimes  = 8
	hotAlways = 10000
)

// hotWatch is how long must be watched for a rate to mean anything.
const hotWatch = time.Second

// hotWrites tells of keys that were written much: while they were watched, and
// while the newest checkpoint was taken.
func (e *exam) hotWrites(a statebackend.Activity) {
	what := fmt.Sprintf("keys with %d elements or more written while they were watched, by the tracking of writes", e.limits.HotWrites)
	for _, k := range a.Keys {
		switch {
		case k.Elements >= e.limits.HotWrites:
			e.found.put(CodeHotKey, Info, what, k.Name, 1)
		case a.Over >= hotWatch && e.isHot(k, a):
			e.tellHot(k, a)
		}
	}
	switch {
	case a.By != statebackend.ByTracking || a.Unheard != "":
		e.unseen("hot keys, by their writes: " + unheard(a))
	case a.Over < hotWatch:
		e.unseen(fmt.Sprintf("hot keys, by their writes: the job was watched for %s only; give --watch %s or more", a.Over.Round(time.Millisecond), 2*hotWatch))
	}
	if e.req.Last == nil {
		return
	}
	what = fmt.Sprintf("keys that were written faster than checkpoint %d could read them", e.req.Last.ID)
	for _, k := range e.req.Last.Hot {
		e.found.put(CodeHotKey, Warning, what, k.Key, 1)
	}
}

func (e *exam) isHot(k statebackend.WrittenKey, a statebackend.Activity) bool {
	rate, count := float64(k.Writes)/a.Over.Seconds(), float64(k.Writes)
	others := float64(a.Count) - count
	switch {
	case rate >= hotAlways:
		return true
	case rate < hotRate || e.state < 2:
		return false
	case a.Written < 2:
		return true
	case count >= hotTimes*others/float64(a.Written-1):
		return true
	}
	// Of few keys each has a large share.
	return !a.Announced && count >= max(hotShare, hotTimes/2/float64(e.state))*float64(a.Count)
}

func (e *exam) tellHot(k statebackend.WrittenKey, a statebackend.Activity) {
	const what = "keys that were written far more than others while they were watched"
	how, counted := "by the tracking of writes", "writes"
	if a.Announced {
		counted = "announcements"
		how = "by the server's announcements: at most one for each turn of its event loop, so there may be many more"
	}
	rate := float64(k.Writes) / a.Over.Seconds()
	e.found.put(CodeHotKey, Info, what+", "+how, fmt.Sprintf("%s (%d %s in %s, %.0f/s, %.0f %% of all of the job's state)",
		k.Name, k.Writes, counted, a.Over.Round(100*time.Millisecond), rate, 100*float64(k.Writes)/float64(max(a.Count, 1))), 1)
}

// unheard says why the job's own writes were not seen.
func unheard(a statebackend.Activity) string {
	return "the job's own writes could not be watched: " + a.Unheard
}

// unseen notes what was not looked at.
func (e *exam) unseen(what string) { e.unlooked = append(e.unlooked, what) }

// idle tells of a job that nobody writes: its input waits and no consumer takes
// it, none of its keys was used for long, or none was written while watched.
func (e *exam) idle(a statebackend.Activity) {
	if e.state == 0 || a.By == statebackend.ByTracking && a.Writes {
		return
	}
	over := a.Over.Round(time.Millisecond)
	silent := "" // how it was judged that nobody wrote
	judged := "whether anybody writes could not be seen"
	switch {
	case a.By == statebackend.ByTracking:
		silent = "by the tracking of writes"
		judged = "none of its keys was written while watched, by the tracking of writes"
	case a.By == statebackend.ByServer && !a.Writes:
		silent = "by the server's own count"
		judged = "the server executed no write while watched, by its own count"
	case a.By == statebackend.ByServer:
		judged = "others write to the server"
	}
	told := e.waiting(a, judged)
	if e.untouched >= e.limits.IdleAfter {
		told = true
		e.found.say(CodeIdle, Warning, e.req.Job.Root(), "no key of the job was read or written for %s or longer, by OBJECT IDLETIME; %s", e.untouched.Round(time.Second), judged)
	}
	switch {
	case silent == "":
		e.unseen("whether anybody writes the job: " + unheard(a))
	case a.Over < e.limits.IdleWatch:
		e.unseen(fmt.Sprintf("whether the job is idle: it was watched for %s only, and nobody wrote; give --watch %s or more", over, 2*e.limits.IdleWatch))
	case !told:
		e.found.say(CodeIdle, Info, e.req.Job.Root(), "nobody wrote the job's state in the %s that it was watched, %s", over, silent)
	}
}

// waiting tells of input that waits while no consumer takes it.
func (e *exam) waiting(a statebackend.Activity, judged string) bool {
	var waiting []string
	moved := false
	for _, s := range a.Sources {
		moved = moved || s.Moved
		if s.Unread > 0 {
			waiting = append(waiting, fmt.Sprintf("%s (group %s)", s.Stream, s.Group))
		}
	}
	if len(waiting) == 0 || moved {
		return false
	}
	what := fmt.Sprintf("input waits and no consumer took any while watched; %s", judged)
	for _, w := range waiting {
		e.found.put(CodeIdle, Warning, what, w, 1)
	}
	return true
}
