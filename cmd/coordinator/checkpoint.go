package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator/api"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

func (a *app) checkpointCommand() *cli.Command {
	force := &cli.BoolFlag{Name: "force", Usage: "also when it is needed (newest, pinned, undo)"}
	return &cli.Command{Name: "checkpoint", Usage: "take, look at, prove and keep checkpoints", Subcommands: []*cli.Command{
		{Name: "create", Usage: "take a checkpoint now; with --name a savepoint", ArgsUsage: "JOB", Action: a.checkpointCreate, Flags: []cli.Flag{
			&cli.StringFlag{Name: "name", Usage: "make it a savepoint, kept until you delete it"},
			&cli.StringFlag{Name: "note", Usage: "a remark"},
			&cli.StringFlag{Name: "grade", Usage: "how to cut: auto, precopy, paused"},
			&cli.BoolFlag{Name: "verify-live", Usage: "read everything and compare it with what tracking believed since the checkpoint before"},
			&cli.BoolFlag{Name: "wait-copies", Usage: "return when every directory of store.copies has its copy; one that fails is an error"}, waitFlag()}},
		{Name: "list", Usage: "the whole history", ArgsUsage: "JOB", Action: a.checkpointList},
		{Name: "show", Usage: "one checkpoint, the newest restorable without ID", ArgsUsage: "JOB [ID]", Action: a.checkpointShow},
		{Name: "verify", Usage: "read a checkpoint whole and report every problem", ArgsUsage: "JOB [ID]", Action: a.checkpointVerify, Flags: []cli.Flag{
			&cli.StringFlag{Name: "from", Usage: "verify a file that was exported, or a directory of them, without a coordinator; no JOB then"}}},
		a.exportCommand(), a.importCommand(),
		{Name: "pin", Usage: "keep from retention", ArgsUsage: "JOB ID", Action: a.checkpointPin("pin")},
		{Name: "unpin", Usage: "give back to retention", ArgsUsage: "JOB ID", Action: a.checkpointPin("unpin")},
		a.acceptCommand(),
		{Name: "delete", Usage: "delete a checkpoint or savepoint", ArgsUsage: "JOB ID", Action: a.checkpointDelete, Flags: []cli.Flag{yesFlag(), force}},
	}}
}

func checkpointPath(job, which, rest string) string {
	if which == "" {
		which = "latest"
	}
	return jobPath(job, "/checkpoints/"+api.Segment(which)+rest)
}

func (a *app) checkpointCreate(ctx *cli.Context) error {
	args, err := positional(ctx, "JOB")
	if err != nil {
		return err
	}
	if ctx.IsSet("name") && ctx.String("name") == "" {
		return fault.New(fault.Usage, "give it a name, or leave --name away", "the savepoint's name is empty")
	}
	grade, err := gradeFlag(ctx)
	if err != nil {
		return err
	}
	c, err := a.client(ctx)
	if err != nil {
		return err
	}
	var op api.Operation
	if err := c.Call(ctx.Context, http.MethodPost, jobPath(args[0], "/checkpoints"), api.CreateCheckpoint{Name: ctx.String("name"), Note: ctx.String("note"), Grade: grade, VerifyLive: ctx.Bool("verify-live")}, &op); err != nil {
		return err
	}
	if !ctx.Bool("wait") {
		return a.showStarted(op)
	}
	if op, err = a.follow(ctx.Context, c, op); err != nil {
		return err
	}
	out := taken{Checkpoint: *op.Checkpoint}
	if out.Copies, err = a.copiesOf(ctx, c, out.Checkpoint); err != nil && ctx.Bool("wait-copies") {
		return err
	} // otherwise nothing is said of copies: the checkpoint is complete, and the coordinator may be stopping
	if err := a.show(out, func(w io.Writer) {
		showTaken(w, out.Checkpoint, ctx.Bool("verify-live"))
		showCopied(w, out.Copies)
	}); err != nil || !ctx.Bool("wait-copies") {
		return err
	}
	return notCopied(out)
}

// gradeFlag is the grade that is asked for, "" for the job's own. One that is
// known but not there yet the coordinator refuses.
func gradeFlag(ctx *cli.Context) (snapshot.Grade, error) {
	if !ctx.IsSet("grade") {
		return "", nil
	}
	grade, err := snapshot.ParseGrade(ctx.String("grade"))
	if err != nil {
		return "", fault.New(fault.Usage, "give one of auto, precopy, paused", "--grade %q: no such grade", ctx.String("grade"))
	}
	return grade, nil
}

// showTaken tells of a checkpoint that was just taken.
func showTaken(w io.Writer, cp snapshot.Checkpoint, verified bool) {
	fmt.Fprintf(w, "%s %s completed in %s: %s keys, %s elements, %s (%s stored), grade %s, writers waited %.1f ms\n",
		cp.Kind, nameOf(cp), millis(cp.DurationMs), count(cp.Keys), count(cp.Elements), size(cp.Bytes), size(cp.StoredBytes), cp.Grade, cp.StallMs)
	showShrunk(w, cp)
	if cp.Incremental {
		fmt.Fprintf(w, "incremental: what had changed since checkpoint %d\n", cp.Parent)
	}
	if len(cp.Hot) > 0 {
		fmt.Fprintf(w, "warning: written faster than it could be read: %s\n", hot(cp.Hot))
	}
	if verified {
		fmt.Fprintln(w, verdict(cp))
	}
	if cp.Missing > 0 {
		fmt.Fprintf(w, "warning: %s indexed keys do not exist\n", count(cp.Missing))
	}
}

func (a *app) showStarted(op api.Operation) error {
	return a.show(op, func(w io.Writer) { fmt.Fprintf(w, "operation %s (%s) started\n", op.ID, op.Kind) })
}

func (a *app) checkpointList(ctx *cli.Context) error {
	args, c, err := a.begin(ctx, "JOB")
	if err != nil {
		return err
	}
	var out api.List[api.Row]
	if err := c.Call(ctx.Context, http.MethodGet, jobPath(args[0], "/checkpoints"), nil, &out); err != nil {
		return err
	}
	return a.show(out, func(w io.Writer) {
		if len(out.Items) == 0 {
			fmt.Fprintf(w, "job %s has no checkpoints yet\n", quoted(args[0]))
			return
		}
		now := time.Now()
		head := []any{"ID", "KIND", "STATE", "TRIGGER", "AGE", "TOOK", "STALL", "KEYS", "ELEMENTS", "SIZE", "STORED", "READ", "P"}
		copied := slices.ContainsFunc(out.Items, func(r api.Row) bool { return r.Copied != nil })
		if copied {
			head = append(head, "COPIES")
		}
		t := newTable(w, append(head, "REMARKS")...)
		for _, cp := range out.Items {
			row := []any{nameOf(cp.Checkpoint), cp.Kind, cp.State, cp.Trigger, since(cp.StartedAt, now), millis(cp.DurationMs),
				fmt.Sprintf("%.1f ms", cp.StallMs), count(cp.Keys), count(cp.Elements), size(cp.Bytes), size(cp.StoredBytes), extent(cp.Checkpoint), cp.Parallelism}
			if copied {
				row = append(row, tally(cp.Copied))
			}
			t.AppendRow(append(row, marks(cp.Checkpoint)))
		}
		t.Render()
	})
}

func (a *app) checkpointShow(ctx *cli.Context) error {
	args, c, err := a.begin(ctx, "JOB", "[ID]")
	if err != nil {
		return err
	}
	var d api.Detail
	if err := c.Call(ctx.Context, http.MethodGet, checkpointPath(args[0], args[1], ""), nil, &d); err != nil {
		return err
	}
	return a.show(d, func(w io.Writer) { showDetail(w, d, time.Now()) })
}

func showDetail(w io.Writer, d api.Detail, now time.Time) {
	line(w, string(d.Kind), "%s of job %s, %s", nameOf(d.Checkpoint), quoted(d.Job), d.State)
	line(w, "trigger", "%s, started %s (%s ago)", d.Trigger, when(d.StartedAt), since(d.StartedAt, now))
	if d.Failure != nil {
		line(w, "failure", "%s: %s", d.Failure.Reason, sentence(d.Failure.Message))
	}
	if m := marks(d.Checkpoint); m != "" && d.Failure == nil {
		line(w, "remarks", "%s", m)
	}
	if d.State != snapshot.StateCompleted || d.Identity == nil {
		return
	}
	line(w, "cut", "grade %s at %s, writers waited %.1f ms, took %s", d.Grade, when(*d.CutAt), d.StallMs, millis(d.DurationMs))
	showHow(w, d.Checkpoint)
	line(w, "drill", "%s", drilled(d.Drill))
	line(w, "state of", "job %s, prefix %s, %s", quoted(d.Identity.Job), quoted(d.Identity.Prefix), d.Identity.Server)
	line(w, "holds", "%s keys, %s elements, %s%s; %d indexed keys did not exist", count(d.Keys), count(d.Elements), about(d.Checkpoint), size(d.Bytes), d.Missing)
	line(w, "stored", "%s new, %s in %d chunks in all, %s, format %d", size(d.StoredBytes), size(d.FullBytes), d.Chunks, layers(d.Layers), d.Format)
	for _, c := range d.Copies {
		line(w, "copy", "%s", copyLine(c))
	}
	line(w, "parallelism", "%d of at most %d, hash %s, epoch %d", d.Parallelism, d.MaxParallelism, d.KeyGroups.Hash, d.Epoch)
	if len(d.States) > 0 {
		t := newTable(w, "OPERATOR", "STATE", "TYPE", "KEYS", "ELEMENTS", "SIZE")
		for _, s := range d.States {
			t.AppendRow([]any{orUnparsed(s.Operator), quoted(s.State), s.Type, count(s.Keys), count(s.Elements), size(s.Bytes)})
		}
		t.Render()
	}
	if len(d.Sources) > 0 {
		t := newTable(w, "SOURCE", "CONSUMER GROUP", "PARTITION", "LAST DELIVERED", "PENDING")
		for _, s := range d.Sources {
			t.AppendRow([]any{quoted(s.Topic), quoted(s.Group), s.Partition, s.LastID, s.Pending})
		}
		t.Render()
	}
}

func orUnparsed(s string) string {
	if s == "" {
		return "(not parsed)"
	}
	return quoted(s)
}

func (a *app) checkpointVerify(ctx *cli.Context) error {
	if ctx.IsSet("from") {
		return a.verifyFrom(ctx)
	}
	args, c, err := a.begin(ctx, "JOB", "[ID]")
	if err != nil {
		return err
	}
	var op api.Operation
	if err := c.Call(ctx.Context, http.MethodPost, checkpointPath(args[0], args[1], "/verify"), nil, &op); err != nil {
		return err
	}
	if op, err = a.follow(ctx.Context, c, op); err != nil {
		return err
	}
	v := op.Verify
	err = a.show(v, func(w io.Writer) {
		if v.OK {
			fmt.Fprintf(w, "checkpoint %d is whole: %s keys, %s elements, every checksum and count agrees (%s)\n", v.Checkpoint, count(v.Keys), count(v.Elements), millis(v.DurationMs))
			return
		}
		fmt.Fprintf(w, "checkpoint %d has %d problems:\n", v.Checkpoint, len(v.Problems))
		for _, p := range v.Problems {
			fmt.Fprintf(w, "  %s: %s\n", quoted(p.What), quoted(p.Detail))
		}
	})
	if err == nil && !v.OK {
		return told(fault.Problems, "problems were found")
	}
	return err
}

func (a *app) checkpointPin(what string) cli.ActionFunc {
	return func(ctx *cli.Context) error {
		args, c, err := a.begin(ctx, "JOB", "ID")
		if err != nil {
			return err
		}
		var cp snapshot.Checkpoint
		if err := c.Call(ctx.Context, http.MethodPost, checkpointPath(args[0], args[1], "/"+what), nil, &cp); err != nil {
			return err
		}
		return a.show(cp, func(w io.Writer) { fmt.Fprintf(w, "checkpoint %s %sned\n", nameOf(cp), what) })
	}
}

func (a *app) checkpointDelete(ctx *cli.Context) error {
	args, c, err := a.begin(ctx, "JOB", "ID")
	if err != nil {
		return err
	}
	var d api.Detail
	if err := c.Call(ctx.Context, http.MethodGet, checkpointPath(args[0], args[1], ""), nil, &d); err != nil {
		return err
	}
	if err := a.confirm(ctx, nil, fmt.Sprintf("Delete %s %s of job %q, taken %s?", d.Kind, nameOf(d.Checkpoint), d.Job, when(d.StartedAt))); err != nil {
		return err
	}
	path := checkpointPath(args[0], d.ID.String(), "")
	if ctx.Bool("force") {
		path += "?force=true"
	}
	if err := c.Call(ctx.Context, http.MethodDelete, path, nil, nil); err != nil {
		return err
	}
	return a.show(map[string]any{"job": args[0], "id": d.ID, "deleted": true}, func(w io.Writer) {
		fmt.Fprintf(w, "%s %s deleted\n", d.Kind, nameOf(d.Checkpoint))
	})
}
