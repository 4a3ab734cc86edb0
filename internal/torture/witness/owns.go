package witness

import "strings"

// What follows {root}: in the names of a job's own bookkeeping (key layout).
const (
	tailIndex     = "stateKeys"
	tailRegistry  = "stateSchema"
	tailModes     = "operatorState"
	tailAssigned  = "assignment"
	tailRecord    = "coordinator"
	tailLease     = "coordinator:lease"
	tailStaged    = "coordinator:stage:"
	operatorInfix = ":opstate:"
)

// bookkeeping gives what follows {root}: of a name of the job's bookkeeping.
func bookkeeping(root, name string) (tail string, ok bool) {
	tail, ok = strings.CutPrefix(name, root+":")
	if !ok {
		return "", false
	}
	switch tail {
	case tailIndex, tailRegistry, tailModes, tailAssigned, tailRecord, tailLease:
		return tail, true
	}
	return tail, strings.HasPrefix(tail, tailStaged)
}

// owned tells a state key of the job: its name is below the root, and is not
// the job's bookkeeping. The index may list others; a restore doesn't write them.
func owned(root, name string) bool {
	if _, book := bookkeeping(root, name); book {
		return false
	}
	return strings.HasPrefix(name, root+":")
}

// Owned is the state without the keys that the index lists but that are not
// below the job's root: their names stay.
func (s *State) Owned(root string) *State {
	out := *s
	out.Keys = make(map[string]Entry, len(s.Keys))
	for name, e := range s.Keys {
		if owned(root, name) {
			out.Keys[name] = e
		}
	}
	return &out
}
