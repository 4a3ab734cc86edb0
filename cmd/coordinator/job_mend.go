package main

import (
	"fmt"
	"io"
	"net/http"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator/api"
)

// mends are what a person may decide about a job that its guard holds: the
// question below the guard's message, and what is said when it is done.
var mends = map[string]struct{ question, done string }{
	"unmark": {"End it? Make sure that no other coordinator runs it; the live state is whole either way.", "the mark is gone"},
	"adopt": {"Go on with the state that is there now? The history stays, but lost state will not be recovered from what is older.",
		"the state that is there now is the job's; take a checkpoint of it"},
}

// jobMend asks, and has the coordinator do it.
func (a *app) jobMend(what string) cli.ActionFunc {
	return func(ctx *cli.Context) error {
		args, c, err := a.begin(ctx, "JOB")
		if err != nil {
			return err
		}
		j, err := jobOf(ctx, c, args[0])
		if err != nil {
			return err
		}
		says := func(w io.Writer) {
			fmt.Fprintf(w, "job %s is %s: %s\n", quoted(j.Name), j.Health.State, j.Health.Message)
		}
		if err := a.confirm(ctx, says, mends[what].question); err != nil {
			return err
		}
		var op api.Operation
		if err := c.Call(ctx.Context, http.MethodPost, jobPath(args[0], "/"+what), nil, &op); err != nil {
			return err
		}
		if op, err = a.follow(ctx.Context, c, op); err != nil {
			return err
		}
		return a.show(op, func(w io.Writer) { fmt.Fprintf(w, "job %s: %s\n", quoted(args[0]), mends[what].done) })
	}
}
