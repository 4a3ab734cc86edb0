package storetest

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"keyframe/snapshot"
)

// OpenUpkeep is Open for a store that can be compacted and backed up. openCopy
// opens a backup; who called it closes it by the function that it gives.
type OpenUpkeep func(t testing.TB) (store snapshot.Store, reopen func() snapshot.Store, openCopy func(file string) (snapshot.Store, func()))

// RunUpkeep holds a store against the contract of snapshot.Upkeep.
func RunUpkeep(t *testing.T, open OpenUpkeep) {
	tests := map[string]func(*testing.T, *keeper){
		"ACompactionKeepsAllAndShrinks": compactKeeps,
		"ABackupIsAStore":               backupIsAStore,
		"ABackupReplacesNothing":        backupRefuses,
		"WhatRunsSurvivesACompaction":   compactUnderWriters,
		"CompactionsBesideManyWriters":  compactBesideMany,
		"AnyOrderOfCallsWithUpkeep":     upkeepAnyOrder,
	}
	for name, run := range tests {
		t.Run(name, func(t *testing.T) {
			store, reopen, openCopy := open(t)
			s := &keeper{subject: &subject{t: t, store: store, again: reopen}, openCopy: openCopy, dir: t.TempDir()}
			run(t, s)
			MustBeClean(t, s.store)
			MustBeClean(t, s.reopen())
		})
	}
}

// keeper is a subject with its upkeep.
type keeper struct {
	*subject
	openCopy func(file string) (snapshot.Store, func())
	dir      string
}

func (k *keeper) upkeep() snapshot.Upkeep { return k.store.(snapshot.Upkeep) }

func (k *keeper) compact() snapshot.CompactResult {
	k.t.Helper()
	res, err := k.upkeep().Compact(context.Background(), nil)
	require.NoError(k.t, err)
	return res
}

// backup writes a backup and opens it.
func (k *keeper) backup(name string) (res snapshot.BackupResult, copied *subject, done func()) {
	k.t.Helper()
	file := filepath.Join(k.dir, name)
	res, err := k.upkeep().Backup(context.Background(), file, nil)
	require.NoError(k.t, err)
	store, closeIt := k.openCopy(file)
	return res, &subject{t: k.t, store: store}, func() {
		closeIt()
		require.NoError(k.t, os.Remove(file))
	}
}

// churn leaves one checkpoint of many, a failed attempt and an empty history.
func churn(s *subject) (kept snapshot.Checkpoint) {
	for i := range 12 {
		m := MustTake(s.t, s.store, Attempt("flights"), Keys(string(rune('a'+i)), 400))
		if i > 0 {
			s.delete("flights", m.Checkpoint.ID-1)
		}
		kept = m.Checkpoint
	}
	MustTake(s.t, s.store, Attempt("trains"), Keys("trains", 50))
	s.delete("trains", 1)
	s.begin(Attempt("ships")).Abort()
	yes := true
	kept, err := s.store.Edit(context.Background(), "flights", kept.ID, snapshot.Change{Pinned: &yes})
	require.NoError(s.t, err)
	return kept
}

func mustBeChurned(s *subject, kept snapshot.Checkpoint) {
	s.t.Helper()
	require.Equal(s.t, []snapshot.Checkpoint{kept}, s.list("flights"))
	MustHold(s.t, s.store, "flights", kept.ID, Keys("l", 400))
	require.Empty(s.t, s.list("trains"))
	require.Len(s.t, s.list("ships"), 1)
	MustBeClean(s.t, s.store)
}

func compactKeeps(t *testing.T, k *keeper) {
	kept := churn(k.subject)
	before := k.stats()
	var phases []string
	var last snapshot.UpkeepProgress
	res, err := k.upkeep().Compact(context.Background(), func(p snapshot.UpkeepProgress) {
		require.LessOrEqual(t, p.Done, p.Total)
		require.GreaterOrEqual(t, p.Done, last.Done)
		phases, last = append(phases, p.Phase), p
	})
	require.NoError(t, err)
	require.NotEmpty(t, phases)
	after := k.stats()
	require.Equal(t, before.Path, res.Path)
	require.Equal(t, after.FileBytes, res.AfterBytes)
	require.Equal(t, after.Chunks, res.Chunks)
	require.Less(t, res.AfterBytes, before.FileBytes/2)
	require.Less(t, after.Ratio, before.Ratio)
	require.Positive(t, res.HeldMs)
	require.Equal(t, []any{before.LiveBytes, before.Chunks, before.Checkpoints, before.Attempts},
		[]any{after.LiveBytes, after.Chunks, after.Checkpoints, after.Attempts})
	for range 2 {
		mustBeChurned(k.subject, kept)
		k.reopen()
	}
	w := k.begin(Attempt("trains"))
	require.Equal(t, snapshot.ID(2), w.ID(), "ids go on")
	w.Abort()
	k.delete("trains", 2)
	k.compact()
	k.compact()
	k.reopen()
	mustBeChurned(k.subject, kept)
}

func backupIsAStore(t *testing.T, k *keeper) {
	kept := churn(k.subject)
	a := Attempt("flights")
	w := k.begin(a)
	m := k.encode(w, a, Keys("running", 300))
	res, copied, done := k.backup("copy.db")
	require.Equal(t, []int{2, 1, k.stats().Chunks}, []int{res.Jobs, res.Checkpoints, res.Chunks})
	require.Positive(t, res.Bytes)
	all := copied.list("flights")
	require.Equal(t, kept, all[0])
	require.Equal(t, snapshot.FailInterrupted, all[1].Failure.Reason, "what was in progress is not in the copy")
	MustHold(t, copied.store, "flights", kept.ID, Keys("l", 400))
	MustBeSwept(t, copied.store)
	MustBeClean(t, copied.store)
	copied.delete("flights", kept.ID)
	done()
	require.NoError(t, w.Commit(context.Background(), m), "and goes on in the store")
	MustHold(t, k.store, "flights", w.ID(), Keys("running", 300))
	MustHold(t, k.store, "flights", kept.ID, Keys("l", 400))
}

func backupRefuses(t *testing.T, k *keeper) {
	ctx := context.Background()
	kept := churn(k.subject)
	mine := filepath.Join(k.dir, "mine")
	require.NoError(t, os.WriteFile(mine, []byte("mine"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(k.dir, "other.tmp"), []byte("also mine, and no copy of a store that was cut short"), 0o600))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(k.dir, "link")))
	for name, file := range map[string]string{
		"a file": mine, "the store itself": k.stats().Path, "a folder": k.dir, "a link to nowhere": filepath.Join(k.dir, "link"),
		"a file that its first name would replace": filepath.Join(k.dir, "other"),
	} {
		_, err := k.upkeep().Backup(ctx, file, nil)
		require.ErrorIs(t, err, fs.ErrExist, name)
		require.ErrorContains(t, err, file, name)
	}
	_, err := k.upkeep().Backup(ctx, filepath.Join(k.dir, "no", "folder.db"), nil)
	require.ErrorIs(t, err, fs.ErrNotExist)
	entries, err := os.ReadDir(k.dir)
	require.NoError(t, err)
	require.Len(t, entries, 3, "nothing is left behind")
	b, err := os.ReadFile(mine)
	require.NoError(t, err)
	require.Equal(t, "mine", string(b))
	mustBeChurned(k.subject, kept)
}

// compactUnderWriters has an attempt, a rewrite and a reader open while the
// store is compacted, at different points of their work.
func compactUnderWriters(t *testing.T, k *keeper) {
	ctx := context.Background()
	churn(k.subject)
	read := MustTake(t, k.store, Attempt("read"), Keys("read", 300))
	release, err := k.store.Hold(ctx, "read", 1)
	require.NoError(t, err)
	rewritten := MustTake(t, k.store, Attempt("rewritten"), Keys("rewritten", 300))
	for n := 0; n < 6; n++ {
		a := Attempt("running")
		w := k.begin(a)
		keys := Keys(string(rune('r'+n)), 300)
		part := &compactAt{ChunkWriter: w, n: n, compact: func() { k.compact() }}
		sum, err := Encode(ctx, part, keys)
		require.NoError(t, err)
		r, err := k.store.Rewrite(ctx, "rewritten", 1)
		require.NoError(t, err)
		m, err := Rechunk(ctx, k.store, &compactAt{ChunkWriter: r, n: n, compact: func() { k.compact() }}, "rewritten", 1, (n%2+1)*ChunkTarget)
		require.NoError(t, err)
		k.compact()
		require.NoError(t, r.Commit(ctx, m))
		require.NoError(t, w.Commit(ctx, ManifestOf(a, w.ID(), sum)))
		MustHold(t, k.store, "running", w.ID(), keys)
		MustHold(t, k.store, "rewritten", rewritten.Checkpoint.ID, Keys("rewritten", 300))
		require.NoError(t, snapshot.Walk(ctx, k.store, read, nil))
		MustBeClean(t, k.store)
	}
	require.ErrorIs(t, k.store.Delete(ctx, "read", 1), snapshot.ErrInUse, "a hold outlives a compaction")
	release()
	k.delete("read", 1)
}

// compactAt compacts before chunk n.
type compactAt struct {
	snapshot.ChunkWriter
	n       int
	compact func()
}

func (c *compactAt) WriteChunk(ctx context.Context, chunk snapshot.Chunk) (bool, error) {
	if c.n == 0 {
		c.compact()
	}
	c.n--
	return c.ChunkWriter.WriteChunk(ctx, chunk)
}

// compactBesideMany compacts and backs up while two jobs take and delete
// checkpoints and everything that is listed is read.
func compactBesideMany(t *testing.T, k *keeper) {
	const rounds = 15
	store := k.store
	work, ctx := errgroup.WithContext(context.Background())
	done := make(chan struct{})
	var writers errgroup.Group
	for j, job := range []string{"flights", "trains"} {
		writers.Go(func() error { return keepTaking(ctx, store, job, j, rounds) })
	}
	work.Go(func() error {
		defer close(done)
		return writers.Wait()
	})
	work.Go(func() error { return readUntil(ctx, done, store, "flights") })
	n := 0
	for busy := true; busy; n++ {
		select {
		case <-done:
			busy = false
		default:
		}
		k.compact()
		_, copied, closeIt := k.backup("copy.db")
		MustBeClean(t, copied.store)
		for _, job := range []string{"flights", "trains"} {
			for _, c := range copied.list(job) {
				if c.State == snapshot.StateCompleted {
					require.NoError(t, readOne(context.Background(), copied.store, c))
				}
			}
		}
		closeIt()
	}
	require.NoError(t, work.Wait())
	t.Logf("%d compactions and backups", n)
	for _, job := range []string{"flights", "trains"} {
		require.Len(t, k.list(job), 3)
	}
}

func upkeepAnyOrder(t *testing.T, k *keeper) {
	inAnyOrder(t, k.subject, map[string]func(*machine){
		"compact": func(*machine) { k.compact() },
		"backup": func(m *machine) {
			_, copied, done := k.backup("copy.db")
			defer done()
			running := m.want
			m.want = m.interrupted()
			m.compareWith(copied)
			m.want = running
		},
	})
}
