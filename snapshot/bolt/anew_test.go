package bolt

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// ruins are files that a store was in, of which nothing is left.
func ruins(t *testing.T) map[string][]byte {
	good, page := getPatient(t).bytes, os.Getpagesize()
	noise := make([]byte, 100_000)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(noise) // never fails
	return map[string][]byte{
		"nothing":           {},
		"the first byte":    good[:1],
		"the first page":    good[:page],
		"the meta pages":    good[:2*page],
		"zeros":             make([]byte, len(good)),
		"a page of zeros":   make([]byte, page),
		"noise":             noise,
		"a byte of noise":   {0xe7},
		"half a page":       good[:page/2],
		"a torn first page": append(append([]byte{}, noise[:page]...), make([]byte, 3*page)...),
	}
}

// TestOfARuinAnEmptyStoreIsBegunAndTheRuinKept: whatever is left of a store,
// Open calls it damage and leaves it, and Replace keeps it aside.
func TestOfARuinAnEmptyStoreIsBegunAndTheRuinKept(t *testing.T) {
	for name, content := range ruins(t) {
		t.Run(name, func(t *testing.T) {
			ctx, path := context.Background(), filepath.Join(t.TempDir(), "keyframe.db")
			require.NoError(t, os.WriteFile(path, content, 0o600))
			_, err := Open(ctx, path, Options{})
			require.ErrorIs(t, err, snapshot.ErrCorrupt)
			require.ErrorIs(t, err, ErrNothing)
			require.ErrorContains(t, err, "left as it is")
			report, aside, err := Replace(ctx, path, time.Now(), nil)
			require.NoError(t, err)
			require.True(t, report.Nothing)
			require.EqualValues(t, len(content), report.Bytes)
			kept, err := os.ReadFile(aside)
			require.NoError(t, err)
			require.True(t, string(content) == string(kept), "byte for byte")
			require.Len(t, names(t, filepath.Dir(path)), 2, "nothing else is left")
			db, err := Open(ctx, path, Options{})
			require.NoError(t, err)
			m, err := storetest.Take(ctx, db, storetest.Attempt("flights"), storetest.Keys("anew", 300))
			require.NoError(t, err)
			require.NoError(t, readBack(ctx, db, m.Checkpoint.ID))
			storetest.MustBeClean(t, db)
			require.NoError(t, db.Close())
		})
	}
}

// TestAnotherProgramsFileIsNeverMovedAway: neither by Open nor by Replace.
func TestAnotherProgramsFileIsNeverMovedAway(t *testing.T) {
	for name, test := range foreignFiles(t) {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keyframe.db")
			require.NoError(t, os.WriteFile(path, test.content, 0o600))
			_, err := Open(context.Background(), path, Options{})
			require.ErrorContains(t, err, test.says)
			require.NotErrorIs(t, err, snapshot.ErrCorrupt)
			_, _, err = Replace(context.Background(), path, time.Now(), nil)
			require.ErrorIs(t, err, ErrNothing)
			after, err := os.ReadFile(path)
			require.NoError(t, err)
			require.True(t, string(test.content) == string(after), "byte for byte")
			require.Equal(t, []string{"keyframe.db"}, names(t, filepath.Dir(path)))
		})
	}
}
