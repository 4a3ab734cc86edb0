package coordinator

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// world is a coordinator on a memory store and a real store file, inside a
// bubble of fake time.
type world struct {
	t     *testing.T
	path  string
	store *memory.Store
	db    *bolt.DB
	c     *Coordinator
	opts  []func(*Options)

	mu     sync.Mutex
	events []Event
}

// inBubble runs f with time under control.
func inBubble(t *testing.T, f func(t *testing.T, w *world), opts ...func(*Options)) {
	path := filepath.Join(t.TempDir(), "keyframe.db")
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, path: path, store: memory.New(memory.Options{}), opts: opts}
		w.open()
		f(t, w)
		w.close()
	})
}

func (w *world) open(jobs ...config.Job) {
	db, err := bolt.Open(w.t.Context(), w.path, bolt.Options{})
	require.NoError(w.t, err)
	w.db = db
	o := Options{Store: db, Journal: db.Journal(), Backend: w.store, Jobs: jobs, Listener: w}
	for _, f := range w.opts {
		f(&o)
	}
	w.c = New(o)
	require.NoError(w.t, w.c.Start(w.t.Context()))
}

// close stops the coordinator; every test ends with a store without problems.
func (w *world) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(w.t, w.c.Stop(ctx))
	problems, err := w.db.Check(context.Background())
	require.NoError(w.t, err)
	require.Empty(w.t, problems)
	require.NoError(w.t, w.db.Close())
}

func (w *world) OnEvent(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

func (w *world) seen(kind EventKind) []Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []Event
	for _, e := range w.events {
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}

func testJob(name string) config.Job {
	return config.Job{Name: name, Parallelism: 2, MaxParallelism: 10}.WithDefaults()
}

// write puts n fields of a value state under each of the job's key groups.
func (w *world) write(job config.Job, n int, value string) {
	key := job.Key()
	for g := range job.MaxParallelism {
		name := key.StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: g, Operator: "count"}, "total")
		cmds := []statebackend.Cmd{
			statebackend.Command(statebackend.OpSAdd, key.Index(), name),
			statebackend.Command(statebackend.OpHSet, key.Registry(), name, "java.lang.String|1"),
		}
		for i := range n {
			cmds = append(cmds, statebackend.Command(statebackend.OpHSet, name, fmt.Sprintf("s:key-%d", i), fmt.Sprintf("%q", fmt.Sprintf("%s-%d", value, i))))
		}
		_, err := w.store.Do(w.t.Context(), cmds...)
		require.NoError(w.t, err)
	}
}

// read gives one field back.
func (w *world) read(job config.Job, group, i int) string {
	name := job.Key().StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: group, Operator: "count"}, "total")
	r, err := w.store.Do(w.t.Context(), statebackend.Command(statebackend.OpHGet, name, fmt.Sprintf("s:key-%d", i)))
	require.NoError(w.t, err)
	return string(r[0].Bytes)
}

func (w *world) apply(job config.Job) {
	_, err := w.c.Apply(w.t.Context(), job)
	require.NoError(w.t, err)
	synctest.Wait()
}

func (w *world) done(op *Operation, err error) Status {
	w.t.Helper()
	require.NoError(w.t, err)
	s, err := op.Wait(w.t.Context())
	require.NoError(w.t, err)
	require.Equal(w.t, OpDone, s.State, "%+v", s.Error)
	return s
}

func (w *world) failed(op *Operation, err error) Status {
	w.t.Helper()
	require.NoError(w.t, err)
	s, err := op.Wait(w.t.Context())
	require.NoError(w.t, err)
	require.Equal(w.t, OpFailed, s.State)
	return s
}

func (w *world) checkpoint(job string) snapshot.Checkpoint {
	w.t.Helper()
	return *w.done(w.c.Checkpoint(w.t.Context(), job, CheckpointRequest{})).Checkpoint
}

func (w *world) history(job string) []snapshot.Checkpoint {
	all, err := w.c.Checkpoints(w.t.Context(), job)
	require.NoError(w.t, err)
	return all
}

// pass lets fake time go on until everything that is due has been done.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
