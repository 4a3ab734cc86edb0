package torture

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// fleet is all writers of the job. With lossy set they take lost connections
// and lost state as they come, and write on from whatever they find: as jobs
// do that know nothing of the loss. Otherwise every error is a failure.
type fleet struct {
	c      *redis.Client
	lossy  bool
	memory *replays
	chains chains

	gate    sync.RWMutex // held for reading by a writer that writes
	stopped bool
	wg      sync.WaitGroup
	cancel  context.CancelFunc

	rewinds atomic.Int64 // restores that writers have come upon
	steps   atomic.Int64
	longest atomic.Int64 // ns that one transaction took
	mu      sync.Mutex
	errs    []error
	acked   [writers]ack // what each writer was told last
	pairs   ack
}

// ack is the newest write that was acknowledged, and the job's epoch then.
type ack struct {
	seq, epoch uint64
	known      bool
}

func newFleet(c *redis.Client, lossy bool, memory *replays) *fleet {
	return &fleet{c: c, lossy: lossy, memory: memory}
}

// start sets the writers going.
func (f *fleet) start(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	for id := range writers {
		f.wg.Add(1)
		go f.loop(ctx, f.writer(id))
	}
	f.wg.Add(1)
	go f.loop(ctx, f.pairWriter())
	t.Cleanup(f.end)
}

func (f *fleet) end() {
	f.open()
	f.cancel()
	f.wg.Wait()
}

// hold waits until no write is under way and keeps writers from writing.
func (f *fleet) hold() {
	if !f.stopped {
		f.stopped = true
		f.gate.Lock()
	}
}

func (f *fleet) open() {
	if f.stopped {
		f.stopped = false
		f.gate.Unlock()
	}
}

// forget forgets what was acknowledged, after a restore that the test itself
// has asked for.
func (f *fleet) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acked, f.pairs = [writers]ack{}, ack{}
}

// failures are the errors that writers have seen.
func (f *fleet) failures() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.errs
}

func (f *fleet) loop(ctx context.Context, write func(context.Context) error) {
	defer f.wg.Done()
	for ctx.Err() == nil {
		f.gate.RLock()
		began := time.Now()
		err := write(ctx)
		took := int64(time.Since(began))
		f.gate.RUnlock()
		if took > f.longest.Load() {
			f.longest.Store(took)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		if !f.lossy {
			f.mu.Lock()
			f.errs = append(f.errs, err)
			f.mu.Unlock()
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// writer makes the next few steps of its model in one transaction, which
// fails when a restore has put another state in place meanwhile.
func (f *fleet) writer(id int) func(context.Context) error {
	var m *model
	return func(ctx context.Context) error {
		err := f.c.Watch(ctx, func(tx *redis.Tx) error {
			seq, found, err := number(tx.HGet(ctx, key(id, "seq"), "s:solo"))
			if err != nil {
				return err
			}
			if m == nil || m.seq != seq {
				if err := f.moved(ctx, tx, id, seq); err != nil {
					return err
				}
				m = f.memory.at(id, seq)
			}
			return f.transact(ctx, tx, m, !found)
		}, key(id, "seq"))
		if errors.Is(err, redis.TxFailedErr) {
			m = nil // what was to be written wasn't
			return nil
		}
		if err != nil {
			m = nil
			return fmt.Errorf("writer %d: %w", id, err)
		}
		return nil
	}
}

// moved judges a state that isn't what the writer left: only a restore may
// have put it there, and a restore makes the epoch grow.
func (f *fleet) moved(ctx context.Context, tx *redis.Tx, id int, seq uint64) error {
	epoch, _, err := number(tx.HGet(ctx, job.Record(), "epoch"))
	if err != nil {
		return err
	}
	f.mu.Lock()
	was := f.acked[id]
	f.mu.Unlock()
	if !was.known || was.seq == seq {
		return nil
	}
	f.rewinds.Add(1)
	if epoch <= was.epoch && !f.lossy {
		return fmt.Errorf("step %d was acknowledged in epoch %d, and the state is at step %d in epoch %d: a write was lost", was.seq, was.epoch, seq, epoch)
	}
	return nil
}

func (f *fleet) transact(ctx context.Context, tx *redis.Tx, m *model, fresh bool) error {
	var epoch *redis.StringCmd
	steps := 1 + int(mix(m.id, m.seq)%7)
	parent, _, err := number(tx.HGet(ctx, key(m.id, "chain"), "s:solo"))
	if err != nil {
		return err
	}
	_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
		do := func(words ...any) { p.Do(ctx, words...) }
		if fresh {
			for _, words := range registration(m.id) {
				do(words...)
			}
		}
		now := time.Now().UnixMilli()
		for range steps {
			m.step(now, do)
		}
		do(m.counts()...)
		do("HSET", key(m.id, "seq"), "s:solo", m.seq)
		do("HSET", key(m.id, "chain"), "s:solo", f.chains.after(parent))
		epoch = p.HGet(ctx, job.Record(), "epoch")
		return nil
	})
	if errors.Is(err, redis.Nil) && !errors.Is(err, redis.TxFailedErr) {
		err = nil // no epoch yet, or an LPOP of nothing
	}
	if err != nil {
		return err
	}
	n, _, err := number(epoch)
	if err != nil {
		return err
	}
	f.steps.Add(int64(steps))
	f.mu.Lock()
	f.acked[m.id] = ack{seq: m.seq, epoch: n, known: true}
	f.mu.Unlock()
	return nil
}

// number reads a field that may not be there.
func number(cmd *redis.StringCmd) (n uint64, found bool, err error) {
	text, err := cmd.Result()
	if errors.Is(err, redis.Nil) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	n, err = strconv.ParseUint(text, 10, 64)
	return n, true, err
}

// popOldest takes the oldest item off a list and counts it off.
var popOldest = redis.NewScript(`if redis.call('LPOP', KEYS[1]) then redis.call('HINCRBY', KEYS[2], 's:n', -1) end return redis.call('LLEN', KEYS[1])`)

// pairWriter counts two counters up in one transaction, without looking at
// what is there: it is not stopped by a restore.
func (f *fleet) pairWriter() func(context.Context) error {
	a, b, list, count := pairKeys()
	return func(ctx context.Context) error {
		var x, y, length *redis.IntCmd
		var epoch *redis.StringCmd
		_, err := f.c.TxPipelined(ctx, func(p redis.Pipeliner) error {
			for _, name := range []string{a, b, list, count} {
				for _, words := range register(name) {
					p.Do(ctx, words...)
				}
			}
			x, y = p.HIncrBy(ctx, a, "s:n", 1), p.HIncrBy(ctx, b, "s:n", 1)
			length = p.RPush(ctx, list, "item")
			p.HIncrBy(ctx, count, "s:n", 1)
			epoch = p.HGet(ctx, job.Record(), "epoch")
			return nil
		})
		if err != nil && !errors.Is(err, redis.Nil) {
			return fmt.Errorf("pair writer: %w", err)
		}
		n, _, err := number(epoch)
		if err != nil {
			return err
		}
		if length.Val() > 100 {
			if err := popOldest.Run(ctx, f.c, []string{list, count}).Err(); err != nil {
				return fmt.Errorf("pair writer: %w", err)
			}
		}
		return f.counted(uint64(x.Val()), uint64(y.Val()), n)
	}
}

func (f *fleet) counted(x, y, epoch uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.pairs
	f.pairs = ack{seq: x, epoch: epoch, known: true}
	f.steps.Add(1)
	switch {
	case x != y:
		return fmt.Errorf("the two counters are %d and %d", x, y)
	case was.known && was.epoch == epoch && x != was.seq+1 && !f.lossy:
		return fmt.Errorf("the counter went from %d to %d within epoch %d", was.seq, x, epoch)
	}
	return nil
}

// requireNothingLost compares what writers were told with the state, while
// they are held: only a restore after a write may have taken it away.
func (f *fleet) requireNothingLost(t *testing.T, c content) {
	t.Helper()
	require.Empty(t, f.failures(), "writers must never see an error")
	f.mu.Lock()
	defer f.mu.Unlock()
	now := progressOf(c)
	for id, was := range f.acked {
		if was.known && was.epoch == c.epoch {
			require.Equal(t, was.seq, now.writer[id], "writer %d was told that this step was written, in epoch %d", id, was.epoch)
		}
	}
	if f.pairs.known && f.pairs.epoch == c.epoch {
		require.Equal(t, f.pairs.seq, now.pair, "the counter, in epoch %d", c.epoch)
	}
}
