package config

import (
	"os"
	"path/filepath"
)

// What lies where the configuration wants a file or a directory is looked at, as
// far as it is there and can be: a file may be made later, and a directory of
// copies may be away for a while, but what is of the wrong kind never fits.

// checkPlace refuses a directory, or anything else that is no file, where the
// checkpoint store's file is to be, and a place for it that is none.
func (s Store) checkPlace(l *list) {
	const remedy = "give the path of a file, such as keyframe.db"
	info, err := os.Stat(s.Path)
	switch {
	case err == nil && info.IsDir():
		l.add("store.path", text(s.Path), "it is a directory: give the path of a file in it, such as %s", filepath.Join(s.Path, "keyframe.db"))
		return
	case err == nil && !info.Mode().IsRegular():
		l.add("store.path", text(s.Path), "it is no regular file (%s): %s", info.Mode().Type(), remedy)
		return
	}
	dir := filepath.Dir(s.Path)
	if info, err = os.Stat(dir); err == nil && !info.IsDir() {
		l.add("store.path", text(s.Path), "%s is a file and no directory: %s", dir, remedy)
	}
}

// checkDir refuses what is there and is no directory.
func checkDir(l *list, field, path string) {
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		l.add(field, text(path), "it is a file and no directory: give a directory that exists, best on another disk")
	}
}
