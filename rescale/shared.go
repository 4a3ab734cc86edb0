package rescale

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"keyframe/snapshot"
)

// union concatenates the parts of a union in the order of subtasks.
//
// The union as it was last handed out counts once, where the first part that
// begins with it stands; of every further such part only what follows it
// counts. Any other part is a contribution as it stands, and equal
// contributions are all kept. A union that was never handed out is a plain
// concatenation.
//
// Flink always concatenates plainly, so that a task which keeps what it was
// handed makes the union grow p-fold with each restore; by design ours
// doesn't. Flink's vectors, which hand nothing out before, come out the same.
func union(st State) []Slice {
	var run []Slice
	seen := false
	for _, p := range st.Parts {
		from := 0
		if beginsWithHanded(p, st.Handed) {
			if seen {
				from = st.Handed.Length
			}
			seen = true
		}
		if p.Length > from {
			run = append(run, Slice{Subtask: p.Subtask, From: from, To: p.Length})
		}
	}
	return run
}

// beginsWithHanded tells a copy of what was handed out, with or without more
// behind it, from a contribution. Nothing handed out is a beginning of no
// interest: each part counts whole either way.
func beginsWithHanded(p Part, h *snapshot.Handed) bool {
	return h != nil && h.Length > 0 && p.Length >= h.Length && p.Prefix == h.Digest
}

// Copy is a content that some subtasks hold of a broadcast state.
type Copy struct {
	Digest   string
	Length   int // fields
	Subtasks []int
}

// Disagreement is a broadcast state whose copies differ, in the order of the
// first subtask that holds each.
type Disagreement struct {
	State  snapshot.OperatorState
	Copies []Copy
}

// ErrDisagree is in the chain of every *DisagreeError.
var ErrDisagree = errors.New("copies of broadcast state disagree")

// DisagreeError lists every broadcast state whose copies differ and for which
// Request.Broadcast names no subtask.
type DisagreeError struct{ States []Disagreement }

// Unwrap gives ErrDisagree.
func (e *DisagreeError) Unwrap() error { return ErrDisagree }

// Error names each state and who holds what.
func (e *DisagreeError) Error() string {
	var b strings.Builder
	b.WriteString(ErrDisagree.Error())
	for i, d := range e.States {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		fmt.Fprintf(&b, "%s/%s (", d.State.Operator, d.State.Name)
		for j, c := range d.Copies {
			b.WriteString([]string{"", ", "}[min(j, 1)])
			fmt.Fprintf(&b, "subtask %s: %d fields, digest %.12s", numbers(c.Subtasks), c.Length, c.Digest)
		}
		b.WriteString(")")
	}
	b.WriteString(": choose the subtask whose copy counts for each")
	return b.String()
}

// broadcast gives the one content that every subtask gets, or, when the copies
// disagree and nobody chose, the copies. A subtask without a copy takes no
// part in the comparison.
//
// Flink lets subtask i go on with copy i mod (old parallelism), whether the
// copies agree or not; by design ours never hands out different ones.
func broadcast(st State, choice map[string]int) (run []Slice, copies []Copy) {
	if len(st.Parts) == 0 {
		return nil, nil
	}
	whole := func(p Part) []Slice {
		if p.Length == 0 {
			return nil
		}
		return []Slice{{Subtask: p.Subtask, To: p.Length}}
	}
	if subtask, chosen := choice[Field(st.OperatorState)]; chosen {
		i := slices.IndexFunc(st.Parts, func(p Part) bool { return p.Subtask == subtask })
		return whole(st.Parts[i]), nil // check has seen that there is one
	}
	for _, p := range st.Parts {
		i := slices.IndexFunc(copies, func(c Copy) bool { return c.Digest == p.Digest && c.Length == p.Length })
		if i < 0 {
			i = len(copies)
			copies = append(copies, Copy{Digest: p.Digest, Length: p.Length})
		}
		copies[i].Subtasks = append(copies[i].Subtasks, p.Subtask)
	}
	if len(copies) > 1 {
		return nil, copies
	}
	return whole(st.Parts[0]), nil
}

func subtasks(parts []Part) string {
	if len(parts) == 0 {
		return "none"
	}
	all := make([]int, len(parts))
	for i, p := range parts {
		all[i] = p.Subtask
	}
	return numbers(all)
}

func numbers(all []int) string {
	text := make([]string, len(all))
	for i, n := range all {
		text[i] = strconv.Itoa(n)
	}
	return strings.Join(text, ", ")
}
