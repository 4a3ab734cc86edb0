package main

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator/api"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/rescaler"
	"keyframe/coordinator/restore"
	"keyframe/rescale"
)

func (a *app) restoreCommand() *cli.Command {
	return &cli.Command{Name: "restore", Usage: "put a job's state back to a checkpoint, or change nothing", ArgsUsage: "JOB", Action: a.restore, Flags: []cli.Flag{
		&cli.StringFlag{Name: "checkpoint", Usage: "id or savepoint name; the newest restorable one without it"},
		&cli.StringFlag{Name: "from", Usage: "a file that was exported, or a directory of them or of store.copies: it is imported first"},
		&cli.StringFlag{Name: "as", Usage: "job to restore into; accepts another job name, prefix or server"},
		&cli.BoolFlag{Name: "accept-schema", Usage: "accept registry entries that differ from the live ones"},
		&cli.BoolFlag{Name: "no-undo", Usage: "take no undo checkpoint of what is there"},
		dryRunFlag(), yesFlag(), waitFlag()}}
}

func (a *app) restore(ctx *cli.Context) error {
	args, c, err := a.begin(ctx, "JOB")
	if err != nil {
		return err
	}
	req := api.Restore{Checkpoint: ctx.String("checkpoint"), As: ctx.String("as"), AcceptSchema: ctx.Bool("accept-schema"), NoUndo: ctx.Bool("no-undo")}
	if ctx.IsSet("from") {
		return a.restoreArchive(ctx, c, args[0], req)
	}
	var plan restore.Plan
	if err := c.Call(ctx.Context, http.MethodPost, jobPath(args[0], "/restore/plan"), req, &plan); err != nil {
		return err
	}
	if ctx.Bool("dry-run") {
		return a.show(plan, func(w io.Writer) { showRestorePlan(w, plan) })
	}
	if err := a.confirm(ctx, func(w io.Writer) { showRestorePlan(w, plan) }, fmt.Sprintf("Replace the live state of job %q by checkpoint %d?", plan.Job, plan.Checkpoint)); err != nil {
		return err
	}
	req.Checkpoint = plan.Checkpoint.String() // the one that was shown, also when a newer one came meanwhile
	return a.change(ctx, c, jobPath(args[0], "/restore"), req)
}

// restoreArchive restores from a file. Before somebody has said yes nothing is
// imported, and what would be refused isn't either.
func (a *app) restoreArchive(ctx *cli.Context, c *api.Client, job string, req api.Restore) error {
	from, err := fromPath(ctx, job)
	if err != nil {
		return err
	}
	if dry := ctx.Bool("dry-run"); dry || !ctx.Bool("yes") {
		plan, err := a.planFrom(ctx, c, job, from)
		if err != nil {
			return err
		}
		if dry {
			return a.show(plan, func(w io.Writer) { showPlanFrom(w, from, plan) })
		}
		if err := a.confirm(ctx, func(w io.Writer) { showPlanFrom(w, from, plan) }, fmt.Sprintf("Replace the live state of job %q by checkpoint %d of %s?", plan.Job, plan.Checkpoint, from.path)); err != nil {
			return err
		}
	} else if !a.json {
		for _, note := range from.notes {
			fmt.Fprintln(a.err, sentence(note))
		}
	}
	if req.Checkpoint, err = a.restoreFrom(ctx, c, job, from); err != nil {
		return err
	}
	return a.change(ctx, c, jobPath(job, "/restore"), req)
}

func showRestorePlan(w io.Writer, p restore.Plan) {
	fmt.Fprintf(w, "Restore checkpoint %d of job %s (%s old) into job %s:\n", p.Checkpoint, quoted(p.From), millis(p.AgeMs/1000*1000), quoted(p.Job))
	t := newTable(w, "OPERATOR", "STATE", "TYPE", "KEYS", "ELEMENTS", "SIZE", "REMOVE", "EXPIRED")
	for _, s := range p.States {
		t.AppendRow([]any{orUnparsed(s.Operator), quoted(s.State), s.Type, count(s.Keys), count(s.Elements), size(s.Bytes), count(s.Remove), count(s.Expired)})
	}
	t.AppendFooter([]any{"", "", "", count(p.Keys), count(p.Elements), size(p.Bytes), count(p.Removed), count(p.Expired)})
	t.Render()
	fmt.Fprintf(w, "epoch %d → %d; %d indexed names without a key; %d source positions\n", p.EpochFrom, p.Epoch, p.Missing, len(p.Positions))
	if p.Assignment != nil && p.LiveParallelism != 0 && p.Assignment.Parallelism != p.LiveParallelism {
		fmt.Fprintf(w, "parallelism %d → %d, as the checkpoint has it\n", p.LiveParallelism, p.Assignment.Parallelism)
	}
	for _, warning := range p.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
}

// change starts an operation that changes the state and shows its result.
func (a *app) change(ctx *cli.Context, c *api.Client, path string, req any) error {
	var op api.Operation
	if err := c.Call(ctx.Context, http.MethodPost, path, req, &op); err != nil {
		return err
	}
	if !ctx.Bool("wait") {
		return a.showStarted(op)
	}
	op, err := a.follow(ctx.Context, c, op)
	if err != nil {
		return err
	}
	if r := op.Rescale; r != nil {
		return a.show(r, func(w io.Writer) {
			showRescalePlan(w, r.Plan)
			fmt.Fprintf(w, "rescaled from %d to %d in %s: checkpoint %d, epoch %d; `coordinator undo %s` takes it back\n", r.From, r.To, millis(r.DurationMs), r.Checkpoint, r.Epoch, quoted(r.Job))
		})
	}
	return a.show(op.Restore, func(w io.Writer) {
		r := op.Restore
		fmt.Fprintf(w, "checkpoint %d is live: %s keys, %s elements, %s expired, %s removed, epoch %d, in %s\n",
			r.Checkpoint, count(r.Keys), count(r.Elements), count(r.Expired), count(r.Removed), r.Epoch, millis(r.DurationMs))
		if r.Undo != 0 {
			fmt.Fprintf(w, "what was there is checkpoint %d: `coordinator undo %s` puts it back\n", r.Undo, quoted(r.Job))
		}
		for _, warning := range r.Warnings {
			fmt.Fprintf(w, "warning: %s\n", warning)
		}
	})
}

func (a *app) rescaleCommand() *cli.Command {
	return &cli.Command{Name: "rescale", Usage: "redistribute key groups and operator state over a new parallelism", ArgsUsage: "JOB", Action: a.rescale, Flags: []cli.Flag{
		&cli.IntFlag{Name: "parallelism", Aliases: []string{"p"}, Usage: "the new parallelism"},
		&cli.StringFlag{Name: "split", Usage: "how list state is cut: each or even; the job's own without it"},
		&cli.BoolFlag{Name: "allow-idle", Usage: "accept subtasks that get no partition of a source"},
		&cli.StringSliceFlag{Name: "broadcast", Usage: "operator/name=subtask whose copy counts where copies disagree; may be given again"},
		dryRunFlag(), yesFlag(), waitFlag()}}
}

func (a *app) rescale(ctx *cli.Context) error {
	args, err := positional(ctx, "JOB")
	if err != nil {
		return err
	}
	if !ctx.IsSet("parallelism") {
		return fault.New(fault.Usage, "usage: coordinator rescale JOB --parallelism P", "missing flag --parallelism")
	}
	req := api.Rescale{Parallelism: ctx.Int("parallelism"), Split: rescale.Split(ctx.String("split")), AllowIdle: ctx.Bool("allow-idle")}
	if req.Parallelism < 1 {
		return fault.New(fault.Usage, "give at least 1", "parallelism %d", req.Parallelism)
	}
	if s := req.Split; s != "" && s != rescale.SplitEach && s != rescale.SplitEven {
		return fault.New(fault.Usage, "give each or even", "split %q", s)
	}
	if req.Broadcast, err = broadcastChoices(ctx.StringSlice("broadcast")); err != nil {
		return err
	}
	c, err := a.client(ctx)
	if err != nil {
		return err
	}
	var plan rescaler.Plan
	if err := c.Call(ctx.Context, http.MethodPost, jobPath(args[0], "/rescale/plan"), req, &plan); err != nil {
		return err
	}
	if ctx.Bool("dry-run") {
		return a.show(plan, func(w io.Writer) { showRescalePlan(w, plan) })
	}
	if err := a.confirm(ctx, func(w io.Writer) { showRescalePlan(w, plan) }, fmt.Sprintf("Rescale job %q from %d to %d?", args[0], plan.From, plan.To)); err != nil {
		return err
	}
	return a.change(ctx, c, jobPath(args[0], "/rescale"), req)
}

func broadcastChoices(given []string) (map[string]int, error) {
	choices := map[string]int{}
	for _, g := range given {
		state, subtask, ok := strings.Cut(g, "=")
		n, err := strconv.Atoi(subtask)
		if !ok || err != nil || n < 0 || !strings.Contains(state, "/") {
			return nil, fault.New(fault.Usage, "give operator/name=subtask, such as filter/rules=0", "broadcast choice %q", g)
		}
		choices[state] = n
	}
	return choices, nil
}

func showRescalePlan(w io.Writer, p rescaler.Plan) {
	fmt.Fprintf(w, "Rescale job %s from %d to %d of at most %d (from checkpoint %d):\n", quoted(p.Job), p.From, p.To, p.MaxParallelism, p.Base)
	t := newTable(w, "SUBTASK", "KEY GROUPS", "KEYS", "ELEMENTS", "SIZE")
	for _, r := range p.Ranges {
		t.AppendRow([]any{r.Subtask, fmt.Sprintf("%d to %d", r.Start, r.End), count(r.Keys), count(r.Elements), size(r.Bytes)})
	}
	t.Render()
	moved := 0
	for _, m := range p.Moved {
		moved += m.End - m.Start + 1
	}
	fmt.Fprintf(w, "%d key groups change their subtask; skew (fullest to mean) %.2f → %.2f\n", moved, p.SkewBefore, p.SkewAfter)
	if len(p.OperatorState) > 0 {
		t := newTable(w, "OPERATOR", "STATE", "MODE", "ITEMS BEFORE", "ITEMS AFTER")
		for _, s := range p.OperatorState {
			t.AppendRow([]any{quoted(s.Operator), quoted(s.Name), s.Mode, fmt.Sprint(s.Before), fmt.Sprint(s.After)})
		}
		t.Render()
	}
	for _, warning := range p.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
}

func (a *app) undoCommand() *cli.Command {
	return &cli.Command{Name: "undo", Usage: "put back what was there before the last restore or rescale", ArgsUsage: "JOB", Action: a.undo,
		Flags: []cli.Flag{dryRunFlag(), yesFlag(), waitFlag()}}
}

func (a *app) undo(ctx *cli.Context) error {
	args, c, err := a.begin(ctx, "JOB")
	if err != nil {
		return err
	}
	j, err := jobOf(ctx, c, args[0])
	if err != nil {
		return err
	}
	var plan restore.Plan
	if l := j.Leader; j.Undo == 0 && l != nil && !l.Me {
		// Who stands by says that first: what it could undo says nothing.
		if err := c.Call(ctx.Context, http.MethodPost, jobPath(args[0], "/restore/plan"), api.Restore{}, &plan); err != nil {
			return err
		}
	}
	if j.Undo == 0 {
		return fault.New(fault.NoCheckpoint, "`coordinator restore JOB --checkpoint ID` restores any checkpoint", "job %q has nothing to undo", args[0])
	}
	if err := c.Call(ctx.Context, http.MethodPost, jobPath(args[0], "/restore/plan"), api.Restore{Checkpoint: j.Undo.String()}, &plan); err != nil {
		return err
	}
	if ctx.Bool("dry-run") {
		return a.show(plan, func(w io.Writer) { showRestorePlan(w, plan) })
	}
	if err := a.confirm(ctx, func(w io.Writer) { showRestorePlan(w, plan) }, fmt.Sprintf("Put job %q back to checkpoint %d?", args[0], j.Undo)); err != nil {
		return err
	}
	return a.change(ctx, c, jobPath(args[0], "/undo?checkpoint="+j.Undo.String()), nil) // the one that was shown
}
