package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/examples/flights"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
	"keyframe/statebackend/redis"
)

func (a *app) demoCommand() *cli.Command {
	return &cli.Command{Name: "demo", Usage: "checkpoint, lose, recover and rescale a real job, and prove the result", Action: a.demo, Flags: []cli.Flag{
		&cli.StringFlag{Name: "redis", Usage: "keep the job's state in this Redis instead of in the process, under a prefix of its own that is removed at the end"},
		&cli.IntFlag{Name: "rate", Value: 2000, Usage: "records per second; 0 for as fast as it goes"}}}
}

// demoResult is what the demo proves.
type demoResult struct {
	Verified    bool           `json:"verified"`
	Records     int            `json:"records"`
	Airports    int            `json:"airports"`
	Checks      int            `json:"checks"` // numbers compared with an independent count
	Differences []string       `json:"differences"`
	Store       string         `json:"store"` // of the state
	Checkpoints int            `json:"checkpoints"`
	Recovered   uint64         `json:"recoveredFrom"` // checkpoint
	Parallelism []int          `json:"parallelism"`   // in the order of the job's life
	DurationMs  int64          `json:"durationMs"`
	Steps       []demoStep     `json:"steps"`
	Busiest     []flights.Line `json:"busiest"`
}

// demoStep is one thing that happened, with the records processed until then.
type demoStep struct {
	AtMs    int64  `json:"atMs"`
	Records int    `json:"records"`
	What    string `json:"what"`
}

func (a *app) demo(ctx *cli.Context) (err error) {
	if _, err := positional(ctx); err != nil {
		return err
	}
	if ctx.Int("rate") < 0 {
		return fault.New(fault.Usage, "give 0 for no limit", "rate %d", ctx.Int("rate"))
	}
	dir, err := os.MkdirTemp("", "keyframe-demo-")
	if err != nil {
		return fault.Wrap(err, fault.Failed, "set TMPDIR to a folder that can be written", "make a temporary folder")
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	backend, lose, err := a.demoBackend(ctx.Context, ctx.String("redis"))
	if err != nil {
		return err
	}
	defer func() { _ = backend.Close() }() // the demo is over
	d := newDemo(a, backend, lose, ctx.Int("rate"))
	if err := d.open(ctx.Context, filepath.Join(dir, "keyframe.db")); err != nil {
		return err
	}
	res, err := d.play(ctx.Context)
	if err := errors.Join(err, d.close()); err != nil {
		return err
	}
	if err := a.show(res, func(w io.Writer) { showDemo(w, res) }); err != nil {
		return err
	}
	if !res.Verified {
		return told(fault.Problems, "the demo's result is wrong")
	}
	return nil
}

// demoBackend opens the state store, and says how it loses the job's state:
// the memory store as a crash does; in a Redis that may be somebody's, only
// the demo's own keys are deleted.
func (a *app) demoBackend(ctx context.Context, url string) (statebackend.Backend, func(context.Context, statebackend.Job) error, error) {
	if url == "" {
		m := memory.New(memory.Options{Name: "demo"})
		return m, func(context.Context, statebackend.Job) error { m.Lose(); return nil }, nil
	}
	r, err := redis.Open(ctx, redis.Config{URL: url})
	if err != nil {
		return nil, nil, coordinator.Explain(err)
	}
	return r, func(ctx context.Context, job statebackend.Job) error { return deleteJobKeys(ctx, r, job) }, nil
}

// deleteJobKeys deletes everything that a job has in a state store.
func deleteJobKeys(ctx context.Context, b statebackend.Backend, job statebackend.Job) error {
	cmds := []statebackend.Cmd{}
	err := b.Index(ctx, job, func(name []byte) error {
		cmds = append(cmds, statebackend.Command(statebackend.OpDel, string(name)))
		return nil
	})
	if err != nil {
		return err
	}
	for _, key := range []string{job.Record(), job.Index(), job.Registry(), job.OperatorStates(), job.Assignment(), job.Lease()} {
		cmds = append(cmds, statebackend.Command(statebackend.OpDel, key))
	}
	_, err = b.Do(ctx, cmds...)
	return err
}

func showDemo(w io.Writer, r demoResult) {
	t := newTable(w, "AIRPORT", "FLIGHTS", "MEAN DELAY", "LATE", "DESTINATIONS", "LAST DELAYS (MIN)")
	for _, l := range r.Busiest {
		t.AppendRow([]any{l.Airport, count(uint64(l.Flights)), fmt.Sprintf("%.2f min", l.Mean), count(uint64(l.Late)), l.Destinations, fmt.Sprint(l.Last)})
	}
	t.Render()
	fmt.Fprintf(w, "… and %d more airports\n\n", r.Airports-len(r.Busiest))
	if r.Verified {
		fmt.Fprintf(w, "VERIFIED: after a loss, a recovery from checkpoint %d and two rescales (parallelism %v), all %s flights\nwere counted exactly once: %s numbers equal an independent count over the file. %s in all.\n",
			r.Recovered, r.Parallelism, count(uint64(r.Records)), count(uint64(r.Checks)), millis(r.DurationMs))
		return
	}
	fmt.Fprintf(w, "WRONG: %d of %s numbers differ from the independent count:\n", len(r.Differences), count(uint64(r.Checks)))
	for i, diff := range r.Differences {
		if i == 20 {
			fmt.Fprintf(w, "  … and %d more\n", len(r.Differences)-20)
			break
		}
		fmt.Fprintf(w, "  %s\n", diff)
	}
}

// demoJob is the definition of the demo's job, under a root of its own.
func demoJob(id string) config.Job {
	return config.Job{
		Name: "flights", Prefix: "keyframe:demo:" + id, Parallelism: 2, MaxParallelism: 128,
		Checkpoint: config.Checkpoint{Schedule: "@every 1s"},
		Retention:  config.Retention{Keep: 3},
	}.WithDefaults()
}

// demoLimit is when a demo that hangs gives up.
const demoLimit = 2 * time.Minute
