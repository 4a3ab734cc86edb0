package track

import (
	"errors"
	"fmt"
)

// errPrefixes ends a link whose prefixes can't be added to.
var errPrefixes = errors.New("the extra names changed so that the server has to be asked for other prefixes")

// Extra replaces the extra names. Names that are new are marked at once: they
// may have been written between the caller's look at the index and this call.
// They are marked again by each Take until the server has confirmed that it
// tells of them. Where it can't be asked for them beside the prefixes that it
// was asked for (one begins with another, or they are too many), the watch
// attaches anew, with All.
func (w *keyWatch) Extra(names [][]byte) {
	extra := make(map[string]struct{}, len(names))
	for _, name := range names {
		extra[string(name)] = struct{}{}
	}
	w.mu.Lock()
	for name := range w.unarmed {
		if _, ok := extra[name]; !ok {
			delete(w.unarmed, name)
		}
	}
	old := w.extra
	w.extra = extra
	for name := range extra {
		if _, ok := old[name]; !ok {
			w.marks.add([]byte(name))
		}
	}
	l := w.link
	var more []string
	ok := true
	if l != nil {
		more, ok = w.plan()
	}
	w.mu.Unlock()
	if l != nil {
		w.arm(l, more, ok)
	}
}

// plan finds the extra names that the server doesn't tell of, and the prefixes
// to ask for; not ok when they can't be asked for on this link. w.mu is held.
func (w *keyWatch) plan() (more []string, ok bool) {
	for name := range w.extra {
		if covered(name, w.armed) {
			continue
		}
		w.unarmed[name] = struct{}{}
		w.marks.add([]byte(name))
		if !covered(name, w.asked) {
			more = append(more, name)
		}
	}
	more = withoutCovered(more)
	for _, p := range more {
		if uncovers(p, w.asked) {
			return nil, false
		}
	}
	if len(w.asked)+len(more) > 2*maxPrefixes {
		return nil, false
	}
	// Not append in place: armed may share the array.
	w.asked = append(append(make([]string, 0, len(w.asked)+len(more)), w.asked...), more...)
	return more, true
}

// arm carries out a plan. w.mu is not held: the answer may be given at once.
func (w *keyWatch) arm(l *keyLink, more []string, ok bool) {
	if !ok {
		w.restart(l)
		return
	}
	if len(more) == 0 {
		return
	}
	args := tracking(more)
	l.send(func(a answer, err error) {
		switch {
		case err != nil: // the link is lost, and said so
		case a.fail != "":
			l.kill(a.refused(args))
		default:
			w.confirmed(l, more)
		}
	}, args...)
}

// confirmed notes that the server tells of the prefixes.
func (w *keyWatch) confirmed(l *keyLink, prefixes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.link != l {
		return
	}
	w.armed = append(append(make([]string, 0, len(w.armed)+len(prefixes)), w.armed...), prefixes...)
	for name := range w.unarmed {
		if covered(name, prefixes) {
			delete(w.unarmed, name)
		}
	}
}

// restart ends a link so that the watch attaches anew at once.
func (w *keyWatch) restart(l *keyLink) {
	err := fmt.Errorf("%w: server %s: %w", ErrLost, w.t.opts.Server, errPrefixes)
	w.mu.Lock()
	if w.link == l {
		w.detach(err)
	}
	w.mu.Unlock()
	w.hurry()
	l.kill(err)
}
