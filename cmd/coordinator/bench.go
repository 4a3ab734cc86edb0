package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"strings"

	"github.com/urfave/cli/v2"

	"keyframe/bench"
	"keyframe/coordinator"
	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

func (a *app) benchCommand() *cli.Command {
	return &cli.Command{
		Name: "bench", Usage: "measure checkpoints beside public baselines: on private servers, or with --redis on a server of yours",
		Description: "Without --redis it builds datasets in private servers and needs redis-server and redis-cli; BENCH=quick or BENCH=large\n" +
			"in the environment makes it smaller or larger. With --redis it reads one job and writes nothing, unless --write is given.",
		Action: a.bench, Flags: append(ownFlags(), goalFlags()...)}
}

// ownFlags are for a server of one's own.
func ownFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "redis", Usage: "address of a server to measure, as in redis.url; the server forks for it"},
		&cli.StringFlag{Name: "job", Usage: "job to measure; the one with the most state keys without it"},
		&cli.StringFlag{Name: "prefix", Usage: "beginning of the job's keys", DefaultText: statebackend.DefaultPrefix},
		&cli.BoolFlag{Name: "write", Usage: "also restore the job under a scratch name beside it, which is removed again"},
		&cli.DurationFlag{Name: "max-pause", Usage: "how long writers may be held at most", Value: bench.DefaultOwnPause},
		&cli.StringFlag{Name: "password-env", Usage: "environment variable that holds the password"},
		&cli.StringFlag{Name: "password-file", Usage: "file that holds the password"},
		&cli.StringFlag{Name: "ca-file", Usage: "authorities to trust with rediss://"},
		&cli.StringFlag{Name: "cert-file", Usage: "certificate of this client with rediss://"},
		&cli.StringFlag{Name: "key-file", Usage: "its key"},
	}
}

// goalFlags are for the datasets of the goals, those after the first two for
// both.
func goalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "only", Usage: "comma-separated groups to run: " + strings.Join(bench.Groups, ", ")},
		&cli.StringFlag{Name: "data", Usage: "comma-separated datasets to run them on: " + strings.Join(bench.Datasets, ", ")},
		&cli.IntFlag{Name: "pairs", Usage: "pairs of baseline and ours for each figure", DefaultText: "5; 3 with --redis, 1 with BENCH=quick"},
		&cli.StringFlag{Name: "dir", Usage: "folder for the run's files, which go with it: what is there must reach a real disk"},
		&cli.StringFlag{Name: "json", Usage: "also write the figures as JSON to this file"},
		&cli.StringFlag{Name: "results", Usage: "also write the table with the machine's description to this file, as Markdown"},
		&cli.StringFlag{Name: "cpuprofile", Usage: "write a CPU profile of our side to this file"},
	}
}

func (a *app) bench(ctx *cli.Context) (err error) {
	if _, err := positional(ctx); err != nil {
		return err
	}
	if err := benchFlags(ctx); err != nil {
		return err
	}
	if path := ctx.String("cpuprofile"); path != "" {
		stop, err := startProfile(path)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	// A report can come with an error: then part of the figures stand.
	var r *bench.Report
	if ctx.IsSet("redis") {
		r, err = a.benchOwn(ctx)
	} else {
		r, err = a.benchGoals(ctx)
	}
	if err != nil {
		err = coordinator.Explain(err)
	}
	if r == nil {
		return err
	}
	return errors.Join(err, a.showReport(ctx, r))
}

// benchFlags refuses flags that don't go together.
func benchFlags(ctx *cli.Context) error {
	own, other, hint := ctx.IsSet("redis"), []string{"only", "data"}, "leave it away: groups and datasets are those of the run on private servers"
	if !own {
		other, hint = nil, "give the address of a server with --redis, or leave it away"
		for _, f := range ownFlags()[1:] {
			other = append(other, f.Names()[0])
		}
	}
	for _, name := range other {
		if ctx.IsSet(name) {
			with := map[bool]string{true: "with", false: "without"}[own]
			return fault.New(fault.Usage, hint, "--%s %s --redis", name, with)
		}
	}
	if ctx.IsSet("pairs") && ctx.Int("pairs") < 1 {
		return fault.New(fault.Usage, "give 1 or more", "pairs %d", ctx.Int("pairs"))
	}
	if ctx.Duration("max-pause") <= 0 {
		return fault.New(fault.Usage, "give a positive duration such as 2s", "max-pause %v", ctx.Duration("max-pause"))
	}
	if ctx.IsSet("prefix") && !ctx.IsSet("job") {
		return fault.New(fault.Usage, "give the job's name with --job", "--prefix without --job")
	}
	return nil
}

// benchGoals runs the bench of the goals, with this program as the coordinator
// whose memory is measured.
func (a *app) benchGoals(ctx *cli.Context) (*bench.Report, error) {
	o, err := bench.Sized(a.getenv("BENCH"))
	if err == nil {
		o.Only, err = bench.Some("--only", ctx.String("only"), bench.Groups)
	}
	if err == nil {
		o.Data, err = bench.Some("--data", ctx.String("data"), bench.Datasets)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", "bench")
	}
	if ctx.IsSet("pairs") {
		o.Pairs = ctx.Int("pairs")
	}
	o.Dir = ctx.String("dir")
	if o.Coordinator, err = os.Executable(); err != nil {
		return nil, fault.Wrap(err, fault.Failed, "", "path of this program")
	}
	r, err := bench.Run(ctx.Context, o, a.benchLog())
	if err != nil && ctx.Err() == nil {
		return nil, fault.Wrap(err, fault.Failed, "", "bench")
	}
	return r, err
}

// benchOwn measures a server of somebody's own.
func (a *app) benchOwn(ctx *cli.Context) (*bench.Report, error) {
	password, err := a.benchPassword(ctx)
	if err != nil {
		return nil, err
	}
	return bench.RunOwn(ctx.Context, bench.Own{
		Redis: redis.Config{
			URL: ctx.String("redis"), Password: password,
			CAFile: ctx.String("ca-file"), CertFile: ctx.String("cert-file"), KeyFile: ctx.String("key-file"),
		},
		Job:   statebackend.Job{Prefix: ctx.String("prefix"), Name: ctx.String("job")},
		Pairs: ctx.Int("pairs"), Write: ctx.Bool("write"), MaxPause: ctx.Duration("max-pause"), Dir: ctx.String("dir"),
	}, a.benchLog())
}

func (a *app) benchPassword(ctx *cli.Context) (string, error) {
	env, file := ctx.String("password-env"), ctx.String("password-file")
	switch {
	case env != "" && file != "":
		return "", fault.New(fault.Usage, "give one of them", "both --password-env and --password-file")
	case file != "":
		return config.Redis{PasswordFile: file}.Password()
	case env != "":
		if a.getenv(env) == "" {
			return "", fault.New(fault.Usage, "set it, or leave --password-env away", "environment variable %q is empty", env)
		}
	}
	return a.getenv(env), nil
}

// benchLog is where a run says what it is doing: nowhere without a terminal.
func (a *app) benchLog() io.Writer {
	if a.errTerminal {
		return a.err
	}
	return io.Discard
}

// showReport writes the report to stdout and to the files that were asked for.
func (a *app) showReport(ctx *cli.Context, r *bench.Report) error {
	files := map[string]func() ([]byte, error){
		ctx.String("json"):    r.JSON,
		ctx.String("results"): func() ([]byte, error) { return r.Markdown("Results of `make bench`"), nil },
	}
	delete(files, "")
	for path, text := range files {
		b, err := text()
		if err == nil {
			err = os.WriteFile(path, b, 0o644)
		}
		if err != nil {
			return fault.Wrap(err, fault.Failed, "", "write the figures to %q", path)
		}
	}
	return a.show(r, r.Render)
}

func startProfile(path string) (stop func() error, err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, "", "CPU profile")
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("CPU profile: %w", err), f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}
