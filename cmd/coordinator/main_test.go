package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"keyframe/bench"
	"keyframe/snapshot/bolt"
)

// Secrets of the tests: they must show up in no output of any of them.
const (
	testPassword = "S3cret-of-the-tests"
	testToken    = "T0ken-of-the-tests"
)

// recordEnv names the file that collects the output of every command that a
// test runs as a process; recorded collects that of those run in-process.
const recordEnv = "KEYFRAME_TEST_RECORD"

var recorded record

func TestMain(m *testing.M) {
	bolt.MaybeProbe()
	bench.MaybeChild()
	testscript.Main(checked{m}, map[string]func(){"coordinator": recordedMain})
}

// recordedMain is main with its output copied to the record.
func recordedMain() {
	a := newApp()
	if path := os.Getenv(recordEnv); path != "" {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			panic(err)
		}
		a.out, a.err = io.MultiWriter(a.out, f), io.MultiWriter(a.err, f)
	}
	os.Exit(a.run(context.Background(), os.Args))
}

// checked runs the tests and then looks for leaks: of goroutines and secrets.
type checked struct{ m *testing.M }

func (c checked) Run() int {
	dir, err := os.MkdirTemp("", "keyframe-test-record")
	if err != nil {
		panic(err)
	}
	path := filepath.Join(dir, "record")
	for name, value := range map[string]string{
		recordEnv: path,
		// Under the race detector a process would wait a second before it ends.
		"GORACE": strings.TrimSpace(os.Getenv("GORACE") + " atexit_sleep_ms=0"),
	} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	code := c.m.Run()
	if err := errorsOfTheWholeRun(path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
	return code
}

func errorsOfTheWholeRun(path string) error {
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	text = append(text, recorded.Bytes()...)
	for line := range bytes.Lines(text) {
		for _, secret := range []string{testPassword, testToken} {
			if strings.Contains(string(line), secret) {
				return fmt.Errorf("a secret of the tests was written: %s", line)
			}
		}
	}
	return goleak.Find()
}

// record is a buffer for several writers.
type record struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(b)
}

func (r *record) Bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.buf.Bytes())
}

func (r *record) String() string { return string(r.Bytes()) }
