package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlacesOfTheWrongKindAreRefused: a directory for the store's file, and a
// file for a directory of copies. What isn't there yet is no problem.
func TestPlacesOfTheWrongKindAreRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	problems := func(path string, copies ...string) []string {
		f := Defaults()
		f.Store.Path = path
		for _, c := range copies {
			f.Store.Copies = append(f.Store.Copies, Copy{Path: c})
		}
		var all []string
		for _, p := range f.problems() {
			all = append(all, p.Field+": "+p.Message)
		}
		return all
	}
	require.Empty(t, problems(file, dir, filepath.Join(dir, "away")))
	require.Empty(t, problems(filepath.Join(dir, "new.db")))
	require.Empty(t, problems(filepath.Join(dir, "later", "new.db")))
	require.Equal(t, []string{"store.path: it is a directory: give the path of a file in it, such as " + filepath.Join(dir, "keyframe.db")}, problems(dir))
	require.Equal(t, []string{"store.path: " + file + " is a file and no directory: give the path of a file, such as keyframe.db"}, problems(filepath.Join(file, "new.db")))
	require.Equal(t, []string{"store.path: it is no regular file (Dc---------): give the path of a file, such as keyframe.db"}, problems(os.DevNull))
	require.Equal(t, []string{"store.copies[1].path: it is a file and no directory: give a directory that exists, best on another disk"}, problems(file, dir, file))
}
