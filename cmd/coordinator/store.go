package main

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator/api"
	"keyframe/coordinator/fault"
)

func (a *app) storeCommand() *cli.Command {
	return &cli.Command{Name: "store", Usage: "look after the checkpoint store", Subcommands: []*cli.Command{
		{Name: "stats", Usage: "what the store holds", Action: a.storeStats},
		{Name: "verify", Usage: "walk the whole store and report every problem", Action: a.storeVerify},
		a.salvageCommand(),
		{Name: "compact", Usage: "give back the room that deleted checkpoints left; checkpoints go on", Action: a.storeCompact, Flags: []cli.Flag{waitFlag()}},
		{Name: "backup", Usage: "copy the store to a new file on the coordinator's host; checkpoints go on", ArgsUsage: "FILE",
			Action: a.storeBackup, Flags: []cli.Flag{waitFlag()}}}}
}

func (a *app) storeStats(ctx *cli.Context) error {
	_, c, err := a.begin(ctx)
	if err != nil {
		return err
	}
	var s api.StoreStats
	if err := c.Call(ctx.Context, http.MethodGet, "/store", nil, &s); err != nil {
		return err
	}
	return a.show(s, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %s, of which %s are kept and %s are free to be reused\n", s.Path, size(uint64(s.FileBytes)), size(uint64(s.LiveBytes)), size(uint64(s.FreeBytes)))
		if s.Ratio > 0 {
			fmt.Fprintf(w, "the file is %.2f times as large as what is kept\n", s.Ratio)
		}
		if s.WaitingChunks > 0 {
			fmt.Fprintf(w, "%s in %d chunks of deleted checkpoints are being removed\n", size(uint64(s.WaitingBytes)), s.WaitingChunks)
		}
		fmt.Fprintf(w, "%s, %s, %s in all, %s\n", number(s.Jobs, "job"), number(s.Checkpoints, "checkpoint"), number(s.Attempts, "attempt"), number(s.Chunks, "chunk"))
		showCopies(w, s.Copies)
	})
}

func (a *app) storeVerify(ctx *cli.Context) error {
	_, c, err := a.begin(ctx)
	if err != nil {
		return err
	}
	var out api.StoreCheck
	if err := c.Call(ctx.Context, http.MethodPost, "/store/verify", nil, &out); err != nil {
		return err
	}
	err = a.show(out, func(w io.Writer) {
		for _, p := range out.Problems {
			fmt.Fprintln(w, quoted(p.String()))
		}
		fmt.Fprintf(w, "%d problems (%s)\n", len(out.Problems), millis(out.DurationMs))
	})
	if err == nil && !out.OK {
		return told(fault.Problems, "problems were found")
	}
	return err
}

func (a *app) storeCompact(ctx *cli.Context) error {
	_, c, err := a.begin(ctx)
	if err != nil {
		return err
	}
	op, ended, err := a.upkeep(ctx, c, "/store/compact", nil)
	if err != nil || !ended {
		return err
	}
	r := op.Compact
	return a.show(r, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %s, %s before (%s; writers of the store waited %.0f ms)\n",
			r.Path, size(uint64(r.AfterBytes)), size(uint64(r.BeforeBytes)), millis(r.DurationMs), r.HeldMs)
	})
}

func (a *app) storeBackup(ctx *cli.Context) error {
	args, c, err := a.begin(ctx, "FILE")
	if err != nil {
		return err
	}
	// Before anything is asked: what it is relative to is another process's.
	if !filepath.IsAbs(args[0]) {
		return fault.New(fault.Usage, "give the whole path: the coordinator writes the file, on its own host", "backup file %q is no absolute path", args[0])
	}
	op, ended, err := a.upkeep(ctx, c, "/store/backup", api.Backup{File: args[0]})
	if err != nil || !ended {
		return err
	}
	r := op.Backup
	return a.show(r, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %s, %s, %s, %s (%s; writers of the store waited %.0f ms)\n",
			quoted(r.File), size(uint64(r.Bytes)), number(r.Jobs, "job"), number(r.Checkpoints, "checkpoint"), number(r.Chunks, "chunk"), millis(r.DurationMs), r.HeldMs)
	})
}

// upkeep begins an operation on the store and follows it to its end. Without
// --wait it shows the operation, which has not ended then.
func (a *app) upkeep(ctx *cli.Context, c *api.Client, path string, in any) (op api.Operation, ended bool, err error) {
	if err := c.Call(ctx.Context, http.MethodPost, path, in, &op); err != nil {
		return op, false, err
	}
	if !ctx.Bool("wait") {
		return op, false, a.show(op, func(w io.Writer) { fmt.Fprintf(w, "operation %s: %s\n", op.ID, op.Kind) })
	}
	op, err = a.follow(ctx.Context, c, op)
	return op, err == nil, err
}
