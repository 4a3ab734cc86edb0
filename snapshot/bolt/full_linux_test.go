package bolt

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

func init() {
	children["full"], children["replace"] = childFull, childReplace
}

// childFull fills a disk of 2 MiB: a small tmpfs of its own, in a namespace of
// its own, or, where that may not be mounted, a file limit of that size.
func childFull(path string) {
	ctx, disk := context.Background(), "tmpfs"
	if err := syscall.Mount("tmpfs", filepath.Dir(path), "tmpfs", 0, "size=2m"); err != nil {
		disk = "limit"
		must(os.Setenv("disk", disk))
		childLimit(path)
		fmt.Println("disk", disk)
		return
	}
	ballast := filepath.Join(filepath.Dir(path), "somebody-else's")
	must(os.WriteFile(ballast, make([]byte, 512<<10), 0o600))
	db, err := Open(ctx, path, Options{BatchBytes: 16 << 10})
	must(err)
	var done []snapshot.ID
	for err == nil {
		var m *snapshot.Manifest
		if m, err = storetest.Take(ctx, db, storetest.Attempt("flights"), storetest.Keys(fmt.Sprint("full-", len(done)), 4000)); err == nil {
			done = append(done, m.Checkpoint.ID)
		}
	}
	fmt.Println(err)
	must(db.Err())
	for _, id := range done {
		must(readBack(ctx, db, id))
	}
	// What the failed one left is removed, if need be with the reserve's help:
	// there may be room for another, and then there is none again.
	for n, err := 0, error(nil); err == nil; n++ {
		if n > 2 {
			must(errors.New("there is no room, and checkpoints were taken"))
		}
		_, err = storetest.Take(ctx, db, storetest.Attempt("flights"), storetest.Keys(fmt.Sprint("still-full-", n), 4000))
	}
	must(db.Err())
	must(os.Remove(ballast))
	_, err = storetest.Take(ctx, db, storetest.Attempt("flights"), storetest.Keys("again", 4000))
	must(err)
	problems, err := db.Check(ctx)
	must(err)
	if len(problems) > 0 {
		must(errors.New(problems[0].String()))
	}
	must(db.Close())
	fmt.Println("disk", disk)
}

func TestAFullDiskFailsTheCheckpointAndNothingElse(t *testing.T) {
	cmd := child(t, "full", filepath.Join(t.TempDir(), "keyframe.db"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState == nil { // no namespaces here: the limit shows the same
		out, err = child(t, "full", filepath.Join(t.TempDir(), "keyframe.db")).Output()
	}
	require.NoError(t, err, string(out))
	said := strings.TrimSpace(string(out))
	require.Contains(t, said, "free space on its disk")
	last := said[strings.LastIndex(said, "\n")+1:]
	require.Contains(t, []string{"disk tmpfs", "disk limit"}, last)
	if last == "disk tmpfs" {
		require.Contains(t, said, "no space left on device")
	}
	t.Log(last)
}

// childReplace salvages a store in this process, to be killed in the middle.
func childReplace(path string) {
	probeRegistered.Store(false)
	fmt.Println("begin")
	_, _, err := Replace(context.Background(), path, time.Now(), nil)
	must(err)
	fmt.Println("done")
}

// Killed at any moment, a salvage has left the damaged file in its place, or
// the new store in its place and the damaged file aside.
func TestAKillInTheMiddleOfASalvageLosesNothing(t *testing.T) {
	p := getPatient(t)
	b := slices.Clone(p.bytes)
	clear(b[:2*os.Getpagesize()])
	replaced, rounds := 0, 12
	for round := range rounds {
		path := filepath.Join(t.TempDir(), "keyframe.db")
		require.NoError(t, os.WriteFile(path, b, 0o600))
		cmd := child(t, "replace", path)
		out := lines(t, cmd)
		require.True(t, out.Scan())
		killed := time.NewTimer(time.Duration(rand.IntN(1+round*3000)) * time.Microsecond)
		<-killed.C
		require.NoError(t, cmd.Process.Kill())
		for out.Scan() { // to its end
		}
		_ = cmd.Wait() // it was killed, or had ended
		now, err := os.ReadFile(path)
		require.NoError(t, err, "the path always leads to a file")
		asides, err := Asides(path)
		require.NoError(t, err)
		if slices.Equal(now, b) {
			report, aside, err := Replace(context.Background(), path, time.Now(), nil)
			require.NoError(t, err)
			require.True(t, len(asides) == 0 || asides[0] == aside, "the name that it got first is used again")
			p.holds(t, report, path)
			asides = []string{aside}
		} else {
			replaced++
		}
		require.Len(t, asides, 1)
		kept, err := os.ReadFile(asides[0])
		require.NoError(t, err)
		require.Equal(t, b, kept)
		db, err := Open(context.Background(), path, Options{})
		require.NoError(t, err)
		storetest.MustBeClean(t, db)
		rows, err := db.List(context.Background(), "flights")
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(rows), 4)
		require.NoError(t, db.Close())
		entries, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, entries, 2, "what was in the making is gone: %v", entries)
	}
	t.Logf("%d of %d were replaced before the kill", replaced, rounds)
}
