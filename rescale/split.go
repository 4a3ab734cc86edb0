package rescale

// splitter cuts list state, one state of an operator after the other.
//
// Its pointer says which new subtask takes the next remainder. It runs over
// all old lists of a state and on over the states of an operator in the order
// of their names (design §6 names that order, which matters to nothing else),
// so that many short lists don't all end on subtask 0. Each operator begins at
// 0, as in Flink: one operator's outcome doesn't depend on another's.
type splitter struct {
	from, to int
	split    Split
	next     int // the pointer: 0 ≤ next < to
}

// cut says what each new subtask gets of one state. A subtask without a part
// has an empty list. Unchanged parallelism leaves each part where it is and
// the pointer alone: nothing is rebalanced, with either split.
func (s *splitter) cut(parts []Part) [][]Slice {
	out := make([][]Slice, s.to)
	switch {
	case s.from == s.to:
		for _, p := range parts {
			add(out, p.Subtask, Slice{Subtask: p.Subtask, To: p.Length})
		}
	case s.split == SplitEven:
		s.even(parts, out)
	default:
		s.each(parts, out)
	}
	return out
}

// each cuts every old list by itself: new subtask i gets the i-th of its
// pieces, which are ⌊l/P⌋ long, one longer for the l mod P subtasks from the
// pointer on. The remainders of all lists go round in one ring, so totals
// differ by at most one. Fewer subtasks than before get their pieces of all
// old lists one after the other; a single one gets the whole concatenation.
//
// Flink has no such rule (its own is even); the first document draws it.
func (s *splitter) each(parts []Part, out [][]Slice) {
	for _, p := range parts {
		size, rest := p.Length/s.to, p.Length%s.to
		at := 0
		for i := range out {
			n := size
			if (i-s.next+s.to)%s.to < rest {
				n++
			}
			add(out, i, Slice{Subtask: p.Subtask, From: at, To: at + n})
			at += n
		}
		s.next = (s.next + rest) % s.to
	}
}

// even cuts the concatenation of all old lists into contiguous parts, the
// first (total mod P) of them one longer. The first part goes to the subtask
// at the pointer, the others go round: Flink's RoundRobinOperatorStateRepartitioner.
func (s *splitter) even(parts []Part, out [][]Slice) {
	sum := 0
	for _, p := range parts {
		sum += p.Length
	}
	size, rest := sum/s.to, sum%s.to
	part, at := 0, 0 // where the concatenation is cut next
	for i := range out {
		want := size
		if i < rest {
			want++
		}
		for want > 0 {
			n := min(want, parts[part].Length-at)
			add(out, (s.next+i)%s.to, Slice{Subtask: parts[part].Subtask, From: at, To: at + n})
			want -= n
			if at += n; at == parts[part].Length {
				part, at = part+1, 0
			}
		}
	}
	s.next = (s.next + rest) % s.to
}

// add leaves out empty slices: a plan names only what there is.
func add(out [][]Slice, subtask int, s Slice) {
	if s.To > s.From {
		out[subtask] = append(out[subtask], s)
	}
}
