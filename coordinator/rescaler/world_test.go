package rescaler

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyframe/coordinator/config"
	"keyframe/coordinator/cut"
	"keyframe/coordinator/restore"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/snapshot/storetest"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tb is what testing.T and rapid.T have in common.
type tb interface {
	require.TestingT
	Helper()
}

// world is a state store, a checkpoint store and an executor over them.
type world struct {
	store   *bolt.DB
	backend statebackend.Backend
	exec    *Executor
	job     config.Job
	ids     *atomic.Int64
	at      *atomic.Int64 // the clock, in ms
}

var start = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func openStore(t testing.TB) *bolt.DB {
	t.Helper()
	db, err := bolt.Open(context.Background(), filepath.Join(t.TempDir(), "checkpoints.db"), bolt.Options{})
	require.NoError(t, err)
	t.Cleanup(func() {
		storetest.MustBeClean(t, db)
		require.NoError(t, db.Close())
	})
	return db
}

func testJob(name string, parallelism int) config.Job {
	return config.Job{Name: name, Prefix: "streaming:runtime", Parallelism: parallelism, MaxParallelism: 11}.WithDefaults()
}

func newWorld(t testing.TB, parallelism int) *world {
	t.Helper()
	at := &atomic.Int64{}
	at.Store(start.UnixMilli())
	now := func() time.Time { return time.UnixMilli(at.Load()).UTC() }
	return assemble(openStore(t), memory.New(memory.Options{Name: "main", Now: now}), at, testJob("flights", parallelism))
}

func assemble(db *bolt.DB, backend statebackend.Backend, at *atomic.Int64, job config.Job) *world {
	w := &world{store: db, backend: backend, job: job, ids: &atomic.Int64{}, at: at}
	w.exec = w.executor(db, db.Journal(), backend)
	return w
}

func (w *world) now() time.Time { return time.UnixMilli(w.at.Load()).UTC() }

func (w *world) executor(s snapshot.Store, j snapshot.Journal, b statebackend.Backend) *Executor {
	return &Executor{Store: s, Journal: j, Backend: b, Now: w.now, waits: []time.Duration{0, 0},
		NewID: func() string { return fmt.Sprintf("x%d", w.ids.Add(1)) }}
}

func (w *world) do(t tb, cmds ...statebackend.Cmd) {
	t.Helper()
	_, err := w.backend.Do(context.Background(), cmds...)
	require.NoError(t, err)
}

// put registers a key and, with arguments, writes it.
func (w *world) put(t tb, key, schema string, op statebackend.Op, args ...string) {
	t.Helper()
	j := w.job.Key()
	w.do(t, statebackend.Command(statebackend.OpSAdd, j.Index(), key))
	if schema != "" {
		w.do(t, statebackend.Command(statebackend.OpHSet, j.Registry(), key, schema))
	}
	if len(args) > 0 {
		w.do(t, statebackend.Command(op, key, args...))
	}
}

func (w *world) opKey(subtask int, name string) string {
	return w.job.Key().OperatorKey("stats", "in", subtask, "delays", name)
}

func (w *world) register(t tb, name string, mode snapshot.OperatorMode) {
	t.Helper()
	text, err := statebackend.EncodeOperatorMode(snapshot.OperatorState{Operator: "delays", Name: name, Mode: mode})
	require.NoError(t, err)
	w.do(t, statebackend.Command(statebackend.OpHSet, w.job.Key().OperatorStates(), statebackend.OperatorField("delays", name), string(text)))
}

func (w *world) adopt(t tb) {
	t.Helper()
	ranges, err := w.job.Rule().Assign(w.job.Parallelism)
	require.NoError(t, err)
	_, err = w.backend.Adopt(context.Background(), w.job.Key(), "incarnation-1", statebackend.Assignment{
		MaxParallelism: w.job.MaxParallelism, Parallelism: w.job.Parallelism, Hash: w.job.KeyGroups.Hash, Ranges: ranges})
	require.NoError(t, err)
}

// seed writes keyed state in every key group and operator state in all three
// modes for each subtask. Lists differ in length; that of subtask 1 is empty:
// a name in the index without a key. Items repeat.
func (w *world) seed(t tb) {
	t.Helper()
	j := w.job.Key()
	for g := range w.job.MaxParallelism {
		s := statebackend.Scope{Group: "stats", Topic: "in", Partition: g, Operator: "delays"}
		w.put(t, j.StateKey(s, "count"), "java.lang.Integer|1", 0)
		for i := range 3 + g {
			w.do(t, statebackend.Command(statebackend.OpHSet, j.StateKey(s, "count"), fmt.Sprintf("s:k%d", i), fmt.Sprint(100*g+i)))
		}
	}
	w.put(t, j.Root()+":odd\xffkey", "", statebackend.OpSet, "\x00raw")
	for i := range w.job.Parallelism {
		var items []string
		for n := range []int{5, 0, 7, 2, 1, 9, 3, 4}[i%8] {
			items = append(items, fmt.Sprintf("%d", 10*i+n%4))
		}
		w.put(t, w.opKey(i, "positions"), "java.lang.Long|1", statebackend.OpRPush, items...)
		w.put(t, w.opKey(i, "told"), "java.lang.String|2", statebackend.OpRPush, fmt.Sprintf(`"from %d"`, i), `"same"`)
		w.put(t, w.opKey(i, "threshold"), "java.lang.Double|1", 0)
		var fields []statebackend.Cmd
		for f := range 150 {
			fields = append(fields, statebackend.Command(statebackend.OpHSet, w.opKey(i, "threshold"), fmt.Sprintf(`"f%d"`, f), fmt.Sprintf("%d.5", f*f)))
		}
		w.do(t, fields...)
	}
	w.registerAll(t)
}

// registerAll registers the operator states and adopts the job.
func (w *world) registerAll(t tb) {
	t.Helper()
	w.register(t, "positions", snapshot.ModeList)
	w.register(t, "told", snapshot.ModeUnion)
	w.register(t, "threshold", snapshot.ModeBroadcast)
	w.register(t, "unused", snapshot.ModeList)
	w.adopt(t)
}

// again begins a job of its own on the same stores.
func (w *world) again(name string, parallelism int) *world {
	next := assemble(w.store, w.backend, w.at, testJob(name, parallelism))
	next.ids = w.ids
	next.exec = next.executor(w.store, w.store.Journal(), w.backend)
	return next
}

// take makes a checkpoint of the live state.
func (w *world) take(t tb) *snapshot.Manifest {
	t.Helper()
	ctx := context.Background()
	g, err := w.backend.Look(ctx, w.job.Key())
	require.NoError(t, err)
	out, err := cut.Taker{Store: w.store, Backend: w.backend, Now: w.now}.Take(ctx, cut.Request{
		Job: w.job, Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerPreRescale, Incarnation: g.Record.Incarnation})
	require.NoError(t, err)
	return out.Manifest
}

// view is a job's whole state: each key with what it holds, unordered elements
// sorted.
type view struct {
	all   map[string]string               // by name
	items map[string][]string             // values, or field=value, of each key
	kinds map[string]snapshot.RecordedKey // by name
}

func viewOf(keys []snapshot.RecordedKey) view {
	v := view{all: map[string]string{}, items: map[string][]string{}, kinds: map[string]snapshot.RecordedKey{}}
	for _, k := range keys {
		name := string(k.Key.Name)
		var els []string
		for _, e := range k.Elements {
			text := string(e.Value)
			if k.Key.Type == snapshot.TypeHash {
				text = string(e.Field) + "=" + text
			}
			els = append(els, text)
		}
		if !k.Key.Type.Ordered() {
			slices.Sort(els)
		}
		v.all[name] = fmt.Sprintf("%s %s expires %d: %q", k.Key.Section, k.Key.Type, k.Key.ExpireAt, els)
		v.items[name], v.kinds[name] = els, k
	}
	return v
}

// live is the state as a cut shows it; the cut fails when a mark is there.
func (w *world) live(t tb) (view, statebackend.Cut) {
	t.Helper()
	var r snapshot.Recorder
	c, err := w.backend.Cut(context.Background(), statebackend.CutRequest{Job: w.job.Key(), Grade: snapshot.GradeAuto}, &r)
	require.NoError(t, err)
	return viewOf(r.Keys), c
}

// content is what a checkpoint holds, in the same form.
func (w *world) content(t tb, id snapshot.ID) (view, *snapshot.Manifest) {
	t.Helper()
	m, err := w.store.Manifest(context.Background(), w.job.Name, id)
	require.NoError(t, err)
	var r snapshot.Recorder
	require.NoError(t, snapshot.Walk(context.Background(), w.store, m, &r))
	return viewOf(r.Keys), m
}

// keyed is the part of a view that a rescale must not touch.
func (v view) keyed() map[string]string {
	all := map[string]string{}
	for name, k := range v.kinds {
		if k.Key.Section == snapshot.SectionKeyed {
			all[name] = v.all[name]
		}
	}
	return all
}

// noTraces requires that no mark, no staged key and no journal entry is left.
func (w *world) noTraces(t tb) {
	t.Helper()
	ctx := context.Background()
	g, err := w.backend.Look(ctx, w.job.Key())
	require.NoError(t, err)
	require.Nil(t, g.Record.Restore, "a mark is left")
	entry, err := restore.GetEntry(ctx, w.store.Journal(), w.job.Name)
	require.NoError(t, err)
	require.Nil(t, entry, "a journal entry is left")
	if m, ok := w.backend.(*memory.Store); ok {
		for _, k := range m.Keys() {
			require.False(t, bytes.Contains(k, []byte(":coordinator:stage:")), "staged key %q is left", k)
		}
	}
}

// completed are the ids of the job's completed checkpoints.
func (w *world) completed(t tb) (ids []snapshot.ID) {
	t.Helper()
	all, err := w.store.List(context.Background(), w.job.Name)
	require.NoError(t, err)
	for _, c := range all {
		require.NotEqual(t, snapshot.StateInProgress, c.State)
		if c.State == snapshot.StateCompleted {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

func joined(parts [][]string) string {
	var all []string
	for _, p := range parts {
		all = append(all, p...)
	}
	return strings.Join(all, " ")
}
