package bolt

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

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
