package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/api"
	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

func (a *app) jobCommand() *cli.Command {
	return &cli.Command{Name: "job", Usage: "add, look at, pause and forget jobs", Subcommands: []*cli.Command{
		{Name: "apply", Usage: "add or change a job", ArgsUsage: "-f FILE", Action: a.jobApply, Flags: []cli.Flag{
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "YAML or JSON of one job; - for stdin"}}},
		{Name: "list", Usage: "all jobs", Action: a.jobList},
		{Name: "show", Usage: "one job", ArgsUsage: "JOB", Action: a.jobShow},
		{Name: "pause", Usage: "stop the schedule and recovery by itself", ArgsUsage: "JOB", Action: a.jobPause("pause")},
		{Name: "resume", Usage: "resume the schedule", ArgsUsage: "JOB", Action: a.jobPause("resume")},
		{Name: "unmark", Usage: "end a restore in progress that no coordinator runs any more (its store file was lost)", ArgsUsage: "JOB", Action: a.jobMend("unmark"), Flags: []cli.Flag{yesFlag()}},
		{Name: "adopt", Usage: "go on with the state that is there now, though it isn't the one that was checkpointed", ArgsUsage: "JOB", Action: a.jobMend("adopt"), Flags: []cli.Flag{yesFlag()}},
		{Name: "delete", Usage: "forget a job; its state is left alone", ArgsUsage: "JOB", Action: a.jobDelete, Flags: []cli.Flag{
			&cli.BoolFlag{Name: "purge", Usage: "delete its checkpoints and savepoints too"}, yesFlag()}},
	}}
}

// begin gives a command its arguments, checked, and the client of the API.
func (a *app) begin(ctx *cli.Context, names ...string) ([]string, *api.Client, error) {
	args, err := positional(ctx, names...)
	if err != nil {
		return nil, nil, err
	}
	c, err := a.client(ctx)
	return args, c, err
}

// jobOf asks for one job.
func jobOf(ctx *cli.Context, c *api.Client, name string) (api.Job, error) {
	var j api.Job
	err := c.Call(ctx.Context, http.MethodGet, jobPath(name, ""), nil, &j)
	return j, err
}

func jobPath(job, rest string) string { return "/jobs/" + api.Segment(job) + rest }

// maxJobText is the largest job definition that is sent, in bytes.
const maxJobText = 1 << 20

// readFile reads a job's definition from a file, or from stdin for "-".
func (a *app) readFile(ctx context.Context, path string) ([]byte, error) {
	in := io.NopCloser(a.in)
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fault.Wrap(err, fault.Usage, "give the path of a file, or - for stdin", "read the job")
		}
		in = f
	}
	defer func() { _ = in.Close() }() // it was only read
	data, err := read(ctx, func() ([]byte, error) { return io.ReadAll(io.LimitReader(in, maxJobText+1)) })
	if err == nil && len(data) > maxJobText {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxJobText)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", "read the job")
	}
	return data, nil
}

func (a *app) jobApply(ctx *cli.Context) error {
	if _, err := positional(ctx); err != nil {
		return err
	}
	if ctx.String("file") == "" {
		return fault.New(fault.Usage, "usage: coordinator job apply -f FILE", "missing flag -f")
	}
	data, err := a.readFile(ctx.Context, ctx.String("file"))
	if err != nil {
		return err
	}
	job, err := config.ParseJob(data)
	if err != nil {
		return err
	}
	c, err := a.client(ctx)
	if err != nil {
		return err
	}
	var out api.Job
	if err := c.Call(ctx.Context, http.MethodPut, jobPath(job.Name, ""), job, &out); err != nil {
		return err
	}
	return a.show(out, func(w io.Writer) { fmt.Fprintf(w, "job %s applied: %s\n", quoted(out.Name), out.Health.State) })
}

func (a *app) jobList(ctx *cli.Context) error {
	if _, err := positional(ctx); err != nil {
		return err
	}
	c, err := a.client(ctx)
	if err != nil {
		return err
	}
	var out api.List[api.Job]
	if err := c.Call(ctx.Context, http.MethodGet, "/jobs", nil, &out); err != nil {
		return err
	}
	return a.show(out, func(w io.Writer) {
		if len(out.Items) == 0 {
			fmt.Fprintln(w, "no jobs; add one with `coordinator job apply -f FILE` or in the configuration")
			return
		}
		now := time.Now()
		t := newTable(w, "JOB", "HEALTH", "LEADER", "PARALLELISM", "LAST CHECKPOINT", "AGE", "NEXT", "FAILURES", "NOW")
		for _, j := range out.Items {
			last, age, next, doing := "none", "", "on demand", ""
			if j.Last != nil {
				last, age = nameOf(*j.Last), since(j.Last.StartedAt, now)
			}
			if j.NextCheckpoint != nil {
				next = "in " + max(0, j.NextCheckpoint.Sub(now)).Round(time.Second).String()
			}
			if j.Paused {
				next = "paused"
			}
			if j.Operation != nil {
				doing = string(j.Operation.Kind)
			}
			t.AppendRow([]any{quoted(j.Name), j.Health.State, leaderShort(j.Leader), fmt.Sprintf("%d of %d", j.Parallelism, j.MaxParallelism), last, age, next, j.Failures, doing})
		}
		t.Render()
	})
}

func (a *app) jobShow(ctx *cli.Context) error {
	args, c, err := a.begin(ctx, "JOB")
	if err != nil {
		return err
	}
	j, err := jobOf(ctx, c, args[0])
	if err != nil {
		return err
	}
	return a.show(j, func(w io.Writer) { showJob(w, j, time.Now()) })
}

// line writes a name and what it is.
func line(w io.Writer, name, format string, args ...any) {
	fmt.Fprintf(w, "%-16s %s\n", name, fmt.Sprintf(format, args...))
}

func showJob(w io.Writer, j api.Job, now time.Time) {
	line(w, "job", "%s", quoted(j.Name))
	line(w, "state", "%s under %s", j.Server, quoted(j.Root))
	line(w, "health", "%s since %s", j.Health.State, when(j.Health.Since))
	if j.Health.Message != "" {
		line(w, "", "%s", sentence(j.Health.Message))
	}
	for _, warning := range j.Health.Warnings {
		line(w, "warning", "%s", sentence(warning))
	}
	line(w, "leader", "%s", leaderText(j.Leader))
	line(w, "epoch", "%d", j.Epoch)
	line(w, "parallelism", "%d of at most %d", j.Parallelism, j.MaxParallelism)
	for _, r := range j.Ranges {
		line(w, "", "subtask %d: key groups %d to %d", r.Subtask, r.Start, r.End)
		if r.Subtask == 7 && len(j.Ranges) > 9 {
			line(w, "", "… and %d more", len(j.Ranges)-8)
			break
		}
	}
	line(w, "schedule", "%s; %d times skipped", scheduleOf(j, now), j.SkippedTicks)
	showLast(w, j, now)
	showDue(w, j, now)
	if j.Undo != 0 {
		line(w, "undo", "would restore checkpoint %d", j.Undo)
	}
	if r := j.Recovery; r != nil {
		line(w, "recovering", "since %s, %d attempts; last error: %s", when(r.Since), r.Attempts, quoted(r.LastError))
	}
	if o := j.Operation; o != nil {
		line(w, "now", "%s %s: %s", o.Kind, o.ID, o.Progress.Phase)
	}
}

// leaderText says who leads a job.
func leaderText(l *coordinator.Leader) string {
	switch {
	case l == nil:
		return "nobody yet"
	case l.Me:
		return fmt.Sprintf("this coordinator (%s) since %s, token %d", l.ID, when(l.Since), l.Token)
	}
	return fmt.Sprintf("another coordinator (%s) on %s, API at %s, since %s, token %d", l.ID, quoted(l.Host), quoted(l.Address), when(l.Since), l.Token)
}

// leaderShort is the same for a table.
func leaderShort(l *coordinator.Leader) string {
	switch {
	case l == nil:
		return ""
	case l.Me:
		return "me"
	}
	return quoted(l.Host) + " " + quoted(l.Address)
}

func scheduleOf(j api.Job, now time.Time) string {
	s := j.Config.Checkpoint.Schedule
	switch {
	case s == "":
		if j.Paused {
			return "on demand only; recovery by itself is paused"
		}
		return "on demand only"
	case j.Paused:
		return s + " (paused)"
	case j.NextCheckpoint != nil:
		return s + ", next in " + max(0, j.NextCheckpoint.Sub(now)).Round(time.Second).String()
	}
	return s
}

// showLast shows the newest checkpoint, and the newest good one where that is
// another.
func showLast(w io.Writer, j api.Job, now time.Time) {
	describe := func(c snapshot.Checkpoint) string {
		return fmt.Sprintf("%s, %s old, %s keys, %s elements", nameOf(c), since(c.StartedAt, now), count(c.Keys), count(c.Elements))
	}
	switch {
	case j.Last == nil:
		line(w, "last checkpoint", "none")
	case j.Last.Bad == "":
		line(w, "last checkpoint", "%s", describe(*j.Last))
	default:
		line(w, "last checkpoint", "%s; BAD: %s", describe(*j.Last), quoted(j.Last.Bad))
		if j.Good != nil {
			line(w, "last good one", "%s", describe(*j.Good))
		}
	}
	line(w, "failures", "%d in a row", j.Failures)
	if j.Recovers != 0 {
		newer := ""
		if g := j.Good; g != nil && g.InDoubt() && g.ID > j.Recovers {
			newer = fmt.Sprintf("; checkpoint %d is newer, but far smaller (%s) and not accepted", g.ID, g.Shrunk)
		}
		line(w, "recovery", "of lost state would restore checkpoint %d%s", j.Recovers, newer)
	}
}

// showDue shows by when the next good checkpoint must be there.
func showDue(w io.Writer, j api.Job, now time.Time) {
	switch {
	case j.DueAt == nil && j.NotDue != "":
		line(w, "due", "nothing: %s", j.NotDue)
	case j.DueAt == nil: // the schedule has come to its end
	case j.Overdue:
		line(w, "due", "OVERDUE since %s (%s)", when(*j.DueAt), now.Sub(*j.DueAt).Round(time.Second))
	default:
		line(w, "due", "a good checkpoint by %s", when(*j.DueAt))
	}
}

func (a *app) jobPause(what string) cli.ActionFunc {
	return func(ctx *cli.Context) error {
		args, c, err := a.begin(ctx, "JOB")
		if err != nil {
			return err
		}
		var j api.Job
		if err := c.Call(ctx.Context, http.MethodPost, jobPath(args[0], "/"+what), nil, &j); err != nil {
			return err
		}
		return a.show(j, func(w io.Writer) {
			fmt.Fprintf(w, "job %s: %sd\n", quoted(j.Name), what)
			hereOnly(w, j)
		})
	}
}

// hereOnly warns that what was done to a job is this coordinator's alone, where
// another one leads it.
func hereOnly(w io.Writer, j api.Job) {
	if l := j.Leader; l != nil && !l.Me {
		fmt.Fprintf(w, "warning: this coordinator only stands by: the job is led by %s, which goes on as before; tell that one too: --addr %s\n", leaderText(l), quoted(l.Address))
	}
}

func (a *app) jobDelete(ctx *cli.Context) error {
	args, c, err := a.begin(ctx, "JOB")
	if err != nil {
		return err
	}
	j, err := jobOf(ctx, c, args[0])
	if err != nil { // asked for nothing otherwise
		return err
	}
	question := fmt.Sprintf("Forget job %q and keep its checkpoints?", args[0])
	path := jobPath(args[0], "")
	if ctx.Bool("purge") {
		question = fmt.Sprintf("Forget job %q and DELETE all its checkpoints and savepoints?", args[0])
		path += "?purge=true"
	}
	if err := a.confirm(ctx, nil, question); err != nil {
		return err
	}
	if err := c.Call(ctx.Context, http.MethodDelete, path, nil, nil); err != nil {
		return err
	}
	return a.show(map[string]any{"job": args[0], "deleted": true, "purged": ctx.Bool("purge")}, func(w io.Writer) {
		fmt.Fprintf(w, "job %s deleted; its state in the state store was left alone\n", quoted(args[0]))
		hereOnly(w, j)
	})
}
