package bolt

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// The test binary runs as one of these when childEnv names it.
const (
	childEnv     = "KEYFRAME_TEST_CHILD"
	childPathEnv = "KEYFRAME_TEST_PATH"
)

var children map[string]func(path string)

// Not in the declaration, which children use.
func init() {
	children = map[string]func(path string){
		"hold":   childHold,
		"take":   childTake,
		"limit":  childLimit,
		"open":   childOpen,
		"create": childCreate,
		"upkeep": childUpkeep,
		"churn":  childChurn,
	}
}

// child prepares the test binary to run as a child.
func child(t testing.TB, name, path string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+name, childPathEnv+"="+path)
	cmd.Stderr = os.Stderr
	return cmd
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

// childHold holds a store until its input ends.
func childHold(path string) {
	db, err := Open(context.Background(), path, Options{})
	must(err)
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	must(errors.Join(err, db.Close()))
}

// childOpen prints what Open says.
func childOpen(path string) {
	db, err := Open(context.Background(), path, Options{})
	if err == nil {
		err = db.Close()
	}
	fmt.Println(err)
}

// childCreate makes a new store and dies by its own hand right after.
func childCreate(path string) {
	_, err := Open(context.Background(), path, Options{})
	must(err)
	must(syscall.Kill(os.Getpid(), syscall.SIGKILL))
}

// seedOf is the state of the checkpoint with an id, so that the parent knows
// what it must hold.
func seedOf(id snapshot.ID) string { return fmt.Sprintf("state-%d", id%5) }

// childTake takes checkpoints until it is killed, and says each that was
// committed. Every fourth attempt fails; the newest three completed ones are
// kept, with all that came after them.
func childTake(path string) {
	ctx := context.Background()
	db, err := Open(ctx, path, Options{BatchBytes: 4 << 10})
	must(err)
	takeForEver(ctx, db)
}

func takeForEver(ctx context.Context, db *DB) {
	for {
		a := storetest.Attempt("flights")
		w, err := db.Begin(ctx, a)
		must(err)
		sum, err := storetest.Encode(ctx, w, storetest.Keys(seedOf(w.ID()), 400))
		must(err)
		if w.ID()%4 == 0 {
			must(w.Fail(ctx, snapshot.Failure{Reason: snapshot.FailTimeout, Message: "every fourth"}))
		} else {
			must(w.Commit(ctx, storetest.ManifestOf(a, w.ID(), sum)))
		}
		must(db.Journal().Put(ctx, "progress", "flights", []byte(w.ID().String())))
		if w.ID()%4 != 0 {
			fmt.Println(w.ID())
		}
		must(prune(ctx, db))
	}
}

func prune(ctx context.Context, db *DB) error {
	all, err := db.List(ctx, "flights")
	if err != nil {
		return err
	}
	completed := 0
	for _, c := range slices.Backward(all) {
		if completed >= 3 {
			if err := db.Delete(ctx, "flights", c.ID); err != nil && !errors.Is(err, snapshot.ErrInUse) {
				return err
			}
		}
		if c.State == snapshot.StateCompleted {
			completed++
		}
	}
	return nil
}

// childLimit runs the store into the limit of the size of a file, and goes on
// when the limit is raised.
func childLimit(path string) {
	signal.Ignore(syscall.SIGXFSZ)
	var old syscall.Rlimit
	must(syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old))
	ctx := context.Background()
	db, err := Open(ctx, path, Options{BatchBytes: 16 << 10})
	must(err)
	must(syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 512 << 10, Max: old.Max}))
	var last snapshot.ID
	for err == nil {
		var m *snapshot.Manifest
		if m, err = storetest.Take(ctx, db, storetest.Attempt("flights"), storetest.Keys(fmt.Sprintf("big-%d", last+1), 4000)); err == nil {
			last = m.Checkpoint.ID
		}
	}
	fmt.Println(last, err)
	all, listErr := db.List(ctx, "flights")
	must(listErr)
	for _, c := range all {
		fmt.Println(c.ID, c.State)
	}
	must(errors.Join(db.Err(), readBack(ctx, db, last)))
	must(syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old))
	_, err = storetest.Take(ctx, db, storetest.Attempt("flights"), storetest.Keys("after", 4000))
	must(errors.Join(err, db.Close()))
}

func readBack(ctx context.Context, db *DB, id snapshot.ID) error {
	m, err := db.Manifest(ctx, "flights", id)
	if err != nil {
		return err
	}
	return snapshot.Walk(ctx, db, m, nil)
}

// lines gives a child's output line by line, until it ends.
func lines(t testing.TB, cmd *exec.Cmd) *bufio.Scanner {
	t.Helper()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return bufio.NewScanner(out)
}
