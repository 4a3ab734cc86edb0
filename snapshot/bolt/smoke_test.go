package bolt

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot/storetest"
)

func TestSmoke(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "s.db")
	db, err := Open(ctx, path, Options{})
	require.NoError(t, err)
	keys := storetest.Keys("a", 500)
	m := storetest.MustTake(t, db, storetest.Attempt("flights"), keys)
	t.Log(len(m.Chunks))
	storetest.MustHold(t, db, "flights", m.Checkpoint.ID, keys)
	storetest.MustBeClean(t, db)
	require.NoError(t, db.Close())
	db, err = Open(ctx, path, Options{})
	require.NoError(t, err)
	storetest.MustHold(t, db, "flights", m.Checkpoint.ID, keys)
	storetest.MustBeClean(t, db)
	require.NoError(t, db.Delete(ctx, "flights", m.Checkpoint.ID))
	storetest.MustBeClean(t, db)
	st, err := db.Stats(ctx)
	require.NoError(t, err)
	t.Logf("%+v", st)
	require.NoError(t, db.Close())
}
