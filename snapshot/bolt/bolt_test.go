package bolt

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

func TestMain(m *testing.M) {
	MaybeProbe()
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

func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB) (snapshot.Store, func() snapshot.Store) {
		f := newFixture(t)
		return f.db, func() snapshot.Store { return f.reopen() }
	})
}

func TestJournal(t *testing.T) {
	storetest.RunJournal(t, func(t testing.TB) (snapshot.Journal, func() snapshot.Journal) {
		f := newFixture(t)
		return f.db.Journal(), func() snapshot.Journal { return f.reopen().Journal() }
	})
}
