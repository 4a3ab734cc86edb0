package flights

import (
	"context"
	"fmt"

	"keyframe/statebackend"
)

// readOperatorState reads the positions, which say how much of the file counts,
// and checks what can be said of operator state: each partition is in one part,
// all copies of the threshold are alike, and the union holds each thing told
// once in each part, and altogether what the positions say must have been told.
// Parts beyond the parallelism must be empty.
func (c *checker) readOperatorState(ctx context.Context) error {
	everywhere := map[toldItem]bool{}
	for s := range c.Rule.MaxParallelism {
		p, err := openParts(c.Store, c.Job, s)
		if err != nil {
			return err
		}
		if s >= c.Parallelism {
			if err := c.checkAbsent(ctx, s); err != nil {
				return err
			}
			continue
		}
		if err := c.readPositions(ctx, s, p); err != nil {
			return err
		}
		threshold, there, err := p.threshold.Get(ctx, thresholdKey)
		if err != nil {
			return err
		}
		c.report.compare(fmt.Sprintf("threshold of subtask %d there", s), there, true)
		c.report.compare(fmt.Sprintf("threshold of subtask %d", s), threshold, c.Threshold)
		if err := c.readTold(ctx, s, p, everywhere); err != nil {
			return err
		}
	}
	c.report.compare("partitions with a position", len(c.offsets), c.Partitions)
	c.checkTold(everywhere)
	return nil
}

func (c *checker) readPositions(ctx context.Context, s int, p parts) error {
	positions, err := p.positions.Get(ctx)
	if err != nil {
		return err
	}
	for _, at := range positions {
		_, twice := c.offsets[at.Partition]
		c.report.compare(fmt.Sprintf("partition %d (subtask %d) is in another part too", at.Partition, s), twice, false)
		c.offsets[at.Partition] = at.Offset
	}
	return nil
}

// toldItem is something that was told, whoever told it.
type toldItem struct{ partition, offset int }

func (c *checker) readTold(ctx context.Context, s int, p parts, everywhere map[toldItem]bool) error {
	all, err := p.told.Get(ctx)
	if err != nil {
		return err
	}
	here := map[toldItem]bool{}
	for _, t := range all {
		item := toldItem{t.Partition, t.Offset}
		c.report.compare(fmt.Sprintf("%+v is twice in the union of subtask %d", t, s), here[item], false)
		here[item], everywhere[item] = true, true
	}
	return nil
}

// checkTold compares the union with what the positions say was told.
func (c *checker) checkTold(everywhere map[toldItem]bool) {
	expected := 0
	for n, offset := range c.offsets {
		size := 0
		for i := n; i < len(c.records); i += c.Partitions {
			size++
			if (size%tellEvery == 0 || i+c.Partitions >= len(c.records)) && size <= offset {
				expected++
				c.report.compare(fmt.Sprintf("partition %d told at %d", n, size), everywhere[toldItem{n, size}], true)
			}
		}
	}
	c.report.compare("number of things told", len(everywhere), expected)
}

func (c *checker) checkAbsent(ctx context.Context, s int) error {
	var cmds []statebackend.Cmd
	for _, name := range []string{Positions, Told, Threshold} {
		key := c.Job.OperatorKey(Group, Topic, s, SourceOperator, name)
		cmds = append(cmds, statebackend.Command(statebackend.OpType, key))
	}
	replies, err := c.Store.Do(ctx, cmds...)
	if err != nil {
		return err
	}
	for i, name := range []string{Positions, Told, Threshold} {
		c.report.compare(fmt.Sprintf("%s of subtask %d, beyond the parallelism", name, s), string(replies[i].Bytes), "none")
	}
	return nil
}
