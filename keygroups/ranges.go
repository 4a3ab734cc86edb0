package keygroups

import "fmt"

// Assign gives the key groups of each subtask, in the order of subtasks. They
// are contiguous, never empty, and together cover 0 ≤ group < MaxParallelism
// exactly once. ErrRule when Validate refuses.
func (r Rule) Assign(parallelism int) ([]Range, error) {
	if err := r.Validate(parallelism); err != nil {
		return nil, err
	}
	ranges := make([]Range, parallelism)
	for i := range ranges {
		ranges[i] = r.rangeOf(i, parallelism)
	}
	return ranges, nil
}

// RangeOf gives the key groups of one subtask, in constant time. ErrRule when
// Validate refuses or 0 ≤ subtask < parallelism does not hold.
func (r Rule) RangeOf(subtask, parallelism int) (Range, error) {
	if err := r.Validate(parallelism); err != nil {
		return Range{}, err
	}
	if subtask < 0 || subtask >= parallelism {
		return Range{}, fmt.Errorf("%w: subtask %d of parallelism %d: give one from 0 to %d",
			ErrRule, subtask, parallelism, parallelism-1)
	}
	return r.rangeOf(subtask, parallelism), nil
}

// Owner gives the subtask that owns a key group, in constant time. ErrRule
// when Validate refuses or 0 ≤ group < MaxParallelism does not hold.
func (r Rule) Owner(group, parallelism int) (subtask int, err error) {
	if err := r.Validate(parallelism); err != nil {
		return 0, err
	}
	if group < 0 || group >= r.MaxParallelism {
		return 0, fmt.Errorf("%w: key group %d with max parallelism %d: give one from 0 to %d",
			ErrRule, group, r.MaxParallelism, r.MaxParallelism-1)
	}
	return r.owner(group, parallelism), nil
}

// rangeOf and owner take what was validated. With the largest group count the
// products stay below 2³¹.
func (r Rule) rangeOf(i, p int) Range {
	g := r.MaxParallelism
	if r.Ranges == RangesFlink {
		return Range{Subtask: i, Start: (i*g + p - 1) / p, End: ((i+1)*g - 1) / p}
	}
	size, rest := g/p, g%p
	start := i*size + min(i, rest)
	end := start + size - 1
	if i < rest {
		end++
	}
	return Range{Subtask: i, Start: start, End: end}
}

func (r Rule) owner(group, p int) int {
	g := r.MaxParallelism
	if r.Ranges == RangesFlink {
		return group * p / g
	}
	size, rest := g/p, g%p
	if long := rest * (size + 1); group >= long {
		return rest + (group-long)/size
	}
	return group / (size + 1)
}

// Moves gives the runs of key groups that change their owner when the
// parallelism goes from one value to another, in the order of groups, each as
// long as it can be. Unchanged parallelism moves nothing. ErrRule when
// Validate refuses either value.
func Moves(rule Rule, from, to int) ([]Move, error) {
	if err := rule.Validate(from); err != nil {
		return nil, fmt.Errorf("old parallelism: %w", err)
	}
	if err := rule.Validate(to); err != nil {
		return nil, fmt.Errorf("new parallelism: %w", err)
	}
	var moves []Move
	for start := 0; start < rule.MaxParallelism; {
		before := rule.rangeOf(rule.owner(start, from), from)
		after := rule.rangeOf(rule.owner(start, to), to)
		end := min(before.End, after.End)
		if before.Subtask != after.Subtask {
			moves = append(moves, Move{Start: start, End: end, From: before.Subtask, To: after.Subtask})
		}
		start = end + 1
	}
	return moves, nil
}
