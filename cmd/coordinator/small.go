package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator/api"
	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/keygroups"
	"keyframe/snapshot"
)

func (a *app) configCommand() *cli.Command {
	return &cli.Command{Name: "config", Usage: "check a configuration", Subcommands: []*cli.Command{
		{Name: "check", Usage: "report every problem of a configuration file", ArgsUsage: "FILE", Action: a.configCheck}}}
}

func (a *app) configCheck(ctx *cli.Context) error {
	args, err := positional(ctx, "FILE")
	if err != nil {
		return err
	}
	file, err := config.Load(args[0])
	if err != nil {
		return err
	}
	if _, err := file.RedisPassword(); err != nil {
		return err
	}
	if _, err := file.API.Keys(); err != nil {
		return err
	}
	names := []string{}
	for _, j := range file.Jobs {
		names = append(names, j.Name)
	}
	return a.show(map[string]any{"ok": true, "jobs": names, "warnings": append([]string{}, file.Warnings()...)}, func(w io.Writer) {
		for _, warning := range file.Warnings() {
			fmt.Fprintf(w, "warning: %s\n", warning)
		}
		fmt.Fprintf(w, "%s is right: %s, state at %s, checkpoints in %s, API at %s\n", args[0], number(len(names), "job"), file.Redis.SafeURL(), file.Store.Path, file.API.Listen)
	})
}

func (a *app) keygroupCommand() *cli.Command {
	return &cli.Command{Name: "keygroup", Usage: "where keys belong; without a coordinator when --max-parallelism and --parallelism are given", ArgsUsage: "JOB KEY... | KEY... with the flags", Action: a.keygroup, Flags: []cli.Flag{
		&cli.IntFlag{Name: "max-parallelism", Usage: "number of key groups"},
		&cli.IntFlag{Name: "parallelism", Usage: "number of subtasks"},
		&cli.StringFlag{Name: "hash", Value: string(keygroups.HashJava), Usage: "java or flink"},
		&cli.StringFlag{Name: "ranges", Value: string(keygroups.RangesLeading), Usage: "leading or flink"}}}
}

func (a *app) keygroup(ctx *cli.Context) error {
	args := ctx.Args().Slice()
	if ctx.IsSet("max-parallelism") != ctx.IsSet("parallelism") {
		return fault.New(fault.Usage, "give both to work without a coordinator, or neither", "only one of --max-parallelism and --parallelism is given")
	}
	if ctx.IsSet("parallelism") {
		return a.keygroupOffline(ctx, args)
	}
	if ctx.IsSet("hash") || ctx.IsSet("ranges") {
		return fault.New(fault.Usage, "give --max-parallelism and --parallelism too, or leave it to the job", "--hash and --ranges are those of the job")
	}
	if len(args) < 2 || args[0] == "" {
		return fault.New(fault.Usage, "usage: coordinator keygroup JOB KEY...", "missing argument JOB or KEY")
	}
	c, err := a.client(ctx)
	if err != nil {
		return err
	}
	var places []api.KeyPlace
	for keys := args[1:]; len(keys) > 0; {
		n := fitting(keys)
		var out api.List[api.KeyPlace]
		query := url.Values{"key": keys[:n]}
		if err := c.Call(ctx.Context, http.MethodGet, jobPath(args[0], "/keygroups?"+query.Encode()), nil, &out); err != nil {
			return err
		}
		places, keys = append(places, out.Items...), keys[n:]
	}
	return a.showPlaces(places)
}

// fitting is how many keys one request takes: by number and, since they go
// into its first line, by length.
func fitting(keys []string) int {
	const most = 16 << 10
	n, length := 0, 0
	for n < min(len(keys), api.MaxKeys) {
		length += len(url.QueryEscape(keys[n])) + len("&key=")
		if n > 0 && length > most {
			break
		}
		n++
	}
	return n
}

func (a *app) keygroupOffline(ctx *cli.Context, keys []string) error {
	if len(keys) == 0 {
		return fault.New(fault.Usage, "usage: coordinator keygroup KEY... --max-parallelism G --parallelism P", "missing argument KEY")
	}
	rule := keygroups.Rule{MaxParallelism: ctx.Int("max-parallelism")}
	var err error
	if rule.Hash, err = keygroups.ParseHash(ctx.String("hash")); err != nil {
		return fault.Wrap(err, fault.Usage, "", "--hash")
	}
	if rule.Ranges, err = keygroups.ParseRanges(ctx.String("ranges")); err != nil {
		return fault.Wrap(err, fault.Usage, "", "--ranges")
	}
	places, err := api.Places(rule.WithDefaults(), ctx.Int("parallelism"), keys)
	if err != nil {
		return err
	}
	return a.showPlaces(places)
}

func (a *app) showPlaces(places []api.KeyPlace) error {
	return a.show(places, func(w io.Writer) {
		t := newTable(w, "KEY", "HASH", "GROUP", "SUBTASK")
		for _, p := range places {
			t.AppendRow([]any{quoted(p.Key), p.Hash, p.Group, p.Subtask})
		}
		t.Render()
	})
}

func (a *app) versionCommand() *cli.Command {
	return &cli.Command{Name: "version", Usage: "what this is", Action: func(ctx *cli.Context) error {
		if _, err := positional(ctx); err != nil {
			return err
		}
		v := api.Version{Version: versionText(), Go: runtime.Version(), Format: snapshot.FormatVersion}
		return a.show(v, func(w io.Writer) {
			fmt.Fprintf(w, "coordinator %s, %s, checkpoint format %d\n", v.Version, v.Go, v.Format)
		})
	}}
}
