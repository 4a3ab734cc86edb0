package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator/doctor"
	"keyframe/coordinator/fault"
)

func (a *app) doctorCommand() *cli.Command {
	return &cli.Command{Name: "doctor", Usage: "examine a job's state and its server, read-only; exit code 3 when something is wrong", ArgsUsage: "JOB", Action: a.doctor, Flags: []cli.Flag{
		&cli.DurationFlag{Name: "watch", Usage: "watch the job's writers for so long, 2s when left out, 1m at most"}}}
}

func (a *app) doctor(ctx *cli.Context) error {
	args, c, err := a.begin(ctx, "JOB")
	if err != nil {
		return err
	}
	watch := ""
	if ctx.IsSet("watch") {
		watch = ctx.Duration("watch").String()
	}
	r, err := c.Doctor(ctx.Context, args[0], watch)
	if err != nil {
		return err
	}
	if err := a.show(r, func(w io.Writer) { showReport(w, r) }); err != nil {
		return err
	}
	if !r.OK() {
		return told(fault.Problems, "problems were found")
	}
	return nil
}

// showReport tells one finding after the other, the worst first: what, where,
// why and what to do need more room than a table's columns have.
func showReport(w io.Writer, r doctor.Report) {
	for _, f := range r.Findings {
		n := ""
		if f.Count > 1 {
			n = count(f.Count) + " × "
		}
		fmt.Fprintf(w, "%-8s %s: %s%s\n", strings.ToUpper(string(f.Severity)), f.Code, n, sentence(f.What))
		for _, place := range f.Where {
			fmt.Fprintf(w, "  where  %s\n", sentence(place))
		}
		if more := f.Count - uint64(len(f.Where)); len(f.Where) > 0 && f.Count > uint64(len(f.Where)) {
			fmt.Fprintf(w, "  where  … and %s more\n", count(more))
		}
		fmt.Fprintf(w, "  why    %s\n  do     %s\n\n", f.Why, sentence(f.Remedy))
	}
	fmt.Fprintf(w, "job %s at %s: %s under its root, %s in the index, %s checked, %s\n", quoted(r.Job), r.Server,
		number(int(r.Keys), "key"), number(int(r.Indexed), "name"), number(int(r.Elements), "element"), millis(r.DurationMs))
	for _, n := range r.NotLooked {
		fmt.Fprintf(w, "not looked at: %s\n", sentence(n))
	}
	if r.OK() {
		fmt.Fprintln(w, "nothing is wrong")
		return
	}
	fmt.Fprintf(w, "%s, %s\n", number(r.Errors, "error"), number(r.Warnings, "warning"))
}
