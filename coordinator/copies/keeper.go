package copies

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"keyframe/snapshot"
	"keyframe/snapshot/archive"
)

// Buckets of the journal: directory, zero byte and name of a copy → JSON of
// record; directory → the marker that it had.
const (
	bucketCopies = "copies"
	bucketDirs   = "copydirs"
)

// How long a directory that failed is left alone, at first and at most, and how
// often one that works is looked at without a reason.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	lookEvery  = 5 * time.Minute
	leaveAfter = 5 * time.Second
)

// EventKind is what happened to a copy, from a closed list.
type EventKind string

// The closed list.
const (
	Made    EventKind = "copy_made"
	Failed  EventKind = "copy_failed"
	Removed EventKind = "copy_removed"
	Found   EventKind = "copies_found" // checkpoints that only a directory has
	Bad     EventKind = "copy_bad"     // a copy that was read again is damaged
)

// Event is one thing that happened. Job is empty for a whole directory.
type Event struct {
	Kind    EventKind
	Job     string
	ID      snapshot.ID
	Path    string // the directory
	Message string
}

// Options is what a keeper stands on. Disk nil is the host's; Tell is called
// from the keeper's goroutines and must not block. CheckEvery is how often a
// copy of each directory is read again, 0 for never, CheckRate how many bytes of
// it in a second, 0 for no bound.
type Options struct {
	Store   snapshot.Store
	Journal snapshot.Journal
	Paths   []string
	Now     func() time.Time
	Tell    func(Event)
	Disk    archive.Disk

	CheckEvery time.Duration
	CheckRate  int64

	// Flip says what the last flip of a job left live; false where nothing is
	// to be written down: nothing is known, or another coordinator leads. Nil
	// writes nothing down.
	Flip func(job string) (Flip, bool)
}

// record is what the journal knows of a copy.
type record struct {
	Job    string      `json:"job"`
	ID     snapshot.ID `json:"id"`
	Bytes  int64       `json:"bytes"`
	MadeAt time.Time   `json:"madeAt"`
	// Doomed: its checkpoint was deleted on purpose, or is being deleted.
	Doomed bool `json:"doomed,omitempty"`
}

// key is a checkpoint of the store.
type key struct {
	job string
	id  snapshot.ID
}

// Keeper keeps the copies. Safe for concurrent use.
type Keeper struct {
	o     Options
	dirs  []*dir
	steps atomic.Uint64 // of writing: a stop waits as long as they go on
}

// New makes a keeper; Load and Run set it going.
func New(o Options) *Keeper {
	if o.Disk == nil {
		o.Disk = archive.OS{}
	}
	k := &Keeper{o: o}
	k.o.Disk = counted{o.Disk, &k.steps}
	for _, p := range o.Paths {
		k.dirs = append(k.dirs, &dir{k: k, path: p, wake: make(chan struct{}, 1), passEnd: make(chan struct{}), records: map[string]record{},
			folders: map[string]folder{}, names: map[key]string{}, refused: map[key]string{}, checks: map[string]check{}})
	}
	return k
}

// Load reads what the journal knows of copies, and has a first look at the
// directories, for as long as ctx lives: what they hold makes new ids begin
// above it. A directory that can't be read is no error; Run sees to it.
func (k *Keeper) Load(ctx context.Context) error {
	var bad error
	err := k.o.Journal.Each(ctx, bucketCopies, func(name string, value []byte) error {
		path, rel, _ := strings.Cut(name, "\x00")
		var r record
		if err := json.Unmarshal(value, &r); err != nil {
			bad = fmt.Errorf("record of copy %q: %w", name, err)
			return bad
		}
		for _, d := range k.dirs {
			if d.path == path {
				d.records[rel] = r
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read what is known of copies: %w", err)
	}
	if err := k.loadChecks(ctx); err != nil {
		return err
	}
	if err := k.spareTheLiving(ctx); err != nil {
		return err
	}
	k.firstLook(ctx)
	return nil
}

// spareTheLiving takes back the marks of deletions that a kill came before.
func (k *Keeper) spareTheLiving(ctx context.Context) error {
	for _, d := range k.dirs {
		for _, r := range d.doomed() {
			history, err := k.o.Store.List(ctx, r.Job)
			if err != nil {
				return fmt.Errorf("list checkpoints of %q: %w", r.Job, err)
			}
			if has(history, r.ID) {
				if err := d.doom(ctx, key{r.Job, r.ID}, false); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// firstLook scans all directories side by side. One that hangs (a mount whose
// server is gone) is left behind when ctx ends.
func (k *Keeper) firstLook(ctx context.Context) {
	var wg sync.WaitGroup
	for _, d := range k.dirs {
		wg.Go(func() {
			// What goes wrong here goes wrong in Run again, and is told there.
			if found, err := d.scan(ctx); err == nil {
				d.saw(found)
			}
		})
	}
	seen := make(chan struct{})
	go func() {
		wg.Wait()
		close(seen)
	}()
	select {
	case <-seen:
	case <-ctx.Done():
	}
}

// Run keeps the copies until ctx ends. A copy that is being made then is given
// up. A directory that hangs in the system (a mount whose server is gone) is
// left behind after leaveAfter: it holds no stop up.
func (k *Keeper) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, d := range k.dirs {
		wg.Go(func() { d.run(ctx) })
		if k.o.CheckEvery > 0 {
			wg.Go(func() { d.recheck(ctx) })
		}
	}
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	<-ctx.Done()
	late := time.NewTimer(leaveAfter)
	defer late.Stop()
	select {
	case <-ended:
	case <-late.C:
	}
}

// Wake makes the keeper look at once: something was completed or deleted.
func (k *Keeper) Wake() {
	for _, d := range k.dirs {
		d.wakeUp()
	}
}

func (d *dir) wakeUp() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// floor is the highest id of a job that a copy has (I10).
func (k *Keeper) floor(job string) (most snapshot.ID) {
	for _, d := range k.dirs {
		d.mu.Lock()
		for _, f := range d.folders {
			if f.job == job {
				_, id := f.newest()
				most = max(most, id)
			}
		}
		d.mu.Unlock()
	}
	return most
}

func has(history []snapshot.Checkpoint, id snapshot.ID) bool {
	for _, c := range history {
		if c.ID == id {
			return true
		}
	}
	return false
}
