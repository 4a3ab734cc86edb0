package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

// When the store is compacted by itself. It is looked at each upkeepPoll; after
// a compaction it rests for upkeepPause, after one that failed for longer,
// since what kept it from working (a full disk, damage) takes a person.
const (
	upkeepPoll     = time.Minute
	upkeepPause    = 10 * time.Minute
	upkeepFailedIn = time.Hour
)

// DefaultCompactGain is how many bytes an automatic compaction must give back
// at least: less is not worth writing the file anew.
const DefaultCompactGain = 64 << 20

// upkeep is the store's compactions and backups, which belong to no job.
type upkeep struct {
	mu      sync.Mutex
	running *Operation      // nil when none is
	quit    context.Context // ends at a stop
	stop    context.CancelFunc
	// endCopies ends the making of copies, nil while there is none.
	endCopies func()
}

// keepEnd keeps how the making of copies ends, and gives what was kept.
func (u *upkeep) keepEnd(end func()) (was func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	was, u.endCopies = u.endCopies, end
	return was
}

func newUpkeep() *upkeep {
	u := &upkeep{}
	u.quit, u.stop = context.WithCancel(context.Background())
	return u
}

// CompactionDue reports whether the store is to be compacted by itself, a pure
// function: its file is more than above times as large as what is live, at
// least gain bytes of it are free, and no deletion is under way that will free
// more. above 0 is never.
func CompactionDue(s snapshot.StoreStats, above float64, gain int64) bool {
	if above <= 0 || s.WaitingChunks > 0 || s.FreeBytes < gain {
		return false
	}
	return float64(s.FileBytes) > above*float64(s.LiveBytes)
}

// CompactStore rewrites the store's file without what is free. Checkpoints go
// on meanwhile.
func (c *Coordinator) CompactStore() (*Operation, error) {
	return c.keepUp(OpCompact, func(ctx context.Context, op *Operation) (func(*Status), error) {
		res, err := c.opts.Upkeep.Compact(ctx, op.upkeep)
		if err != nil {
			return nil, err
		}
		c.emit(Event{Kind: EventStoreCompacted, Operation: op.Status().ID,
			Message: fmt.Sprintf("store compacted: %d bytes, %d before; writers waited %.0f ms", res.AfterBytes, res.BeforeBytes, res.HeldMs)})
		return func(s *Status) { s.Compact = &res }, nil
	})
}

// BackupStore writes a copy of the store to a new file on the coordinator's
// host; file is an absolute path there. Checkpoints go on meanwhile.
func (c *Coordinator) BackupStore(file string) (*Operation, error) {
	if !filepath.IsAbs(file) {
		return nil, fault.New(fault.Usage, "give the whole path: the coordinator writes the file, on its own host", "backup file %q is no absolute path", file)
	}
	return c.keepUp(OpBackup, func(ctx context.Context, op *Operation) (func(*Status), error) {
		res, err := c.opts.Upkeep.Backup(ctx, filepath.Clean(file), op.upkeep)
		if err != nil {
			return nil, err
		}
		c.emit(Event{Kind: EventStoreBackedUp, Operation: op.Status().ID,
			Message: fmt.Sprintf("store backed up to %s: %d bytes, %d checkpoints", res.File, res.Bytes, res.Checkpoints)})
		return func(s *Status) { s.Backup = &res }, nil
	})
}

// upkeep tells the progress of an operation on the store.
func (o *Operation) upkeep(p snapshot.UpkeepProgress) {
	o.progress(p.Phase, 0, 0, uint64(p.Done))
	o.expect(0, 0, uint64(p.Total))
}

// keepUp begins an operation on the store: one at a time. A stop aborts it at
// once, which leaves nothing half done.
func (c *Coordinator) keepUp(kind OperationKind, do func(context.Context, *Operation) (func(*Status), error)) (*Operation, error) {
	if c.opts.Upkeep == nil {
		return nil, fault.New(fault.Refused, "", "this checkpoint store can't be compacted or backed up")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, fault.New(fault.Busy, "", "%v", errStopping)
	}
	if running := c.store.current(); running != nil {
		s := running.Status()
		return nil, fault.New(fault.Busy, "try again when it has ended", "the store is busy with %s %s", s.Kind, s.ID)
	}
	op := c.newOperation("", kind)
	c.store.set(op)
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		ctx, cancel := context.WithCancelCause(c.ctx)
		defer cancel(nil)
		defer context.AfterFunc(c.store.quit, func() { cancel(errStopping) })()
		op.begin(c.opts.Now(), cancel)
		fill, err := do(ctx, op)
		c.store.set(nil)
		if err != nil {
			err = explainUpkeep(err)
		}
		// What was refused is told to who asked for it, and is no alarm.
		if code := fault.CodeOf(err); err != nil && code != fault.Refused && code != fault.Busy {
			c.emit(Event{Kind: EventStoreUpkeepFailed, Operation: op.Status().ID, Reason: string(kind), Message: fmt.Sprintf("%s failed: %v", kind, err)})
		}
		op.finish(c.opts.Now(), err, fill)
	}()
	return op, nil
}

func (u *upkeep) current() *Operation {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.running
}

// set notes what runs; who begins something holds the coordinator's lock.
func (u *upkeep) set(op *Operation) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running = op
}

// compactByItself looks at the store now and then until a stop.
func (c *Coordinator) compactByItself() {
	defer c.wg.Done()
	pause := time.NewTimer(upkeepPoll)
	defer pause.Stop()
	for {
		select {
		case <-c.store.quit.Done():
			return
		case <-pause.C:
			pause.Reset(c.compactIfDue())
		}
	}
}

// compactIfDue gives how long to wait until the next look.
func (c *Coordinator) compactIfDue() time.Duration {
	s, err := c.opts.Store.Stats(c.ctx)
	if err != nil {
		return upkeepPoll // readiness and the metrics tell of it
	}
	if !CompactionDue(s, c.opts.CompactAbove, c.opts.CompactGain) {
		return upkeepPoll
	}
	op, err := c.CompactStore()
	if err != nil {
		return upkeepPoll // somebody else's turn, or a stop
	}
	<-op.done
	if op.Status().State != OpDone {
		return upkeepFailedIn
	}
	return upkeepPause
}

// explainUpkeep gives the errors of a compaction or a backup their codes.
func explainUpkeep(err error) error {
	switch {
	case errors.Is(err, snapshot.ErrUpkeep):
		return &fault.Error{Code: fault.Busy, Message: err.Error(), Hint: "try again when it has ended", Err: err}
	case errors.Is(err, fs.ErrExist):
		return &fault.Error{Code: fault.Refused, Message: err.Error(), Hint: "name a file that isn't there yet", Err: err}
	}
	if f := Explain(err); f.Code != fault.Internal {
		return f
	}
	return &fault.Error{Code: fault.Store, Message: err.Error(), Hint: "nothing was changed; see `coordinator store stats`", Err: err}
}
