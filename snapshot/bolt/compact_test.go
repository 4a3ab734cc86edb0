package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// copyPhases are those of a compaction and a backup. Writers are held off in
// the quiet ones.
var (
	copyPhases = []string{"copy", "check", "level", "walk", "rename", "renamed", "done"}
	quietPhase = map[string]bool{"walk": true, "rename": true, "renamed": true}
)

// upkeeps are the two tasks; file is where a backup goes.
var upkeeps = map[string]func(ctx context.Context, db *DB, file string) error{
	"compact": func(ctx context.Context, db *DB, _ string) error {
		_, err := db.Compact(ctx, nil)
		return err
	},
	"backup": func(ctx context.Context, db *DB, file string) error {
		_, err := db.Backup(ctx, file, nil)
		return err
	},
}

// churned makes a store with the last checkpoint of 12 that were made, and free
// pages.
func churned(t testing.TB, f *fixture) {
	for i := range 12 {
		storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys(fmt.Sprint("old-", i), 300))
		if i > 0 {
			require.NoError(t, f.db.Delete(context.Background(), "flights", snapshot.ID(i)))
		}
	}
	f.idle()
}

func mustBeChurned(t testing.TB, db *DB) {
	t.Helper()
	storetest.MustHold(t, db, "flights", 12, storetest.Keys("old-11", 300))
	storetest.MustBeClean(t, db)
}

// TestWritersGoOnWhileTheStoreIsCopied does a bit of everything at each phase
// at which writers are not held off. Afterwards the store has it, also when it
// came after its part of the file had been copied.
func TestWritersGoOnWhileTheStoreIsCopied(t *testing.T) {
	withoutChild(t)
	ctx := context.Background()
	for name, run := range upkeeps {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			churned(t, f)
			m := storetest.MustTake(t, f.db, storetest.Attempt("damaged"), storetest.Keys("damaged", 300))
			n := 0
			work := func(phase string) {
				n++
				seed := fmt.Sprintf("%s-%d", phase, n)
				storetest.MustTake(t, f.db, storetest.Attempt("trains"), storetest.Keys(seed, 300))
				if n > 1 {
					require.NoError(t, f.db.Delete(ctx, "trains", snapshot.ID(n-1)))
				}
				_, err := storetest.Rewrite(ctx, f.db, "flights", 12, (n%3+1)*storetest.ChunkTarget)
				require.NoError(t, err)
				require.NoError(t, f.db.Journal().Put(ctx, "phases", phase, []byte(seed)))
				require.NoError(t, f.db.Journal().Delete(ctx, "phases", "gone"))
				require.NoError(t, f.db.Journal().Put(ctx, fmt.Sprint("bucket-", n), "k", nil))
			}
			require.NoError(t, f.db.Journal().Put(ctx, "phases", "gone", []byte("v")))
			seen := map[string]bool{}
			f.db.opts.onCopy = func(phase string, _ *copier) {
				first := !seen[phase]
				seen[phase] = true
				if !quietPhase[phase] && first {
					work(phase)
					return
				}
				mustList(t, f.db, m)
			}
			file := filepath.Join(t.TempDir(), "copy.db")
			require.NoError(t, run(ctx, f.db, file))
			for _, phase := range copyPhases {
				require.True(t, seen[phase], phase)
			}
			mustBeWorked(t, f.db, n)
			mustBeWorked(t, f.reopen(), n)
			if name == "backup" {
				db, err := Open(ctx, file, Options{})
				require.NoError(t, err)
				mustBeWorked(t, db, n-1) // all but what came in its last phase
				require.NoError(t, db.Close())
			}
		})
	}
}

func mustBeWorked(t *testing.T, db *DB, n int) {
	t.Helper()
	mustBeChurned(t, db)
	all, err := db.List(context.Background(), "trains")
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, snapshot.ID(n), all[0].ID)
	_, gone, err := db.Journal().Get(context.Background(), "phases", "gone")
	require.NoError(t, err)
	require.False(t, gone)
	_, ok, err := db.Journal().Get(context.Background(), fmt.Sprint("bucket-", n), "k")
	require.NoError(t, err)
	require.True(t, ok)
}

// mustList reads in a phase in which writers wait.
func mustList(t *testing.T, db *DB, m *snapshot.Manifest) {
	t.Helper()
	require.NoError(t, snapshot.Walk(context.Background(), db, m, nil))
	_, err := db.Stats(context.Background())
	require.NoError(t, err)
}

// TestAChunkThatIsMendedWhileTheStoreIsCopied gets other bytes under its old
// number after it was copied.
func TestAChunkThatIsMendedWhileTheStoreIsCopied(t *testing.T) {
	withoutChild(t)
	ctx := context.Background()
	f := newFixture(t)
	keys := storetest.Keys("mended", 300)
	m := storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
	var once bool
	f.db.opts.onCopy = func(phase string, c *copier) {
		if phase != "check" || once {
			return
		}
		once = true
		// Behind the store's back: the copy has the right bytes, the store
		// mends its own to others, of the same length, that are right too.
		e := f.entry(m.Chunks[0].ID)
		f.edit(func(tx *bbolt.Tx) error {
			b := append([]byte(nil), tx.Bucket(bucketChunks).Get(seqKey(e.seq))...)
			b[len(b)/2] ^= 4
			return tx.Bucket(bucketChunks).Put(seqKey(e.seq), b)
		})
		require.NoError(t, c.dst.Update(func(tx *bbolt.Tx) error {
			return tx.Bucket(bucketChunks).Put(seqKey(e.seq), make([]byte, e.stored))
		}))
		storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
	}
	_, err := f.db.Compact(ctx, nil)
	require.NoError(t, err)
	require.True(t, once)
	for _, id := range []snapshot.ID{1, 2} {
		storetest.MustHold(t, f.db, "flights", id, keys)
	}
	storetest.MustBeClean(t, f.db)
}

// TestADamagedStoreIsNotCopied (a copy would replace what may still be read).
func TestADamagedStoreIsNotCopied(t *testing.T) {
	for name, run := range upkeeps {
		f := inFolder(t)
		m := storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys("s", 300))
		storetest.MustTake(t, f.db, storetest.Attempt("trains"), storetest.Keys("t", 300))
		e := f.entry(m.Chunks[1].ID)
		f.edit(func(tx *bbolt.Tx) error {
			b := append([]byte(nil), tx.Bucket(bucketChunks).Get(seqKey(e.seq))...)
			b[len(b)-9] ^= 1
			return tx.Bucket(bucketChunks).Put(seqKey(e.seq), b)
		})
		file := filepath.Join(filepath.Dir(f.path), "copy.db")
		err := run(context.Background(), f.db, file)
		require.ErrorIs(t, err, snapshot.ErrCorrupt, name)
		require.ErrorContains(t, err, "store verify", name)
		require.NoError(t, f.db.Err(), "the store goes on")
		require.Equal(t, []string{"keyframe.db"}, names(t, filepath.Dir(f.path)), name)
		require.NoError(t, f.db.Delete(context.Background(), "flights", 1))
		f.idle()
		require.NoError(t, run(context.Background(), f.db, file), "with what needed it deleted")
	}
}

func TestNoRoomForACopy(t *testing.T) {
	for name, run := range upkeeps {
		f := inFolder(t)
		churned(t, f)
		f.db.opts.room = func(dir string) (uint64, bool, error) {
			require.Equal(t, filepath.Dir(f.path), dir)
			return 32 << 20, true, nil
		}
		f.db.opts.onCopy = func(string, *copier) { require.Fail(t, "it has begun") }
		err := run(context.Background(), f.db, f.path+".copy")
		require.ErrorIs(t, err, snapshot.ErrNoSpace, name)
		require.ErrorContains(t, err, "33554432 free", name)
		require.Equal(t, []string{"keyframe.db"}, names(t, filepath.Dir(f.path)), name)
		mustBeChurned(t, f.db)
		f.db.opts.room = func(string) (uint64, bool, error) { return 0, false, errors.New("gone") }
		require.ErrorContains(t, run(context.Background(), f.db, f.path+".copy"), "gone", name)
		f.db.opts.onCopy = nil
		f.db.opts.room = freeRoom
		require.NoError(t, run(context.Background(), f.db, f.path+".copy"), name)
	}
}

// TestWriteKOfACopyFails lets each single write to the copy go wrong in turn.
// The store stays as it was and at work, and nothing is left behind.
func TestWriteKOfACopyFails(t *testing.T) {
	withoutChild(t)
	for name, run := range upkeeps {
		for kind, fault := range faultKinds {
			t.Run(name+"/"+kind, func(t *testing.T) {
				f := inFolder(t)
				churned(t, f)
				failed := 0
				for k := int64(1); ; k++ {
					var n atomic.Int64
					var begun bool
					f.db.opts.onCopy = func(_ string, c *copier) {
						if begun {
							return
						}
						begun = true
						intercept(t, &DB{file: c.dst}, func(write writeAt, b []byte, off int64) (int, error) {
							if n.Add(1) == k {
								return fault(write, b, off)
							}
							return write(b, off)
						})
					}
					err := run(context.Background(), f.db, f.path+".copy")
					mustBeChurned(t, f.db)
					if n.Load() < k {
						require.NoError(t, err)
						break
					}
					failed++
					require.Error(t, err, "write %d", k)
					require.NoError(t, f.db.Err(), "write %d", k)
					require.Equal(t, []string{"keyframe.db"}, names(t, filepath.Dir(f.path)), "write %d", k)
				}
				require.Greater(t, failed, 3)
				mustBeChurned(t, f.reopen())
			})
		}
	}
}

func TestOneUpkeepAtATime(t *testing.T) {
	ctx := context.Background()
	f := inFolder(t)
	churned(t, f)
	tried := 0
	f.db.opts.onCopy = func(string, *copier) {
		tried++
		for _, run := range upkeeps {
			require.ErrorIs(t, run(ctx, f.db, f.path+".copy"), snapshot.ErrUpkeep)
		}
	}
	for _, run := range upkeeps {
		require.NoError(t, run(ctx, f.db, f.path+".other"))
	}
	require.Greater(t, tried, 2*len(copyPhases)-1)
}

// TestUpkeepThatIsStopped at each phase leaves nothing, and all of the store.
func TestUpkeepThatIsStopped(t *testing.T) {
	withoutChild(t)
	for name, run := range upkeeps {
		for _, phase := range []string{"copy", "check", "level", "walk"} {
			f := inFolder(t)
			churned(t, f)
			ctx, cancel := context.WithCancelCause(context.Background())
			stop := errors.New("not now")
			f.db.opts.onCopy = func(at string, _ *copier) {
				if at == phase {
					cancel(stop)
				}
			}
			require.ErrorIs(t, run(ctx, f.db, f.path+".copy"), stop, "%s: %s", name, phase)
			require.Equal(t, []string{"keyframe.db"}, names(t, filepath.Dir(f.path)))
			mustBeChurned(t, f.db)

			// Close is the other way; it may come too late to stop it.
			closed := make(chan error, 1)
			var begun bool
			f.db.opts.onCopy = func(at string, _ *copier) {
				if at == phase && !begun {
					begun = true
					go func() { closed <- f.db.Close() }()
					<-f.db.ending.Done()
				}
			}
			if err := run(context.Background(), f.db, f.path+".copy"); err != nil {
				require.ErrorIs(t, err, snapshot.ErrClosed, "%s: %s", name, phase)
			} else if name == "backup" {
				require.NoError(t, os.Remove(f.path+".copy"))
			}
			require.NoError(t, <-closed)
			require.Equal(t, []string{"keyframe.db"}, names(t, filepath.Dir(f.path)))
			require.ErrorIs(t, run(context.Background(), f.db, f.path+".copy"), snapshot.ErrClosed)
			mustBeChurned(t, f.open())
		}
	}
}
