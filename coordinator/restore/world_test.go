package restore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/coordinator/cut"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/snapshot/storetest"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

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
	now     *clock
	ids     atomic.Int64
}

// clock is a clock that tests set.
type clock struct{ at atomic.Int64 }

func (c *clock) Now() time.Time          { return time.UnixMilli(c.at.Load()).UTC() }
func (c *clock) advance(d time.Duration) { c.at.Add(d.Milliseconds()) }

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

func testJob(name string) config.Job {
	return config.Job{Name: name, Prefix: "streaming:runtime", Parallelism: 2, MaxParallelism: 12}.WithDefaults()
}

func newWorld(t testing.TB) *world {
	t.Helper()
	c := &clock{}
	c.at.Store(start.UnixMilli())
	return assemble(openStore(t), memory.New(memory.Options{Name: "main", Now: c.Now}), c, testJob("flights"))
}

func assemble(db *bolt.DB, backend statebackend.Backend, c *clock, job config.Job) *world {
	w := &world{store: db, backend: backend, job: job, now: c}
	w.exec = w.executor(db, db.Journal(), backend)
	return w
}

func (w *world) executor(s snapshot.Store, j snapshot.Journal, b statebackend.Backend) *Executor {
	return &Executor{Store: s, Journal: j, Backend: b, Now: w.now.Now, waits: []time.Duration{0, 0},
		NewID: func() string { return fmt.Sprintf("r%d", w.ids.Add(1)) }}
}

func (w *world) do(t tb, cmds ...statebackend.Cmd) {
	t.Helper()
	_, err := w.backend.Do(context.Background(), cmds...)
	require.NoError(t, err)
}

// put registers a key and writes it.
func (w *world) put(t tb, key, schema string, cmd statebackend.Cmd) {
	t.Helper()
	j := w.job.Key()
	w.do(t, statebackend.Command(statebackend.OpSAdd, j.Index(), key))
	if schema != "" {
		w.do(t, statebackend.Command(statebackend.OpHSet, j.Registry(), key, schema))
	}
	cmd.Key = key
	w.do(t, cmd)
}

func cmd(op statebackend.Op, args ...string) statebackend.Cmd {
	return statebackend.Command(op, "", args...)
}

func (w *world) scope(n int) statebackend.Scope {
	return statebackend.Scope{Group: "stats", Topic: "flights", Partition: n, Operator: "delays"}
}

// seed writes a state of every kind, more than 128 fields in one hash, and
// adopts it.
func (w *world) seed(t tb) {
	t.Helper()
	j := w.job.Key()
	count := j.StateKey(w.scope(7), "count")
	for i := range 300 {
		w.put(t, count, "java.lang.Integer|1", cmd(statebackend.OpHSet, fmt.Sprintf("s:K%03d", i), fmt.Sprint(i*i)))
	}
	w.put(t, j.KeyedKey(w.scope(3), "dest", "s:JFK"), "java.lang.Long|2", cmd(statebackend.OpHSet, `"LAX"`, "17"))
	w.put(t, j.KeyedKey(w.scope(3), "last", "s:JFK"), "java.lang.Double|1", cmd(statebackend.OpRPush, "1.5", "-2.0", "1.5"))
	w.put(t, j.KeyedKey(w.scope(4), "seen", "s:SFO"), "java.lang.String|1", cmd(statebackend.OpSAdd, `"a"`, `"b\u0000"`))
	w.put(t, j.WindowDueKey(w.scope(5), "win"), "", cmd(statebackend.OpZAdd, "3.0000000000000004", "s:JFK\x011\x012"))
	w.put(t, j.Root()+":odd\xff\x00key", "", cmd(statebackend.OpSet, "\xfe\x00raw"))
	w.put(t, j.StateKey(w.scope(2), "short"), "java.lang.String|1", cmd(statebackend.OpHSet, "s:x", `"y"`))
	w.put(t, j.OperatorKey("stats", "flights", 0, "delays", "positions"), "java.lang.Long|1", cmd(statebackend.OpRPush, "11", "12"))
	w.put(t, j.OperatorKey("stats", "flights", 1, "delays", "positions"), "java.lang.Long|1", cmd(statebackend.OpRPush, "13"))
	// A name in the index without a key.
	w.do(t, statebackend.Command(statebackend.OpSAdd, j.Index(), j.StateKey(w.scope(9), "gone")),
		statebackend.Command(statebackend.OpHSet, j.OperatorStates(), statebackend.OperatorField("delays", "positions"), `{"mode":"list"}`))
	w.adopt(t)
}

func (w *world) adopt(t tb) {
	t.Helper()
	ranges, err := w.job.Rule().Assign(w.job.Parallelism)
	require.NoError(t, err)
	_, err = w.backend.Adopt(context.Background(), w.job.Key(), "incarnation-of-"+w.job.Name, statebackend.Assignment{
		MaxParallelism: w.job.MaxParallelism, Parallelism: w.job.Parallelism, Hash: w.job.KeyGroups.Hash, Ranges: ranges})
	require.NoError(t, err)
}

// expire sets the expiry of a key.
func (w *world) expire(t tb, key string, at time.Time) {
	t.Helper()
	w.do(t, statebackend.Command(statebackend.OpPExpireAt, key, fmt.Sprint(at.UnixMilli())))
}

// take makes a checkpoint of the live state.
func (w *world) take(t tb) *snapshot.Manifest {
	t.Helper()
	ctx := context.Background()
	g, err := w.backend.Look(ctx, w.job.Key())
	require.NoError(t, err)
	out, err := cut.Taker{Store: w.store, Backend: w.backend, Now: w.now.Now}.Take(ctx, cut.Request{
		Job: w.job, Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerManual, Incarnation: g.Record.Incarnation})
	require.NoError(t, err)
	return out.Manifest
}

// dirty changes the live state in every way that a restore must take back.
func (w *world) dirty(t tb) {
	t.Helper()
	j := w.job.Key()
	w.put(t, j.StateKey(w.scope(7), "count"), "", cmd(statebackend.OpHSet, "s:K004", "999"))
	w.put(t, j.StateKey(w.scope(7), "count"), "", cmd(statebackend.OpHSet, "s:NEW", "1000"))
	w.put(t, j.StateKey(w.scope(8), "count"), "java.lang.Integer|1", cmd(statebackend.OpHSet, "s:later", "5"))
	w.put(t, j.KeyedKey(w.scope(3), "last", "s:JFK"), "", cmd(statebackend.OpRPush, "77.0"))
	w.do(t, statebackend.Command(statebackend.OpDel, j.KeyedKey(w.scope(4), "seen", "s:SFO")))
	// Another type under the same name.
	w.do(t, statebackend.Command(statebackend.OpDel, j.StateKey(w.scope(2), "short")))
	w.put(t, j.StateKey(w.scope(2), "short"), "", cmd(statebackend.OpRPush, "now a list"))
	w.put(t, j.OperatorKey("stats", "flights", 1, "delays", "positions"), "", cmd(statebackend.OpRPush, "99"))
}

// state is a job's whole state in a form that compares: each key with its
// section, type, expiry and elements, unordered ones sorted.
type state map[string]string

func normal(keys []snapshot.RecordedKey, job statebackend.Job) state {
	all := state{}
	for _, k := range keys {
		if string(k.Key.Name) == job.Assignment() {
			continue // its epoch is new each time; compared by itself
		}
		var els []string
		for _, e := range k.Elements {
			els = append(els, fmt.Sprintf("%q=%x:%q", e.Field, e.Score, e.Value))
		}
		if !k.Key.Type.Ordered() {
			slices.Sort(els)
		}
		all[string(k.Key.Name)] = fmt.Sprintf("%s %s expires %d: %s", k.Key.Section, k.Key.Type, k.Key.ExpireAt, strings.Join(els, " "))
	}
	return all
}

// live is the state as a cut shows it; the cut fails when a mark is there.
func (w *world) live(t tb) state {
	t.Helper()
	s, _ := w.cut(t)
	return s
}

func (w *world) cut(t tb) (state, statebackend.Cut) {
	t.Helper()
	var r snapshot.Recorder
	c, err := w.backend.Cut(context.Background(), statebackend.CutRequest{Job: w.job.Key(), Grade: snapshot.GradeAuto}, &r)
	require.NoError(t, err)
	return normal(r.Keys, w.job.Key()), c
}

// content is what a checkpoint holds, in the same form.
func (w *world) content(t tb, m *snapshot.Manifest) state {
	t.Helper()
	var r snapshot.Recorder
	require.NoError(t, snapshot.Walk(context.Background(), w.store, m, &r))
	return normal(r.Keys, w.job.Key())
}

// noTraces requires that no mark, no staged key and no journal entry is left.
func (w *world) noTraces(t tb) {
	t.Helper()
	ctx := context.Background()
	g, err := w.backend.Look(ctx, w.job.Key())
	require.NoError(t, err)
	require.Nil(t, g.Record.Restore, "a mark is left")
	entry, err := GetEntry(ctx, w.store.Journal(), w.job.Name)
	require.NoError(t, err)
	require.Nil(t, entry, "a journal entry is left")
	if m, ok := w.backend.(*memory.Store); ok {
		for _, k := range m.Keys() {
			require.False(t, bytes.Contains(k, []byte(":coordinator:stage:")), "staged key %q is left", k)
		}
	}
}

// foreign is every key of the store that is not the job's.
func foreign(t tb, m *memory.Store, job statebackend.Job) []string {
	t.Helper()
	var all []string
	for _, k := range m.Keys() {
		if !strings.HasPrefix(string(k), job.Root()+":") {
			r, err := m.Do(context.Background(), statebackend.Command(statebackend.OpType, string(k)))
			require.NoError(t, err)
			all = append(all, fmt.Sprintf("%q %s", k, r[0].Bytes))
		}
	}
	slices.SortFunc(all, cmp.Compare[string])
	return all
}
