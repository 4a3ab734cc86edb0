package main

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/api"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

// copyPoll is how often a copy is asked for that is waited for.
const copyPoll = 100 * time.Millisecond

// taken is a checkpoint that was just taken, with its copies.
type taken struct {
	snapshot.Checkpoint
	Copies []coordinator.Copy `json:"copies,omitempty"`
}

// copiesOf asks where a checkpoint's copies are; with --wait-copies until each
// is there or has failed.
func (a *app) copiesOf(ctx *cli.Context, c *api.Client, cp snapshot.Checkpoint) ([]coordinator.Copy, error) {
	for {
		var d api.Detail
		if err := c.Call(ctx.Context, http.MethodGet, checkpointPath(cp.Job, cp.ID.String(), ""), nil, &d); err != nil {
			return nil, fmt.Errorf("checkpoint %d is complete; its copies: %w", cp.ID, err)
		}
		if !ctx.Bool("wait-copies") || !waits(d.Copies) {
			return d.Copies, nil
		}
		select {
		case <-ctx.Context.Done():
			return nil, ctx.Context.Err()
		case <-time.After(copyPoll):
		}
	}
}

func waits(all []coordinator.Copy) bool {
	for _, one := range all {
		if one.State == coordinator.CopyWaiting {
			return true
		}
	}
	return false
}

func made(all []coordinator.Copy) (n int) {
	for _, one := range all {
		if one.State == coordinator.CopyMade {
			n++
		}
	}
	return n
}

// showCopied says whether the copies exist.
func showCopied(w io.Writer, all []coordinator.Copy) {
	n := made(all)
	switch {
	case len(all) == 0:
		return
	case n == len(all):
		fmt.Fprintf(w, "copied to %d of %d directories\n", n, len(all))
		return
	}
	fmt.Fprintf(w, "copied to %d of %d directories so far (--wait-copies waits):\n", n, len(all))
	for _, one := range all {
		fmt.Fprintf(w, "  %s\n", copyLine(one))
	}
}

// notCopied is the error of who wanted to wait for copies that failed.
func notCopied(t taken) error {
	if n := made(t.Copies); n < len(t.Copies) {
		return fault.New(fault.Failed, "the coordinator goes on trying; `coordinator store stats` shows how the directories stand",
			"checkpoint %d is complete, and %d of %d directories have its copy", t.ID, n, len(t.Copies))
	}
	return nil
}

// tally is the same for a table.
func tally(t *coordinator.CopyTally) string {
	if t == nil {
		return ""
	}
	return fmt.Sprintf("%d/%d", t.Made, t.Of)
}
