package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator/api"
	"keyframe/coordinator/drill"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

func (a *app) drillCommand() *cli.Command {
	return &cli.Command{Name: "drill", Usage: "prove that a checkpoint restores: restore it on trial, compare every element, clean up",
		ArgsUsage: "JOB", Action: a.drill, Flags: []cli.Flag{
			&cli.StringFlag{Name: "checkpoint", Usage: "id or savepoint name; the newest restorable one without it"}, waitFlag()},
		Description: "The checkpoint is restored under a scratch name beside the job's keys, or in the server of drill.redis. Live keys are not touched."}
}

func (a *app) drill(ctx *cli.Context) error {
	args, c, err := a.begin(ctx, "JOB")
	if err != nil {
		return err
	}
	path := jobPath(args[0], "/drill")
	if which := ctx.String("checkpoint"); which != "" {
		path += "?checkpoint=" + url.QueryEscape(which)
	}
	var op api.Operation
	if err := c.Call(ctx.Context, http.MethodPost, path, nil, &op); err != nil {
		return err
	}
	if !ctx.Bool("wait") {
		return a.showStarted(op)
	}
	if op, err = a.follow(ctx.Context, c, op); err != nil {
		return err
	}
	res := op.Drill
	err = a.show(res, func(w io.Writer) { showDrill(w, res) })
	if err == nil && !res.Equal {
		return told(fault.Problems, "what was restored differs from the checkpoint")
	}
	return err
}

func showDrill(w io.Writer, r *drill.Result) {
	for _, finding := range r.Sources {
		fmt.Fprintf(w, "source: %s\n", sentence(finding))
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(w, "warning: %s\n", sentence(warning))
	}
	fmt.Fprintf(w, "checkpoint %d was restored in %s under a scratch name in %s; its cut was %s old\n", r.Checkpoint, millis(r.RestoreMs), r.Server, millis(r.AgeMs))
	if r.Expired > 0 {
		fmt.Fprintf(w, "%s had expired meanwhile and would not come back\n", number(int(r.Expired), "key"))
	}
	if r.Equal {
		fmt.Fprintf(w, "every one of %s elements in %s keys came back equal; the scratch keys are gone (%s in all)\n", count(r.Elements), count(r.Keys), millis(r.DurationMs))
		return
	}
	fmt.Fprintf(w, "%s came back as something else:\n", number(int(r.Differing), "key"))
	for _, d := range r.Differences {
		fmt.Fprintf(w, "  %s: the checkpoint has %s, and there was %s\n", quoted(d.Key), d.Want, d.Got)
	}
	if more := r.Differing - uint64(len(r.Differences)); more > 0 {
		fmt.Fprintf(w, "  and %d more\n", more)
	}
}

// drilled says what the newest drill of a checkpoint found.
func drilled(d *snapshot.Drill) string {
	if d == nil {
		return "none: `coordinator drill JOB` restores it on trial"
	}
	if d.OK {
		return fmt.Sprintf("%s: restored in %s in %s, every element equal; the cut was %s old", when(d.At), millis(d.RestoreMs), d.Server, millis(d.AgeMs))
	}
	return fmt.Sprintf("%s: FAILED in %s: %s", when(d.At), d.Server, sentence(d.Message))
}
