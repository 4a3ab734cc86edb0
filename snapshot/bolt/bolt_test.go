package bolt

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

func TestMain(m *testing.M) {
	MaybeProbe()
	if name := os.Getenv(childEnv); name != "" {
		children[name](os.Getenv(childPathEnv))
		os.Exit(0)
	}
	// Children built with the race detector would sleep a second at their end.
	if os.Getenv("GORACE") == "" {
		if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// fixture is a store in a temporary folder. Small batches, so that an attempt
// has several.
type fixture struct {
	t    testing.TB
	path string
	opts Options
	db   *DB
}

func newFixture(t testing.TB) *fixture {
	f := &fixture{t: t, path: filepath.Join(t.TempDir(), "keyframe.db"), opts: Options{BatchBytes: 1 << 10}}
	f.open()
	t.Cleanup(func() { require.NoError(t, f.db.Close()) })
	return f
}

func (f *fixture) open() *DB {
	f.t.Helper()
	db, err := Open(context.Background(), f.path, f.opts)
	require.NoError(f.t, err)
	f.db = db
	return db
}

// reopen is a kill and a start: Close writes nothing, and whatever the old DB
// had in memory is left behind.
func (f *fixture) reopen() *DB {
	f.t.Helper()
	require.NoError(f.t, f.db.Close())
	return f.open()
}

// idle waits until the sweeper has done what it was woken for, or given up.
func (f *fixture) idle() {
	f.t.Helper()
	s := &f.db.sweeper
	require.Eventually(f.t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.served == s.asked
	}, 20*time.Second, 100*time.Microsecond)
}

// withoutChild spares a test that opens very many sound files the trial by a
// child process.
func withoutChild(t testing.TB) {
	probeRegistered.Store(false)
	t.Cleanup(func() { probeRegistered.Store(true) })
}

func TestStore(t *testing.T) {
	withoutChild(t)
	storetest.Run(t, func(t testing.TB) (snapshot.Store, func() snapshot.Store) {
		f := newFixture(t)
		return f.db, func() snapshot.Store { return f.reopen() }
	})
}

func TestUpkeep(t *testing.T) {
	withoutChild(t)
	storetest.RunUpkeep(t, func(t testing.TB) (snapshot.Store, func() snapshot.Store, func(string) (snapshot.Store, func())) {
		f := newFixture(t)
		openCopy := func(file string) (snapshot.Store, func()) {
			db, err := Open(context.Background(), file, Options{})
			require.NoError(t, err)
			return db, func() { require.NoError(t, db.Close()) }
		}
		return f.db, func() snapshot.Store { return f.reopen() }, openCopy
	})
}

func TestJournal(t *testing.T) {
	storetest.RunJournal(t, func(t testing.TB) (snapshot.Journal, func() snapshot.Journal) {
		f := newFixture(t)
		return f.db.Journal(), func() snapshot.Journal { return f.reopen().Journal() }
	})
}

func TestCloseWritesNothingAndEndsAllCalls(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	m := storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys("s", 200))
	w, err := f.db.Begin(ctx, storetest.Attempt("flights"))
	require.NoError(t, err)
	before, err := os.ReadFile(f.path)
	require.NoError(t, err)
	require.NoError(t, f.db.Close())
	require.NoError(t, f.db.Close())
	after, err := os.ReadFile(f.path)
	require.NoError(t, err)
	require.True(t, string(before) == string(after), "Close changed the file")

	_, err = f.db.List(ctx, "flights")
	require.ErrorIs(t, err, snapshot.ErrClosed)
	require.ErrorContains(t, err, f.path)
	_, err = f.db.Chunk(ctx, m.Chunks[0].ID)
	require.ErrorIs(t, err, snapshot.ErrClosed)
	_, err = f.db.Begin(ctx, storetest.Attempt("flights"))
	require.ErrorIs(t, err, snapshot.ErrClosed)
	_, err = storetest.Encode(ctx, w, storetest.Keys("t", 200))
	require.ErrorIs(t, err, snapshot.ErrClosed)
	_, err = f.db.Stats(ctx)
	require.ErrorIs(t, err, snapshot.ErrClosed)
	_, err = f.db.Check(ctx)
	require.ErrorIs(t, err, snapshot.ErrClosed)
	require.ErrorIs(t, f.db.Journal().Put(ctx, "b", "k", []byte("v")), snapshot.ErrClosed)
	w.Abort()
	require.NoError(t, f.db.Err(), "a closed store is not a broken one")

	f.open()
	all, err := f.db.List(ctx, "flights")
	require.NoError(t, err)
	require.Equal(t, snapshot.FailInterrupted, all[1].Failure.Reason)
	storetest.MustBeClean(t, f.db)
}

func TestJobNamesHaveALimit(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	long := string(make([]byte, MaxName))
	storetest.MustTake(t, f.db, storetest.Attempt(long), storetest.Keys("long", 10))
	_, err := f.db.Begin(ctx, storetest.Attempt(long+"x"))
	require.ErrorContains(t, err, "8193 bytes")
	_, err = f.db.List(ctx, long+"x")
	require.ErrorContains(t, err, "at most 8192")
	storetest.MustBeClean(t, f.reopen())
	storetest.MustHold(t, f.db, long, 1, storetest.Keys("long", 10))
}

// TestAnotherEnvelopeOfAStoredChunk has the same content sealed at another
// length, as another version of the compressor would.
func TestAnotherEnvelopeOfAStoredChunk(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	keys := storetest.Keys("same", 200)
	first := storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
	a := storetest.Attempt("flights")
	w, err := f.db.Begin(ctx, a)
	require.NoError(t, err)
	defer w.Abort()
	sum, err := storetest.Encode(ctx, longer{w}, keys)
	require.NoError(t, err)
	for i := range sum.Chunks {
		sum.Chunks[i].Stored += 5
		sum.Stored += 5
	}
	m := storetest.ManifestOf(a, w.ID(), sum)
	require.NoError(t, w.Commit(ctx, m))
	got, err := f.db.Manifest(ctx, "flights", w.ID())
	require.NoError(t, err)
	require.Equal(t, first.Chunks, got.Chunks, "the lengths are those of what is stored")
	require.Equal(t, first.Checkpoint.FullBytes, got.Checkpoint.FullBytes)
	storetest.MustHold(t, f.db, "flights", w.ID(), keys)
	storetest.MustBeClean(t, f.db)
}

// longer adds bytes to each envelope.
type longer struct{ snapshot.ChunkWriter }

func (l longer) WriteChunk(ctx context.Context, c snapshot.Chunk) (bool, error) {
	c.Data = append(append([]byte(nil), c.Data...), "extra"...)
	c.Ref.Stored += 5
	return l.ChunkWriter.WriteChunk(ctx, c)
}

func TestChunksThatAreNoneAreRefused(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	w, err := f.db.Begin(ctx, storetest.Attempt("flights"))
	require.NoError(t, err)
	defer w.Abort()
	_, err = w.WriteChunk(ctx, snapshot.Chunk{Ref: snapshot.ChunkRef{ID: snapshot.ChunkID{7}}})
	require.ErrorContains(t, err, "it has 0 bytes")
	_, err = w.WriteChunk(ctx, snapshot.Chunk{Ref: snapshot.ChunkRef{ID: snapshot.ChunkID{7}, Stored: 5}, Data: []byte("four")})
	require.ErrorContains(t, err, "it has 4 bytes and says 5")
	huge := make([]byte, 2*snapshot.MaxChunk+1)
	_, err = w.WriteChunk(ctx, snapshot.Chunk{Ref: snapshot.ChunkRef{ID: snapshot.ChunkID{7}, Stored: uint64(len(huge))}, Data: huge})
	require.ErrorContains(t, err, "more than the store takes")
}

func TestFailedAttemptsShowHowLongTheyTook(t *testing.T) {
	f := newFixture(t)
	f.db.opts.Now = func() time.Time { return storetest.Start.Add(4200 * time.Millisecond) }
	w, err := f.db.Begin(context.Background(), storetest.Attempt("flights"))
	require.NoError(t, err)
	w.Abort()
	all, err := f.db.List(context.Background(), "flights")
	require.NoError(t, err)
	require.Equal(t, int64(4200), all[0].DurationMs)
	storetest.MustBeClean(t, f.db)
}
