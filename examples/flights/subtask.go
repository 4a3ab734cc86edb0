package flights

import (
	"context"
	"fmt"
	"slices"

	"keyframe/statebackend"
)

// delivery is a record on its way from a reader to the owner of its key, with
// what must be committed together with it.
type delivery struct {
	record    Record
	index     int
	reader    int        // subtask
	positions []Position // of the reader, after this record
	tell      *Progress  // nil when nothing is to be told
	done      chan error // takes the outcome; never blocks
}

// reader reads the partitions of one subtask in turn. It waits for the commit
// of each record before it reads the next: only so is its part of the
// positions, which goes with each commit, always right.
type reader struct {
	job       *job
	subtask   int
	positions []Position
	inbox     []chan delivery // of the owners
}

func (r *reader) run(ctx context.Context) error {
	for progress := true; progress; {
		progress = false
		for i := range r.positions {
			d, ok := r.next(i)
			if !ok {
				continue
			}
			if !r.job.pace.wait(ctx) || !r.job.claim() {
				return nil
			}
			if sent, err := r.deliver(ctx, d); err != nil || !sent {
				return err
			}
			r.positions = d.positions
			r.job.committed()
			progress = true
		}
	}
	return nil
}

// next reads the record at the i-th position.
func (r *reader) next(i int) (delivery, bool) {
	p := r.positions[i]
	record, index, ok := r.job.source.at(p.Partition, p.Offset)
	if !ok {
		return delivery{}, false
	}
	d := delivery{record: record, index: index, reader: r.subtask, done: make(chan error, 1)}
	d.positions = slices.Clone(r.positions)
	d.positions[i].Offset++
	if told(d.positions[i].Offset, r.job.source.size(p.Partition)) {
		d.tell = &Progress{Subtask: r.subtask, Partition: p.Partition, Offset: d.positions[i].Offset}
	}
	return d, true
}

// told reports whether an offset is one that is told to the others.
func told(offset, size int) bool { return offset > 0 && (offset%tellEvery == 0 || offset == size) }

// deliver hands a record to the owner of its key and waits for the commit; not
// sent when the job is stopped before.
func (r *reader) deliver(ctx context.Context, d delivery) (sent bool, err error) {
	_, group, err := r.job.Rule.GroupOfKey(string(keyOf(d.record)))
	if err != nil {
		return false, err
	}
	owner, err := r.job.Rule.Owner(group, r.job.Parallelism)
	if err != nil {
		return false, err
	}
	select {
	case r.inbox[owner] <- d:
		return true, <-d.done
	case <-ctx.Done():
		return false, nil
	}
}

func keyOf(r Record) statebackend.Key { return statebackend.StringKey(r.Origin) }

// owner keeps the state of one subtask's key groups: nobody else writes it, so
// reading, computing and writing in three steps is safe.
type owner struct {
	job       *job
	threshold int
	identity  identity
}

// run takes deliveries until the inbox is closed. After an error it refuses
// what still comes, so that no reader waits for ever.
func (o *owner) run(inbox <-chan delivery) error {
	var failed error
	for d := range inbox {
		err := failed
		if err == nil {
			err = o.process(d)
		}
		if err != nil {
			failed = err
		}
		d.done <- err
	}
	return failed
}

// process brings one record into the state. It isn't cut short when the job is
// stopped.
func (o *owner) process(d delivery) error {
	ctx, cancel := context.WithTimeout(context.Background(), inFlight)
	defer cancel()
	if err := o.job.unreplaced(ctx, &o.identity, d.reader); err != nil {
		return err
	}
	batch := statebackend.NewBatch(o.job.Store)
	if err := o.update(statebackend.WithBatch(ctx, batch), d); err != nil {
		return fmt.Errorf("flight %d of %s: %w", d.index, d.record.Origin, err)
	}
	if err := batch.Commit(ctx); err != nil {
		return fmt.Errorf("flight %d of %s: %w", d.index, d.record.Origin, err)
	}
	return nil
}

// update queues the writes of one record in the context's batch.
func (o *owner) update(ctx context.Context, d delivery) error {
	k, key, to := o.job.keyed, keyOf(d.record), d.record.Destination
	stats, _, err := k.stats.Lookup(ctx, key)
	if err != nil {
		return err
	}
	if err := k.stats.Update(ctx, key, o.count(stats, d.record.Delay)); err != nil {
		return err
	}
	flights, _, err := k.routes.Get(ctx, key, to)
	if err != nil {
		return err
	}
	if err := k.routes.Put(ctx, key, to, flights+1); err != nil {
		return err
	}
	last, err := k.last.Get(ctx, key)
	if err != nil {
		return err
	}
	if err := k.last.Update(ctx, key, newest(last, Delay{Index: d.index, Delay: d.record.Delay})); err != nil {
		return err
	}
	if _, err := k.seen.Add(ctx, key, to); err != nil {
		return err
	}
	part := o.job.parts[d.reader]
	if d.tell != nil {
		if err := part.told.Add(ctx, *d.tell); err != nil {
			return err
		}
	}
	return part.positions.Update(ctx, d.positions)
}

func (o *owner) count(s Delays, delay int) Delays {
	s.Count++
	s.Total += delay
	s.Mean = float64(s.Total) / float64(s.Count)
	if delay > o.threshold {
		s.Late++
	}
	return s
}

// newest puts a delay in its place and keeps those of the greatest index.
func newest(last []Delay, d Delay) []Delay {
	at, _ := slices.BinarySearchFunc(last, d.Index, func(have Delay, index int) int { return have.Index - index })
	last = slices.Insert(last, at, d)
	return last[max(0, len(last)-lastDelays):]
}
