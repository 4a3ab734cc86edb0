package main

import (
	"fmt"
	"io"
	"net/http"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator/api"
	"keyframe/snapshot"
)

func (a *app) acceptCommand() *cli.Command {
	return &cli.Command{Name: "accept", Usage: "say that a checkpoint which is far smaller than the one before is right: retention goes on", ArgsUsage: "JOB ID",
		Action: a.checkpointAccept, Flags: []cli.Flag{&cli.StringFlag{Name: "note", Usage: "why it is right"}}}
}

func (a *app) checkpointAccept(ctx *cli.Context) error {
	args, c, err := a.begin(ctx, "JOB", "ID")
	if err != nil {
		return err
	}
	var cp snapshot.Checkpoint
	if err := c.Call(ctx.Context, http.MethodPost, checkpointPath(args[0], args[1], "/accept"), api.AcceptCheckpoint{Note: ctx.String("note")}, &cp); err != nil {
		return err
	}
	return a.show(cp, func(w io.Writer) {
		fmt.Fprintf(w, "checkpoint %s accepted: %s\n", nameOf(cp), cp.Shrunk)
	})
}

// showShrunk says of a checkpoint that was just taken that it is in doubt, and
// what to do.
func showShrunk(w io.Writer, cp snapshot.Checkpoint) {
	if !cp.InDoubt() {
		return
	}
	fmt.Fprintf(w, "SHRUNK: it is far smaller than the one before: %s\n", cp.Shrunk)
	fmt.Fprintf(w, "  when that is right: `coordinator checkpoint accept %s %d`; until then nothing older is removed, and a recovery restores an older one\n", quoted(cp.Job), cp.ID)
}

// shrunkMark says in a list that a checkpoint is flagged.
func shrunkMark(s snapshot.Shrunk) string {
	if s.Accepted {
		mark := "shrunk, accepted"
		if s.Note != "" {
			mark += ": " + quoted(s.Note)
		}
		return mark
	}
	return "SHRUNK, not accepted: " + s.String()
}
