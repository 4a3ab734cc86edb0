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
	"pgregory.net/rapid"

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

func TestSalvageOfAHealthyStoreBringsEverything(t *testing.T) {
	withoutChild(t)
	p := getPatient(t)
	report, path, err := salvage(t, p.bytes)
	require.NoError(t, err)
	require.Equal(t, p.rows, p.holds(t, report, path), "with its marks; and what was deleted stays so")
	require.Empty(t, report.Problems)
	require.Zero(t, report.Lost())
	require.Equal(t, []int{2, 3, 6}, []int{report.Failed, report.Journal, len(report.Checkpoints)})
	db, err := Open(context.Background(), path, Options{})
	require.NoError(t, err)
	for bucket, want := range map[string]string{"jobs": `{"of":"jobs"}`, "lineage": `{"of":"lineage"}`, "server": "redis://127.0.0.1:6379/0"} {
		v, ok, err := db.Journal().Get(context.Background(), bucket, "flights")
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, want, string(v))
	}
	w, err := db.Begin(context.Background(), storetest.Attempt("flights"))
	require.NoError(t, err)
	require.Greater(t, w.ID(), p.last["flights"], "ids go on")
	w.Abort()
	require.NoError(t, db.Close())
}

// harm is one kind of damage to a copy of a file.
func harm(t *rapid.T, b []byte) []byte {
	page := os.Getpagesize()
	if len(b) < 2*page {
		return b
	}
	at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
	switch rapid.SampledFrom([]string{"flip", "flip", "zero", "noise", "page", "cut"}).Draw(t, "kind") {
	case "flip":
		b[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
	case "zero":
		clear(b[at:min(len(b), at+rapid.IntRange(1, 20000).Draw(t, "n"))])
	case "noise":
		copy(b[at:], rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(t, "bytes"))
	case "page": // one page's content lies in another's place
		from := rapid.IntRange(0, len(b)/page-1).Draw(t, "from") * page
		copy(b[at/page*page:], slices.Clone(b[from:from+page]))
	case "cut":
		return b[:at+1]
	}
	return b
}

func TestSalvageOfAnyDamageInventsNothingAndNeverFalls(t *testing.T) {
	withoutChild(t)
	p := getPatient(t)
	dir := t.TempDir()
	saved, total := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		b := slices.Clone(p.bytes)
		for range rapid.IntRange(1, 12).Draw(t, "times") {
			b = harm(t, b)
		}
		from, to := filepath.Join(dir, "damaged.db"), filepath.Join(dir, "new.db")
		require.NoError(t, os.WriteFile(from, b, 0o600))
		defer func() { require.NoError(t, os.RemoveAll(to)) }()
		report, err := Salvage(context.Background(), from, to, nil)
		total++
		if err != nil {
			require.ErrorIs(t, err, ErrNothing, "anything else is a fall")
			require.NoFileExists(t, to)
			return
		}
		p.holds(t, report, to)
		if report.Lost() < len(report.Checkpoints) {
			saved++
		}
	})
	require.Greater(t, saved*5, total, "many files give something")
}

// Flips alone, anywhere but in what a checkpoint needs itself, lose nothing.
func TestSalvageLosesOnlyWhatIsDamagedItself(t *testing.T) {
	withoutChild(t)
	p := getPatient(t)
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		b := slices.Clone(p.bytes)
		hurt := map[place]bool{}
		for range rapid.IntRange(1, 30).Draw(t, "flips") {
			at := rapid.IntRange(2*os.Getpagesize(), len(b)-1).Draw(t, "at")
			b[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
			for place, m := range p.manifests {
				for ref := range m.AllChunks() {
					s := p.chunks[ref.ID]
					hurt[place] = hurt[place] || int64(at) >= s.at && int64(at) < s.at+s.size
				}
			}
		}
		from, to := filepath.Join(dir, "damaged.db"), filepath.Join(dir, "new.db")
		require.NoError(t, os.WriteFile(from, b, 0o600))
		defer func() { require.NoError(t, os.RemoveAll(to)) }()
		report, err := Salvage(context.Background(), from, to, nil)
		require.NoError(t, err)
		p.holds(t, report, to)
		marks, err := findMarks(context.Background(), reader(b), int64(len(b)), nil)
		require.NoError(t, err)
		ok := map[place]bool{}
		for _, s := range report.Checkpoints {
			ok[place{s.Job, s.ID}] = s.OK
			_, was := p.rows[place{s.Job, s.ID}] // or it had been deleted
			require.True(t, s.OK || len(s.Missing) == 0 || hurt[place{s.Job, s.ID}] || !was, "%+v", s)
		}
		for at, row := range p.rows {
			// A manifest that is hit is lost, and the key before it is its place.
			if row.State == snapshot.StateCompleted && !hurt[at] && len(marks.manifests[at]) > 0 {
				require.True(t, ok[at], "%s: %+v", at, report)
			}
		}
	})
}

func chunksIn(t require.TestingT, b []byte) map[snapshot.ChunkID]span {
	m, err := findMarks(context.Background(), reader(b), int64(len(b)), nil)
	require.NoError(t, err)
	return m.chunks
}

// With damage in one chunk only, all checkpoints that don't name it come back
// as they were.
func TestSalvageWithOneDamagedChunk(t *testing.T) {
	withoutChild(t)
	p := getPatient(t)
	named := map[snapshot.ChunkID][]place{}
	for at := range p.rows {
		if m := p.manifests[at]; m != nil {
			for ref := range m.AllChunks() {
				named[ref.ID] = append(named[ref.ID], at)
			}
		}
	}
	n := 0
	for id, places := range named {
		if n++; n > 25 { // a map's order: others each time
			break
		}
		b := slices.Clone(p.bytes)
		// A page that was written anew leaves a copy behind, which is as good.
		for s, there := p.chunks[id]; there; s, there = chunksIn(t, b)[id] {
			b[s.at+int64(n*7)%s.size] ^= 0x10
		}
		report, path, err := salvage(t, b)
		require.NoError(t, err)
		got := p.holds(t, report, path)
		for at, row := range p.rows {
			if slices.Contains(places, at) {
				require.NotContains(t, got, at)
				continue
			}
			require.Equal(t, row, got[at], at)
		}
		require.Equal(t, len(places), report.Lost())
		for _, c := range report.Checkpoints {
			if !c.OK {
				require.Contains(t, c.Missing[0], id.String())
				require.Contains(t, c.Lost, "1 of its ")
			}
		}
	}
}

func TestSalvageWithoutMetaPagesOrWithoutAList(t *testing.T) {
	withoutChild(t)
	p := getPatient(t)
	page := os.Getpagesize()
	b := slices.Clone(p.bytes)
	clear(b[:2*page])
	require.NoError(t, os.WriteFile(filepath.Join(t.TempDir(), "x"), b, 0o600))
	report, path, err := salvage(t, b)
	require.NoError(t, err)
	got := p.holds(t, report, path)
	for at, row := range p.rows {
		if row.State == snapshot.StateCompleted {
			require.True(t, got[at].Pinned, "%s: its marks are not known", at)
		}
	}
	require.NotEmpty(t, report.Problems)

	// Open tells such a file from one that is no store at all.
	damagedPath := filepath.Join(t.TempDir(), "keyframe.db")
	require.NoError(t, os.WriteFile(damagedPath, b, 0o600))
	_, err = Open(context.Background(), damagedPath, Options{})
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
	require.ErrorContains(t, err, "coordinator store salvage")
}

func TestSalvageRefuses(t *testing.T) {
	withoutChild(t)
	dir := t.TempDir()
	text, there := filepath.Join(dir, "notes.txt"), filepath.Join(dir, "there.db")
	require.NoError(t, os.WriteFile(text, []byte("no store, whatever KFCK and KFMF say"), 0o600))
	require.NoError(t, os.WriteFile(there, []byte("mine"), 0o600))
	ctx := context.Background()
	_, err := Salvage(ctx, text, filepath.Join(dir, "new.db"), nil)
	require.ErrorIs(t, err, ErrNothing)
	_, err = Salvage(ctx, text, there, nil)
	require.ErrorIs(t, err, os.ErrExist)
	_, err = Salvage(ctx, dir, filepath.Join(dir, "new.db"), nil)
	require.ErrorContains(t, err, "no regular file")
	_, err = Salvage(ctx, filepath.Join(dir, "absent"), filepath.Join(dir, "new.db"), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	store := filepath.Join(dir, "keyframe.db")
	db, err := Open(ctx, store, Options{})
	require.NoError(t, err)
	_, err = Salvage(ctx, store, filepath.Join(dir, "new.db"), nil)
	require.ErrorIs(t, err, ErrHeld, "a store that is in use")
	require.NoError(t, db.Close())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 3, "nothing is left behind")
}
