package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"
)

// zero FILE FROM BYTES zeroes a part of a file.
func scriptZero(ts *testscript.TestScript, _ bool, args []string) {
	from, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_WRONLY, 0)
	ts.Check(err)
	_, err = f.WriteAt(make([]byte, n), from)
	ts.Check(err)
	ts.Check(f.Close())
}

// truncate FILE BYTES cuts a file off.
func scriptTruncate(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	ts.Check(os.Truncate(ts.MkAbs(args[0]), n))
}

// aside STORE FILE requires that one damaged file was kept aside beside a store,
// and that it is that file byte for byte.
func scriptAside(ts *testscript.TestScript, _ bool, args []string) {
	found, err := filepath.Glob(ts.MkAbs(args[0]) + ".damaged-*")
	ts.Check(err)
	if len(found) != 1 {
		ts.Fatalf("want one damaged file kept aside, found %v", found)
	}
	got, err := os.ReadFile(found[0])
	ts.Check(err)
	if !bytes.Equal(got, []byte(ts.ReadFile(args[1]))) {
		ts.Fatalf("%s differs from %s", found[0], args[1])
	}
}

// evict JOB deletes the keys of a job's index, as an eviction does, and leaves
// index and record.
func scriptEvict(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	for _, m := range w.r.Do("SMEMBERS", "streaming:runtime:"+args[0]+":stateKeys").([]any) {
		w.r.Do("DEL", m)
	}
}
