package rescale

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"keyframe/keygroups"
	"keyframe/snapshot"
)

// ErrInput is what a redistribution cannot be computed from or carried out
// with: it contradicts itself. It comes wrapped with the state, the values
// and the remedy.
var ErrInput = errors.New("operator state can't be redistributed")

// ParseSplit reads each or even; the empty string is the default, each.
func ParseSplit(s string) (Split, error) {
	switch split := Split(s); split {
	case "":
		return SplitEach, nil
	case SplitEach, SplitEven:
		return split, nil
	}
	return "", fmt.Errorf("split %q: want one of each, even", s)
}

// String is the name as the configuration gives it.
func (s Split) String() string { return string(s) }

// Field names an operator state: operator U+0001 name, as a field of the job's
// operatorState hash does.
func Field(s snapshot.OperatorState) string { return s.Operator + "\x01" + s.Name }

// Lengths are the items that each of the old subtasks has.
func (s State) Lengths(parallelism int) []int {
	lengths := make([]int, parallelism)
	for _, p := range s.Parts {
		if p.Subtask >= 0 && p.Subtask < parallelism {
			lengths[p.Subtask] = p.Length
		}
	}
	return lengths
}

// Lengths are the items that each of the new subtasks gets.
func (s NewState) Lengths() []int {
	lengths := make([]int, len(s.New))
	for i, run := range s.New {
		lengths[i] = total(run)
	}
	return lengths
}

func total(run []Slice) int {
	n := 0
	for _, s := range run {
		n += s.To - s.From
	}
	return n
}

// Compute says what the change of parallelism does: who owns which key groups,
// which of them move, and what each new subtask gets of each operator state.
// The same request gives the same plan, whatever the order of its states.
//
// Errors: keygroups.ErrRule for a rule or parallelism that cannot be; ErrInput
// for states or parts that contradict each other (all of them, joined); a
// *DisagreeError when copies of broadcast states disagree and Broadcast does
// not choose one.
func Compute(req Request) (Plan, error) {
	split, err := ParseSplit(string(req.Split))
	if err != nil {
		return Plan{}, fmt.Errorf("%w: %w", ErrInput, err)
	}
	moved, err := keygroups.Moves(req.Rule, req.From, req.To)
	if err != nil {
		return Plan{}, fmt.Errorf("rescale from %d to %d: %w", req.From, req.To, err)
	}
	ranges, err := req.Rule.Assign(req.To)
	if err != nil {
		return Plan{}, fmt.Errorf("rescale from %d to %d: %w", req.From, req.To, err)
	}
	states := slices.Clone(req.States)
	slices.SortStableFunc(states, func(a, b State) int { return compare(a.OperatorState, b.OperatorState) })
	if err := check(req, states); err != nil {
		return Plan{}, err
	}
	plan := Plan{From: req.From, To: req.To, Ranges: ranges, Moved: moved}
	if plan.States, err = redistribute(req, split, states); err != nil {
		return Plan{}, err
	}
	return plan, nil
}

func compare(a, b snapshot.OperatorState) int {
	return cmp.Or(cmp.Compare(a.Operator, b.Operator), cmp.Compare(a.Name, b.Name))
}

func redistribute(req Request, split Split, states []State) ([]NewState, error) {
	var disagree DisagreeError
	all := make([]NewState, 0, len(states))
	list := splitter{from: req.From, to: req.To, split: split}
	for i, st := range states {
		if i == 0 || st.Operator != states[i-1].Operator {
			list.next = 0
		}
		out := NewState{OperatorState: st.OperatorState}
		out.Handed = nil
		if len(st.Parts) > 0 {
			out.ExpireAt = st.Parts[0].ExpireAt
		}
		switch st.Mode {
		case snapshot.ModeList:
			out.New = list.cut(st.Parts)
		case snapshot.ModeUnion:
			out.New = everywhere(union(st), req.To)
		case snapshot.ModeBroadcast:
			run, copies := broadcast(st, req.Broadcast)
			if copies != nil {
				disagree.States = append(disagree.States, Disagreement{State: st.OperatorState, Copies: copies})
				continue
			}
			out.New = everywhere(run, req.To)
		}
		all = append(all, out)
	}
	if disagree.States != nil {
		return nil, &disagree
	}
	return all, nil
}

// everywhere gives every new subtask the same content.
func everywhere(run []Slice, to int) [][]Slice {
	all := make([][]Slice, to)
	for i := range all {
		all[i] = slices.Clone(run)
	}
	return all
}

// check gives everything that is wrong with the states (sorted) and the
// choices of a request.
func check(req Request, states []State) error {
	var errs []error
	bad := func(s snapshot.OperatorState, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s/%s: %s", ErrInput, s.Operator, s.Name, fmt.Sprintf(format, args...)))
	}
	modes := map[string]State{}
	for i, st := range states {
		if i > 0 && compare(states[i-1].OperatorState, st.OperatorState) == 0 {
			bad(st.OperatorState, "it is given twice; give each state once")
		}
		modes[Field(st.OperatorState)] = st
		switch st.Mode {
		case snapshot.ModeList, snapshot.ModeUnion, snapshot.ModeBroadcast:
		default:
			bad(st.OperatorState, "mode %q: want one of list, union, broadcast", st.Mode)
		}
		checkParts(st, req.From, bad)
	}
	for field, subtask := range req.Broadcast {
		st, known := modes[field]
		switch has := slices.ContainsFunc(st.Parts, func(p Part) bool { return p.Subtask == subtask }); {
		case !known:
			errs = append(errs, fmt.Errorf("%w: a copy is chosen for %q, which is no state of the job", ErrInput, field))
		case st.Mode != snapshot.ModeBroadcast:
			bad(st.OperatorState, "a copy is chosen, but its mode is %s, not broadcast", st.Mode)
		case !has:
			bad(st.OperatorState, "the copy of subtask %d is chosen, but that one has none; choose one of %s", subtask, subtasks(st.Parts))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

func checkParts(st State, from int, bad func(snapshot.OperatorState, string, ...any)) {
	last := -1
	for _, p := range st.Parts {
		switch {
		case p.Subtask < 0 || p.Subtask >= from:
			bad(st.OperatorState, "there is a part of subtask %d, but the parallelism is %d; set the job's parallelism to what its workers run with, or remove the part that is left over", p.Subtask, from)
		case p.Subtask <= last:
			bad(st.OperatorState, "the part of subtask %d follows that of %d; give the parts in the order of subtasks, each once", p.Subtask, last)
		case p.Length < 0:
			bad(st.OperatorState, "the part of subtask %d has length %d", p.Subtask, p.Length)
		case p.ExpireAt != st.Parts[0].ExpireAt:
			bad(st.OperatorState, "the part of subtask %d expires at %d and that of %d at %d (ms since 1970, 0 for never); give all parts the same expiry or none",
				p.Subtask, p.ExpireAt, st.Parts[0].Subtask, st.Parts[0].ExpireAt)
		}
		last = max(last, p.Subtask)
	}
}
