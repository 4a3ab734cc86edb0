package copies

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/snapshot/archive"
	"keyframe/snapshot/bolt"
	"keyframe/snapshot/storetest"
)

// world is a store, and a keeper of its copies in a directory, in fake time.
type world struct {
	t    *testing.T
	base string // where the store's file is
	path string // of the copies
	disk *disk
	db   *bolt.DB
	k    *Keeper
	end  func()
	bad  sync.Map // snapshot.ChunkID → true: it can't be read

	every time.Duration // between two copies that are read again
	rate  int64         // bytes per second of that

	mu     sync.Mutex
	events []Event
}

func inBubble(t *testing.T, f func(t *testing.T, w *world)) {
	w := &world{base: t.TempDir(), path: t.TempDir(), disk: &disk{}}
	synctest.Test(t, func(t *testing.T) {
		w.t = t
		w.open()
		f(t, w)
		w.close()
	})
}

// open starts a keeper on the store's file, which is made when it isn't there.
func (w *world) open() {
	db, err := bolt.Open(w.t.Context(), filepath.Join(w.base, "keyframe.db"), bolt.Options{})
	require.NoError(w.t, err)
	w.db = db
	w.k = New(Options{Store: damaged{db, &w.bad}, Journal: db.Journal(), Paths: []string{w.path}, Now: time.Now, Disk: w.disk, CheckEvery: w.every, CheckRate: w.rate, Tell: func(e Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events = append(w.events, e)
	}})
	require.NoError(w.t, w.k.Load(w.t.Context()))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.k.Run(ctx)
	}()
	w.end = func() {
		cancel()
		<-ended
	}
	synctest.Wait()
}

func (w *world) close() {
	w.end()
	storetest.MustBeClean(w.t, w.db)
	require.NoError(w.t, w.db.Close())
}

// take completes a checkpoint, as the coordinator would.
func (w *world) take(job, seed string) *snapshot.Manifest {
	w.t.Helper()
	a := storetest.Attempt(job)
	a.StartedAt = time.Now()
	m, err := storetest.Take(w.t.Context(), w.k.Store(), a, storetest.Keys(seed, 250))
	require.NoError(w.t, err)
	w.k.Wake()
	synctest.Wait()
	return m
}

// pass lets time go on.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) seen(kind EventKind) (all []Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Kind == kind {
			all = append(all, e)
		}
	}
	return all
}

// copies are the ids of the copies in the directory, each of which is whole.
func (w *world) copies() (ids []snapshot.ID) {
	w.t.Helper()
	for _, p := range w.files() {
		if archive.Unfinished(filepath.Base(p)) {
			continue
		}
		a, err := archive.Open(p)
		require.NoError(w.t, err)
		problems, err := a.Verify(w.t.Context())
		require.NoError(w.t, err)
		require.Empty(w.t, problems)
		ids = append(ids, a.Manifest().Checkpoint.ID)
		require.NoError(w.t, a.Close())
	}
	slices.Sort(ids)
	return ids
}

// files are the paths of all copies, finished or not.
func (w *world) files() (all []string) {
	w.t.Helper()
	all, err := filepath.Glob(filepath.Join(w.path, "*", "*"))
	require.NoError(w.t, err)
	return all
}

// disk is the host's with faults.
type disk struct {
	archive.OS
	mu    sync.Mutex
	fault error         // of each step that writes
	after int           // steps until then; only when stop is set
	hang  chan struct{} // nil: nothing hangs
	stop  bool          // and nothing happens from then on, as after a kill
}

func (d *disk) set(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault, d.stop = err, false
}

// killAfter lets n more steps happen.
func (d *disk) killAfter(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault, d.after, d.stop = errKilled, n, true
}

var errKilled = errors.New("killed")

func (d *disk) may() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stop && d.after > 0 {
		d.after--
		return nil
	}
	return d.fault
}

func (d *disk) Create(path string) (archive.File, error) {
	d.mu.Lock()
	hang := d.hang
	d.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if err := d.may(); err != nil && d.stop {
		return nil, err
	}
	f, err := d.OS.Create(path)
	return &faultyFile{f, d}, err
}

func (d *disk) Publish(from, to string) error {
	return errors.Join(d.may(), d.when(func() error { return d.OS.Publish(from, to) }))
}
func (d *disk) Replace(from, to string) error {
	return errors.Join(d.may(), d.when(func() error { return d.OS.Replace(from, to) }))
}
func (d *disk) Remove(path string) error {
	if d.stop {
		return errors.Join(d.may(), d.when(func() error { return d.OS.Remove(path) }))
	}
	return d.OS.Remove(path) // a full disk removes
}
func (d *disk) SyncDir(dir string) error {
	return errors.Join(d.may(), d.when(func() error { return d.OS.SyncDir(dir) }))
}

// when does it unless the fault is on.
func (d *disk) when(do func() error) error {
	d.mu.Lock()
	on := d.fault != nil && (!d.stop || d.after == 0)
	d.mu.Unlock()
	if on {
		return nil
	}
	return do()
}

type faultyFile struct {
	archive.File
	d *disk
}

func (f *faultyFile) Write(b []byte) (int, error) {
	if err := f.d.may(); err != nil {
		n, _ := f.File.Write(b[:len(b)/2]) // torn
		return n, err
	}
	return f.File.Write(b)
}

func (f *faultyFile) Sync() error { return errors.Join(f.d.may(), f.File.Sync()) }

// whole requires that a copy of a checkpoint shows what the checkpoint does.
func (w *world) whole(m *snapshot.Manifest) {
	w.t.Helper()
	c := w.k.Of(m)[0]
	require.Equal(w.t, CopyMade, c.State, c.Error)
	require.True(w.t, strings.HasPrefix(c.File, w.path))
	a, err := archive.Open(c.File)
	require.NoError(w.t, err)
	defer func() { require.NoError(w.t, a.Close()) }()
	var want, got snapshot.Recorder
	require.NoError(w.t, snapshot.Walk(w.t.Context(), w.db, m, &want))
	require.NoError(w.t, snapshot.Walk(w.t.Context(), a, a.Manifest(), &got))
	require.Equal(w.t, want.Keys, got.Keys)
	info, err := os.Stat(c.File)
	require.NoError(w.t, err)
	require.Equal(w.t, info.Size(), c.Bytes)
}

// damaged is a store some of whose chunks can't be read.
type damaged struct {
	snapshot.Store
	bad *sync.Map
}

func (d damaged) Chunk(ctx context.Context, id snapshot.ChunkID) ([]byte, error) {
	if _, bad := d.bad.Load(id); bad {
		return nil, snapshot.ErrCorrupt
	}
	return d.Store.Chunk(ctx, id)
}
