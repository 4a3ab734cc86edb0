package copies

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"keyframe/snapshot/archive"
)

// stallAfter is how long a directory may write nothing while a stop waits for
// it: then it hangs in the system, and is left.
const stallAfter = 10 * time.Second

// Finish makes the copies that are due, until ctx ends, while Run still runs. A
// directory that fails is not waited for, nor one that hangs. What has no copy
// then is told of, and made by the next start.
func (k *Keeper) Finish(ctx context.Context) {
	var wg sync.WaitGroup
	for _, d := range k.dirs {
		wg.Go(func() {
			d.finish(ctx)
			if n := d.due(ctx); n > 0 {
				k.o.Tell(Event{Kind: Failed, Path: d.path, Message: fmt.Sprintf(
					"copies in %s: the coordinator stops, and %d checkpoints have no copy there yet; the next start makes them", d.path, n)})
			}
		})
	}
	wg.Wait()
}

// finish waits for a pass that has begun after this moment.
func (d *dir) finish(ctx context.Context) {
	d.mu.Lock()
	want := d.begun + 1
	d.mu.Unlock()
	d.wakeUp()
	stall := time.NewTicker(stallAfter)
	defer stall.Stop()
	seen := d.k.steps.Load()
	for {
		d.mu.Lock()
		done, next := d.passed >= want || d.err != nil, d.passEnd
		d.mu.Unlock()
		if done {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			return
		case <-stall.C:
			now := d.k.steps.Load()
			if now == seen {
				return
			}
			seen = now
		}
	}
}

// due is how many checkpoints that can be read have no copy.
func (d *dir) due(ctx context.Context) (n int) {
	// An error is the store's, and told of where the store is used.
	_ = d.compare(context.WithoutCancel(ctx))
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.waiting {
		if d.refused[w.key] == "" {
			n++
		}
	}
	return n
}

// passes makes a pass, and counts it when it has ended.
func (d *dir) passes(ctx context.Context) time.Duration {
	d.mu.Lock()
	d.begun++
	d.mu.Unlock()
	wait := d.settle(ctx, d.pass(ctx))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.passed = d.begun
	close(d.passEnd)
	d.passEnd = make(chan struct{})
	return wait
}

// counted is a disk that counts what is done with it.
type counted struct {
	archive.Disk
	steps *atomic.Uint64
}

var _ archive.Disk = counted{}

// Create implements [archive.Disk].
func (c counted) Create(path string) (archive.File, error) {
	f, err := c.Disk.Create(path)
	c.steps.Add(1)
	return countedFile{f, c.steps}, err
}

// SyncDir implements [archive.Disk].
func (c counted) SyncDir(path string) error {
	defer c.steps.Add(1)
	return c.Disk.SyncDir(path)
}

type countedFile struct {
	archive.File
	steps *atomic.Uint64
}

// Write implements [archive.File].
func (f countedFile) Write(b []byte) (int, error) {
	defer f.steps.Add(1)
	return f.File.Write(b)
}
