// Command bench measures Keyframe beside public baselines: a full durable
// checkpoint beside `redis-cli --rdb`, a restore beside `redis-cli --pipe`, a
// state access beside bare go-redis, and so on. Baseline and ours take turns
// in one run, so that what else the machine does hits both; only the ratios
// count. It needs redis-server and redis-cli (7.0 or newer) and starts private
// servers only.
//
//	go run ./bench                        # some minutes
//	BENCH=quick go run ./bench            # a twentieth of everything
//	BENCH=large go run ./bench            # with eight times D1 as well
//	go run ./bench -only restore -cpuprofile cpu.prof
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
)

// options are what a run was asked for.
type options struct {
	scale   int // everything is 1/scale of the full size
	pairs   int
	large   bool // with D1x8
	only    []string
	data    []string
	dir     string // for the files of the run
	verbose io.Writer
}

// groups are the names that -only takes, in the order of the run.
var groups = []string{"checkpoint", "restore", "memory", "stall", "access", "chunks", "rescale"}

// datasets are the names that -data takes, in the order of the run.
var datasets = []string{"D1", "D2", "D3", "D1x8"}

func (o options) wantsData(name string) bool {
	return (name != "D1x8" || o.large) && (len(o.data) == 0 || slices.Contains(o.data, name))
}

func (o options) wants(group string) bool { return len(o.only) == 0 || slices.Contains(o.only, group) }

func main() {
	if len(os.Args) > 1 && os.Args[1] == childMark {
		os.Exit(child(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Getenv("BENCH"), os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// run is the whole command; size is the value of BENCH.
func run(ctx context.Context, args []string, size string, out, log io.Writer) (err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(log)
	jsonFile := flags.String("json", "", "write the figures as JSON to this `file`")
	results := flags.String("results", "", "write the table with the machine's description to this `file` (Markdown)")
	profile := flags.String("cpuprofile", "", "write a CPU profile of our side to this `file`")
	only := flags.String("only", "", "comma-separated `groups` to run: "+strings.Join(groups, ", "))
	data := flags.String("data", "", "comma-separated datasets to run the groups on: "+strings.Join(datasets, ", "))
	pairs := flags.Int("pairs", 0, "pairs of baseline and ours for each figure (5; 1 with BENCH=quick)")
	dir := flags.String("dir", "", "`folder` for the run's files: what is there must reach a real disk")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o, err := parseOptions(size, *only, *data, *pairs, *dir)
	if err != nil {
		return err
	}
	o.verbose = log
	if *profile != "" {
		stop, err := startProfile(*profile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	report, err := measure(ctx, o)
	if err != nil {
		return err
	}
	report.render(out)
	if *jsonFile != "" {
		if err := writeJSON(*jsonFile, report); err != nil {
			return err
		}
	}
	if *results != "" {
		return writeResults(*results, report)
	}
	return nil
}

func parseOptions(size, only, data string, pairs int, dir string) (options, error) {
	o := options{scale: 1, pairs: 5, dir: dir}
	switch size {
	case "":
	case "quick":
		o.scale, o.pairs = 20, 1
	case "large":
		o.large = true
	default:
		return o, fmt.Errorf("BENCH=%q: want quick, large, or nothing", size)
	}
	if pairs > 0 {
		o.pairs = pairs
	}
	var err error
	if o.only, err = some("only", only, groups); err == nil {
		o.data, err = some("data", data, datasets)
	}
	return o, err
}

// some splits the value of a flag that takes some of all; nil for the empty.
func some(name, value string, all []string) ([]string, error) {
	if value == "" {
		return nil, nil
	}
	list := strings.Split(value, ",")
	for _, v := range list {
		if !slices.Contains(all, v) {
			return nil, fmt.Errorf("-%s %q: want some of %s", name, v, strings.Join(all, ", "))
		}
	}
	return list, nil
}

// measure runs every group that is wanted in a folder of its own, which goes
// with the run.
func measure(ctx context.Context, o options) (r *Report, err error) {
	dir, err := os.MkdirTemp(o.dir, "keyframe-bench-")
	if err != nil {
		return nil, fmt.Errorf("folder for the run (give another one with -dir): %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	o.dir = dir
	r = &Report{Scale: o.scale, Pairs: o.pairs}
	if r.Machine, err = describe(ctx); err != nil {
		return nil, err
	}
	if err := stateGroups(ctx, o, r); err != nil {
		return nil, err
	}
	for _, g := range []struct {
		name string
		run  func(context.Context, options, *Report) error
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

func startProfile(path string) (stop func() error, err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("CPU profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("CPU profile: %w", err), f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

func writeJSON(path string, r *Report) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("figures as JSON: %w", err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("figures as JSON: %w", err)
	}
	return nil
}
