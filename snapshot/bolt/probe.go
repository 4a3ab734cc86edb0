package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"keyframe/snapshot"
)

// probeEnv makes a process that calls MaybeProbe a probe of the named file.
const probeEnv = "KEYFRAME_PROBE_STORE"

// probeDamaged is the exit code of a probe that found problems. Any other but
// 0 means that the probe itself fell.
const probeDamaged = 3

var errProbeHung = errors.New("bbolt doesn't come to an end with it")

// probeRegistered says that this program calls MaybeProbe, so that it may run
// itself as a probe.
var probeRegistered atomic.Bool

// MaybeProbe is to be called first thing in main (and in TestMain). Where the
// environment names a store to probe or to salvage, the process does that and exits.
// Otherwise it returns at once, and from then on Open lets a child process of
// the same program open and walk a used file with bbolt before it does so
// itself: bbolt may fall over a damaged file where no recover helps.
func MaybeProbe() {
	if names, ok := os.LookupEnv(salvageEnv); ok {
		os.Exit(salvageAsChild(names, os.Stdout))
	}
	path, ok := os.LookupEnv(probeEnv)
	if !ok {
		probeRegistered.Store(true)
		return
	}
	problems, err := walkWithBolt(path)
	if err != nil {
		problems = append(problems, err.Error())
	}
	if len(problems) == 0 {
		os.Exit(0)
	}
	fmt.Println(strings.Join(problems, "\n"))
	os.Exit(probeDamaged)
}

// walkWithBolt opens a file read-only with bbolt and lets bbolt check it.
func walkWithBolt(path string) (problems []string, err error) {
	file, err := bbolt.Open(path, 0, &bbolt.Options{ReadOnly: true, Timeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	err = file.View(func(tx *bbolt.Tx) error {
		for p := range tx.Check() {
			// A page that is lost is no danger; DB.Check reports it. The
			// channel must be read to its end, but a long list helps nobody.
			if len(problems) < maxProblems && !strings.HasSuffix(p.Error(), "unreachable unfreed") {
				problems = append(problems, p.Error())
			}
		}
		return nil
	})
	return problems, err
}

// probeTime is how long a probe of size bytes may take: a child that hangs, as
// one may in a tree that was bent into a ring, has found damage. A slow disk
// reads some megabytes a second.
func probeTime(size int64) time.Duration {
	return probeLeast + time.Duration(size/(2<<20))*time.Second
}

// probeLeast is a variable for tests.
var probeLeast = 2 * time.Minute

// probeInChild runs this program as a probe of path.
func probeInChild(parent context.Context, path string) error {
	self, err := program()
	if err != nil {
		return nil // as below
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(parent, probeTime(info.Size()), errProbeHung)
	defer cancel()
	var out, errs head
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), probeEnv+"="+path)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		if parent.Err() != nil {
			return parent.Err()
		}
		// A program that may not start another (or was replaced on disk) has
		// only the walk by plain reads, which went well.
		return nil
	}
	err = cmd.Wait()
	switch {
	case parent.Err() != nil:
		return parent.Err()
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), errProbeHung):
		return damaged(fmt.Errorf("%w: %w in %s", snapshot.ErrCorrupt, errProbeHung, probeTime(info.Size())))
	}
	if cmd.ProcessState.ExitCode() == probeDamaged {
		return damaged(fmt.Errorf("%w: %s", snapshot.ErrCorrupt, firstLine(out.data)))
	}
	return damaged(fmt.Errorf("%w: bbolt falls over it (%w): %s", snapshot.ErrCorrupt, err, firstLine(errs.data)))
}

func firstLine(b []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(b), []byte("\n"))
	return string(line)
}

// head keeps the first bytes of an output.
type head struct{ data []byte }

func (t *head) Write(b []byte) (int, error) {
	t.data = append(t.data, b[:min(len(b), 4096-len(t.data))]...)
	return len(b), nil
}
