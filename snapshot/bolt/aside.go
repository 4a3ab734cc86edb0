package bolt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"keyframe/internal/crashpoint"
)

// asideMark is between a store's name and a time in the name of a damaged file
// that was kept aside.
const asideMark = ".damaged-"

// Replace salvages the damaged store at path into a new one in its place, and
// keeps the damaged file aside under a name of its own, which it gives. Nothing
// is changed before the new store is whole and durable. Then the damaged file
// gets its second name and the new one is renamed over the first: path never
// leads to nothing, and a crash at any time leaves the damaged file there or
// the new store, and the damaged file is never lost. Where nothing of a store is
// found in it the new store is empty, and the report says so; ErrNothing, and
// nothing is changed, when the file is plainly another program's.
func Replace(ctx context.Context, path string, now time.Time, progress func(done, total int64)) (report SalvageReport, aside string, err error) {
	fail := func(err error) (SalvageReport, string, error) {
		return report, aside, fmt.Errorf("replace the damaged store %s: %w", path, err)
	}
	// A link is followed, or the link would be kept aside and not the file.
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fail(err)
	}
	f, err := openDamaged(ctx, real)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = f.Close() }() // it was only read
	if !leadsTo(real, f) {
		return fail(errors.New("another file was put in its place meanwhile: nothing was changed"))
	}
	report, tmp, err := salvageApart(ctx, f, real, progress)
	if errors.Is(err, ErrNothing) {
		report, tmp, err = beginAnew(ctx, f, real, report, err)
	}
	if err != nil {
		return fail(err)
	}
	crashpoint.At(crashpoint.SalvageMade)
	if aside, err = keepAside(real, f, now); err == nil {
		crashpoint.At(crashpoint.SalvageAside)
		err = os.Rename(tmp, real)
	}
	if err == nil {
		crashpoint.At(crashpoint.SalvageRenamed)
		err = syncDir(filepath.Dir(real))
	}
	if err != nil {
		_ = os.Remove(tmp) // the damaged file is still in its place
		return fail(err)
	}
	crashpoint.At(crashpoint.SalvageDone)
	return report, aside, nil
}

// keepAside gives a damaged file a second name, durably; one that an earlier
// try gave it is used again.
func keepAside(path string, f *os.File, now time.Time) (aside string, err error) {
	asides, err := Asides(path)
	if err != nil {
		return "", err
	}
	for _, name := range asides {
		if leadsTo(name, f) {
			return name, nil
		}
	}
	base := path + asideMark + now.UTC().Format("20060102T150405Z")
	for n := 1; ; n++ {
		if aside = base; n > 1 {
			aside = fmt.Sprintf("%s-%d", base, n)
		}
		err := os.Link(path, aside)
		switch {
		case err == nil:
			return aside, syncDir(filepath.Dir(path))
		case !errors.Is(err, fs.ErrExist):
			return "", fmt.Errorf("this file system gives a file no second name (%w): stop the coordinator and do by hand: "+
				"coordinator store salvage %s -f %s.new, then mv %s %s, then mv %s.new %s", err, path, path, path, base, path, path)
		}
	}
}

// Asides are the damaged files that were kept aside beside the store at path,
// oldest first. A link is followed, as by Replace.
func Asides(path string) ([]string, error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for damaged stores beside %s: %w", path, err)
	}
	var all []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+asideMark) {
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	return all, nil
}
