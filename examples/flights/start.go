package flights

import (
	"context"
	"fmt"
	"slices"

	"keyframe/statebackend"
)

// plan is where a run begins.
type plan struct {
	fresh     bool
	done      int          // records before this run
	positions [][]Position // by subtask
	threshold int
	identity  identity
}

// start reads the operator state, or writes it where there is none.
func (j *job) start(ctx context.Context) (plan, error) {
	id, assigned, err := j.look(ctx)
	if err != nil {
		return plan{}, err
	}
	if assigned != nil && (assigned.Parallelism != j.Parallelism || assigned.MaxParallelism != j.Rule.MaxParallelism) {
		return plan{}, fmt.Errorf("%w: parallelism %d and max parallelism %d were asked for, but the assignment of epoch %d says %d and %d: rescale the job, or start it with these",
			ErrStart, j.Parallelism, j.Rule.MaxParallelism, assigned.Epoch, assigned.Parallelism, assigned.MaxParallelism)
	}
	have, err := j.partLengths(ctx)
	if err != nil {
		return plan{}, err
	}
	p := plan{identity: id, threshold: j.Threshold}
	if !slices.ContainsFunc(have, func(n int64) bool { return n > 0 }) {
		return j.startFresh(ctx, p)
	}
	for s := j.Parallelism; s < len(have); s++ {
		if have[s] > 0 {
			return plan{}, fmt.Errorf("%w: subtask %d has positions, but parallelism is %d: rescale the job, or start it with the parallelism it had", ErrStart, s, j.Parallelism)
		}
	}
	return j.resume(ctx, p)
}

// partLengths is how many positions each possible subtask has.
func (j *job) partLengths(ctx context.Context) ([]int64, error) {
	var cmds []statebackend.Cmd
	for s := range j.Rule.MaxParallelism {
		cmds = append(cmds, statebackend.Command(statebackend.OpLLen, j.positionsKey(s)))
	}
	replies, err := j.Store.Do(ctx, cmds...)
	if err != nil {
		return nil, fmt.Errorf("look for positions: %w", err)
	}
	var lengths []int64
	for _, r := range replies {
		lengths = append(lengths, r.Int)
	}
	return lengths, nil
}

func (j *job) positionsKey(subtask int) string {
	return j.Job.OperatorKey(Group, Topic, subtask, SourceOperator, Positions)
}

// startFresh deals the partitions onto the subtasks, in one step.
func (j *job) startFresh(ctx context.Context, p plan) (plan, error) {
	replies, err := j.Store.Do(ctx, statebackend.Command(statebackend.OpSCard, j.Job.Index()))
	if err != nil {
		return plan{}, fmt.Errorf("look for state: %w", err)
	}
	if n := replies[0].Int; n > 0 {
		return plan{}, fmt.Errorf("%w: there are no positions, but %d state keys: restore a checkpoint, or remove the state", ErrStart, n)
	}
	if j.Continue {
		return plan{}, fmt.Errorf("%w: there is no state to continue from: wait for the restore", ErrStart)
	}
	p.fresh, p.positions = true, make([][]Position, j.Parallelism)
	for n := range j.Partitions {
		s := n % j.Parallelism
		p.positions[s] = append(p.positions[s], Position{Partition: n})
	}
	batch := statebackend.NewBatch(j.Store)
	queue := statebackend.WithBatch(ctx, batch)
	for s, part := range j.parts {
		if err := part.threshold.Put(queue, thresholdKey, j.Threshold); err != nil {
			return plan{}, err
		}
		if err := part.positions.Update(queue, p.positions[s]); err != nil {
			return plan{}, err
		}
	}
	return p, batch.Commit(ctx)
}

// resume reads the operator state and makes sure that it is whole.
func (j *job) resume(ctx context.Context, p plan) (plan, error) {
	offsets := map[int]int{}
	for s, part := range j.parts {
		positions, err := part.positions.Get(ctx)
		if err != nil {
			return plan{}, err
		}
		for _, at := range positions {
			if _, twice := offsets[at.Partition]; twice || at.Partition < 0 || at.Partition >= j.Partitions ||
				at.Offset < 0 || at.Offset > j.source.size(at.Partition) {
				return plan{}, fmt.Errorf("%w: subtask %d has %+v, which is there twice or not within the source's %d partitions", ErrStart, s, at, j.Partitions)
			}
			offsets[at.Partition] = at.Offset
			p.done += at.Offset
		}
		p.positions = append(p.positions, positions)
		threshold, ok, err := part.threshold.Get(ctx, thresholdKey)
		if err != nil {
			return plan{}, err
		}
		if !ok || s > 0 && threshold != p.threshold {
			return plan{}, fmt.Errorf("%w: subtask %d has threshold %d (there: %t), subtask 0 has %d: rescale the job so that each gets the same copy", ErrStart, s, threshold, ok, p.threshold)
		}
		p.threshold = threshold
	}
	if len(offsets) != j.Partitions {
		return plan{}, fmt.Errorf("%w: %d of %d partitions have a position", ErrStart, len(offsets), j.Partitions)
	}
	return p, j.believable(ctx, offsets)
}

// believable compares the positions with what the subtasks were told: a
// partition can't be behind where somebody has seen it.
func (j *job) believable(ctx context.Context, offsets map[int]int) error {
	for s, part := range j.parts {
		all, err := part.told.Get(ctx)
		if err != nil {
			return err
		}
		for _, t := range all {
			if offsets[t.Partition] < t.Offset {
				return fmt.Errorf("%w: subtask %d was told that partition %d has been read up to %d, but its position is %d",
					ErrStart, s, t.Partition, t.Offset, offsets[t.Partition])
			}
		}
	}
	return nil
}
