package main

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/statebackend/redis"
)

func (a *app) discoverCommand() *cli.Command {
	return &cli.Command{Name: "discover", Usage: "find jobs in a Redis by their stateKeys index", Action: a.discover, Flags: []cli.Flag{
		&cli.StringFlag{Name: "redis", Usage: "address of the server", Value: config.Defaults().Redis.URL},
		&cli.StringFlag{Name: "password-env", Usage: "environment variable that holds the password"}}}
}

func (a *app) discover(ctx *cli.Context) error {
	if _, err := positional(ctx); err != nil {
		return err
	}
	cfg := redis.Config{URL: ctx.String("redis")}
	if env := ctx.String("password-env"); env != "" {
		if cfg.Password = a.getenv(env); cfg.Password == "" {
			return fault.New(fault.Usage, "set it, or leave --password-env away", "environment variable %q is empty", env)
		}
	}
	b, err := redis.Open(ctx.Context, cfg)
	if err != nil {
		return coordinator.Explain(err)
	}
	defer func() { _ = b.Close() }() // it only read
	found, err := b.Discover(ctx.Context)
	if err != nil {
		return coordinator.Explain(err)
	}
	return a.show(map[string]any{"server": b.Server(), "jobs": found}, func(w io.Writer) {
		if len(found) == 0 {
			fmt.Fprintf(w, "no jobs at %s: no key that ends in :stateKeys\n", b.Server())
			return
		}
		t := newTable(w, "PREFIX", "JOB", "STATE KEYS", "CHECKPOINTED BEFORE")
		for _, f := range found {
			before := "no"
			if f.Record {
				before = "yes"
			}
			t.AppendRow([]any{quoted(f.Prefix), quoted(f.Name), count(f.Indexed), before})
		}
		t.Render()
		fmt.Fprintln(w, "where prefix and job name part is a guess: names may hold colons")
	})
}
