// Package bench measures Keyframe beside public baselines: a full durable
// checkpoint beside `redis-cli --rdb`, a restore beside `redis-cli --pipe`, a
// state access beside bare go-redis, and so on. Baseline and ours take turns in
// one run, so that what else the machine does hits both; only the ratios count.
//
// [Run] builds the datasets of the goals in private servers that it starts; it
// needs redis-server and redis-cli (7.0 or newer). [RunOwn] measures a job on a
// server of somebody's own, and leaves both as they were.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Options are what a run is asked for.
type Options struct {
	// Scale makes everything 1/Scale of the full size; 0 is 1. The goals are
	// for the full size.
	Scale int
	// Pairs of baseline and ours for each figure; 0 is 5.
	Pairs int
	// Large adds D1x8.
	Large bool
	// Only are the groups to run, Data the datasets to run them on; none is all.
	Only, Data []string
	// Dir is for the files of the run, which go with it; "" is the system's
	// folder for such. What is there must reach a real disk.
	Dir string
	// Coordinator is the program whose memory is measured; "" builds it, which
	// needs the module's source around.
	Coordinator string

	verbose io.Writer
}

// Groups are the names that Only takes, in the order of the run.
var Groups = []string{"checkpoint", "restore", "memory", "stall", "access", "chunks", "rescale"}

// Datasets are the names that Data takes, in the order of the run.
var Datasets = []string{"D1", "D2", "D3", "D1x8"}

// Sized gives the options for a value of BENCH: "", quick (a twentieth of
// everything, one pair) or large (with D1x8).
func Sized(size string) (Options, error) {
	o := Options{Scale: 1, Pairs: 5}
	switch size {
	case "":
	case "quick":
		o.Scale, o.Pairs = 20, 1
	case "large":
		o.Large = true
	default:
		return o, fmt.Errorf("BENCH=%q: want quick, large, or nothing", size)
	}
	return o, nil
}

// Some splits a comma-separated value that names some of all; nil for the
// empty one.
func Some(name, value string, all []string) ([]string, error) {
	if value == "" {
		return nil, nil
	}
	list := strings.Split(value, ",")
	for _, v := range list {
		if !slices.Contains(all, v) {
			return nil, fmt.Errorf("%s %q: want some of %s", name, v, strings.Join(all, ", "))
		}
	}
	return list, nil
}

func (o Options) wantsData(name string) bool {
	return (name != "D1x8" || o.Large) && (len(o.Data) == 0 || slices.Contains(o.Data, name))
}

func (o Options) wants(group string) bool { return len(o.Only) == 0 || slices.Contains(o.Only, group) }

// withDefaults fills what is zero, and refuses what makes no sense.
func (o Options) withDefaults() (Options, error) {
	if o.Scale < 0 || o.Pairs < 0 {
		return o, fmt.Errorf("scale %d, pairs %d: want 1 or more, or 0 for the default", o.Scale, o.Pairs)
	}
	if o.Scale == 0 {
		o.Scale = 1
	}
	if o.Pairs == 0 {
		o.Pairs = 5
	}
	return o, nil
}

// Run measures every group that is wanted in a folder of its own, which goes
// with the run. log is told what is being done. The program must call
// [MaybeChild] at its start.
func Run(ctx context.Context, o Options, log io.Writer) (r *Report, err error) {
	if o, err = o.withDefaults(); err != nil {
		return nil, err
	}
	dir, remove, err := folder(o.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	o.Dir, o.verbose = dir, log
	r = &Report{Scale: o.Scale, Pairs: o.Pairs}
	if r.Machine, err = describe(); err != nil {
		return nil, err
	}
	if r.Machine.Redis, err = serverVersion(ctx); err != nil {
		return nil, err
	}
	if err := stateGroups(ctx, o, r); err != nil {
		return nil, err
	}
	for _, g := range []struct {
		name string
		run  func(context.Context, Options, *Report) error
	}{{"access", accessGroup}, {"chunks", chunksGroup}, {"rescale", rescaleGroup}} {
		if !o.wants(g.name) {
			continue
		}
		if err := g.run(ctx, o, r); err != nil {
			return nil, fmt.Errorf("%s: %w", g.name, err)
		}
	}
	r.sort()
	r.Machine.LoadAfter, err = loadAverage()
	return r, err
}

// folder makes the folder of a run.
func folder(in string) (dir string, remove func() error, err error) {
	dir, err = os.MkdirTemp(in, "keyframe-bench-")
	if err == nil {
		dir, err = filepath.Abs(dir) // redis-server goes to a folder of its own
	}
	if err != nil {
		return "", nil, fmt.Errorf("folder for the run (give another one): %w", err)
	}
	return dir, func() error { return os.RemoveAll(dir) }, nil
}
