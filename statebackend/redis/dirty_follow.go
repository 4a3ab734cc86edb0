package redis

import (
	"crypto/rand"
	"fmt"

	"keyframe/statebackend"
	"keyframe/statebackend/redis/track"
)

// chainMost is how many cuts of a job are remembered by their tokens. A cut
// whose checkpoint was not committed, or whose caller doesn't say what it knew
// before, doesn't make an earlier one unknown.
const chainMost = 3

// follow is what is known of one job between its cuts: a watch of its writes,
// and the last cuts with what was written since each. It is used by one cut at
// a time (see trackers.enter).
type follow struct {
	job     statebackend.Job
	level   track.Level
	tracker track.Tracker
	watch   track.Watch
	chain   []link // oldest first
	// why a chain that was there is gone.
	lost string
}

// link is a cut that later ones may stand on.
type link struct {
	token  string
	runID  string
	replID string
	roster *roster
	// totals of the job, about: what an element of it was, and how many.
	elements int64
	// marks are what was written from this cut to the next link's, or to the
	// last Take.
	marks track.Marks
	cost  int // bytes of marks, at most
}

// take takes the watch's marks. They are also kept with the last cut, so that
// an attempt that fails, or is never committed, loses nothing.
func (f *follow) take() track.Marks {
	m := f.watch.Take()
	if n := len(f.chain); n > 0 {
		f.chain[n-1].remember(m)
	}
	return m
}

// remember keeps marks that were taken after the link's cut, within what a
// watch holds in one Take.
func (l *link) remember(m track.Marks) {
	if !l.marks.All && len(l.marks.Keys) == 0 {
		// Shared with who takes them: what is merged into either is merged into
		// both anyway.
		l.marks = m
	} else {
		l.marks.Merge(m)
	}
	l.cost += marksCost(m) // or less: some were there
	if l.cost > track.DefaultBytes {
		if l.cost = marksCost(l.marks); l.cost > track.DefaultBytes {
			l.marks = track.Marks{All: true, Reason: fmt.Sprintf("more than %d bytes of names were written since the earlier checkpoint", track.DefaultBytes)}
		}
	}
}

func marksCost(m track.Marks) (bytes int) {
	for name, k := range m.Keys {
		bytes += len(name) + 64*(1+len(k.Fields))
		for field := range k.Fields {
			bytes += len(field)
		}
	}
	return bytes
}

// find gives the place in the chain of the cut with that token, or says why it
// can't be stood on.
func (f *follow) find(token string, now serverFacts) (at int, why string) {
	for i := range f.chain {
		l := &f.chain[i]
		if l.token != token {
			continue
		}
		switch {
		case l.runID != now.runID:
			return -1, "the server was started anew since the earlier checkpoint"
		case l.replID != now.position.ReplID:
			return -1, fmt.Sprintf("the server's replication history is another since the earlier checkpoint (%s, then %s)", l.replID, now.position.ReplID)
		}
		for _, later := range f.chain[i:] {
			if later.marks.All {
				return -1, "tracking was lost: " + later.marks.Reason
			}
		}
		return i, ""
	}
	if f.lost != "" {
		return -1, "tracking was lost: " + f.lost
	}
	return -1, "no earlier cut is known here: the coordinator was started anew, or the job was restored"
}

// since gives all that was written after the cut at that place, up to the last
// Take. It is only to be read.
func (f *follow) since(at int) track.Marks {
	if at == len(f.chain)-1 {
		return f.chain[at].marks
	}
	var all track.Marks
	for i := range f.chain[at:] {
		all.Merge(f.chain[at+i].marks)
	}
	return all
}

// add makes a cut known that stands on the one at that place, or on none
// (-1). Cuts between them were never committed: who asked for that place didn't
// know of them.
func (f *follow) add(l link, at int) {
	if at >= 0 {
		m := f.since(at)
		f.chain[at].marks, f.chain[at].cost = m, marksCost(m)
		f.chain = f.chain[:at+1]
	}
	if len(f.chain) == chainMost {
		f.chain = append(f.chain[:0], f.chain[1:]...)
	}
	f.chain = append(f.chain, l)
	f.lost = ""
}

// drop forgets all cuts.
func (f *follow) drop(why string) { f.chain, f.lost = nil, why }

// newToken names a cut. Nobody guesses it by accident.
func newToken() string { return rand.Text() }

// statebackendMarks gives marks as a cut tells them.
func statebackendMarks(m track.Marks) statebackend.Marked {
	if m.All {
		return statebackend.Marked{Reason: m.Reason}
	}
	out := statebackend.Marked{Known: true, Keys: make(map[string]statebackend.MarkedKey, len(m.Keys))}
	for name, k := range m.Keys {
		out.Keys[name] = statebackend.MarkedKey{Whole: k.Whole, Fields: k.Fields}
	}
	return out
}

// mergeMarks gives what both hold; what it is given may be changed by it.
func mergeMarks(a, b track.Marks) track.Marks {
	if !a.All && len(a.Keys) == 0 {
		return b
	}
	a.Merge(b)
	return a
}
