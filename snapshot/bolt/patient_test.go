package bolt

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// patient is a store that is damaged by tests: its bytes, and what is in it.
type patient struct {
	bytes     []byte
	rows      map[place]snapshot.Checkpoint // completed and failed
	manifests map[place]*snapshot.Manifest  // also of what was deleted
	chunks    map[snapshot.ChunkID]span
	last      map[string]snapshot.ID
}

// healthy is made once: two jobs, a chain of layers, failures, deletions (whose
// pages are still there), marks, and a journal.
var healthy = sync.OnceValues(func() (*patient, error) {
	dir, err := os.MkdirTemp("", "salvage-*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // only for tests
	p := &patient{rows: map[place]snapshot.Checkpoint{}, manifests: map[place]*snapshot.Manifest{}, last: map[string]snapshot.ID{"flights": 6, "a/b\xff": 3}}
	path := filepath.Join(dir, "keyframe.db")
	db, err := Open(context.Background(), path, Options{BatchBytes: 4 << 10})
	if err != nil {
		return nil, err
	}
	if err := p.fill(db); err != nil {
		return nil, err
	}
	if err := db.Close(); err != nil {
		return nil, err
	}
	if p.bytes, err = os.ReadFile(path); err != nil {
		return nil, err
	}
	m, err := findMarks(context.Background(), reader(p.bytes), int64(len(p.bytes)), nil)
	if err == nil {
		p.chunks = m.chunks
	}
	return p, err
})

func (p *patient) fill(db *DB) error {
	ctx := context.Background()
	keep := func(m *snapshot.Manifest, err error) error {
		if err == nil {
			p.manifests[place{m.Checkpoint.Job, m.Checkpoint.ID}], err = db.Manifest(ctx, m.Checkpoint.Job, m.Checkpoint.ID)
		}
		return err
	}
	state := storetest.Keys("base", 320)
	slices.SortFunc(state, func(a, b snapshot.RecordedKey) int {
		if a.Key.Section != b.Key.Section {
			return int(a.Key.Section) - int(b.Key.Section)
		}
		return snapshot.CompareNames(a.Key.Name, b.Key.Name)
	})
	a := storetest.Attempt("flights")
	w, err := db.Begin(ctx, a)
	if err != nil {
		return err
	}
	sum, err := storetest.Encode(ctx, w, state)
	if err != nil {
		return err
	}
	m := storetest.ManifestOf(a, w.ID(), sum)
	m.Sorted = true
	if err := keep(m, w.Commit(ctx, m)); err != nil {
		return err
	}
	for n := range 2 {
		i := slices.IndexFunc(state, func(k snapshot.RecordedKey) bool { return k.Key.Type == snapshot.TypeHash })
		state[i].Elements = slices.Clone(state[i].Elements[:300-100*n])
		state[i].Key.Count = uint64(len(state[i].Elements))
		if m, err = storetest.TakeOver(ctx, db, a, m, slices.Clone(state[i:i+1]), slices.Clone(state)); keep(m, err) != nil {
			return fmt.Errorf("layer %d: %w", n, err)
		}
	}
	b := storetest.Attempt("a/b\xff")
	b.Kind, b.Name = snapshot.KindSavepoint, "before the upgrade"
	for i, take := range []struct {
		a    snapshot.Attempt
		seed string
	}{{a, "gone"}, {b, "other"}, {a, "plain"}, {b, "more"}} {
		take.a.Name += fmt.Sprint(i)
		if take.a.Kind == snapshot.KindCheckpoint {
			take.a.Name = ""
		}
		m, err := storetest.Take(ctx, db, take.a, storetest.Keys(take.seed, 130))
		if keep(m, err) != nil {
			return err
		}
	}
	for _, job := range []string{"flights", "a/b\xff"} {
		w, err := db.Begin(ctx, storetest.Attempt(job))
		if err == nil {
			err = w.Fail(ctx, snapshot.Failure{Reason: snapshot.FailTimeout, Message: "too slow"})
		}
		if err != nil {
			return err
		}
	}
	return p.mark(db)
}

// mark sets marks, deletes one, and reads all rows.
func (p *patient) mark(db *DB) error {
	ctx, yes := context.Background(), true
	if _, err := db.Edit(ctx, "flights", 2, snapshot.Change{Pinned: &yes, Shrunk: &snapshot.Shrunk{Base: 1, ElementsBefore: 400, ElementsAfter: 300}}); err != nil {
		return err
	}
	if err := db.Delete(ctx, "flights", 4); err != nil {
		return err
	}
	for job := range p.last {
		rows, err := db.List(ctx, job)
		if err != nil {
			return err
		}
		for _, row := range rows {
			p.rows[place{job, row.ID}] = row
		}
	}
	j := db.Journal()
	for _, bucket := range []string{"jobs", "lineage"} {
		if err := j.Put(ctx, bucket, "flights", []byte(`{"of":"`+bucket+`"}`)); err != nil {
			return err
		}
	}
	return j.Put(ctx, "server", "flights", []byte("redis://127.0.0.1:6379/0"))
}

func getPatient(t require.TestingT) *patient {
	p, err := healthy()
	require.NoError(t, err)
	return p
}

// salvage writes b to a file and salvages it in this process.
func salvage(t testing.TB, b []byte) (SalvageReport, string, error) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "damaged.db"), filepath.Join(dir, "new.db")
	require.NoError(t, os.WriteFile(from, b, 0o400))
	report, err := Salvage(context.Background(), from, to, nil)
	after, readErr := os.ReadFile(from)
	require.NoError(t, readErr)
	require.Equal(t, b, after, "the damaged file is only read")
	return report, to, err
}

// holds opens a salvaged store and holds it against the patient: all that is in
// it was in the patient, verifies, and is the same.
func (p *patient) holds(t require.TestingT, report SalvageReport, path string) map[place]snapshot.Checkpoint {
	ctx := context.Background()
	db, err := Open(ctx, path, Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	problems, err := db.Check(ctx) // reads and verifies every checkpoint
	require.NoError(t, err)
	require.Empty(t, problems)
	told := map[place]bool{}
	for _, s := range report.Checkpoints {
		told[place{s.Job, s.ID}] = s.OK
		require.Equal(t, s.OK, s.Lost == "")
	}
	listed := map[place]snapshot.Checkpoint{}
	jobs, err := db.Jobs(ctx)
	require.NoError(t, err)
	for _, job := range jobs {
		rows, err := db.List(ctx, job)
		require.NoError(t, err)
		for _, row := range rows {
			at := place{job, row.ID}
			listed[at] = row
			if row.State != snapshot.StateCompleted {
				continue
			}
			require.True(t, told[at], "%s is in the store and not in the report", at)
			require.Contains(t, p.manifests, at, "it is invented")
			m, err := db.Manifest(ctx, job, row.ID)
			require.NoError(t, err)
			require.Equal(t, p.manifests[at], m, at)
		}
		w, err := db.Begin(ctx, storetest.Attempt(job))
		require.NoError(t, err)
		for _, row := range rows {
			require.Greater(t, w.ID(), row.ID, "ids only grow")
		}
		w.Abort()
	}
	for at, ok := range told {
		_, there := listed[at]
		require.True(t, !ok || there, "%s is in the report and not in the store", at)
	}
	return listed
}
